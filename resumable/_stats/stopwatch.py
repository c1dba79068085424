"""Stopwatch: measures how long a loop waits for its batches, and how long it is busy with them."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from resumable._stats.numbers import LoaderStats
from resumable._stats.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resumable._order.cursor import Cursor
    from resumable._stats.meter import Meter
    from resumable.protocols import Traits

__all__ = ["Stopwatch"]

_RARELY = 64  # batches from one that is measured to the next one


@dataclass(slots=True)
class _Tally:
    """Running sums of one epoch."""

    batches: int = 0
    samples: int = 0
    wait: float = 0.0
    opening: float = 0.0
    loop: float = 0.0
    longest: float = 0.0
    step: int | None = None  # of the batch that was waited for longest
    read: float = 0.0
    asks: int = 0
    ready: int = 0
    starved: int = 0
    due: int = 1  # number of the batch that is measured next
    bytes: float = 0.0  # up to the last batch that was measured
    rate: float = 0.0  # of that, per sample
    measured: int = 0  # samples up to it

    def measure(self, batch: Any, samples: int) -> None:
        """Measure the batch that was counted last; the one before stands for the samples since."""
        size = size_of(batch)
        self.bytes += self.rate * (self.samples - samples - self.measured) + size
        self.rate, self.measured = size / max(samples, 1), self.samples
        self.due += min(self.due, _RARELY)

    @property
    def estimated_bytes(self) -> float:
        return self.bytes + self.rate * (self.samples - self.measured)


class Reads(Protocol):
    """Whoever reads the batches."""

    @property
    def traits(self) -> Traits:
        """Say whether it reads in the background, and tells no times."""
        ...

    @property
    def inside(self) -> Any:
        """Has a `meter`: what its worker processes measure."""
        ...


class Stopwatch:
    """Measures waits. It reads the clock twice per batch, and costs below a microsecond.

    Attributes:
        since: when the wait began that is under way, by `time.perf_counter`; None while the loop is busy.
        meter: what the source's worker processes measure; None where it has none.
    """

    __slots__ = ("_epoch", "_last", "_opens", "_tallies", "_tally", "_unknown", "meter", "since")

    def __init__(self, reads: Reads) -> None:
        self._read_by(reads)
        self._tallies: dict[int, _Tally] = {}
        self._tally, self._epoch = _Tally(), -1  # of the epoch that was waited for last
        self._last: float | None = None  # when the loop got its last batch
        self._opens = False
        self.since: float | None = None

    def begin_loop(self) -> None:
        """Count no time from the last batch to the next one: another loop begins."""
        self._last = None

    def start(self) -> None:
        """Begin a wait."""
        self._opens = False
        self.since = perf_counter()

    def opens(self, reads: Reads) -> None:
        """Note that the stream of a source that can do this is opened in the wait that is under way."""
        self._opens = True
        self._read_by(reads)
        if self.meter is not None:
            self.meter.drop()

    def delivered(self, before: Cursor, after: Cursor, batch: Any) -> None:
        """End a wait with a batch: what lies between two places."""
        tally = self._end(before, found=True)
        tally.batches += 1
        tally.samples += (samples := after.position - before.position)
        if tally.batches == tally.due:
            tally.measure(batch, samples)

    def looked(self, at: Cursor) -> None:
        """End a wait with a batch that was looked at: the loop will get it at once."""
        self._end(at, found=True)

    def stop(self, at: Cursor) -> None:
        """End a wait that brought no batch, if there is one still: at the end of the epoch, or with an error."""
        if self.since is not None:
            self._end(at, found=False)
            self._last = None

    def stats(self, epoch: int | None = None) -> LoaderStats:
        """Return the sums of one epoch, or of all."""
        tallies = {number: tally for number, tally in self._tallies.items() if epoch is None or number == epoch}
        worst = max(tallies, key=lambda number: tallies[number].longest, default=None)
        longest = _Tally() if worst is None else tallies[worst]
        wait, opening = (sum(getattr(tally, name) for tally in tallies.values()) for name in ("wait", "opening"))
        return LoaderStats(
            batches=sum(tally.batches for tally in tallies.values()),
            samples=sum(tally.samples for tally in tallies.values()),
            estimated_bytes=round(sum(tally.estimated_bytes for tally in tallies.values())),
            wait_seconds=wait,
            opening_seconds=opening,
            loop_seconds=sum(tally.loop for tally in tallies.values()),
            read_seconds=self._read(tallies.values(), wait - opening),
            asks=sum(tally.asks for tally in tallies.values()),
            ready=sum(tally.ready for tally in tallies.values()),
            starved=sum(tally.starved for tally in tallies.values()),
            longest_wait_seconds=longest.longest,
            longest_wait_epoch=None if longest.step is None else worst,
            longest_wait_step=longest.step,
        )

    def _read_by(self, reads: Reads) -> None:
        self.meter: Meter | None = reads.inside.meter
        self._unknown = reads.traits.reads_ahead

    def _read(self, tallies: Iterable[_Tally], here: float) -> float | None:
        if self._unknown:
            return None
        return here if self.meter is None else sum(tally.read for tally in tallies)

    def _end(self, at: Cursor, *, found: bool) -> _Tally:
        now, since, last = perf_counter(), self.since, self._last
        assert since is not None
        tally = self._tally if at.epoch == self._epoch else self._of(at.epoch)
        wait = now - since
        tally.wait += wait
        if last is not None:
            tally.loop += since - last
        if self._opens:
            tally.opening += wait
        if found and wait > tally.longest:
            tally.longest, tally.step = wait, at.step
        if self.meter is not None:
            self.meter.collect(tally)
        self._last, self.since = now, None
        return tally

    def _of(self, epoch: int) -> _Tally:
        self._tally, self._epoch = self._tallies.setdefault(epoch, _Tally()), epoch
        return self._tally
