"""The three protocols that a Loader reads by. They are structural: a class needs no base and no registration to fit.

    kind       what it offers                                resume by              elastic
    indexed    any sample, by its index                      seeking, O(1)          yes
    snapshot   a stream, and its state as a value            its own state          where all ranks draw one stream
    replay     a stream that can be opened again per epoch    skipping               where all ranks draw one stream

`kind` names the sort of source in the state ("torch-map", "sequence", ...), `identity` the data itself in plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resumable._fetch.order import Order
    from resumable._order.plan import Tail
    from resumable._randomness.keyed import IntArray, Words
    from resumable._stats import Meter

__all__ = [
    "ELSEWHERE",
    "Backend",
    "Capabilities",
    "IndexedBackend",
    "Listed",
    "Prefetching",
    "ReplayBackend",
    "Request",
    "SnapshotBackend",
    "Upcoming",
    "capabilities_of",
]


class _Elsewhere:
    """Stands for an element that another rank reads."""

    def __repr__(self) -> str:
        return "ELSEWHERE"


ELSEWHERE = _Elsewhere()


class Request(NamedTuple):
    """What an indexed backend is asked for: the share of this rank in one global batch, a range of positions.

    Which samples these are, and their keys, is computed where it is asked for. So a process that has the order needs no
    more than the numbers. For any other process a request can be pickled: it then takes its samples and keys along.

    Attributes:
        epoch: epoch of the first sample.
        step: number of the global batch in the epoch, from 0.
        rank: who asks; for messages.
        start: position of the first sample in the epoch.
        stop: position after the last sample; it may lie past the epoch's length.
        version: number of the plan that cut the batch.
        order: resolves the positions.
    """

    epoch: int
    step: int
    rank: int
    start: int
    stop: int
    version: int
    order: Order | Listed

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start

    @property
    def indices(self) -> IntArray | list[Any]:
        """Sample indices, shape `(size,)`, not to be written to; a list where a sampler gives keys of another type."""
        return self.order.indices(self)

    @property
    def keys(self) -> Words:
        """One 64-bit key per sample, shape `(size,)`, to seed its augmentation with; none if that is per batch."""
        return self.order.keys(self)

    @property
    def batch_key(self) -> int:
        """A 64-bit key of the batch, for what is drawn per batch."""
        return self.order.batch_key(self)

    @property
    def padding(self) -> int:
        """How many samples at the end only fill up the last batch (`tail="pad"`)."""
        return self.order.padding(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the samples instead of the order. Arrays become bytes: NumPy's own way takes thrice as long."""
        return _unpacked, (self[:6], _packed(self.indices), _packed(self.keys), self.batch_key, self.padding)


class Listed:
    """Stands for the order in a request whose samples are listed, as those of a user's own sampler.

    Args:
        indices: sample indices; a list where the sampler gives keys of another type.
        keys: a key for each of them, or none.
        batch_key: the batch's.
        padding: how many at the end only fill up the batch.
    """

    __slots__ = ("_batch_key", "_indices", "_keys", "_padding")

    def __init__(self, indices: IntArray | list[Any], keys: Words, batch_key: int, padding: int = 0) -> None:
        self._indices, self._keys, self._batch_key, self._padding = indices, keys, batch_key, padding

    def indices(self, _: Request) -> IntArray | list[Any]:
        """Return the sample indices."""
        return self._indices

    def keys(self, _: Request) -> Words:
        """Return the keys."""
        return self._keys

    def batch_key(self, _: Request) -> int:
        """Return the batch's key."""
        return self._batch_key

    def padding(self, _: Request) -> int:
        """Return how many samples only fill up the batch."""
        return self._padding


def _packed(values: Any) -> Any:
    return (values.tobytes(), values.dtype.str) if isinstance(values, np.ndarray) else values


def _unpacked(
    numbers: tuple[int, int, int, int, int, int], indices: Any, keys: Any, batch_key: int, padding: int
) -> Request:
    indices, keys = (np.frombuffer(*one) if isinstance(one, tuple) else one for one in (indices, keys))
    return Request(*numbers, order=Listed(indices, keys, batch_key, padding))


