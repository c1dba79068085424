"""The three protocols behind a Loader. They are structural: a class needs no base and no registration to fit.

    kind       what it offers                                resume by              elastic
    indexed    any sample, by its index                      seeking, O(1)          yes
    snapshot   a stream, and its state as a value            its own state          where all ranks draw one stream
    replay     a stream that can be opened anew per epoch    skipping               where all ranks draw one stream

`kind` names the sort of source in the state ("torch-map", "sequence", ...), `identity` the data itself in plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from resumable.keyed import IntArray, Words

__all__ = [
    "Backend",
    "Capabilities",
    "IndexedBackend",
    "ReplayBackend",
    "Request",
    "SnapshotBackend",
    "capabilities_of",
]


class Request(NamedTuple):
    """What an indexed backend is asked for: the share of this rank in one global batch.

    Args:
        epoch: epoch of the first sample.
        step: number of the global batch in the epoch, from 0.
        rank: who asks; for messages.
        indices: sample indices, shape `(samples,)`; a list where a user's own sampler gives keys of another type.
        keys: one 64-bit key per sample, shape `(samples,)`, to seed its augmentation with; none where the randomness is
            not per sample.
        batch_key: a 64-bit key of the batch, for what is drawn per batch.
        padding: how many samples at the end only fill up the last batch (`tail="pad"`).
    """

    epoch: int
    step: int
    rank: int
    indices: IntArray | list[Any]
    keys: Words
    batch_key: int
    padding: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle arrays as bytes: each batch sends a request to a worker, and NumPy's own way takes thrice as long."""
        return _unpacked, tuple(map(_packed, self))


def _packed(values: Any) -> Any:
    return (values.tobytes(), values.dtype.str) if isinstance(values, np.ndarray) else values


def _unpacked(*fields: Any) -> Request:
    values: list[Any] = [np.frombuffer(*field) if isinstance(field, tuple) else field for field in fields]
    return Request(*values)


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

        Lazy and single-pass. Reading ahead is allowed and invisible: what counts is what the Loader hands over.
        """
        ...


@runtime_checkable
class ReplayBackend(Protocol):
    """A source that can be opened anew in every epoch, and skipped through."""

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
        """Return an iterator that goes on behind the element after which `snapshot` was taken; it may be at its end."""
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
        needs_shard: on several ranks, the user has to say `shard`: nobody else can tell who divides the stream.
        snapshot_every: at how many steps it is worth its cost to take a snapshot in advance (`ack="manual"`).
        eager: snapshots are so cheap that one is taken before each draw, so that a draw that fails loses nothing.
        ended: tells, after an element, whether it was the epoch's last one, so that none is drawn ahead to find out.
            `snapshot` is then that of the next epoch's beginning.
        reopen: brings the source back to a place between two epochs, and begins the later one, as in
            `reopen(epoch, snapshot)`; where `restore` would stay at the end of the earlier one.
        places: returns what of a snapshot is the backend's own and not a user's, in plain values. It goes into the
            digest of the state, so that a damaged one is refused.
        count: returns how many elements of the epoch were given before a snapshot, if that says it; it has to agree
            with the cursor.
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
    count: Callable[[Any], int] | None = None


def capabilities_of(backend: Any) -> Capabilities:
    """Return what a backend declares; by attributes of its own with the same names, where it has no `capabilities`.

    Raises:
        ConfigurationError: `capabilities` is something else.
    """
    declared = getattr(backend, "capabilities", None)
    if declared is None:
        own = {one.name: getattr(backend, one.name) for one in fields(Capabilities) if hasattr(backend, one.name)}
        if hasattr(backend, "remedies"):  # as hints were called before there were Capabilities
            own["hints"] = backend.remedies
        return Capabilities(**own)
    if not isinstance(declared, Capabilities):
        raise ConfigurationError(
            f"the capabilities of the backend {backend.kind!r} must be a resumable.Capabilities, but they are "
            f"{declared!r}.\nWhat it can do would be guessed. Declare for instance Capabilities(length=10)."
        )
    return declared
