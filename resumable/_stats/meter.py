"""Meter: what worker processes measure of the batches that they make, and how many of those lie ready.

A worker stamps each batch with the time at which it was made. The clock is `time.perf_counter`, which is the same in
all processes of a machine. So when a batch arrives, it is known at which of the last asks it was ready already: nothing
has to be read of torch's queues. A batch on its way between two processes is ready; the wait for it is a wait all the
same.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any, NamedTuple, Protocol

__all__ = ["Made", "Meter", "Queue"]


class Made(NamedTuple):
    """A batch on its way from a worker process; a tuple, whose tensors torch pins.

    Args:
        batch: what was made.
        seconds: what that took, unless the batch says so itself.
        at: when it was made, by `time.perf_counter`.
    """

    batch: Any
    seconds: float
    at: float


class _Sums(Protocol):
    read: float
    asks: int
    ready: int
    starved: int


class Meter:
    """Sums of a source with worker processes, since they were collected last."""

    __slots__ = ("_asks", "_delivered", "_read", "_ready", "_starved")

    def __init__(self) -> None:
        self._read = self._delivered = 0.0
        self._asks = self._ready = self._starved = 0

    def add(self, seconds: float) -> None:
        """Add what a worker needed for a batch that has come out of the source."""
        self._read += seconds

    def settle(self, ready: int, *, starved: bool) -> None:
        """Add an ask, at which so many batches were ready."""
        self._asks, self._ready, self._starved = self._asks + 1, self._ready + ready, self._starved + starved

    def drop(self) -> None:
        """Forget what was read and not delivered: another stream begins."""
        self._read = 0.0

    def deliver(self) -> None:
        """Note that what was read so far is delivered."""
        self._delivered, self._read = self._delivered + self._read, 0.0

    def collect(self, sums: _Sums) -> None:
        """Move what was measured to the sums of an epoch."""
        sums.read += self._delivered
        sums.asks, sums.ready, sums.starved = (
            sums.asks + self._asks,
            sums.ready + self._ready,
            sums.starved + self._starved,
        )
        self._delivered, self._asks, self._ready, self._starved = 0.0, 0, 0, 0


class _Ask:
    __slots__ = ("at", "ready", "starved")

    def __init__(self, at: float) -> None:
        self.at, self.ready, self.starved = at, 0, False


class Queue:
    """The batches that workers make in one run, in the order in which they are taken.

    Args:
        meter: is told of each ask once it is known what was ready then.
        size: how many batches the workers are asked for at a time: no batch after so many was ready at an ask.
    """

    def __init__(self, meter: Meter, size: int) -> None:
        self._meter, self._size = meter, max(size, 1)
        self._open: deque[_Ask] = deque()
        self._asked: float | None = None
        self._begun = False

    def ask(self) -> None:
        """Ask for the next batch; again, where what came was none."""
        if self._asked is None:
            self._asked = perf_counter()

    def came(self, answer: Any) -> Any:
        """Return what a worker sent, without what is for the meter."""
        if not isinstance(answer, Made):
            return answer
        self._meter.add(answer.seconds)
        self._count(answer.at)
        return answer.batch

    def over(self) -> None:
        """Settle all asks: no batch comes after the last one."""
        while self._open:
            self._settle()

    def _count(self, made: float) -> None:
        asked, self._asked = self._asked, None
        if self._begun and asked is not None:
            ask = _Ask(asked)
            ask.starved = made > asked
            self._open.append(ask)
        self._begun = True
        for ask in reversed(self._open):
            if ask.at < made:
                break
            ask.ready += 1
        if len(self._open) == self._size:
            self._settle()

    def _settle(self) -> None:
        ask = self._open.popleft()
        self._meter.settle(ask.ready, starved=ask.starved)
