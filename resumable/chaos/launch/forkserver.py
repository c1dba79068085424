"""A process that has imported what takes long, and forks the starts of a command, each of which is seconds faster.

Started by the chaos run as `python -m resumable.chaos.launch.forkserver MODULE ...`. It only imports: what it forks has
seen no loader and no model. A request is a line of JSON on its standard input: `[number, start]`, or `[null, modules]`
for more to import. On its standard output it says `[number, process]` once that leads a session of its own, and
`[number, null, status]` at its end. When its input ends, it kills what is left.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from resumable import failpoints
from resumable.chaos.recorder import overlay

_POLL = 0.005  # seconds
_PIPE = 65536  # bytes that are read at once


def main() -> None:
    """Serve requests until the input ends; in a forked process, run the program."""
    overlay.install()  # before modules can keep functions that it replaces; it does nothing until a child has a plan
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
    gc.freeze()  # what was imported needs no look by the children


def _read_line(unread: bytearray) -> bytes | None:
    """Return a line, None where there is none yet, or nothing at the end of the input.

    Python's own buffer would hide the second of two requests that came together from `select`.
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
    """Fork; return in the parent once the child leads a session, so that it can be killed with what it starts."""
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
    """Be a process as if it had been started by itself: environment, directory, and no randomness in common."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # it was seeded when it was imported; Python's own seeds itself again
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
