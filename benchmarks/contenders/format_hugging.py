"""A stream of Hugging Face's datasets over the same Parquet files, with a shuffle buffer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import load_dataset

from benchmarks.contenders.format_files import grouped

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Hugging"]


class Hugging:
    """Files in random order, and a shuffle buffer of 1000, which its state does not have.

    Args:
        folder: of the files.
        kind: "rows".
        samples: how many there are; it does not know.
    """

    def __init__(self, folder: str, kind: str, samples: int) -> None:
        files = sorted(map(str, (Path(folder) / kind).glob("*.parquet")))
        stream = load_dataset("parquet", data_files=files, split="train", streaming=True)
        self._stream, self._samples = stream.shuffle(seed=0, buffer_size=1000), samples

    def __len__(self) -> int:
        return self._samples

    def start(self, state: Any = None) -> Iterator[Any]:
        """Begin an epoch, or go on."""
        if state is not None:
            self._stream.load_state_dict(state)
        return grouped(self._stream)

    def state_at(self, step: int) -> Any:
        """Read up to there."""
        batches = self.start()
        for _ in range(step):
            next(batches)
        return self._stream.state_dict()
