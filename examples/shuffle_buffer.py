"""A Hugging Face stream with a shuffle buffer, killed and resumed exactly: python examples/shuffle_buffer.py."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from torch.utils.data import DataLoader

import resumable

SAMPLES, BATCH, EPOCHS = 24, 4, 2


def make() -> resumable.Loader[Any]:
    """Shuffle shards, then samples in a buffer of 8; the stream's state does not contain the buffer."""
    plain = Dataset.from_dict({"sample": list(range(SAMPLES))}).to_iterable_dataset(num_shards=4)
    stream = plain.shuffle(seed=0, buffer_size=8)
    # Without resume="replay" the result is the same, with a PromiseWarning.
    return resumable.wrap(DataLoader(stream, batch_size=BATCH, num_workers=2), resume="replay")


def train(loader: resumable.Loader[Any], killed_after: int | None = None) -> tuple[list[list[int]], dict[str, Any]]:
    """Return the batches, and the state after the last of them."""
    done, state = list[list[int]](), loader.state_dict()
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            done.append(batch["sample"].tolist())
            state = loader.state_dict()
            if len(done) == killed_after:
                return done, state
    return done, state


whole, _ = train(make())
first, saved = train(make(), killed_after=5)
resumed = make()
resumed.load_state_dict(saved)
rest, _ = train(resumed)

assert first + rest == whole
for number, batch in enumerate(whole):
    print(f"{'before the kill' if number < len(first) else 'after the resume':<17} {batch}")
