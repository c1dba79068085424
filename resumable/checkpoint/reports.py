"""The errors of other libraries, told in ours."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from resumable.checkpoint.limits import TimeUpError
from resumable.errors import CheckpointError, CheckpointTimeoutError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["in_one_line", "reporting"]

LONGEST = 300  # characters of another library's error in one of ours
REFUSED = "WeightsUnpickler error: "  # stands before the reason in what torch raises


@contextlib.contextmanager
def reporting(what: str, hint: str = "Mend the storage and try again.") -> Iterator[None]:
    """Turn the storage's error into a CheckpointError that says what failed and what to do."""
    try:
        yield
    except ResumableError:
        raise
    except TimeUpError as error:
        more = "Storage that is slow, and not dead, needs a higher `timeout=` (seconds)."
        raise CheckpointTimeoutError(f"{what}.\n  {error}\n{hint} {more}") from error
    except Exception as error:  # cloud clients raise errors of their own, which are no OSErrors
        raise CheckpointError(f"{what}.\n  {in_one_line(error)}\n{hint}") from error


def in_one_line(error: Exception) -> str:
    """Give an error's type and what it says in one line; of torch's long advice, only what it refused."""
    text = str(error)
    return " ".join(f"{type(error).__name__}: {text.partition(REFUSED)[2].split('. ')[0] or text}".split())[:LONGEST]
