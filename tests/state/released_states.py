"""Makes the files of states that the tests load for ever: `python tests/state/released_states.py states/format3.json`.

Run once per released format, with the version that writes it; `format2.json` is from before there were
canaries, `format2_data.json` has those that say something of the data, and `format2_snapshots.json` those of sources
with a state, which the digest covers since then; `format3.json` is the current format. Each case has a state and the
rest of its run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS = 3


class Reader:
    """Goes on where it stands, and counts its passes."""

    def __init__(self, length: int = 5) -> None:
        self.length, self.index, self.laps = length, 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"index": self.index, "laps": self.laps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.index, self.laps = state["index"], state["laps"]

    def __iter__(self) -> Iterator[int]:
        while self.index < self.length:
            self.index += 1
            yield self.laps * 100 + self.index - 1
        self.index, self.laps = 0, self.laps + 1


def rarely(source: Any, steps: int) -> Any:
    """Let a source say how many steps lie between two snapshots that are taken in advance."""
    source.snapshot_every = steps
    return source


class Stream(IterableDataset[int]):
    """Without a state."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


class StatefulStream(Reader, IterableDataset[int]):
    """With one."""


class Order(Reader):
    """A sampler with a state."""

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return (index % 100 for index in super().__iter__())


def numbers() -> Iterator[int]:
    yield from range(6)


def loader_of(dataset: Any, **options: Any) -> resumable.Loader:
    return resumable.wrap(DataLoader(dataset, **options), seed=3)


MAKERS: dict[str, Callable[[], resumable.Loader]] = {
    "list": lambda: resumable.wrap(list(range(7)), batch_size=2, shuffle=True, seed=3),
    "list, two ranks": lambda: resumable.wrap(list(range(8)), batch_size=2, world=World(1, 2), tail="pad", seed=3),
    "list, carry": lambda: resumable.wrap(list(range(7)), batch_size=3, tail="carry", seed=3),
    "function": lambda: resumable.wrap(numbers, batch_size=2, seed=3),
    "function, own part": lambda: resumable.wrap(numbers, shard=False, world=World(1, 2), seed=3),
    "reader": lambda: resumable.wrap(Reader(), seed=3),
    "reader, rare snapshots": lambda: resumable.wrap(rarely(Reader(), 3), seed=3),
    "map-style": lambda: loader_of(list(range(9)), batch_size=2, shuffle=True),
    "sampler": lambda: loader_of(list(range(5)), batch_size=2, sampler=Order()),
    "stream": lambda: loader_of(Stream(), batch_size=2),
    "stream, two workers": lambda: loader_of(Stream(), batch_size=2, num_workers=2),
    "stateful stream": lambda: loader_of(StatefulStream(), batch_size=2),
}


def run(loader: resumable.Loader, leave_at: int | None) -> Iterator[Any]:
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch if loader.cursor.step != leave_at else ():
            yield batch if isinstance(batch, (int, list)) else batch.tolist()
            if loader.cursor.step == leave_at:
                break


def cases() -> Iterator[dict[str, Any]]:
    """Yield a case for each state: at every step, in runs of whole epochs and of epochs that are left."""
    for name, make in MAKERS.items():
        for leave_at in (None, 1):
            whole, loader = list(run(make(), leave_at)), make()
            for number, _ in enumerate(run(loader, leave_at), start=1):
                yield {"name": name, "leave_at": leave_at, "state": loader.state_dict(), "rest": whole[number:]}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]\n")
