"""Ranks by fork: torch is imported once, so a case of some ranks takes tenths of a second.

ranks(3, run, extra)    what `run(rank, size, extra)` returned on each rank, or its error as text, or "died -9"
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
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HUNG", "ranks", "step_together"]

HUNG = "HUNG"
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def step_together(value: float = 1.0) -> float:
    """Do what a training step does at its end: a collective of all ranks; return the sum."""
    total = torch.tensor([float(value)])
    distributed.all_reduce(total)
    return float(total)


def ranks(  # noqa: PLR0913  # a harness; each has a default
    size: int,
    run: Callable[..., Any],
    *given: Any,
    variables: bool = False,
    group: bool = True,
    store: Any = None,
    seconds: float = 60,
    collective: float = 20,
) -> list[Any]:
    """Run a function on several ranks.

    Args:
        size: how many.
        run: called with rank, size and what is given.
        given: its other arguments.
        variables: set those of torchrun.
        group: make a process group before.
        store: makes the store of the process group for a rank; by default one that rank 0 hosts.
        seconds: after which ranks are killed.
        collective: seconds after which a collective fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="ranks-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sys.stdout.flush()
    sys.stderr.flush()
    left = {}
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _be_rank(
                folder, (rank, size), port, (variables, group, store, collective), partial(run, rank, size, *given)
            )
        left[rank] = pid
    return _collect(folder, left, seconds)


def _be_rank(folder: Path, who: tuple[int, int], port: int, how: tuple[Any, ...], run: Callable[[], Any]) -> None:
    (rank, size), code = who, 1
    variables, group, store, collective = how
    try:
        torch.set_num_threads(1)
        for name in _VARIABLES:
            os.environ.pop(name, None)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= address
        if variables:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        if group:
            limit = timedelta(seconds=collective)
            own = {} if store is None else {"store": store(rank, size)}
            distributed.init_process_group("gloo", rank=rank, world_size=size, timeout=limit, **own)
        try:
            result = run()
        except BaseException as error:  # noqa: BLE001  # it is what the test looks at
            result = f"{type(error).__name__}: {error}"
        (folder / f"{rank}.tmp").write_bytes(pickle.dumps(result))
        (folder / f"{rank}.tmp").rename(folder / f"{rank}")
        code = 0
    except BaseException:  # noqa: BLE001  # there is nobody to raise it to
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _collect(folder: Path, left: dict[int, int], seconds: float) -> list[Any]:
    results: list[Any] = [HUNG] * len(left)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        for rank, pid in list(left.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del left[rank]
                path = folder / f"{rank}"
                if path.exists():
                    results[rank] = pickle.loads(path.read_bytes())  # noqa: S301  # by this test
                else:
                    results[rank] = f"died {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.01)
    for pid in left.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return results
