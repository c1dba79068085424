"""A generator function, and an object with a state, resumed at every position: python examples/generator.py."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def sentences(epoch: int) -> Iterator[str]:
    """Yield a different order in every epoch; resumed by skipping the earlier elements."""
    words = ["anchor", "beacon", "compass", "deck", "ensign"]
    random.shuffle(words)  # the global RNG is seeded for this epoch
    for word in words:
        yield f"{epoch}-{word}-{random.randrange(100)}"


class Reader:
    """Knows its position and can go to any other; resumed from its state, without reading earlier elements."""

    def __init__(self) -> None:
        self.line = 0

    def __iter__(self) -> Iterator[str]:
        while self.line < 5:
            self.line += 1
            yield f"line {self.line}"
        self.line = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"line": self.line}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position."""
        self.line = state["line"]


def resume_everywhere(make: Callable[[], resumable.Loader]) -> None:
    """Save a state after every element of two epochs, and compare the rest in a new loader."""
    loader, run, states = make(), [], []
    for epoch in loader.epochs(2):
        for element in epoch:
            run.append(element)
            states.append(loader.state_dict())
    for step, state in enumerate(states, start=1):
        resumed = make()
        resumed.load_state_dict(state)
        assert [element for epoch in resumed.epochs(2) for element in epoch] == run[step:]
    print(f"{run}\n  the same rest from each of {len(states)} states, the last of which is {states[-1]['cursor']}")


resume_everywhere(lambda: resumable.wrap(sentences, seed=0))
resume_everywhere(lambda: resumable.wrap(Reader()))
