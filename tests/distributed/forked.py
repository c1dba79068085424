"""Ranks by fork, on this machine: torch is imported once, so a case takes a tenth of the time of torchrun's start.

ranks(3, run, extra)    what `run(rank, size, extra)` returned on each rank, or its error, or "ended with -9", or HUNG
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import distributed
from torch._C._distributed_c10d import TCPStore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HUNG", "ranks", "step_together"]

HUNG = "hung"
_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def step_together(value: float = 1.0) -> float:
    """Do what a training step does at its end: a collective of all ranks; return the sum."""
    total = torch.tensor([float(value)])
    distributed.all_reduce(total)
    return float(total)


def ranks(  # noqa: PLR0913  # a harness; each has a default
    size: int,
    run: Callable[..., Any],
    *given: Any,
    variables: bool = True,
    group: bool = True,
    seconds: float = 120.0,
    collective: float = 30.0,
    host_stays: bool = True,
) -> list[Any]:
    """Run a function on several ranks; rank 0 hosts the store of the process group, as with torchrun.

    Args:
        size: how many.
        run: called with rank, size and what is given.
        given: its other arguments.
        variables: set those of torchrun; else a launcher has none.
        group: make a process group of gloo before.
        seconds: after which ranks are killed.
        collective: seconds after which a collective fails.
        host_stays: rank 0 stays until the others have ended, and with it the store.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sys.stdout.flush()
    sys.stderr.flush()
    living = {}
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        over = Path(folder, "over")
        meet = _Meet(Path(folder), timedelta(seconds=collective)) if group else None
        for rank in range(size):
            own = partial(_run, rank, size, port, variables, meet, run)
            if (child := os.fork()) == 0:
                _be_a_rank(partial(own, *given), Path(folder, str(rank)), over if host_stays and rank == 0 else None)
            living[child] = rank
        ended = _wait(living, seconds, over)
        return [_result(Path(folder, str(rank)), ended.get(rank, HUNG)) for rank in range(size)]


@dataclass(frozen=True)
class _Meet:
    """Where the ranks meet: at a port that the system gives rank 0, so that no other process can take it before."""

    folder: Path
    limit: timedelta

    def store(self, rank: int, size: int) -> Any:
        told = self.folder / "port"
        if rank == 0:
            store = TCPStore("127.0.0.1", 0, size, is_master=True, timeout=self.limit, wait_for_workers=False)
            part = told.with_suffix(".part")
            part.write_text(str(store.port))
            part.rename(told)
            return store
        while not told.exists():
            time.sleep(0.002)
        return TCPStore("127.0.0.1", int(told.read_text()), size, is_master=False, timeout=self.limit)


def _be_a_rank(run: Callable[[], Any], path: Path, over: Path | None) -> NoReturn:
    code = 1
    try:
        try:
            result = run()
        except BaseException as error:  # noqa: BLE001  # it is what the rank returns
            result = error
        part = path.with_suffix(".part")
        part.write_bytes(_packed(result))
        part.rename(path)
        while over is not None and not over.exists():
            time.sleep(0.005)
        code = 0
    except BaseException:  # noqa: BLE001  # nothing of a rank may go on in the test
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _packed(result: Any) -> bytes:
    """Return a result for the test, or what it looks like, where it cannot be sent."""
    try:
        packed = pickle.dumps(result)
        pickle.loads(packed)  # noqa: S301  # an error may refuse its own arguments
    except Exception:  # noqa: BLE001  # of any class
        return pickle.dumps(repr(result))
    return packed


def _run(  # noqa: PLR0913, PLR0917  # what `ranks` was given
    rank: int, size: int, port: int, variables: bool, meet: _Meet | None, run: Callable[..., Any], *given: Any
) -> Any:
    torch.set_num_threads(1)
    for name in _OF_LAUNCHERS:
        os.environ.pop(name, None)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if variables:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    if meet is not None:
        distributed.init_process_group(
            "gloo", store=meet.store(rank, size), rank=rank, world_size=size, timeout=meet.limit
        )
    return run(rank, size, *given)


def _wait(living: dict[int, int], seconds: float, over: Path) -> dict[int, str]:
    """Wait until all children ended, and kill those that did not; return how each rank did."""
    ended: dict[int, str] = {}
    end = time.monotonic() + seconds
    while living and time.monotonic() < end:
        for child, rank in list(living.items()):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended[rank] = f"ended with {os.waitstatus_to_exitcode(status)}"
                del living[child]
        if [*living.values()] == [0]:
            over.touch()
        time.sleep(0.01)
    for child in living:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return ended


def _result(path: Path, ended: str) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else ended  # noqa: S301  # a rank of this test wrote it
