"""The three protocols that a Loader reads by. They are structural: a class needs no base and no registration to fit.

    kind       what it offers                                resume by              elastic
    indexed    any sample, by its index                      seeking, O(1)          yes
    snapshot   a stream, and its state as a value            its own state          where all ranks draw one stream
    replay     a stream that can be opened again per epoch    skipping               where all ranks draw one stream

`kind` names the sort of source in the state ("torch-map", "sequence", ...), `identity` the data itself in plain values.

That is all a backend needs. It may state `Traits`, and have one of the methods or attributes of `SupportsClose`,
`SupportsStored`, `SupportsOwnState` and `SupportsEnded`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resumable._randomness.keyed import IntArray, Words

__all__ = [
    "ELSEWHERE",
    "Backend",
    "IndexedBackend",
    "Listed",
    "Prefetching",
    "ReplayBackend",
    "Request",
    "SnapshotBackend",
    "SupportsClose",
    "SupportsEnded",
    "SupportsOwnState",
    "SupportsStored",
    "Traits",
    "Upcoming",
    "traits_of",
]


class _Elsewhere:
    """Stands for an element that another rank reads."""

    def __repr__(self) -> str:
        return "ELSEWHERE"


ELSEWHERE = _Elsewhere()


class Listed(NamedTuple):
    """Stands for the order in a request whose samples are listed, as those of a user's own sampler.

    Attributes:
        indices: sample indices; a list where the sampler gives keys of another type.
        keys: a key for each of them, or none.
        batch_key: the batch's.
        padding: how many at the end only fill up the batch.
    """

    indices: IntArray | list[Any]
    keys: Words
    batch_key: int
    padding: int = 0


class SampleOrder(Protocol):
    """Resolves the positions of a request, in a process that has the sampler."""

    def indices(self, request: Request) -> IntArray | list[Any]:
        """Return the sample indices."""
        ...

    def keys(self, request: Request) -> Words:
        """Return the keys of the samples."""
        ...

    def batch_key(self, request: Request) -> int:
        """Return the key of the batch."""
        ...

    def padding(self, request: Request) -> int:
        """Return how many samples only fill up the batch."""
        ...


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
    order: SampleOrder | Listed

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start

    @property
    def indices(self) -> IntArray | list[Any]:
        """Sample indices, shape `(size,)`, not to be written to; a list where a sampler gives keys of another type."""
        order = self.order
        return order.indices if isinstance(order, Listed) else order.indices(self)

    @property
    def keys(self) -> Words:
        """One 64-bit key per sample, shape `(size,)`, to seed its augmentation with; none if that is per batch."""
        order = self.order
        return order.keys if isinstance(order, Listed) else order.keys(self)

    @property
    def batch_key(self) -> int:
        """A 64-bit key of the batch, for what is drawn per batch."""
        order = self.order
        return order.batch_key if isinstance(order, Listed) else order.batch_key(self)

    @property
    def padding(self) -> int:
        """How many samples at the end only fill up the last batch (`tail="pad"`)."""
        order = self.order
        return order.padding if isinstance(order, Listed) else order.padding(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the samples instead of the order. Arrays become bytes: NumPy's own way takes thrice as long."""
        return _unpacked, (self[:6], _packed(self.indices), _packed(self.keys), self.batch_key, self.padding)


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
class Traits:
    """Properties of a backend, which it states in an attribute `traits`. One without it has the defaults.

    Args:
        hints: what a user is to do about a difference, by its name in `identity`, or by the full name of another fact
            of the state, as in "sampler.window".
        length: elements per epoch if they are known before its end; makes `len(loader)` work. An indexed backend has
            its length in the protocol.
        keyed: the backend seeds the randomness of its elements itself, so the global generators are left alone.
        needs_shard: on several ranks, the user has to say `shard`: only they know who divides the stream.
        snapshot_every: at how many steps it is worth its cost to take a snapshot in advance (`ack="manual"`); 0 if one
            costs next to nothing: then one is taken before each draw, and a draw that fails loses nothing.
        compares_itself: elements after a restore or a replay are not compared with the elements of the run that saved
            the state: they cannot differ, or the backend compares them.
        goes_on: `open` continues where the source stands, so that without a snapshot there is no way back.
        reopens: a source with snapshots may be opened again while an earlier iterator of it is read, and neither sees
            the other. Without snapshots, every source must be so.
        reads_ahead: it reads in the background, by threads or processes that tell no times, so `read_seconds` of
            `loader.stats()` is unknown.
    """

    hints: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    keyed: bool = False
    needs_shard: bool = False
    snapshot_every: int = 1
    compares_itself: bool = False
    goes_on: bool = False
    reopens: bool = False
    reads_ahead: bool = False


@runtime_checkable
class SupportsClose(Protocol):
    """A backend that keeps something open between epochs, such as worker processes."""

    def close(self) -> None:
        """End it. Called by `Loader.close()`, maybe more than once; what is read later opens it again."""
        ...


@runtime_checkable
class SupportsStored(Protocol):
    """A backend that helps to reject different data of the same length."""

    @property
    def stored(self) -> Callable[[Sequence[int]], Mapping[str, Sequence[Any]]] | None:
        """Returns what is stored of the samples with some indices, before any transform and without randomness.

        It returns lists under names, such as `{"files": [...]}`; the list that distinguishes samples best comes first.
        It is called in this process for at most 16 samples, when the source is wrapped, when a stream opens and when a
        state is loaded. An ordinary method fits; None compares nothing.
        """
        ...


@runtime_checkable
class SupportsOwnState(Protocol):
    """An indexed backend whose source remembers something from sample to sample. Its `read` must not read ahead."""

    @property
    def own_state(self) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
        """Functions that return and take back what the source remembers; it goes into the state of this rank."""
        ...


@runtime_checkable
class SupportsEnded(Protocol):
    """A snapshot backend that knows the end of an epoch. Otherwise an element is read ahead to find out."""

    def ended(self) -> bool:
        """Return whether the element that was yielded last is the epoch's last one.

        `snapshot` then returns the state at the start of the next epoch.
        """
        ...


def traits_of(backend: Any) -> Traits:
    """Return the properties that a backend states.

    Raises:
        ConfigurationError: `traits` is something else.
    """
    stated = getattr(backend, "traits", None)
    if stated is None:
        return Traits()
    if not isinstance(stated, Traits):
        raise ConfigurationError(
            f"the traits of the backend {backend.kind!r} must be a resumable.Traits, but they are {stated!r}.\n"
            "Its length and hints would be ignored. State for instance Traits(length=10)."
        )
    return stated
