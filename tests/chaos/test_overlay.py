"""The overlay in real processes: they see what they would see on a private copy, and change nothing but that."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from resumable.chaos.launch.runner import _environment
from resumable.chaos.recorder.overlay.state import REFUSED
from resumable.failpoints import VARIABLE

OPERATIONS = Path(__file__).parent / "scripts" / "file_operations.py"
OLD = 5e8  # seconds: times of the files that are there


class Machine:
    """A folder with files, a case, and programs that run in it.

    Args:
        base: an empty directory.
    """

    def __init__(self, base: Path) -> None:
        self.folder = fill(base / "machine" / "folder")
        self.case, self.ledger = base / "case", base / "case" / "attempt-0"
        for directory in (self.ledger, self.case / "work"):
            directory.mkdir(parents=True)
        plan = {"attempt": 0, "directory": str(self.ledger), "case": str(self.case), "faults": []}
        (self.ledger / "plan.json").write_text(json.dumps(plan))

    def run(self, *words: str, status: int = 0, **variables: str) -> str:
        """Run Python in the case's directory; `FOLDER` in its words is the folder."""
        words = tuple(word.replace("FOLDER", str(self.folder)) for word in words)
        environment = {**os.environ, **_environment(self.ledger / "plan.json"), **variables}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.case / "work",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def events(self, kind: str) -> set[str]:
        lines = [line for path in self.ledger.glob("outside-*.jsonl") for line in path.read_text().splitlines()]
        return {event.get("path") or event["why"] for event in map(json.loads, lines) if event["kind"] == kind}

    def state(self) -> object:
        return digest(self.folder.parent)


def fill(folder: Path) -> Path:
    """Make a folder with files, folders and links."""
    for name in ("a/b", "b", "c/a"):
        (folder / name).mkdir(parents=True)
    for name in ("a/a", "a/c", "b/a", "a/b/c", "c/a/b", "c/b"):
        (folder / name).write_text(f"real {name}")
        os.utime(folder / name, (OLD, OLD))
    (folder / "b/b").symlink_to("a")
    (folder / "b/c").symlink_to("../a")
    return folder


def digest(root: Path) -> object:
    """Return all that is known of what is in a directory, without following links: bytes, modes, times."""
    found = []
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found.append((str(path), info.st_mode, info.st_mtime_ns, info.st_ino, content))
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


SLOW, LONG = pytest.mark.slow, [pytest.mark.slow, pytest.mark.long]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        *range(3),
        *(pytest.param(seed, marks=SLOW) for seed in range(3, 12)),
        *(pytest.param(seed, marks=LONG) for seed in range(12, 40)),
    ],
)
def test_random_operations_give_what_they_give_without(seed: int, machine: Machine, tmp_path: Path) -> None:
    """In two processes, one after the other: the second one sees what the first one wrote."""
    plain, before = fill(tmp_path / "plain" / "folder"), machine.state()
    for part in ("first", "second"):
        words = [str(OPERATIONS), "FOLDER", f"{seed} {part}", "200"]
        printed = machine.run(*words)
        words[1] = str(plain)
        expected = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
        assert printed.splitlines() == expected.stdout.splitlines()
    assert machine.state() == before


def test_redirected_from_the_first_line(machine: Machine) -> None:
    """A program is redirected from its first line on and imports nothing for it."""
    before = machine.state()
    code = "import sys, os; open('FOLDER/new', 'w').write('n'); os.unlink('FOLDER/a/a'); print(sorted(sys.modules))"
    printed = machine.run("-c", code)
    assert "'numpy'" not in printed
    assert "'resumable'" not in printed
    assert machine.state() == before
    assert machine.run("-c", "import os; print(open('FOLDER/new').read(), os.path.exists('FOLDER/a/a'))") == "n False\n"
    assert machine.events("written") == {str(machine.folder), str(machine.folder / "a")}


def test_programs_that_it_starts_are_redirected_too(machine: Machine) -> None:
    before = machine.state()
    child = "open('FOLDER/child', 'w').write('c')"
    spawned = "import multiprocessing, pathlib; m = multiprocessing.get_context('spawn')"
    machine.run("-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)")
    (machine.case / "work" / "spawns.py").write_text(
        f"{spawned}\ndef work(): pathlib.Path({str(machine.folder)!r}, 'spawned').write_text('s')\n"
        "if __name__ == '__main__':\n    p = m.Process(target=work); p.start(); p.join(); assert p.exitcode == 0\n"
    )
    machine.run("spawns.py")
    machine.run("-c", "import os; os.fork() or (open('FOLDER/forked', 'w').write('f'), os._exit(0)); os.wait()")
    assert machine.state() == before
    assert machine.run("-c", "import os; print(sorted(os.listdir('FOLDER')))") == (
        "['a', 'b', 'c', 'child', 'forked', 'spawned']\n"
    )


