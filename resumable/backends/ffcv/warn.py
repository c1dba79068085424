"""The warning that an operation's randomness is not elastic."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from resumable.backends.ffcv.operations import Mode

__all__ = ["warn_of_batch"]

_WHY: dict[Mode, str] = {
    "mixup": "mixes the samples of a batch",
    "batch": "draws random numbers, and may mix the samples of a batch,",
    "late": "draws random numbers where the batch is delivered",
}


def warn_of_batch(name: str, mode: Mode, stacklevel: int = 2) -> None:
    """Warn that what an operation draws belongs to the batch.

    Args:
        name: of the operation's class.
        mode: see `operations`.
        stacklevel: frames from the caller of this function to the code that is warned.
    """
    way_out = (
        ""
        if mode == "late"
        else (
            f' If the operation takes each sample by itself, say so: wrap(source(loader, keyed={{{name}: "sample"}})), '
            "with source from resumable.backends.ffcv."
        )
    )
    warnings.warn(
        f"{name} {_WHY[mode]}, so its randomness belongs to the batch: it is exact after a resume, but changes with "
        f'the batch size and the number of ranks.\nGive wrap(..., randomness="batch") to accept it.{way_out}',
        PromiseWarning,
        stacklevel=stacklevel + 1,
    )
