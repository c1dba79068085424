"""Scripts run as `python script.py` runs them, but forked from a process that has imported torch for all of them.

Only what the text of a script imports is there before it begins, and it was imported under the same filters of
warnings: so nothing is hidden that a process of its own would show, and each run is seconds faster.
"""

from __future__ import annotations

import atexit
import os
import re
import runpy
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from resumable.chaos.launch.preload import Server

WARNINGS = "error,ignore:'set_vital' is deprecated:UserWarning"  # torchdata says it when imported
# What is slow to import, with what it imports itself when it is first used.
SLOW = {"torch": ("torch", "torch._dynamo"), "pytorch_lightning": ("pytorch_lightning", "torch._dynamo")}
OF_LAUNCHERS = ("RANK", "WORLD_SIZE")


def run_script(path: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, with warnings as errors.

    Args:
        path: of the script.
        folder: in which it runs.
        environment: added to this process's.

    Returns:
        Its exit status, and what it printed.
    """
    text = path.read_text(encoding="utf-8")
    modules = [name for name in SLOW if re.search(rf"^\s*(import|from) {name}\b", text, re.MULTILINE)]
    with tempfile.TemporaryDirectory() as output:
        files = [Path(output, name) for name in ("out", "err", "log")]
        if modules:
            words = [sys.executable, __file__, *map(str, files[:2]), str(path)]
            status = _server(tuple(modules)).start(words, folder, environment, files[2]).wait()
        else:
            status = _start(path, folder, environment, files)
        out, err, log = (file.read_text(encoding="utf-8") if file.exists() else "" for file in files)
    return subprocess.CompletedProcess([str(path)], status, out, err + log)


@cache
def _server(names: tuple[str, ...]) -> Server:
    server = Server([module for name in names for module in SLOW[name]], {"PYTHONWARNINGS": WARNINGS})
    atexit.register(server.close)
    return server


def _start(path: Path, folder: Path, environment: dict[str, str], files: list[Path]) -> int:
    """Run a script that imports nothing slow in a process of its own."""
    own = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    with files[0].open("wb") as out, files[1].open("wb") as err:
        return subprocess.run(
            [sys.executable, str(path)],
            cwd=folder,
            env={**own, "PYTHONWARNINGS": WARNINGS, **environment},
            stdout=out,
            stderr=err,
            check=False,
        ).returncode


def _become(out: str, err: str, script: str) -> None:
    """In the forked process: print to files, find modules where a process of its own would, and run the script."""
    for name, number in ((out, 1), (err, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    for name in OF_LAUNCHERS:
        os.environ.pop(name, None)
    sys.argv = [script]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:1] = [str(Path(script).parent), *paths]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _become(*sys.argv[1:])