def test_a_sitecustomize_of_the_users_own_still_runs(machine: Machine, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own = True")
    paths = f"{_environment(machine.ledger / 'plan.json')['PYTHONPATH']}{os.pathsep}{own}"
    assert machine.run("-c", "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)", PYTHONPATH=paths) == (
        f"True {own / 'sitecustomize.py'}\n"
    )
    without = _environment(machine.ledger / "plan.json")["PYTHONPATH"]
    assert machine.run("-c", "import sys; print(hasattr(sys, 'own'))", PYTHONPATH=without) == "False\n"


@pytest.mark.parametrize(
    "code",
    [
        "import io; io.FileIO('FOLDER/a/a', 'w')",
        "import io; io.FileIO('FOLDER/a/a', 'r+')",
        "import posix; posix.unlink('FOLDER/a/a')",
        "import posix; posix.rename('FOLDER/a', 'FOLDER/d')",
        "import posix; posix.rename('FOLDER/a/a', 'inside')",
        "import posix; posix.mkdir('FOLDER/d')",
        "import posix; posix.rmdir('FOLDER/a/b')",
        "import posix; posix.symlink('a', 'FOLDER/d')",
        "import posix; posix.link('FOLDER/a/a', 'inside')",
        "import posix; posix.truncate('FOLDER/a/a', 0)",
        "import posix; posix.chmod('FOLDER/a/a', 0)",
        "import posix; posix.utime('FOLDER/a/a')",
        "import posix; posix.open('FOLDER/a/a', posix.O_WRONLY)",
        "import posix; posix.unlink('a', dir_fd=posix.open('FOLDER/a', posix.O_RDONLY))",
        "import posix; posix.symlink('FOLDER', 'link'); posix.unlink('link/a/a')",
        "try:\n    import posix; posix.unlink('FOLDER/a/a')\nexcept BaseException: pass\nopen('went on', 'w')",
    ],
)
def test_what_is_not_redirected_is_refused_and_ends_the_process(code: str, machine: Machine) -> None:
    before = machine.state()
    printed = machine.run("-c", code, status=REFUSED)
    assert "with a function that is not redirected" in printed
    (why,) = machine.events("refused")
    assert str(machine.folder) in why or "'link" in why or " a with" in why or "link/a/a" in why
    assert machine.state() == before
    assert not (machine.case / "work" / "went on").exists()


@pytest.mark.parametrize(
    "code",
    [
        "import posix; posix.mkdir('d'); posix.rename('d', 'e'); posix.rmdir('e')",  # inside of the case
        "import io; io.FileIO('/dev/null', 'w').write(b'n')",
        "import io; print(io.FileIO('FOLDER/a/a').read())",
        "import os; os.close(os.open('/dev/null', os.O_RDWR)); open('/dev/stderr', 'w').write('e')",
        "import subprocess; subprocess.run(['true'], check=True)",
        "import logging; logging.FileHandler('log').emit(logging.makeLogRecord({}))",
    ],
)
def test_what_changes_nothing_outside_is_let_through(code: str, machine: Machine) -> None:
    machine.run("-c", code)
    assert machine.events("written") == machine.events("refused") == set()


def test_tempfile_stays_in_place(machine: Machine) -> None:
    """Files of `tempfile` stay at the place that programs in C expect."""
    code = """
import os, posix, socket, tempfile
with tempfile.TemporaryDirectory() as folder:
    posix.stat(folder)
    open(folder + "/file", "w").write("x"); posix.stat(folder + "/file")
    socket.socket(socket.AF_UNIX).bind(folder + "/socket")
    os.mkdir(folder + "/more"); posix.stat(folder + "/more")
try: posix.stat(folder); print("left")
except FileNotFoundError: pass
with tempfile.NamedTemporaryFile() as file: posix.stat(file.name)
with tempfile.TemporaryFile() as file: file.write(b"x")
os.close(tempfile.mkstemp()[0])
"""
    machine.run("-c", code)
    assert machine.events("written") == machine.events("refused") == set()


def test_a_temporary_file_beside_its_target_is_redirected(machine: Machine) -> None:
    """As those who write atomically do: it is in the folder of a real run."""
    before = machine.state()
    code = """
import os, tempfile
with tempfile.NamedTemporaryFile("w", dir="FOLDER", delete=False) as file: file.write("new")
os.replace(file.name, "FOLDER/a/a")
print(open("FOLDER/a/a").read())
"""
    assert machine.run("-c", code) == "new\n"
    assert machine.state() == before


def test_caches_are_exempt_and_checkpoints_in_them_are_not(machine: Machine, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("last.ckpt", "model.pt"):
        (cache / name).write_text("real")
    code = f"""
import os
for name in ("compiled.so", "last.ckpt", "model.pt"): open(os.path.join({str(cache)!r}, name), "w").write("new")
os.remove({str(cache / "model.pt")!r})
"""
    machine.run("-c", code, XDG_CACHE_HOME=str(cache))
    assert (cache / "compiled.so").read_text() == "new"
    assert [(cache / name).read_text() for name in ("last.ckpt", "model.pt")] == ["real", "real"]


def test_compiled_python_is_written_where_python_looks_for_it(machine: Machine) -> None:
    (machine.folder / "module.py").write_text("value = 1")
    machine.run("-c", "import sys; sys.path.insert(0, 'FOLDER'); import module", PYTHONDONTWRITEBYTECODE="")
    assert list((machine.folder / "__pycache__").glob("module.*.pyc"))
    assert machine.events("refused") == set()


TORCH = """
import os, torch, fsspec, numpy as np
np.save("FOLDER/array.npy", np.ones(3))
np.memmap("FOLDER/array.npy", mode="r+")[-8:] = 0
assert np.load("FOLDER/array.npy", mmap_mode="r").tolist() == [1, 1, 0]
os.remove("FOLDER/array.npy")
torch.save({"weights": torch.ones(3)}, "FOLDER/a/a")
torch.save({"weights": torch.ones(3)}, "FOLDER/new.pt", _use_new_zipfile_serialization=False)
assert torch.equal(torch.load("FOLDER/a/a")["weights"], torch.ones(3))
assert torch.equal(torch.load("FOLDER/a/a", mmap=True)["weights"], torch.ones(3))
torch.jit.save(torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)), "FOLDER/scripted.pt")
torch.jit.load("FOLDER/scripted.pt")
local = fsspec.filesystem("file")
with local.open("FOLDER/by-fsspec", "wb") as file: file.write(b"x")
local.mv("FOLDER/by-fsspec", "FOLDER/c/moved")
local.rm("FOLDER/b", recursive=True)
assert local.exists("FOLDER/c/moved") and not local.exists("FOLDER/b")
assert sorted(name.rpartition("/")[2] for name in local.ls("FOLDER")) == ["a", "c", "new.pt", "scripted.pt"]
torch.load("FOLDER/../weights.pt")
"""


@pytest.mark.slow
def test_what_torch_and_fsspec_write_is_redirected(machine: Machine) -> None:
    torch = import_module("torch")
    weights = machine.folder.parent / "weights.pt"
    torch.save({"pretrained": torch.ones(3)}, weights)
    before = machine.state()
    machine.run("-W", "ignore", "-c", TORCH)
    assert machine.state() == before
    assert machine.events("read") == {str(weights)}
    assert machine.events("refused") == set()


@pytest.mark.parametrize(
    "code",
    [
        "fs = fsspec.filesystem('http'); fs.open('http://localhost/x', 'wb')",
        "fs = fsspec.filesystem('http'); fs.pipe_file('http://localhost/x', b'')",
        "fs = fsspec.implementations.dirfs.DirFileSystem('http://localhost', fs=fsspec.filesystem('http')); fs.rm('x')",
    ],
)
def test_writing_to_file_systems_elsewhere_is_refused(code: str, machine: Machine) -> None:
    import_module("aiohttp")
    printed = machine.run("-c", f"import fsspec, fsspec.implementations.dirfs\n{code}", status=REFUSED)
    assert "which is remote and cannot be redirected" in printed


def test_memory_is_no_file_system_elsewhere(machine: Machine) -> None:
    machine.run("-c", "import fsspec; fsspec.filesystem('memory').pipe_file('/x', b'x')")


def kill_somewhere(machine: Machine, code: str, seconds: float) -> None:
    words = [sys.executable, "-c", code.replace("FOLDER", str(machine.folder))]
    environment = {**os.environ, **_environment(machine.ledger / "plan.json")}
    place = machine.case / "work"
    with subprocess.Popen(words, cwd=place, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(seconds)
        child.kill()


@pytest.mark.slow
def test_file_is_replaced_at_once(machine: Machine) -> None:
    """A file is replaced at once, also when the process is killed.

    A start that is killed leaves the old content or the new one, as `os.replace` promises.
    """
    before, draw = machine.state(), random.Random(0)
    code = """
import os
print(flush=True)
for number in range(10**9):
    open("FOLDER/draft", "w").write(f"number {number}\\n" * 2000)
    os.replace("FOLDER/draft", "FOLDER/a/a")
"""
    for _ in range(5):
        kill_somewhere(machine, code, draw.uniform(0.01, 0.2))
        lines = set(machine.run("-c", "print(open('FOLDER/a/a').read())").split("\n"))
        assert len(lines - {""}) == 1
    assert machine.state() == before


def test_nothing_is_replaced_without_a_plan() -> None:
    code = "import builtins, io, os, resumable; print(builtins.open, io.open, os.open, os.replace, os.stat)"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("<built-in function") == 5
    assert "function call" not in done.stdout


def test_copied_file_keeps_mode_and_time(machine: Machine) -> None:
    """A copied file keeps its mode and time until it is changed."""
    (machine.folder / "a/a").chmod(0o640)
    code = "import os; os.rename('FOLDER/a/a', 'FOLDER/d'); s = os.stat('FOLDER/d'); print(oct(s.st_mode), s.st_mtime)"
    assert machine.run("-c", code) == f"0o100640 {OLD}\n"
