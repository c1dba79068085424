"""A process whose worker hangs on sample 7 until a file is there: python stalled_run.py KIND START_METHOD."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator


def hang_on_a_lock() -> None:
    while not Path("go").exists():
        time.sleep(0.01)


def read(index: int) -> int:
    if index == 7:
        hang_on_a_lock()
    return index


class Indexed:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return read(index)


class Streamed(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from map(read, range(6 * info.id, 6 * info.id + 6))


if __name__ == "__main__":
    data: Any = Indexed() if sys.argv[1] == "indexed" else Streamed()
    source = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=sys.argv[2])
    loader = resumable.wrap(source, stall_after=0.3)
    samples = sorted(sample for batch in loader for sample in batch.tolist())
    assert samples == list(range(12))
