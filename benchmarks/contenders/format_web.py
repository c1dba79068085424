"""WebDataset over the same shards, shuffled in a buffer; it reaches a position by reading up to it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import webdataset as wds

from benchmarks.contenders.format_files import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Web"]


class Web:
    """Shards in random order, with a shuffle buffer of 1000.

    Args:
        folder: of the files.
        kind: "tars", which stay bytes, or "images", which are decoded.
        samples: their number, which WebDataset does not know.
    """

    def __init__(self, folder: str, kind: str, samples: int) -> None:
        shards = sorted(map(str, (Path(folder) / kind).glob("*.tar")))
        dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(1000)
        self._batches = (dataset.decode("rgb8") if kind == "images" else dataset).listed(BATCH)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or read up to a step."""
        return islice(iter(self._batches), state or 0, None)

    def state_at(self, step: int) -> Any:
        """Return the number of batches, the only state there is."""
        return step