@runtime_checkable
class IndexedBackend(Protocol):
    """A source that can read any sample by its index."""

    @property
    def kind(self) -> str:
        """Sort of source, as the state names it."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Plain values that tell this data from other data."""
        ...

    @property
    def length(self) -> int:
        """Number of samples."""
        ...

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request, in order.

        Lazy and single-pass. Reading ahead is allowed and invisible: what counts is what the Loader delivers.
        """
        ...


class Upcoming(NamedTuple):
    """Which neighbouring samples are read soon, of an order in blocks (`samplers.Blocks`).

    A row is a block: its first sample and the one after its last.

    Attributes:
        here: blocks of the window or windows that the samples of a request are in; shape `(blocks, 2)`.
        soon: the first blocks of the window after it: as large a part of that as the request is far in its own, so
            that all are there when it begins; shape `(blocks, 2)`.
    """

    here: IntArray
    soon: IntArray


@runtime_checkable
class Prefetching(Protocol):
    """A map-style source that reads in larger pieces than samples, if it is told which of them will be asked for."""

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Read what the next calls of `source[index]` will ask for, and what follows, where that is worth it.

        It is called where samples are read, in each worker of a `DataLoader` or in the training process, before those
        of a request are asked for one by one, each with its own randomness. The order stays the sampler's, and a
        sample must be the same without this call. What was read for an earlier request and is in neither `indices` nor
        blocks to come can go.

        Args:
            indices: of the samples of the request, in the order in which they are asked for.
            upcoming: returns the blocks that are read soon; None where the order is not in blocks. It takes a tenth of
                a millisecond, so it is left to the source whether it asks.
        """
        ...


@runtime_checkable
class ReplayBackend(Protocol):
    """A source that can be opened again in every epoch, and skipped through."""

    @property
    def kind(self) -> str:
        """Sort of source, as the state names it."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Plain values that tell this data from other data."""
        ...

    def open(self, epoch: int) -> Iterator[Any]:
        """Return an iterator over the elements of an epoch.

        An iterator with a method `skip(n: int) -> None` is asked to skip; any other one is drawn from and the elements
        are thrown away.
        """
        ...


