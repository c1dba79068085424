"""Workers that are lost: how torch tells that one died or hangs, which one, and what it was reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._fetch.failures import WorkerTraceback
from resumable.errors import WorkerError

if TYPE_CHECKING:
    from resumable._fetch.reading import Reading

__all__ = ["describe_death", "is_death", "last_samples", "lost_workers"]

_TRANSPORT = {"multiprocessing.resource_sharer", "multiprocessing.connection", "torch.multiprocessing.reductions"}
_TIMEOUT = "DataLoader timed out"
_SIGNS = _TIMEOUT, "DataLoader worker", "Pin memory thread exited"


def is_death(error: BaseException) -> bool:
    """Return whether an error says that a worker process died.

    torch tells it by the handler of a signal, so between any two lines; or the pipe to the worker is broken.

    Args:
        error: raised while there are workers.
    """
    if isinstance(error.__cause__, WorkerTraceback) or "Caught " in str(error):
        return False  # raised by the user's code in a worker, and brought here by us or by torch
    # A plain RuntimeError: those of this package have bases that are, but say already what they mean.
    told = type(error) is RuntimeError and any(sign in str(error) for sign in _SIGNS)
    return told or isinstance(error, (ConnectionError, EOFError)) or _is_of_transport(error)


def _is_of_transport(error: BaseException) -> bool:
    """Return whether a tensor could not be fetched from the process that sent it, as that is gone."""
    entry = error.__traceback__ if isinstance(error, OSError) else None
    while entry is not None:
        if entry.tb_frame.f_globals.get("__name__") in _TRANSPORT:
            return True
        entry = entry.tb_next
    return False


def describe_death(error: BaseException, reading: str = "") -> WorkerError:
    """Return what to raise for an error that says that a worker process died.

    Args:
        error: says so.
        reading: what the worker was reading; empty where that is unknown.
    """
    told = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
    if _TIMEOUT in told:
        what = "gave no answer"
        advice = "give the DataLoader a longer timeout=, or find what the dataset waits for, and go on from the state."
    else:
        what = "died"
        advice = "look for a crash in the dataset, free memory if the system killed it, and go on from the state."
    return WorkerError(
        f"a process that reads samples {what}: {told}\n{reading}The loader's state is that before this batch: {advice}"
    )


def lost_workers(answers: Any, error: Exception | None = None) -> list[int]:
    """Return which workers died, or which one hangs; all of them where one died and none is seen to be dead.

    Args:
        answers: torch's iterator, or a pool.
        error: raised by it.
    """
    if known := getattr(answers, "lost", ()):  # of a pool that ended the others
        return list(known)
    if _TIMEOUT in str(error):
        return [answers._task_info[answers._rcvd_idx][0]]  # noqa: SLF001  # torch tells it by nothing else
    processes = getattr(answers, "_workers", ())
    dead = [number for number, process in enumerate(processes) if not process.is_alive()]
    unseen = error is not None and is_death(error) and not dead
    return list(range(len(processes))) if unseen else dead


def last_samples(reading: Reading | None, workers: list[int]) -> str:
    """Return a line for each worker whose last sample is known."""
    read = [] if reading is None else [(worker, reading.of(worker)) for worker in workers]
    return "".join(f"  worker {worker} was reading sample {sample}\n" for worker, sample in read if sample is not None)
