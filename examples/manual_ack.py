"""A loop that prefetches, with an exception in the middle: only acknowledged batches count.

python examples/manual_ack.py
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
SAMPLES = list(range(16))


def fetch_ahead(batches: Iterable[Any], depth: int = 3) -> Iterator[Any]:
    """Keep a few batches ready, as a prefetcher for an accelerator does."""
    waiting: deque[Any] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == depth:
            yield waiting.popleft()
    yield from waiting


def make() -> resumable.Loader:
    """Wrap the data; with `ack="manual"` the loop decides which batches count."""
    return resumable.wrap(SAMPLES, batch_size=2, shuffle=True, ack="manual")


def train(loader: resumable.Loader, weights: list[list[int]], fail_at: int | None = None) -> dict[str, Any]:
    """Train an epoch; return the state at its end, or at the failure."""
    try:
        for batch in fetch_ahead(loader):
            if len(weights) == fail_at:
                raise FloatingPointError  # noqa: TRY301  # stands for what a training step may raise
            weights.append(batch)
            loader.ack()  # after the optimizer's step
    except FloatingPointError:
        print(f"failed on batch {fail_at}: delivered {loader.cursor}, in the weights {loader.acknowledged}")
    return loader.state_dict()


baseline: list[list[int]] = []
train(make(), baseline)

weights: list[list[int]] = []
state = train(make(), weights, fail_at=4)
resumed = make()
resumed.load_state_dict(state)
train(resumed, weights)
assert weights == baseline
print(f"resumed at {state['cursor']}; every batch once: {weights}")
