"""The three protocols through which a Loader reads. They are structural: a class needs no base and no registration.

    kind       offers                                        resumes through        elastic
    indexed    any sample, from its index                    seeking, O(1)          yes
    snapshot   a stream, and its state as a value            the source's state     if all ranks share one stream
    replay     a stream that can be reopened per epoch       skipping               if all ranks share one stream

`kind` identifies the type of source in the state ("torch-map", "sequence", ...), `identity` the data, in plain values.

A backend needs nothing more. It may state `Traits`, and have one of the methods or attributes of `SupportsClose`,
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
    """A placeholder for an element that another rank reads."""

    def __repr__(self) -> str:
        return "ELSEWHERE"


ELSEWHERE = _Elsewhere()


class Listed(NamedTuple):
    """The order in a request that lists its samples, for example from a user's sampler.

    Attributes:
        indices: sample indices; a list if the sampler yields keys that are not integers.
        keys: a key for each of them, or none.
        batch_key: the key of the batch.
        padding: how many at the end only fill the batch.
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
        """Return how many samples only fill the batch."""
        ...


class Request(NamedTuple):
    """A request to an indexed backend: this rank's share of one global batch, as a range of positions.

    The sample indices and their keys are computed when they are read. So a process that has the order needs only the
    numbers. A request can also be pickled for any other process; it then includes its samples and keys.

    Attributes:
        epoch: epoch of the first sample.
        step: number of the global batch in the epoch, from 0.
        rank: the rank that asks; for messages.
        start: position of the first sample in the epoch.
        stop: position after the last sample; it may exceed the epoch's length.
        version: number of the plan that divided the epoch into batches.
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
        """Sample indices, shape `(size,)`, read-only; a list if a sampler yields keys that are not integers."""
        order = self.order
        return order.indices if isinstance(order, Listed) else order.indices(self)

    @property
    def keys(self) -> Words:
        """One 64-bit key per sample, shape `(size,)`, to seed its augmentation; none if randomness is per batch."""
        order = self.order
        return order.keys if isinstance(order, Listed) else order.keys(self)

    @property
    def batch_key(self) -> int:
        """A 64-bit key of the batch, for randomness per batch."""
        order = self.order
        return order.batch_key if isinstance(order, Listed) else order.batch_key(self)

    @property
    def padding(self) -> int:
        """How many samples at the end only fill the last batch (`tail="pad"`)."""
        order = self.order
        return order.padding if isinstance(order, Listed) else order.padding(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the samples instead of the order. Arrays become bytes: NumPy's own pickling takes 3x as long."""
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
    """A source that can read the sample at any index."""

    @property
    def kind(self) -> str:
        """Type of source, as recorded in the state."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Plain values that distinguish this data from other datasets."""
        ...

    @property
    def length(self) -> int:
        """Number of samples."""
        ...

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request, in order.

        Lazy and single-pass. Reading ahead is allowed and has no effect: only the batches that the Loader delivers
        count.
        """
        ...


class Upcoming(NamedTuple):
    """The neighboring samples that are read soon, for an order in blocks (`samplers.Blocks`).

    Each row is a block: its first sample, and the sample after its last.

    Attributes:
        here: blocks of the windows that contain the samples of a request; shape `(blocks, 2)`.
        soon: the first blocks of the next window, in proportion to the request's progress in its own window, so all of
            them are loaded when that window starts; shape `(blocks, 2)`.
    """

    here: IntArray
    soon: IntArray


@runtime_checkable
class Prefetching(Protocol):
    """A map-style source that reads larger pieces than samples, if it knows which samples are needed next."""

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Read the samples of the next calls of `source[index]`, and those after them if that pays off.

        This is called wherever samples are read, in each worker of a `DataLoader` or in the training process. It runs
        before the samples of a request are read one by one, each with its own randomness. The order remains the
        sampler's, and a sample must be the same without this call. Data read for an earlier request can be dropped if
        it is in neither `indices` nor the upcoming blocks.

        Args:
            indices: indices of the samples of the request, in reading order.
            upcoming: returns the blocks that are read soon; None if the order is not in blocks. It takes 0.1 ms, so
                call it only if you need it.
        """
        ...


