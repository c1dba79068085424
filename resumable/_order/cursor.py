"""Cursor: a position in a stream.

Glossary, used the same in every file, message and page:

    sample index i    identity of a sample in its source, 0..N-1
    position p        index within an epoch's order; the sampler maps it to a sample index
    step              number of a global batch in an epoch; while batch k is being trained on, `cursor.step` is k + 1
    batch size B      samples per rank and step
    world size W      number of ranks
    global batch G    samples of all ranks in a step (B * W if it is divided evenly)
    element           one item from a source without sample indices; it is counted like a sample
    delivered         returned by `next()`
    acknowledged      known to be in the weights
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Cursor"]

_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A position in the stream, the same on all ranks and for any number of ranks.

    After the last batch of an epoch, the cursor stays at the end of that epoch. It moves to the next epoch when that
    one starts, or when the iterator has raised `StopIteration` for the earlier one. So after a save at an epoch's last
    batch, `range(cursor.epoch, total)` counts one epoch too many: start at `Loader.epoch`, or use `Loader.epochs`.

    Args:
        epoch: number of the epoch, from 0.
        position: global samples of this epoch that are done.
        step: global batches of this epoch that are done.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the cursor as plain values."""
        return {"epoch": self.epoch, "position": self.position, "step": self.step}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cursor:
        """Return the cursor with the values from `as_dict`.

        Raises:
            KeyError: a field is missing.
            ValueError: a field is not an integer of 0 or more, or is above 2**62, because positions are 64-bit
                integers.
        """
        cursor = cls(values["epoch"], values["position"], values["step"])
        for name, value in cursor.as_dict().items():
            if type(value) is not int or value < 0:
                raise ValueError(f"cursor.{name} must be an integer of 0 or more, but it is {value!r}")
            if value > _LARGEST:
                raise ValueError(f"cursor.{name} must be at most 2**62 = {_LARGEST}, but it is {value!r}")
        return cursor
