"""What `loader.stats()` tells: waits, reading, the queue of worker processes, and sizes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from resumable._introspection import ask, has, is_exactly, survive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resumable._order.cursor import Cursor
    from resumable.protocols import Traits


__all__ = ["LoaderStats", "Made", "Meter", "Queue", "Stopwatch", "between", "size_of"]


# ------------------------------------------------------------------ numbers
#
# The numbers that users see.


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """What a loop over a Loader had, and what it waited for, in this process.

    All but the longest wait are sums, so the difference of two is what lies between them.

    Args:
        batches: number of batches that were delivered.
        samples: number of samples in them, of all ranks; elements, where the source has no sample indices.
        estimated_bytes: bytes of this rank's part of them. Batches 1, 2, 4, ... 64 of an epoch and every 64th after
            that are measured, and stand for the samples up to the next one: to measure each batch would cost a fast
            loop more than all the rest. It is exact where all samples are as large as each other. Tensors and arrays
            count by `nbytes`, text and bytes by their length, numbers as 8, in dicts, lists, tuples and dataclasses,
            nested as they like; of a list of more than 16 values, 16 are measured. Other objects count nothing.
        wait_seconds: what the loop waited in `next()`.
        opening_seconds: the part of `wait_seconds` that passed until the first batch of an epoch, or the first one
            after a resume: workers start, buffers fill, places are skipped to.
        loop_seconds: what the loop spent between the batches of an epoch: forward, backward, logging, checkpoints.
        read_seconds: what reading took. With the worker processes of a `DataLoader`, the time for which they were busy
            with these batches, summed over workers, as they measured it; apart from going to the place of a state.
            Without, that of this process: the waits that were not for opening. None where it is unknown: DALI, FFCV,
            tf.data and the threads of `tfds.source` read in the background, and tell no times.
        asks: how often a batch was asked of worker processes while these were at work, so without the first one of an
            epoch or after a resume. It counts once it is known what was ready then: after as many batches as workers
            read ahead, or at the end of the epoch. 0 without worker processes, as are the next two.
        ready: number of batches that the workers had made, and that were not taken yet, at all of these asks together.
        starved: how often the batch whose turn it was had not been made yet.
        longest_wait_seconds: the longest wait for a batch.
        longest_wait_epoch: the epoch of that batch; None before the first batch.
        longest_wait_step: its number in the epoch, from 0.
    """

    batches: int = 0
    samples: int = 0
    estimated_bytes: int = 0
    wait_seconds: float = 0.0
    opening_seconds: float = 0.0
    loop_seconds: float = 0.0
    read_seconds: float | None = 0.0
    asks: int = 0
    ready: int = 0
    starved: int = 0
    longest_wait_seconds: float = 0.0
    longest_wait_epoch: int | None = None
    longest_wait_step: int | None = None

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the loop waited, from 0 to 1; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.wait_seconds / total if total else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples of all ranks by the time of the loop, waits included; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.samples / total if total else 0.0

    @property
    def queue_depth(self) -> float | None:
        """Batches that lay ready when the next one was asked for, in the mean; None without worker processes."""
        return self.ready / self.asks if self.asks else None

    @property
    def starved_fraction(self) -> float | None:
        """Share of the asks, from 0 to 1, at which the next batch was not made yet; None without worker processes."""
        return self.starved / self.asks if self.asks else None

    def as_dict(self) -> dict[str, int | float]:
        """Return all of it as plain numbers, for a logger; without what there is not yet, or is not known."""
        derived = ("wait_fraction", "samples_per_second", "queue_depth", "starved_fraction")
        values: dict[str, Any] = asdict(self) | {name: getattr(self, name) for name in derived}
        unknown = () if self.asks else ("asks", "ready", "starved")
        return {name: value for name, value in values.items() if value is not None and name not in unknown}


_SUMS = (
    *("batches", "samples", "estimated_bytes", "wait_seconds", "opening_seconds", "loop_seconds", "read_seconds"),
    *("asks", "ready", "starved"),
)


def between(before: LoaderStats, now: LoaderStats) -> LoaderStats:
    """Return what came between two moments; the longest wait is that of all."""
    sums: dict[str, tuple[Any, Any]] = {name: (getattr(before, name), getattr(now, name)) for name in _SUMS}
    recent: dict[str, Any] = {name: None if None in pair else pair[1] - pair[0] for name, pair in sums.items()}
    return replace(now, **recent)


# ------------------------------------------------------------------ sizes
#
# Sizes of batches: how many bytes of data are in one, as far as that is quickly told.

_MOST = 16  # values of a list that are looked at
_DEEPEST = 16  # levels; a list may contain itself
_NUMBER = 8
_NUMBERS = (int, float, bool, complex)


def size_of(batch: Any) -> int:
    """Return the bytes of a batch: an estimate where it has long lists of Python's values.

    An object that raises when it is looked at counts nothing.
    """
    return survive("a batch", lambda: round(_size(batch, _MOST, _DEEPEST)), 0)


def _size(value: Any, most: int, levels: int) -> float:
    if is_exactly(value, _NUMBERS):
        return _NUMBER
    size = ask(value, "nbytes") if has(type(value), "nbytes") else None
    if isinstance(size, int):
        return float(size)
    if issubclass(type(value), (bytes, bytearray, str)):
        return len(value)
    if not levels:
        return 0
    return _of_parts(_parts(value), most if issubclass(type(value), list) else _MOST, levels)


def _parts(value: Any) -> list[Any]:
    if issubclass(type(value), Mapping):
        return list(value.values())
    if issubclass(type(value), (list, tuple)):
        return value  # type: ignore[no-any-return]  # as good as a list
    if ask(type(value), "__dataclass_fields__") is not None:
        return [ask(value, one.name) for one in fields(value)]
    return []


def _of_parts(parts: list[Any], most: int, levels: int) -> float:
    """Sum up the parts; of many, some at equal distances stand for the others.

    Args:
        parts: of a collection.
        most: how many are looked at, those in lists inside of them included.
        levels: how deep to go.
    """
    count = len(parts)
    if count <= most:
        inside = max(most // max(count, 1), 1)
        return sum(_size(part, inside, levels - 1) for part in parts)
    looked_at = [parts[number * count // most] for number in range(most)]
    return count / most * sum(_size(part, 1, levels - 1) for part in looked_at)


# ------------------------------------------------------------------ meter
#
# Meter: what worker processes measure of the batches that they make, and how many of those lie ready.
#
# A worker stamps each batch with the time at which it was made. The clock is `time.perf_counter`, which is the same in
# all processes of a machine. So when a batch arrives, it is known at which of the last asks it was ready already:
# nothing has to be read of torch's queues. A batch on its way between two processes is ready; the wait for it is a wait
# all the same.


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


# ------------------------------------------------------------------ stopwatch
#
# Stopwatch: measures how long a loop waits for its batches, and how long it is busy with them.

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
