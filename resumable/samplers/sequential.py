"""The order of the source itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from resumable.samplers.base import check_length, check_range

if TYPE_CHECKING:
    from resumable._randomness.keyed import IntArray

__all__ = ["Sequential"]


@dataclass(frozen=True)
class Sequential:
    """Sample indices in ascending order, the same in every epoch.

    Args:
        length: number of samples.
    """

    length: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_length(self.length, "the length of the data"))

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:  # noqa: ARG002  # the protocol has it
        """Return `start..stop-1`."""
        check_range(start, stop, self.length)
        return np.arange(start, stop, dtype=np.int64)

    def spec(self) -> dict[str, int | str]:
        """Name, and number of samples."""
        return {"name": "sequential-v1", "length": self.length}