@runtime_checkable
class ReplayBackend(Protocol):
    """A source that can be reopened in every epoch, and skipped through."""

    @property
    def kind(self) -> str:
        """Type of source, as recorded in the state."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Plain values that distinguish this data from other datasets."""
        ...

    def open(self, epoch: int) -> Iterator[Any]:
        """Return an iterator over the elements of an epoch.

        If the iterator has a method `skip(n: int) -> None`, it is called to skip elements. Otherwise the elements are
        read and discarded.
        """
        ...


@runtime_checkable
class SnapshotBackend(ReplayBackend, Protocol):
    """A source with a state."""

    def snapshot(self) -> Any:
        """Return the state after the last element yielded, or None if there is none (the source is then replayed).

        After the last element of an epoch, `open` must start the next epoch from this state.
        """
        ...

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Return an iterator that continues after the element at which `snapshot` was taken; it may be at its end."""
        ...


Backend = IndexedBackend | ReplayBackend | SnapshotBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of a backend, in its attribute `traits`. A backend without it has the defaults.

    Args:
        hints: what a user should do about a difference, by its name in `identity`, or by the full name of another
            field of the state, such as "sampler.window".
        length: elements per epoch, if known in advance; makes `len(loader)` work. An indexed backend has its length in
            the protocol.
        keyed: the backend seeds the randomness of its elements itself, so the Loader does not touch the global RNGs.
        needs_shard: with several ranks, the user must set `shard`: only they know what divides the stream.
        snapshot_every: how many steps apart snapshots are taken in advance (`ack="manual"`). 0 if a snapshot costs
            next to nothing: then one is taken before each element, and a failed read loses nothing.
        compares_itself: elements after a restore or a replay are not compared with the elements of the run that saved
            the state: they cannot differ, or the backend compares them.
        goes_on: `open` continues at the source's current position, so without a snapshot it cannot go back.
        reopens: a source with snapshots may be reopened while an earlier iterator is read, and the two are
            independent. Sources without snapshots must all support this.
        reads_ahead: it reads in the background, in threads or processes that report no times, so `read_seconds` of
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
    """A backend with resources that stay open between epochs, such as worker processes."""

    def close(self) -> None:
        """Close them. `Loader.close()` calls this, possibly more than once; a later read opens them again."""
        ...


@runtime_checkable
class SupportsStored(Protocol):
    """A backend that helps to reject different data of the same length."""

    @property
    def stored(self) -> Callable[[Sequence[int]], Mapping[str, Sequence[Any]]] | None:
        """Returns the stored data of the samples with some indices, before any transform and without randomness.

        It returns lists under names, such as `{"files": [...]}`, starting with the list that distinguishes samples
        best. It is called in this process for at most 16 samples, when the source is wrapped, when a stream opens and
        when a state is loaded. An ordinary method works; None turns the comparison off.
        """
        ...


@runtime_checkable
class SupportsOwnState(Protocol):
    """An indexed backend whose source carries state from sample to sample. Its `read` must not read ahead."""

    @property
    def own_state(self) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
        """Functions that return and restore the state of the source; it is saved in the state of this rank."""
        ...


@runtime_checkable
class SupportsEnded(Protocol):
    """A snapshot backend that knows the end of an epoch. Otherwise an element is read ahead to find out."""

    def ended(self) -> bool:
        """Return whether the last element yielded is the last one of the epoch.

        `snapshot` then returns the state at the start of the next epoch.
        """
        ...


def traits_of(backend: Any) -> Traits:
    """Return the properties that a backend states.

    Raises:
        ConfigurationError: `traits` is not a `Traits`.
    """
    stated = getattr(backend, "traits", None)
    if stated is None:
        return Traits()
    if not isinstance(stated, Traits):
        raise ConfigurationError(
            f"the traits of the backend {backend.kind!r} must be a resumable.Traits, but they are {stated!r}.\n"
            "Its length and hints would be ignored. Set for instance traits = Traits(length=10)."
        )
    return stated
