"""An IterableDataset resumes with a different number of workers: logical streams instead of one stream per worker.

python examples/logical_streams.py
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shards(IterableDataset[float]):
    """Twelve shards, which the streams divide as workers would."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[float]:
        """Read every n-th shard, in a different order in each epoch, and augment."""
        stream = get_worker_info()
        assert stream is not None
        shards = list(range(stream.id, 12, stream.num_workers))
        random.Random(self.epoch).shuffle(shards)
        for shard in shards:
            for line in range(5):
                yield 100 * shard + line + random.random()


def make(workers: int) -> resumable.Loader[object]:
    """Wrap a fresh dataset, as a restarted script does."""
    return resumable.wrap(DataLoader(Shards(), batch_size=4, num_workers=workers), streams=4, seed=0)


if __name__ == "__main__":
    whole, states = [], []
    loader = make(workers=2)
    for epoch in loader.epochs(2):
        for batch in epoch:
            whole.append(str(batch))
            states.append(loader.state_dict())
    for workers in (0, 1, 2):
        resumed = make(workers)
        resumed.load_state_dict(states[10])
        rest = [str(batch) for epoch in resumed.epochs(2) for batch in epoch]
        equal = rest == whole[11:]
        print(f"Saved with 2 workers, resumed with {workers}: the other {len(rest)} batches are the same: {equal}")
