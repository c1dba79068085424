"""Other doors to a file: descriptors, openers, methods of torch, and what Python compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from test_overlay import Machine, machine  # noqa: F401, TC002  # a fixture, and what it gives

from resumable.chaos.recorder.overlay.state import REFUSED

if TYPE_CHECKING:
    from pathlib import Path

REDIRECTED = {
    "a descriptor's name": "f = open('FOLDER/a/a'); open(f'/proc/self/fd/{f.fileno()}', 'w').write('BAD')",
    "the same by os.truncate": "f = open('FOLDER/a/a'); os.truncate(f'/dev/fd/{f.fileno()}', 0)",
    "below a descriptor": "d = os.open('FOLDER', os.O_RDONLY); open(f'/proc/self/fd/{d}/a/a', 'w').write('BAD')",
    "unlinked there": "d = os.open('FOLDER', os.O_RDONLY); os.unlink(f'/dev/fd/{d}/a/a')",
    "above the descriptors": "open('/proc/self/fd/../../..FOLDER/a/a', 'w').write('BAD')",
    "a directory with compiled modules": "import shutil; shutil.rmtree('FOLDER/code'); os.mkdir('FOLDER/code')",
    "a copy of such a directory": "import shutil; shutil.copytree('FOLDER/code', 'FOLDER/copy')",
}
STOPPED = {
    "an opener": "open('FOLDER/a/a', 'w', opener=lambda path, flags: posix.open(path, flags)).write('BAD')",
    "times by a descriptor": "f = open('FOLDER/a/a'); os.utime(f.fileno(), (1, 1))",
    "rights by a descriptor": "f = open('FOLDER/a/a'); os.fchmod(f.fileno(), 0o600)",
    "rights of a directory": "d = os.open('FOLDER', os.O_RDONLY); os.chmod(d, 0o700)",
}


@pytest.fixture
def compiled(machine: Machine) -> Machine:  # noqa: F811  # the fixture
    cache = machine.folder / "code" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "a.pyc").write_bytes(b"compiled")
    (cache / "note.txt").write_text("the user's")
    return machine


@pytest.mark.parametrize("door", REDIRECTED)
def test_what_goes_through_another_door_is_redirected(door: str, compiled: Machine) -> None:
    before = compiled.state()
    compiled.run("-c", f"import os, posix\n{REDIRECTED[door]}")
    assert compiled.state() == before


@pytest.mark.parametrize("door", STOPPED)
def test_what_cannot_be_redirected_is_stopped(door: str, compiled: Machine) -> None:
    before = compiled.state()
    compiled.run("-c", f"import os, posix\n{STOPPED[door]}", status=REFUSED)
    assert compiled.state() == before


def test_descriptors_of_what_the_case_wrote_stay_as_they_are(compiled: Machine) -> None:
    code = """
import os, sys
with open('FOLDER/own', 'w') as f:
    os.fchmod(f.fileno(), 0o600); os.utime(f.fileno(), (1, 1)); os.ftruncate(f.fileno(), 3)
    open(f'/proc/self/fd/{f.fileno()}', 'w').write('own')
print(open('FOLDER/own').read(), file=open('/dev/stdout', 'w'))
open('/dev/null', 'w').write('x')
"""
    assert compiled.run("-c", code) == "own\n"


@pytest.mark.slow
def test_methods_of_torch_save_to_the_case(compiled: Machine) -> None:
    before = compiled.state()
    code = """
import torch
torch.jit.script(torch.nn.Linear(2, 2)).save('FOLDER/method.pt')
torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), 'FOLDER/exported.pt2')
torch.save({}, '/dev/null')
assert torch.jit.load('FOLDER/method.pt')(torch.ones(1, 2)).shape == (1, 2)
assert open('/dev/null').read() == ''
"""
    compiled.run("-W", "ignore", "-c", code)
    assert compiled.state() == before


def test_a_directory_for_compiled_modules_is_python_s_own(compiled: Machine, tmp_path: Path) -> None:
    (compiled.case / "work" / "module.py").write_text("value = 7")
    code = "import sys; sys.path.insert(0, '.'); import module; print(module.value)"
    kept = str(tmp_path / "compiled")
    assert compiled.run("-c", code, PYTHONPYCACHEPREFIX=kept, PYTHONDONTWRITEBYTECODE="") == "7\n"
    assert list((tmp_path / "compiled").rglob("module*.pyc"))
