"""Statistics of a loader: how long a loop waits for its batches, and how long it is busy with them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resumable._order.cursor import Cursor

__all__ = ["LoaderStats", "Stopwatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """What a loop over a Loader had, and what it waited for, in this process.

    Args:
        batches: number of batches that were delivered.
        samples: number of samples in them, of all ranks; elements, where the source has no sample indices.
        wait_seconds: what the loop waited in `next()`. Without worker processes, that is what reading took.
        opening_seconds: the part of `wait_seconds` that passed until the first batch of an epoch, or the first one
            after a resume: workers start, buffers fill, places are skipped to.
        loop_seconds: what the loop spent between the batches of an epoch: forward, backward, logging, checkpoints.
        longest_wait_seconds: the longest wait for a batch.
        longest_wait_epoch: the epoch of that batch; None before the first batch.
        longest_wait_step: its number in the epoch, from 0.
    """

    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    opening_seconds: float = 0.0
    loop_seconds: float = 0.0
    longest_wait_seconds: float = 0.0
    longest_wait_epoch: int | None = None
    longest_wait_step: int | None = None

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the loop waited, from 0 to 1; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.wait_seconds / total if total else 0.0

    def as_dict(self) -> dict[str, int | float]:
        """Return all of it as plain numbers, for a logger; without what there is not yet."""
        values: dict[str, Any] = asdict(self) | {"wait_fraction": self.wait_fraction}
        return {name: value for name, value in values.items() if value is not None}


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


class Stopwatch:
    """Measures waits. It reads the clock twice per batch, and costs below a microsecond.

    Attributes:
        since: when the wait began that is under way, by `time.perf_counter`; None while the loop is busy.
    """

    __slots__ = ("_epoch", "_last", "_opens", "_tallies", "_tally", "since")

    def __init__(self) -> None:
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

    def opens(self) -> None:
        """Note that the stream is opened in the wait that is under way."""
        self._opens = True

    def delivered(self, before: Cursor, after: Cursor) -> None:
        """End a wait with a batch: what lies between two places."""
        tally = self._end(before, found=True)
        tally.batches += 1
        tally.samples += after.position - before.position

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
        return LoaderStats(
            batches=sum(tally.batches for tally in tallies.values()),
            samples=sum(tally.samples for tally in tallies.values()),
            wait_seconds=sum(tally.wait for tally in tallies.values()),
            opening_seconds=sum(tally.opening for tally in tallies.values()),
            loop_seconds=sum(tally.loop for tally in tallies.values()),
            longest_wait_seconds=longest.longest,
            longest_wait_epoch=None if longest.step is None else worst,
            longest_wait_step=longest.step,
        )

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
        self._last, self.since = now, None
        return tally

    def _of(self, epoch: int) -> _Tally:
        self._tally, self._epoch = self._tallies.setdefault(epoch, _Tally()), epoch
        return self._tally
