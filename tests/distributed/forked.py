"""Ranks by fork, on this machine: torch is imported once, so a case takes a tenth of the time of torchrun's start."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ranks"]


def ranks(size: int, run: Callable[..., Any], *given: Any, patience: float = 120.0) -> list[Any]:
    """Return what `run(rank, size, *given)` returned on each rank; of one that failed, its error; else how it ended.

    A rank has the variables of torchrun and a process group of gloo, whose calls wait for 30 seconds.
    """
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        folder, port = Path(name), probe.getsockname()[1]
        sys.stdout.flush()
        living = {}
        for rank in range(size):
            if (child := os.fork()) == 0:
                _be_a_rank((rank, size, port), folder, run, given)
            living[child] = rank
        ended = _wait(living, patience)
        return [_result(folder / str(rank), ended.get(rank, "hung")) for rank in range(size)]


def _be_a_rank(who: tuple[int, int, int], folder: Path, run: Callable[..., Any], given: tuple[Any, ...]) -> None:
    rank, size, port = who
    try:
        torch.set_num_threads(1)
        variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": port}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", **{key: str(value) for key, value in variables.items()}}
        store = f"file://{folder}/store"
        distributed.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
        )
        try:
            result = run(rank, size, *given)
        except Exception as error:  # noqa: BLE001  # it is what the rank returns
            result = error
        part = folder / f"{rank}.part"
        part.write_bytes(pickle.dumps(result))
        part.rename(folder / str(rank))
    except BaseException:  # noqa: BLE001  # nothing of a rank may go on in the test
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def _wait(living: dict[int, int], patience: float) -> dict[int, str]:
    """Wait until all children ended, and kill those that did not; return how each rank did."""
    ended: dict[int, str] = {}
    end = time.monotonic() + patience
    while living and time.monotonic() < end:
        for child, rank in list(living.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended[rank] = f"ended with {os.waitstatus_to_exitcode(status)}"
                del living[child]
        time.sleep(0.01)
    for child in living:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return ended


def _result(path: Path, ended: str) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else ended  # noqa: S301  # a rank of this test wrote it
