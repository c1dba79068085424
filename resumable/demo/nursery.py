"""A process that has torch loaded and forks the training processes, so that a restart takes no seconds of imports.

It imports modules and does nothing else: what it forks has seen no loader, no model and no random number. A request is
a line of JSON on its standard input, and is answered with the number of the forked process, whose exit status comes in
a file. A training program is imported at the first request for it, so that nobody waits for Lightning who does not use
it. When its input ends, all that it forked is killed. Started by the demo as `python -m resumable.demo.nursery`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

_SLOW_IMPORTS = ("torch._dynamo", "resumable.backends.torch", "resumable.demo.sources")  # at first use otherwise
_POLL = 0.005  # seconds


def main() -> None:
    """Serve requests until the input ends; in the forked processes, train."""
    for module in _SLOW_IMPORTS:
        import_module(module)
    status_files: dict[int, Path] = {}
    while (line := _read_request()) != "":
        if line is not None:
            request = json.loads(line)
            module, *arguments = request["command"]
            program = import_module(module)
            gc.freeze()  # what was imported needs no look by the children: each is a second faster
            child = os.fork()
            if child == 0:
                _become_independent(request["output"])
                program.main(arguments)
                return
            os.setpgid(child, child)  # both do it, as nobody knows who comes first
            status_files[child] = Path(request["status"])
            sys.stdout.write(f"{child}\n")
            sys.stdout.flush()
        _note_ended(status_files)
    for child in status_files:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _read_request() -> str | None:
    """Return a line, None where there is none yet, or an empty text at the end of the input."""
    ready, _, _ = select.select([sys.stdin], [], [], _POLL)
    return sys.stdin.readline() if ready else None


def _become_independent(output: str) -> None:
    """Lead a process group, and leave the nursery's pipes alone."""
    os.setpgid(0, 0)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _note_ended(status_files: dict[int, Path]) -> None:
    """Write down the exit status of each process that ended."""
    for child in list(status_files):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            file = status_files.pop(child)
            part = file.with_suffix(".part")
            part.write_text(str(os.waitstatus_to_exitcode(status)))
            part.replace(file)


if __name__ == "__main__":
    main()