@runtime_checkable
class SnapshotBackend(ReplayBackend, Protocol):
    """A source with a state of its own."""

    def snapshot(self) -> Any:
        """Return the state after the element that was yielded last, or None where there is none (then it is replayed).

        After the last element of an epoch it is the state from which `open` begins the next epoch.
        """
        ...

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Return an iterator that goes on after the element after which `snapshot` was taken; it may be at its end."""
        ...


Backend = IndexedBackend | ReplayBackend | SnapshotBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do beyond its protocol, and what it needs. It declares them by an attribute `capabilities`.

    A property is the place for those that are functions: an object that holds its own methods is freed late.

    Args:
        hints: what a user is to do about a difference, by its name in `identity`, or by the full name of another fact
            of the state, as in "sampler.window".
        length: elements per epoch, where that is known before its end; makes `len(loader)` work. An indexed backend
            has its length in the protocol.
        keyed: the backend seeds the randomness of its elements itself, so the global generators are left alone.
        needs_shard: on several ranks, the user has to say `shard`: only they know who divides the stream.
        snapshot_every: at how many steps it is worth its cost to take a snapshot in advance (`ack="manual"`).
        eager: snapshots are so cheap that one is taken before each draw, so that a draw that fails loses nothing.
        ended: tells, after an element, whether it was the epoch's last one, so that none is drawn ahead to find out.
            `snapshot` is then that of the next epoch's beginning.
        reopen: brings the source back to a place between two epochs, and begins the later one, as in
            `reopen(epoch, snapshot)`; where `restore` would stay at the end of the earlier one.
        places: returns the part of a snapshot that is the backend's own and not a user's, in plain values, or raises if
            that is damaged. The digest in states of earlier versions covers this part alone.
        older_tail: the tail that earlier versions made of the same source; a state that has it goes on with it.
        count: returns how many elements of the epoch were given before a snapshot, if that says it; it has to agree
            with the cursor.
        goes_on: `open` goes on where the source stands, so that without a snapshot there is no way back.
        reopens: a source with snapshots may be opened again while an earlier iterator of it is read, and neither sees
            the other. Without snapshots, every source must be so.
        replayed: returns how many elements a `restore` of a snapshot reads again, for the log; by default none.
        restore_otherwise: as `restore`, but in another order of giving the state back and iterating. It is tried where
            the first element after `restore` is not the one that the state announced.
        without_canaries: elements after a restore or a replay are not compared with those of the run that saved the
            state: they cannot differ, or the backend compares by itself.
        told: returns what the element before a place of the epoch was made of, such as its indices. That is compared,
            in place of the element, after a replay that reads none; None where it is not known any more.
        lenient: takes a snapshot, and returns one by which `restore` only warns of what it compares by itself
            (`strict=False`).
        shows: attributes of the source that the Loader shows under the same names: "dataset" (only where samples have
            an index), "batch_size", "num_workers", "collate_fn".
        settings: returns what a user has changed in the backend since it was made and may change between epochs, in
            plain values by name. For indexed backends, whose `read` takes what is set when it is called.
        set_settings: sets what `settings` returned, and everything else as it was when the backend was made.
        own_state: of an indexed backend whose `read` reads nothing ahead: functions that return and take back what the
            source remembers from sample to sample. It goes into the state, which is then that of one rank.
        dealt: the elements are dealt to the ranks in turn, and each rank reads its own only: for those of others the
            iterator gives `resumable.protocols.ELSEWHERE`, one of each rank in every step.
        forgets: every epoch begins in one way, whatever was read before it, so nothing is kept of one that is left.
        also: another identity by which states of the same stream may know it.
        kinds: of a stream, other values of `kind` that the backend can have, each with a function that gives it that
            kind. It is called when a state of that kind is loaded, as an earlier version may have chosen another one.
        stored: of a source whose samples have an index: returns what is stored of the samples with some indices, before
            any transform and without randomness, as lists by name such as `{"files": [...]}`; the list that tells
            samples apart best comes first. It is asked in this process for at most 16 samples, when the source is
            wrapped, when a stream opens and when a state is loaded, so that other data after a restart are refused.
        close: ends what lives on between two epochs, such as worker processes, when the Loader is closed, and may be
            called again. What is needed later is started later; what the source remembers, it keeps.
        heals: starts worker processes that died again by itself, where `wrap(..., on_worker_death="restart")` says so.
        strided: of an indexed backend whose requests stay in this process or list their samples: the ranks take the
            samples of a global batch in turn, as torch's `DistributedSampler` deals them out, and not a part each.
        reads_ahead: it reads in the background, by threads or processes that tell no times, so `read_seconds` of
            `loader.stats()` is unknown. Otherwise it is what this process waits, or what `meter` says.
        meter: of backends of this package, what their worker processes measure.
    """

    hints: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    keyed: bool = False
    needs_shard: bool = False
    snapshot_every: int = 1
    eager: bool = False
    ended: Callable[[], bool] | None = None
    reopen: Callable[[int, Any], Iterator[Any]] | None = None
    places: Callable[[Any], Any] | None = None
    older_tail: Tail | None = None
    count: Callable[[Any], int] | None = None
    goes_on: bool = False
    reopens: bool = False
    replayed: Callable[[Any], int] | None = None
    restore_otherwise: Callable[[int, Any], Iterator[Any]] | None = None
    without_canaries: bool = False
    told: Callable[[int], Any] | None = None
    lenient: Callable[[Any], Any] | None = None
    shows: Mapping[str, Any] = field(default_factory=dict)
    settings: Callable[[], dict[str, Any]] | None = None
    set_settings: Callable[[Mapping[str, Any]], None] | None = None
    own_state: tuple[Callable[[], Any], Callable[[Any], None]] | None = None
    dealt: bool = False
    forgets: bool = False
    also: Mapping[str, Any] | None = None
    kinds: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    stored: Callable[[Sequence[int]], Mapping[str, Sequence[Any]]] | None = None
    close: Callable[[], None] | None = None
    heals: bool = False
    strided: bool = False
    reads_ahead: bool = False
    meter: Meter | None = None


def capabilities_of(backend: Any) -> Capabilities:
    """Return what a backend declares; by attributes of its own with the same names, where it has no `capabilities`.

    Raises:
        ConfigurationError: `capabilities` is something else.
    """
    declared = getattr(backend, "capabilities", None)
    if declared is None:
        own = {one.name: getattr(backend, one.name) for one in fields(Capabilities) if hasattr(backend, one.name)}
        return Capabilities(**own)
    if not isinstance(declared, Capabilities):
        raise ConfigurationError(
            f"the capabilities of the backend {backend.kind!r} must be a resumable.Capabilities, but they are "
            f"{declared!r}.\nWhat it can do would be guessed. Declare for instance Capabilities(length=10)."
        )
    return declared
