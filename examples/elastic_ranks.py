"""Four ranks become two in the middle of an epoch, then three; every global batch stays the same.

All ranks run in this process; `torchrun` would launch each one in a separate process.

python examples/elastic_ranks.py
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
GLOBAL_BATCH = 12
SAMPLES = list(range(60))


def start(ranks: int, state: dict[str, Any] | None = None) -> list[resumable.Loader]:
    """Create the loaders of all ranks, from the same state if there is one."""
    loaders = [
        resumable.wrap(SAMPLES, batch_size=GLOBAL_BATCH // ranks, shuffle=True, world=resumable.World(rank, ranks))
        for rank in range(ranks)
    ]
    for loader in loaders if state else ():
        loader.load_state_dict(state or {})
    return loaders


def step(loaders: list[resumable.Loader]) -> list[int]:
    """Take the next batch of every rank; return the global batch."""
    parts = [next(iter(loader)) for loader in loaders]
    print(f"  {len(parts)} ranks: {parts}")
    return [sample for part in parts for sample in part]


print("One rank, baseline:")
alone = start(1)
baseline = [step(alone) for _ in range(5)]

print("4 ranks, then 2, then 3:")
resized, state = [], None
for ranks, steps in ((4, 2), (2, 1), (3, 2)):
    loaders = start(ranks, state)
    resized += [step(loaders) for _ in range(steps)]
    states = [loader.state_dict() for loader in loaders]
    assert all(other == states[0] for other in states)
    state = states[0]

assert resized == baseline
assert sorted(chain.from_iterable(resized)) == SAMPLES
print(f"The same global batches in the same order, each sample once. Now at {state['cursor'] if state else None}.")
