"""The ways in which torch tells that a worker died."""

from __future__ import annotations

__all__ = ["describe_death"]

_KILLED = "free memory if the system killed the worker, and go on from the state."
_SIGNS = {
    "DataLoader timed out": "give the DataLoader a longer timeout=, or find what the dataset waits for, and go on from "
    "the state.",
    "DataLoader worker": _KILLED,
    "Pin memory thread exited": _KILLED,
}


def describe_death(error: Exception) -> str | None:
    """Return what to tell the user where an error says that a worker died; None where it says anything else.

    Args:
        error: raised by a `DataLoader` with workers.
    """
    if "Caught " in str(error):  # raised by the user's code in a worker, and brought here by torch
        return None
    if isinstance(error, (ConnectionError, EOFError)):
        return _message(
            f"a DataLoader worker died, as the connection to it broke: {type(error).__name__}: {error}", _KILLED
        )
    if type(error) is RuntimeError:  # those of this package have bases that are, but say already what they mean
        return next((_message(str(error), advice) for sign, advice in _SIGNS.items() if sign in str(error)), None)
    return None


def _message(what: str, advice: str) -> str:
    return f"{what}\nThe loader's state is that before this batch: {advice}"
