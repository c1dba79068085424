"""A reader that depends on how often it was iterated over, resumed exactly: python examples/replay_run.py.

Like timm's readers of TensorFlow Datasets, it shuffles with a generator that lives on from epoch to epoch.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import resumable
from resumable.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 4


class Reader(IterableDataset[int]):
    """Each epoch shuffles on from the last one, and nothing tells it the epoch."""

    def __init__(self) -> None:
        self.samples, self.generator = list(range(24)), random.Random(0)

    def __iter__(self) -> Iterator[int]:
        self.generator.shuffle(self.samples)
        worker = get_worker_info()
        yield from self.samples if worker is None else self.samples[worker.id :: worker.num_workers]


def make(workers: int = 2, **options: Any) -> resumable.Loader[Any]:
    """Wrap a fresh reader, as a restarted script does."""
    return resumable.wrap(
        DataLoader(Reader(), batch_size=4, num_workers=workers, persistent_workers=workers > 0), seed=0, **options
    )


def train(loader: resumable.Loader[Any], state: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
    """Return the batches, and the state after each epoch."""
    batches, states = [], []
    if state is not None:
        loader.load_state_dict(state)
    for epoch in loader.epochs(EPOCHS):
        batches += [batch.tolist() for batch in epoch]
        states.append(loader.state_dict())
    return batches, states


whole, states = train(make(resume="replay_run"))
rest, _ = train(make(resume="replay_run"), states[1])
print(f"resumed after epoch 1: the other {len(rest)} batches are equal: {rest == whole[-len(rest) :]}")
try:
    train(make(), train(make())[1][1])
except StateMismatchError as error:
    print("without it:", str(error).splitlines()[0])
