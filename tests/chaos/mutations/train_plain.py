"""A training loop that saves all that it has to after each batch. Without `--store`, it starts without torch."""

from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import planted

import resumable
from resumable.chaos import record_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

parser = ArgumentParser()
parser.add_argument("--bug")
parser.add_argument("--source", choices=["indexed", "replayed", "stateful"], default="indexed")
parser.add_argument("--by-hand", action="store_true", help="acknowledge each batch, and save before that, too")
parser.add_argument("--store", action="store_true", help="save to a CheckpointStore instead of JSON files")
given = parser.parse_args()
planted.plant(given.bug)

EPOCHS, SAMPLES, BATCH = 2, 14, 4
FILE = Path("checkpoint.json")
passes = 0


def stream(epoch: int) -> Iterator[int]:
    """Read a shuffled stream of an epoch."""
    global passes  # that is the bug
    if given.bug == "epoch_not_told":
        planted.mark(given.bug)
        epoch, passes = passes, passes + 1
    yield from random.Random(epoch).sample(range(SAMPLES), SAMPLES)


class Stateful:
    """A stream that knows where it stands."""

    def __init__(self) -> None:
        self.read, self.epoch = 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.read, self.epoch = 0, epoch

    def __iter__(self) -> Iterator[int]:
        for sample in islice(stream(self.epoch), self.read, None):
            self.read += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read, self.epoch = state["read"], state["epoch"]


def augment(sample: int) -> float:
    return sample + random.random()


random.seed(0)
np.random.seed(0)
source: Any = {"indexed": list(range(SAMPLES)), "replayed": stream, "stateful": Stateful()}[given.source]
loader = resumable.wrap(
    source,
    batch_size=BATCH,
    seed=planted.seed_of_the_time() if given.bug == "seed_of_the_time" else 1,
    transform=augment,
    tail="partial",
    ack="manual" if given.by_hand else "auto",
    checks="ranks",  # it would refuse what some of the bugs do, before anybody else could see it
)
store = resumable.CheckpointStore("checkpoints", keep=3) if given.store else None
if given.store:
    import_module("torch").manual_seed(0)
weights, momentum, step = 0.0, 0.0, 0


def load() -> Any:
    if store is not None:
        return store.latest()
    return json.loads(FILE.read_text()) if FILE.exists() else None


def save(weights: float) -> None:
    content = {
        "weights": weights,
        "momentum": momentum,
        "step": step,
        "rng": resumable.rng.state_dict(),
        "loader": loader.state_dict(),
    }
    if store is not None:
        store.save(step, content)
        return
    FILE.with_suffix(".tmp").write_text(json.dumps(content))
    FILE.with_suffix(".tmp").replace(FILE)


if (saved := load()) is not None:
    weights, step = saved["weights"], saved["step"]
    if given.bug == "optimizer_forgotten":
        planted.mark(given.bug)
    else:
        momentum = saved["momentum"]
    resumable.rng.load_state_dict(saved["rng"])
    loader.load_state_dict(saved["loader"])

for epoch in loader.epochs(EPOCHS):
    for batch in epoch:
        if given.by_hand:
            save(weights)  # the batch is in flight
        before = weights
        momentum = 0.5 * momentum + random.random() * sum(batch)  # as dropout draws
        weights -= 0.1 * momentum
        step += 1
        if given.by_hand:
            loader.ack()
        if given.bug == "saved_before_step":
            planted.mark(given.bug)
        save(before if given.bug == "saved_before_step" else weights)
record_weights({"weights": weights, "momentum": momentum})
