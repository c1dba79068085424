"""Grain's own reader of Parquet over the same files, interleaved, with a windowed shuffle."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grain import experimental

from benchmarks.contenders.format_files import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Grain"]


class Grain:
    """One row of each file in turn, with a shuffle in windows of 1000 rows.

    Args:
        folder: of the files.
        kind: "rows".
        samples: their number, which Grain does not know.
    """

    def __init__(self, folder: str, kind: str, samples: int) -> None:
        files = sorted(map(str, (Path(folder) / kind).glob("*.parquet")))
        parts = [experimental.ParquetIterDataset(path) for path in files]
        mixed = experimental.InterleaveIterDataset(parts, cycle_length=len(parts))
        shuffled = experimental.WindowShuffleIterDataset(mixed, window_size=1000, seed=0)
        self._dataset, self._samples = shuffled.batch(BATCH, batch_fn=list), samples

    def __len__(self) -> int:
        return self._samples

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        batches: Any = iter(self._dataset)
        if state is not None:
            batches.set_state(state)
        found: Iterator[Any] = batches
        return found

    def state_at(self, step: int) -> Any:
        """Read up to a step."""
        batches: Any = self.start()
        for _ in islice(batches, step):
            pass
        return batches.get_state()
