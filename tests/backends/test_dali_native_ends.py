"""DALI's own iterators in a loop by hand on two ranks of a process group: each epoch keeps its last batch."""

from __future__ import annotations

import hashlib
from typing import Any

import dali_pipelines
import pytest
from forked import ranks, step_together

import resumable

pytestmark = pytest.mark.slow  # ranks are processes

EPOCHS, STEPS = 2, 3  # 19 images in two shards, in batches of 4


def shard(rank: int, size: int) -> Any:
    return dali_pipelines.iterator(reader={"shard_id": rank, "num_shards": size, "stick_to_shard": True})


def digest(batch: Any) -> str:
    return hashlib.sha256(batch[0]["data"].numpy().tobytes()).hexdigest()[:12]


def train(rank: int, size: int, *, asks: bool, state: Any = None) -> tuple[list[str], list[Any]]:
    """Return what each step had, and the loader's state after it, if a state is asked for at each."""
    loader = resumable.wrap(shard(rank, size))
    if state is not None:
        loader.load_state_dict(state)
    seen, states = [], []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            seen.append(f"{epoch.number} {digest(batch)}")
            step_together()
            if asks:
                states.append(loader.state_dict())
    return seen, states


def hand_run(rank: int, size: int) -> Any:
    raw = shard(rank, size)
    plain = [f"{epoch} {digest(batch)}" for epoch in range(EPOCHS) for batch in raw]
    whole, _ = train(rank, size, asks=False)
    asked, states = train(rank, size, asks=True)
    rests = [train(rank, size, asks=True, state=state)[0] for state in states]
    return plain, whole, asked, rests


def test_each_epoch_keeps_its_last_batch_and_goes_on_from_any() -> None:
    """The ranks draw one step ahead to agree on the end, and DALI tells its own: it is not over while one is ahead."""
    for plain, whole, asked, rests in ranks(2, hand_run):
        assert len(plain) == EPOCHS * STEPS
        assert whole == asked == plain, "the batches that DALI gives without a wrapper"
        assert rests == [plain[after:] for after in range(1, len(plain) + 1)]
