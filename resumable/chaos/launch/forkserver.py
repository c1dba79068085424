"""A process that has imported slow modules, and forks the launches of a command, each of which is seconds faster.

The chaos run starts it as `python -m resumable.chaos.launch.forkserver MODULE ...`. It only imports, so its forks have
seen no loader and no model. A request is a line of JSON on standard input: `[number, launch]`, or `[null, modules]` to
import more. On standard output, it writes `[number, process]` once the fork leads a session, and
`[number, null, status]` when it ends. When the input ends, it kills the remaining forks.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from resumable import failpoints
from resumable.chaos.recorder import guard

_POLL = 0.005  # seconds
_PIPE = 65536  # bytes per read


def main() -> None:
    """Serve requests until the input ends; in a forked process, run the program."""
    guard.install()  # inactive until a child has a plan
    _load(sys.argv[1:])
    running: dict[int, int] = {}
    unread = bytearray()
    try:
        while (line := _read_line(unread)) != b"":
            if line is not None:
                number, request = json.loads(line)
                if number is None:
                    _load(request)
                    continue
                process = _fork(request)
                if process == 0:
                    running.clear()
                    _become(request)
                    _run(request["words"])
                    return
                running[process] = number
                _say(number, process)
            _note_ended(running)
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)


def _load(modules: list[str]) -> None:
    for module in modules:
        import_module(module)
    gc.freeze()  # spares the children from collecting the imported modules


def _read_line(unread: bytearray) -> bytes | None:
    """Return a line, None if there is none yet, or an empty one at the end of the input.

    Python's own buffer would hide the second of two requests that arrive together from `select`.
    """
    if b"\n" not in unread:
        ready, _, _ = select.select([0], [], [], _POLL)
        if not ready:
            return None
        part = os.read(0, _PIPE)
        if not part:
            return b""
        unread += part
    line, newline, rest = unread.partition(b"\n")
    if not newline:
        return None
    unread[:] = rest
    return bytes(line)


def _say(*values: Any) -> None:
    os.write(1, json.dumps(values).encode() + b"\n")


def _fork(request: dict[str, Any]) -> int:
    """Fork; return in the parent once the child leads a session, so it can be killed with its children."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.setsid()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for old, new in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(old, new)
        os.close(reading)
    os.close(writing)
    if process:
        os.read(reading, 1)
        os.close(reading)
    return process


def _note_ended(running: dict[int, int]) -> None:
    for process in list(running):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            _say(running.pop(process), None, os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any]) -> None:
    """Set environment, directory and random seeds as in a process that was launched directly."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.dont_write_bytecode = True
    tempfile.tempdir = None  # to be read from the environment
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # it was seeded on import; Python reseeds itself after a fork
    failpoints.activate()


def _run(words: list[str]) -> None:
    """Run `script.py ...` or `-m module ...` as the interpreter does."""
    if words[0] == "-m":
        sys.argv = words[1:]
        others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path[1:]]
        sys.path[:1] = [str(Path.cwd()), *others]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
