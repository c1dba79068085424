"""Workers that are lost: how torch says that one died or hangs."""

from __future__ import annotations

from resumable._fetch.failures import WorkerTraceback
from resumable.errors import WorkerError

__all__ = ["describe_death", "is_death"]

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


def describe_death(error: BaseException) -> WorkerError:
    """Return what to raise for an error that says that a worker process died."""
    told = str(error) if type(error) is RuntimeError else f"{type(error).__name__}: {error}"
    if _TIMEOUT in told:
        what = "gave no answer"
        advice = "give the DataLoader a longer timeout=, or find what the dataset waits for, and go on from the state."
    else:
        what = "died"
        advice = "look for a crash in the dataset, free memory if the system killed it, and go on from the state."
    return WorkerError(
        f"a process that reads samples {what}: {told}\nThe loader's state is that before this batch: {advice}"
    )
