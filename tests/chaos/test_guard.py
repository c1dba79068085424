"""The guard in real processes: they find the user's files in their case, and nothing outside of it changes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.launch.runner import environment_of
from resumable.chaos.recorder.guard import REFUSED
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

OLD = 5e8  # seconds: times of the files that are there


class Machine:
    """A project with files, a folder outside of it, a case, and programs that run in it.

    Args:
        base: an empty directory.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.project, self.outside = base, base / "home" / "project", base / "home" / "outside"
        fill(self.project, self.outside)
        self.case, self.temporary = base / "case", base / "temporary"
        self.ledger, self.work = self.case / "attempt-0", self.case / "work"
        self.ledger.mkdir(parents=True)
        self.temporary.mkdir()
        Mirror(self.project, self.project / "runs").build(self.work)
        plan = {"attempt": 0, "directory": str(self.ledger), "case": str(self.case), "faults": []}
        plan |= {"project": str(self.project), "words": ["python", "train.py", "--out", str(self.outside / "out")]}
        (self.ledger / "plan.json").write_text(json.dumps(plan))

    def environment(self, **variables: str) -> dict[str, str]:
        own = environment_of(self.ledger / "plan.json", self.work) | {"TMPDIR": str(self.temporary)}
        return {**os.environ, **own, **variables}

    def words(self, *words: str) -> list[str]:
        named = {"OUTSIDE": self.outside, "PROJECT": self.project}
        for name, path in named.items():
            words = tuple(word.replace(name, str(path)) for word in words)
        return [sys.executable, *words]

    def run(self, *words: str, status: int = 0, **variables: str) -> str:
        """Run Python in the case; `OUTSIDE` and `PROJECT` in its words are the folders."""
        environment = self.environment(**variables)
        done = subprocess.run(
            self.words(*words), cwd=self.work, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def events(self, kind: str) -> set[str]:
        lines = [line for path in self.ledger.glob("files-*.jsonl") for line in path.read_text().splitlines()]
        return {event.get("path") or event["why"] for event in map(json.loads, lines) if event["kind"] == kind}

    def state(self) -> object:
        return digest(self.base / "home")


def fill(project: Path, outside: Path) -> None:
    """Make files, folders and links: small and large ones, and some that lead out of the project."""
    for place in (project / "data", project / "pkg", project / "many", project / "runs", outside / "a" / "b"):
        place.mkdir(parents=True)
    for path in (project / "config.py", project / "data" / "small", outside / "a" / "a", outside / "a" / "b" / "c"):
        path.write_text(f"real {path.name}")
    (project / "pkg" / "__init__.py").write_text("from pathlib import Path; HERE = Path(__file__).resolve().parent")
    (project / "data" / "large").write_bytes(b"x" * (1 << 20) + b"end")
    for number in range(1001):
        (project / "many" / f"{number:04}").write_text(str(number))
    (project / "linked").symlink_to(outside / "a")
    (project / "file").symlink_to("data/small")
    (project / "itself").symlink_to("itself")
    for path in sorted(project.rglob("*")):
        os.utime(path, (OLD, OLD), follow_symlinks=False)


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


READ = """
import os, pkg
for name in ("config.py", "data/small", "file", "linked/a", "linked/b/c", "../outside/a/a"): print(open(name).read())
print(os.path.getsize("data/large"), len(os.listdir("many")), open("many/0007").read(), sorted(os.listdir(".")))
print(pkg.HERE.relative_to(os.getcwd()), os.environ["PWD"] == os.getcwd())
"""


def test_a_program_finds_its_files(machine: Machine) -> None:
    before = machine.state()
    assert machine.run("-c", READ).splitlines() == [
        *("real config.py", "real small", "real small", "real a", "real c", "real a"),
        "1048579 1001 7 ['config.py', 'data', 'file', 'linked', 'many', 'pkg']",
        "pkg True",
    ]
    assert machine.state() == before
    assert machine.events("stopped") == set()


# Each program changes files of the case alone, and prints what is there then.
INSIDE = {
    "a new file": ("open('data/new', 'w').write('n'); print(open('data/new').read())", "n"),
    "a copied file": ("open('config.py', 'a').write('!'); print(open('config.py').read())", "real config.py!"),
    "a linked file": ("open('data/large', 'a').write('!'); print(open('data/large').read()[-4:])", "end!"),
    "a linked file in place": (
        "f = open('data/large', 'r+b'); f.seek(2); f.write(b'yy'); f.close(); print(open('data/large').read()[:6])",
        "xxyyxx",
    ),
    "a linked file anew": ("open('data/large', 'w').write('new'); print(open('data/large').read())", "new"),
    "in a linked folder": (
        """open('many/new', 'w').write('n'); open('many/0007', 'a').write('!')
print(len(os.listdir('many')), open('many/0007').read(), open('many/0008').read())""",
        "1002 7! 8",
    ),
    "a linked folder away": ("import shutil; shutil.rmtree('many'); print(os.path.exists('many'))", "False"),
    "a folder through a link": ("os.makedirs('linked/b/d'); print(sorted(os.listdir('linked/b')))", "['c', 'd']"),
    "a file through a link": ("open('file', 'w').write('n'); print(open('data/small').read())", "n"),
    "a rename": (
        "os.replace('data/large', 'other'); print(os.path.getsize('other'), os.listdir('data'))",
        "1048579 ['small']",
    ),
    "a rename over": (
        "open('t', 'w').write('n'); os.replace('t', 'data/large'); print(open('data/large').read())",
        "n",
    ),
    "truncated": ("os.truncate('data/large', 3); print(open('data/large').read())", "xxx"),
    "rights and times": (
        "os.chmod('data/large', 0o600); os.utime('data/large', (1, 1)); print(os.stat('data/large').st_mtime)",
        "1.0",
    ),
    "a hard link": ("os.link('data/large', 'hard'); open('hard', 'w').write('n'); print(open('hard').read())", "n"),
    "in an open folder": (
        """d = os.open('data', os.O_RDONLY); os.close(os.open('n', os.O_WRONLY | os.O_CREAT, dir_fd=d))
print('n' in os.listdir('data'))""",
        "True",
    ),
    "next to it": ("open('../outside/new', 'w').write('n'); print(sorted(os.listdir('../outside')))", "['a', 'new']"),
    "sqlite": (
        """import sqlite3; c = sqlite3.connect('linked/base'); c.execute('create table t (x)'); c.close()
print(sorted(os.listdir('linked')))""",
        "['a', 'b', 'base']",
    ),
    "a temporary file": (
        """import tempfile
with tempfile.NamedTemporaryFile() as f: f.write(b'n')
open(tempfile.mkdtemp() + '/f', 'w').write('n'); print(len(os.listdir(tempfile.gettempdir())))""",
        "1",
    ),
    "devices": ("open('/dev/null', 'w').write('n'); open('/dev/stdout', 'w').write('out\\n')", "out"),
    "a fork": (
        "os.fork() or (open('forked', 'w').write('f'), os._exit(0)); os.wait(); print(open('forked').read())",
        "f",
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_program_changes_only_its_case(name: str, machine: Machine) -> None:
    code, printed = INSIDE[name]
    before = machine.state()
    assert machine.run("-c", f"import os\n{code}").strip() == printed
    assert machine.state() == before
    assert machine.events("stopped") == set()


# Each program would change a file outside of its case.
OUTSIDE = {
    "open": "open('OUTSIDE/a/a', 'w')",
    "open to append": "open('OUTSIDE/a/a', 'a')",
    "a new file": "open('OUTSIDE/new', 'w')",
    "of the project": "open('PROJECT/config.py', 'a')",
    "FileIO": "import io; io.FileIO('OUTSIDE/a/a', 'r+')",
    "pathlib": "import pathlib; pathlib.Path('OUTSIDE/a/a').write_text('BAD')",
    "os.open": "os.open('OUTSIDE/a/a', os.O_WRONLY)",
    "os.open below a descriptor": "os.open('a', os.O_WRONLY, dir_fd=os.open('OUTSIDE/a', os.O_RDONLY))",
    "posix": "import posix; posix.unlink('OUTSIDE/a/a')",
    "in a descriptor": "os.unlink('a', dir_fd=os.open('OUTSIDE/a', os.O_RDONLY))",
    "a rename away": "os.rename('OUTSIDE/a/a', 'inside')",
    "a rename to it": "open('t', 'w').write('BAD'); os.replace('t', 'OUTSIDE/a/a')",
    "a tree": "import shutil; shutil.rmtree('OUTSIDE/a')",
    "a folder": "os.makedirs('OUTSIDE/x/y')",
    "a folder away": "os.rmdir('OUTSIDE/a/b')",
    "a link": "os.symlink('a', 'OUTSIDE/d')",
    "a hard link": "os.link('OUTSIDE/a/a', 'inside')",
    "through a link": "os.symlink('OUTSIDE/none', 'l'); open('l', 'w')",
    "truncate": "os.truncate('OUTSIDE/a/a', 0)",
    "rights": "os.chmod('OUTSIDE/a/a', 0)",
    "rights of a descriptor": "f = open('OUTSIDE/a/a'); os.fchmod(f.fileno(), 0o600)",
    "times": "os.utime('OUTSIDE/a/a')",
    "times of a descriptor": "f = open('OUTSIDE/a/a'); os.utime(f.fileno(), (1, 1))",
    "a descriptor's name": "f = open('OUTSIDE/a/a'); open(f'/proc/self/fd/{f.fileno()}', 'w')",
    "an opener": "import posix; open('OUTSIDE/a/a', 'w', opener=lambda path, flags: posix.open(path, flags))",
    "a pipe": "os.mkfifo('OUTSIDE/pipe')",
    "sqlite": "import sqlite3; sqlite3.connect('OUTSIDE/base')",
    "another folder": "os.chdir('OUTSIDE'); open('a/a', 'w')",
    "a child": "import subprocess as s, sys; os._exit(s.call([sys.executable, '-c', 'open(\"OUTSIDE/a/a\", \"w\")']))",
    "an exception caught": "try: open('OUTSIDE/a/a', 'w')\nexcept BaseException: pass\nopen('continued', 'w')",
}


FORKS = """
import json, os, sys
for name, code in json.loads(sys.argv[1]).items():
    process = os.fork()
    if process == 0:
        exec(code)
        os._exit(0)
    print("status", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), name, flush=True)
"""


def test_a_write_outside_ends_the_process(machine: Machine) -> None:
    before = machine.state()
    printed = machine.run("-c", FORKS, json.dumps(OUTSIDE))
    ended = [line.split(maxsplit=2)[1:] for line in printed.splitlines() if line.startswith("status ")]
    assert ended == [[str(REFUSED), name] for name in OUTSIDE]
    assert all("the command would have written to " in why for why in machine.events("stopped"))
    assert machine.state() == before
    assert not (machine.work / "continued").exists()


def test_the_error_contains_the_fix(machine: Machine) -> None:
    machine.work.joinpath("train.py").write_text("import sys\n\nopen(sys.argv[1], 'w')\n")
    told = machine.run("train.py", "OUTSIDE/out/last.pt", status=REFUSED)
    assert f"written to {machine.outside}/out/last.pt, which is outside its case (train.py, line 3)." in told
    assert f"Replace {machine.outside}/out in the command with a relative path, which leads into the case" in told
    told = machine.run("train.py", "PROJECT/out/last.pt", status=REFUSED)
    assert "Use the relative path out/last.pt, which leads into the case, or pass the folder as an option" in told
    told = machine.run("-c", "import numpy as np; np.memmap('big')", status=1)
    with (machine.outside / "big").open("wb") as file:
        file.truncate((1 << 30) + 1)
    told = machine.run("-c", "open('../outside/big', 'r+')", status=REFUSED)
    assert "a file of 1.1 GB.\nEach case would need a copy of it. If the program only reads it" in told


def test_hidden_folders_at_home_are_not_changed(machine: Machine) -> None:
    """Libraries continue without them."""
    code = "try: os.makedirs('OUTSIDE/.config/lib')\nexcept PermissionError: print('continued')"
    assert machine.run("-c", f"import os\n{code}", HOME=str(machine.outside)) == "continued\n"
    assert not (machine.outside / ".config").exists()


def test_checkpoints_of_an_earlier_run_are_left_out(tmp_path: Path) -> None:
    torch, resumable = import_module("torch"), import_module("resumable")
    project = tmp_path / "project"
    state = {"loader": resumable.wrap([1, 2, 3], seed=0).state_dict(), "model": {"w": torch.ones(2)}}
    for name in ("out/ckpt.pt", "out/best.pt", "last.pth.tar", "pkg/last.pt", "hf/checkpoint-500/trainer.pt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(state["model"] if "best" in name else state, project / name)
    torch.save(state["model"], project / "weights.pt")
    resumable.CheckpointStore(project / "runs" / "store").save(3, state)
    others = (".git/HEAD", "venv/pyvenv.cfg", "venv/bin/python", "before/campaign.lock", "before/0001/work/train.py")
    for name in ("out/log.txt", "out/plots/a.png", "pkg/train.py", *others):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    mirror = Mirror(project, project / "runs" / "chaos")
    mirror.build(tmp_path / "work")
    found = {str(path.relative_to(tmp_path / "work")) for path in (tmp_path / "work").rglob("*") if path.is_file()}
    assert {name for name in found if "store" not in name} == {"weights.pt", "out/plots/a.png", "pkg/train.py"}
    assert not list((tmp_path / "work").rglob("step-*"))
    assert (tmp_path / "work" / "out").is_dir()
    assert not (tmp_path / "work" / "hf" / "checkpoint-500").exists()
    assert set(mirror.left_out) == {
        *("out", "last.pth.tar", "pkg/last.pt", "hf/checkpoint-500", "runs/store/step-000000000003"),
    }


def test_paths_in_the_command_lead_into_the_mirror(machine: Machine) -> None:
    mirror, project = Mirror(machine.project), machine.project
    assert mirror.path(f"{project}/config.py", machine.work) == f"{machine.work}/config.py"
    assert mirror.path(f"--out={project}/new", machine.work) == f"--out={machine.work}/new"
    assert mirror.path("--config=config.py", machine.work) == "--config=config.py"
    assert mirror.path(f"--data={machine.outside}/a", machine.work) == f"--data={machine.outside}/a"
    assert mirror.path("../outside/a/a", machine.work) == str(machine.outside / "a" / "a")
    assert mirror.path("lr=1e-3", machine.work) == "lr=1e-3"
    before = machine.state()
    code = "import sys, pkg; print(pkg.HERE, 'numpy' in sys.modules, 'resumable' in sys.modules)"
    assert machine.run("-P", "-c", code, PYTHONPATH=self_path(machine)) == f"{machine.work}/pkg False False\n"
    assert machine.state() == before


def self_path(machine: Machine) -> str:
    """Return a PYTHONPATH with the project, as of a package that is installed in place."""
    return f"{environment_of(machine.ledger / 'plan.json', machine.work)['PYTHONPATH']}{os.pathsep}{machine.project}"


def test_a_sitecustomize_of_the_users_own_still_runs(machine: Machine, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.own = True")
    paths = f"{environment_of(machine.ledger / 'plan.json', machine.work)['PYTHONPATH']}{os.pathsep}{own}"
    assert machine.run("-c", "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)", PYTHONPATH=paths) == (
        f"True {own / 'sitecustomize.py'}\n"
    )


def test_caches_may_be_written_and_checkpoints_in_them_not(machine: Machine, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    machine.run("-c", f"open({str(cache / 'compiled.so')!r}, 'w').write('new')", XDG_CACHE_HOME=str(cache))
    assert (cache / "compiled.so").read_text() == "new"
    code = f"import torch; torch.save(1, {str(cache / 'model.pt')!r})"
    machine.run("-c", code, status=REFUSED, XDG_CACHE_HOME=str(cache))
    assert not (cache / "model.pt").exists()


WRITERS = {
    "torch.save": "import torch; torch.save({}, 'PLACE')",
    "torch.jit": "import torch; torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1)).save('PLACE')",
    "safetensors": "import torch, safetensors.torch as s; s.save_file({'w': torch.ones(1)}, 'PLACE')",
    "h5py": "import h5py; h5py.File('PLACE', 'w')['x'] = 1",
    "parquet": "import pyarrow as pa, pyarrow.parquet as p; p.write_table(pa.table({'x': [1]}), 'PLACE')",
    "numpy": "import numpy as np; np.save(open('PLACE', 'wb'), np.ones(3))",
    "fsspec": "import fsspec; f = fsspec.filesystem('file').open('PLACE', 'wb'); f.write(b'x'); f.close()",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_writers_that_announce_nothing_are_guarded(name: str, machine: Machine) -> None:
    for module in ("h5py", "pyarrow", "safetensors"):
        import_module(module)
    before = machine.state()
    machine.run("-W", "ignore", "-c", WRITERS[name].replace("PLACE", "linked/new"))
    assert (machine.work / "linked" / "new").exists()
    machine.run("-W", "ignore", "-c", WRITERS[name].replace("PLACE", "OUTSIDE/a/a"), status=REFUSED)
    assert machine.state() == before


@pytest.mark.parametrize(
    "code",
    [
        "fs = fsspec.filesystem('http'); fs.open('http://localhost/x', 'wb')",
        "fs = fsspec.filesystem('http'); fs.pipe_file('http://localhost/x', b'')",
        "fs = fsspec.implementations.dirfs.DirFileSystem('http://localhost', fs=fsspec.filesystem('http')); fs.rm('x')",
    ],
)
def test_writing_to_filesystems_elsewhere_is_rejected(code: str, machine: Machine) -> None:
    import_module("aiohttp")
    printed = machine.run("-c", f"import fsspec, fsspec.implementations.dirfs\n{code}", status=REFUSED)
    assert "which is remote." in printed


def test_memory_is_local(machine: Machine) -> None:
    machine.run("-c", "import fsspec; fsspec.filesystem('memory').pipe_file('/x', b'x')")


@pytest.mark.slow
def test_a_kill_leaves_the_old_file_or_the_new_one(machine: Machine) -> None:
    """Whenever it hits, links are replaced atomically."""
    before, draw = machine.state(), random.Random(0)
    code = """
import os
print(flush=True)
for number in range(10**9):
    open("draft", "w").write(f"number {number}\\n" * 2000)
    os.replace("draft", "data/large")
    os.remove("data/large"); os.symlink("PROJECT/data/large", "data/large"); open("data/large", "r+").close()
"""
    for _ in range(3):
        child = subprocess.Popen(
            machine.words("-c", code), cwd=machine.work, env=machine.environment(), stdout=subprocess.PIPE
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(draw.uniform(0.01, 0.2))
            child.kill()
    assert machine.state() == before


def test_nothing_is_replaced_without_a_plan() -> None:
    code = "import builtins, io, os, resumable; print(builtins.open, io.open, os.open, os.replace, os.stat)"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("<built-in function") == 5
