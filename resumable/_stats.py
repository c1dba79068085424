"""The numbers of `loader.stats()`: waits, reading, the queue of worker processes, and sizes."""

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


# ------------------------------------------------------------------ public numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """Counts and times of the loops over a Loader in this process.

    All values except the longest wait are sums, so the difference of two `LoaderStats` covers the time between them.

    Args:
        batches: number of delivered batches.
        samples: number of samples in them, over all ranks; elements if the source has no sample indices.
        estimated_bytes: bytes of this rank's part of them. Batches 1, 2, 4, ... 64 of an epoch and every 64th after
            that are measured, and extrapolated to the next measurement: measuring every batch would dominate a fast
            loop. The value is exact if all samples have the same size. Tensors and arrays count with their `nbytes`,
            text and bytes with their length, numbers as 8, in dicts, lists, tuples and dataclasses at any depth; 16
            values of a longer list are measured. Other objects count as 0.
        wait_seconds: time that the loop waited in `next()`.
        opening_seconds: the part of `wait_seconds` before the first batch of an epoch, or the first one after a
            resume: workers start, buffers fill, the source seeks or skips.
        loop_seconds: time that the loop spent between the batches of an epoch: forward, backward, logging, checkpoints.
        read_seconds: time spent reading. With worker processes of a `DataLoader`: the time that they worked on these
            batches, as they measured it, summed over workers, without seeking to a saved position. Without workers:
            the waits of this process, without opening. None if unknown: DALI, FFCV, tf.data and the threads of
            `tfds.source` read in the background and report no times.
        asks: how often a batch was requested from running worker processes, so without the first batch of an epoch or
            after a resume. A request counts once it is known which batches were ready: after as many batches as the
            workers read ahead, or at the end of the epoch. 0 without worker processes, like the next two.
        ready: number of finished batches that waited in the queue, summed over all these requests.
        starved: how often the requested batch was not finished yet.
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
        """Fraction of the time that the loop waited, from 0 to 1; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.wait_seconds / total if total else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples of all ranks per second of loop time, including waits; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.samples / total if total else 0.0

    @property
    def queue_depth(self) -> float | None:
        """Mean number of batches that were ready when the next one was requested; None without worker processes."""
        return self.ready / self.asks if self.asks else None

    @property
    def starved_fraction(self) -> float | None:
        """Fraction of requests, from 0 to 1, whose batch was not finished yet; None without worker processes."""
        return self.starved / self.asks if self.asks else None

    def as_dict(self) -> dict[str, int | float]:
        """Return everything as plain numbers, for a logger, without values that are unknown."""
        derived = ("wait_fraction", "samples_per_second", "queue_depth", "starved_fraction")
        values: dict[str, Any] = asdict(self) | {name: getattr(self, name) for name in derived}
        unknown = () if self.asks else ("asks", "ready", "starved")
        return {name: value for name, value in values.items() if value is not None and name not in unknown}


_SUMS = (
    *("batches", "samples", "estimated_bytes", "wait_seconds", "opening_seconds", "loop_seconds", "read_seconds"),
    *("asks", "ready", "starved"),
)


def between(before: LoaderStats, now: LoaderStats) -> LoaderStats:
    """Return the stats between two points in time; the longest wait is the overall one."""
    sums: dict[str, tuple[Any, Any]] = {name: (getattr(before, name), getattr(now, name)) for name in _SUMS}
    recent: dict[str, Any] = {name: None if None in pair else pair[1] - pair[0] for name, pair in sums.items()}
    return replace(now, **recent)


# ------------------------------------------------------------------ sizes of batches

_MOST = 16  # values of a list that are measured
_DEEPEST = 16  # levels; a list may contain itself
_NUMBER = 8
_NUMBERS = (int, float, bool, complex)


def size_of(batch: Any) -> int:
    """Return the bytes of a batch: an estimate if it contains long lists of Python values.

    An object that raises when it is inspected counts as 0.
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
    """Add up the parts; if there are many, extrapolate from evenly spaced ones.

    Args:
        parts: of a collection.
        most: how many are measured, including those in nested lists.
        levels: how many levels to descend.
    """
    count = len(parts)
    if count <= most:
        inside = max(most // max(count, 1), 1)
        return sum(_size(part, inside, levels - 1) for part in parts)
    looked_at = [parts[number * count // most] for number in range(most)]
    return count / most * sum(_size(part, 1, levels - 1) for part in looked_at)


# ------------------------------------------------------------------ meter
#
# A worker stamps each batch with the time at which it was finished, read from `time.perf_counter`, which is the same
# clock in all processes of a machine. So when a batch arrives, we know at which of the latest requests it was ready,
# without reading torch's queues. A batch in transit between two processes counts as ready; the wait for it still counts
# as a wait.


class Made(NamedTuple):
    """A batch on its way from a worker process; a tuple, so torch pins its tensors.

    Args:
        batch: the batch.
        seconds: how long it took, unless the batch says so itself.
        at: when it was finished, by `time.perf_counter`.
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
    """Sums over a source with worker processes since the last `collect`."""

    __slots__ = ("_asks", "_delivered", "_read", "_ready", "_starved")

    def __init__(self) -> None:
        self._read = self._delivered = 0.0
        self._asks = self._ready = self._starved = 0

    def add(self, seconds: float) -> None:
        """Add a worker's time for a batch that has left the source."""
        self._read += seconds

    def settle(self, ready: int, *, starved: bool) -> None:
        """Add a request at which `ready` batches were ready."""
        self._asks, self._ready, self._starved = self._asks + 1, self._ready + ready, self._starved + starved

    def drop(self) -> None:
        """Discard the time of batches that were read but not delivered: a new stream starts."""
        self._read = 0.0

    def deliver(self) -> None:
        """Note that the batches read so far are delivered."""
        self._delivered, self._read = self._delivered + self._read, 0.0

    def collect(self, sums: _Sums) -> None:
        """Move the measurements to the sums of an epoch."""
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
        meter: receives each request once it is known how many batches were ready.
        size: how many batches are requested from the workers at a time; no later batch can be ready at a request.
    """

    def __init__(self, meter: Meter, size: int) -> None:
        self._meter, self._size = meter, max(size, 1)
        self._open: deque[_Ask] = deque()
        self._asked: float | None = None
        self._begun = False

    def ask(self) -> None:
        """Request the next batch. Called again if the last answer was not a batch."""
        if self._asked is None:
            self._asked = perf_counter()

    def came(self, answer: Any) -> Any:
        """Return a worker's answer without the measurements."""
        if not isinstance(answer, Made):
            return answer
        self._meter.add(answer.seconds)
        self._count(answer.at)
        return answer.batch

    def over(self) -> None:
        """Settle all requests: the last batch has arrived."""
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

_RARELY = 64  # batches between two measurements


@dataclass(slots=True)
class _Tally:
    """Running sums of one epoch."""

    batches: int = 0
    samples: int = 0
    wait: float = 0.0
    opening: float = 0.0
    loop: float = 0.0
    longest: float = 0.0
    step: int | None = None  # of the batch with the longest wait
    read: float = 0.0
    asks: int = 0
    ready: int = 0
    starved: int = 0
    due: int = 1  # number of the next batch to measure
    bytes: float = 0.0  # up to the last measured batch
    rate: float = 0.0  # bytes per sample of the last measured batch
    measured: int = 0  # samples up to it

    def measure(self, batch: Any, samples: int) -> None:
        """Measure the last counted batch; extrapolate from the previous measurement to the batches in between."""
        size = size_of(batch)
        self.bytes += self.rate * (self.samples - samples - self.measured) + size
        self.rate, self.measured = size / max(samples, 1), self.samples
        self.due += min(self.due, _RARELY)

    @property
    def estimated_bytes(self) -> float:
        return self.bytes + self.rate * (self.samples - self.measured)


class Reads(Protocol):
    """The reader of the batches."""

    @property
    def traits(self) -> Traits:
        """Its traits: whether it reads in the background and reports no times."""
        ...

    @property
    def inside(self) -> Any:
        """Has a `meter` with the measurements of its worker processes."""
        ...


class Stopwatch:
    """Measures waits. It reads the clock twice per batch, and costs less than 1 µs.

    Attributes:
        since: when the current wait started, by `time.perf_counter`; None while the loop is busy.
        meter: the measurements of the source's worker processes; None without workers.
    """

    __slots__ = ("_epoch", "_last", "_opens", "_tallies", "_tally", "_unknown", "meter", "since")

    def __init__(self, reads: Reads) -> None:
        self._read_by(reads)
        self._tallies: dict[int, _Tally] = {}
        self._tally, self._epoch = _Tally(), -1  # of the epoch of the last wait
        self._last: float | None = None  # when the loop received its last batch
        self._opens = False
        self.since: float | None = None

    def begin_loop(self) -> None:
        """Do not count the time since the last batch: a new loop starts."""
        self._last = None

    def start(self) -> None:
        """Start a wait."""
        self._opens = False
        self.since = perf_counter()

    def opens(self, reads: Reads) -> None:
        """Note that the source's stream is opened during the current wait."""
        self._opens = True
        self._read_by(reads)
        if self.meter is not None:
            self.meter.drop()

    def delivered(self, before: Cursor, after: Cursor, batch: Any) -> None:
        """End a wait with a batch, which lies between two positions."""
        tally = self._end(before, found=True)
        tally.batches += 1
        tally.samples += (samples := after.position - before.position)
        if tally.batches == tally.due:
            tally.measure(batch, samples)

    def looked(self, at: Cursor) -> None:
        """End a wait with a batch that was peeked at; the loop will get it immediately."""
        self._end(at, found=True)

    def stop(self, at: Cursor) -> None:
        """End a wait without a batch, at the end of the epoch or with an error, unless it has already ended."""
        if self.since is not None:
            self._end(at, found=False)
            self._last = None

    def stats(self, epoch: int | None = None) -> LoaderStats:
        """Return the sums of one epoch, or of all epochs."""
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
