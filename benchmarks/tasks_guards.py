"""The cost of `checks`: steps, states and epochs of small sources, measured inside a contender's process."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import resumable
from benchmarks.case import Case
from benchmarks.contenders.plain import plain_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Guarded"]


class Iterable:
    """Opened again in each epoch, without a state.

    Args:
        length: number of elements.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Stateful(Iterable):
    """The same, with a state."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.place = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < self.length:
            self.place += 1
            yield self.place
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


_SOURCES: dict[str, Callable[[Case], Any]] = {
    "list": lambda case: list(range(case.length)),
    "DataLoader": plain_loader,
    "iterable, read again": lambda case: Iterable(case.length),
    "iterable with a state": lambda case: Stateful(case.length),
}


class Guarded:
    """A Loader over a source, for which the checks are on or off.

    Args:
        source: its name.
        workers: of a DataLoader.
        batches: of an epoch.
        checks: of `wrap`.
    """

    def __init__(self, source: str, workers: int, batches: int, checks: Any) -> None:
        case = Case(length=batches * 64, workers=workers)
        self._make: Callable[[], Any] = partial(self._wrap, source, case, checks)
        self._batches = batches
        self._loader = self._make()
        self._epochs = self._loader.epochs(1 << 40)
        for _ in range(2):
            self.epoch(saves=False)
        self._state = self._loader.state_dict()

    @staticmethod
    def _wrap(source: str, case: Case, checks: Any) -> Any:
        own: dict[str, Any] = {} if source == "DataLoader" else {"batch_size": case.batch}
        return resumable.wrap(_SOURCES[source](case), seed=0, checks=checks, **own)

    def epoch(self, *, saves: bool) -> dict[str, float]:
        """Read an epoch; take a state after it, and with `saves` after each step.

        Returns:
            µs of a step, and of an epoch's start and end together, with its state.
        """
        clock = time.process_time  # a busy machine does not change it
        begin = clock()
        batches = iter(next(self._epochs))
        next(batches)
        first = clock()
        for _ in range(self._batches - 1):
            next(batches)
            if saves:
                self._loader.state_dict()
        last = clock()
        assert next(batches, None) is None
        self._loader.state_dict()
        end = clock()
        return {"step": (last - first) / (self._batches - 1) * 1e6, "epoch": (end - last + first - begin) * 1e6}

    def resume(self) -> float:
        """Return the µs from creating a Loader to its first batch after an epoch's end, without importing anything."""
        begin = time.process_time()
        loader = self._make()
        loader.load_state_dict(self._state)
        next(iter(loader))
        taken = time.process_time() - begin
        loader.close()
        return taken * 1e6
