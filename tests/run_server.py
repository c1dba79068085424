"""A server that runs trainings of several ranks, each in a fork of a process that has imported everything once.

A request and its answer are one line of JSON each.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Log", "serve"]


class Log:
    """Lines of JSON that are there after a kill."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, *line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def serve(make: Callable[..., Any], start: Callable[[Any, int], None], ranks: Callable[[Any], int]) -> None:
    """Answer requests until there are none.

    Args:
        make: of a request's values, what is run; it has a `folder` and a `port`.
        start: runs it as one of the ranks.
        ranks: how many processes of it are started.
    """
    gc.freeze()
    for line in sys.stdin:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            run = make(**{**json.loads(line), "port": free.getsockname()[1]})
        sys.stdout.write(json.dumps(_answer(run, start, ranks(run))) + "\n")
        sys.stdout.flush()


def _answer(run: Any, start: Callable[[Any, int], None], ranks: int) -> list[int]:
    """Run all ranks, and return how each of them ended; what still runs after a rank was killed is killed, too."""
    alive = {_fork(run, rank, start, ranks): rank for rank in range(ranks)}
    codes, deadline = [0] * ranks, time.monotonic() + 60
    while alive:
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[alive.pop(pid)] = os.waitstatus_to_exitcode(status)
                if status:
                    deadline = min(deadline, time.monotonic() + 2)
        if time.monotonic() > deadline:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return codes


def _fork(run: Any, rank: int, start: Callable[[Any, int], None], ranks: int) -> int:
    """Run in a process of its own, and return its number."""
    if pid := os.fork():
        return pid
    code, output = 1, Path(run.folder, f"output-{rank}")
    try:
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if ranks > 1:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(run.port)}
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        torch.set_num_threads(1)
        warnings.simplefilter("error")
        start(run, rank)
        code = 0
    except BaseException as error:  # noqa: BLE001  # the process ends here in any case
        traceback.print_exc()
        Log(Path(run.folder, f"log-{rank}")).write("error", type(error).__name__, str(error))
    finally:
        sys.stdout.flush()
        os._exit(code)
