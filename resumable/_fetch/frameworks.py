"""What a backend of this package may offer beyond `resumable.protocols`, because one framework needs it.

Authors of other backends need none of it. Each protocol says whose it is; a fetcher looks for it once, when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable._order.plan import Tail
    from resumable._stats import Meter

__all__ = [
    "HasOtherKinds",
    "HasReplayWitness",
    "HasSettings",
    "HasTorchOrder",
    "HasWorkerStates",
    "Inside",
    "LogicalStreams",
    "Reopens",
    "RestoresOtherwise",
    "inside_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What is seen of a backend from outside of the stream, which it states by an attribute `inside`.

    Args:
        shows: attributes of the source that the Loader shows under the same names: "dataset" (only if samples have an
            index), "batch_size", "num_workers", "collate_fn".
        restarts_workers: it starts worker processes that died again, if `wrap(..., on_worker_death="restart")` says so.
        meter: what its worker processes measure.
    """

    shows: Mapping[str, Any] = field(default_factory=dict)
    restarts_workers: bool = False
    meter: Meter | None = None


def inside_of(backend: Any) -> Inside:
    """Return what a backend states of its inside."""
    found: Inside = getattr(backend, "inside", None) or Inside()
    return found


@runtime_checkable
class HasTorchOrder(Protocol):
    """Map-style `DataLoader`s."""

    @property
    def older_tail(self) -> Tail | None:
        """The tail that earlier versions made of the same source; a state that has it continues with it."""
        ...

    @property
    def interleaved(self) -> bool:
        """Whether the ranks take the samples of a global batch in turn, as torch's `DistributedSampler` does it."""
        ...


@runtime_checkable
class HasReplayWitness(Protocol):
    """`DataLoader`s with a sampler of the user's own: a replay draws its indices, and reads no element."""

    @property
    def replay_witness(self) -> Callable[[int], Any] | None:
        """Returns the indices of the batch before a step, or None if they are not known any more.

        They are compared instead of the batch. The property itself is None if nothing is replayed.
        """
        ...


@runtime_checkable
class HasWorkerStates(Protocol):
    """`DataLoader`s over iterable-style datasets, whose snapshots have a state of each worker."""

    def lenient(self, snapshot: Any) -> Any:
        """Return a snapshot by which `restore` only warns of what the workers compare (`strict=False`)."""
        ...

    def replayed(self, snapshot: Any) -> int:
        """Return how many elements a `restore` of a snapshot reads again, for the log."""
        ...


@runtime_checkable
class LogicalStreams(Protocol):
    """`DataLoader`s that are read as a fixed number of streams (`wrap(..., streams=)`)."""

    @property
    def dealt_round_robin(self) -> bool:
        """Whether the streams are dealt to the ranks in turn, and each rank reads its own only.

        The iterator yields `resumable.protocols.ELSEWHERE` for the elements of others, one of each rank in every step.
        """
        ...

    @property
    def resets_each_epoch(self) -> bool:
        """Whether each epoch starts in the same way, whatever was read before: then nothing is kept between them."""
        ...

    @property
    def alternate_identity(self) -> Mapping[str, Any] | None:
        """Another identity by which states of the same streams may know them."""
        ...


@runtime_checkable
class RestoresOtherwise(Protocol):
    """Iterables: some need their state before they are iterated, some after."""

    def restore_otherwise(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Do what `restore` does, in the other order."""
        ...


@runtime_checkable
class Reopens(Protocol):
    """Iterable objects, whose `restore` between two epochs would stay at the end of the earlier one."""

    def reopen(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Bring the source back to the position between two epochs, and start the later one."""
        ...


@runtime_checkable
class HasOtherKinds(Protocol):
    """`tf.data`: one pipeline can be resumed in several ways, and an earlier version may have chosen differently."""

    @property
    def other_kinds(self) -> Mapping[str, Callable[[], None]]:
        """Values of `kind` that the backend can have, each with a function that sets it."""
        ...


@runtime_checkable
class HasSettings(Protocol):
    """FFCV: users change the loader between epochs. `read` takes what is set when it is called."""

    def settings(self) -> dict[str, Any]:
        """Return what a user has changed since the backend was made, in plain values under their names."""
        ...

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Set what `settings` returned, and everything else as it was at first."""
        ...
