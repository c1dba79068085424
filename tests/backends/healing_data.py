"""Datasets whose workers die or hang, and how to find workers; in a module, for those that are spawned."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info
from torch_datasets import Augmented, augmented

if TYPE_CHECKING:
    from collections.abc import Callable

HANGS = {"stop", "sleep"}


def fail(how: str) -> None:
    """End this process, or let it hang."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "_exit":
        os._exit(3)
    if how == "exit":
        sys.exit(0)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_for_ever()


def wait_for_ever() -> None:
    while True:
        time.sleep(1)


class Failing(Augmented):
    """Fails at one sample, for the first times that it is read; `notes` says how often that was."""

    def __init__(self, notes: Path, how: str, index: int, times: int = 1, length: int = 23) -> None:
        super().__init__(length)
        self.notes, self.how, self.index, self.times = notes, how, index, times

    def __getitem__(self, index: int) -> Any:
        if index == self.index and get_worker_info() is not None and tries(self.notes) < self.times:
            with self.notes.open("a") as notes:
                notes.write("x")
            fail(self.how)
        return augmented(index)


def tries(notes: Path) -> int:
    return notes.stat().st_size if notes.exists() else 0


class Big(Augmented):
    """Samples that are no tensors, and larger than what a pipe holds."""

    def __getitem__(self, index: int) -> Any:
        return index, bytes([index]) * 300_000


class EndsAtStart:
    """A `worker_init_fn` that ends its worker."""

    def __call__(self, number: int) -> None:
        os._exit(1)


class EndsWhenUnpickled(Augmented):
    """Ends a process that is spawned, as a failing import does."""

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return os._exit, (1,)


_others: set[int] = set()


def forget_others() -> None:
    """Count those processes no longer as workers that other tests left behind."""
    _others.clear()
    _others.update(workers())


def workers() -> list[int]:
    """Return the processes that this one has started and that have not ended.

    Each process is asked for its parent: `/proc/self/task/*/children` leaves some out while others come and go.
    """
    every = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    own = [pid for pid in every if parent_of(pid) == os.getpid() and pid not in _others]
    return sorted(pid for pid in own if state_of(pid) not in {"Z", "X", ""} and not is_server(pid))


def is_server(pid: int) -> bool:
    """Return whether a process is one that `multiprocessing` keeps for those that it starts."""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"resource_tracker" in command or b"forkserver" in command
    return False


def state_of(pid: int) -> str:
    """Return the state of a process; as long as a thread of it has not ended, it is no zombie that its parent sees."""
    state = _told_of(pid)[0]
    with suppress(OSError):
        if state == "Z" and len(list(Path(f"/proc/{pid}/task").iterdir())) > 1:
            return "S"
    return state


def parent_of(pid: int) -> int:
    return int(_told_of(pid)[1])


def _told_of(pid: int) -> tuple[str, str]:
    """Return the state of a process and its parent."""
    with suppress(OSError):
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state, parent
    return "", "0"
