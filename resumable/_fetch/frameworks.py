"""Optional methods that backends of this package may have beyond `resumable.protocols`, for one framework each.

Authors of other backends do not need them. Each protocol says which framework uses it. A fetcher checks for it once,
when it is created.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable._order.plan import Tail
    from resumable._stats import Meter

__all__ = [
    "Glimpsed",
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
    """Attributes of a backend that are visible from outside the stream. The backend has them as `inside`.

    Args:
        shows: attributes of the source that the Loader shows under the same names: "dataset" (only if samples have an
            index), "batch_size", "num_workers", "collate_fn".
        restarts_workers: it restarts dead worker processes with `wrap(..., on_worker_death="restart")`.
        meter: what its worker processes measure.
        passes_rng: its functions take the RNG of their sample with `wrap(..., randomness="passed")`.
        follows: its state has what the training loop changes on the source, so it is taken again if none was read.
    """

    shows: Mapping[str, Any] = field(default_factory=dict)
    restarts_workers: bool = False
    meter: Meter | None = None
    passes_rng: bool = False
    follows: bool = False


def inside_of(backend: Any) -> Inside:
    """Return the `inside` of a backend."""
    found: Inside = getattr(backend, "inside", None) or Inside()
    return found


@runtime_checkable
class HasTorchOrder(Protocol):
    """Map-style `DataLoader`s."""

    @property
    def older_tail(self) -> Tail | None:
        """The tail that earlier versions chose for the same source; a state that has it continues with it."""
        ...

    @property
    def interleaved(self) -> bool:
        """Whether the samples of a global batch go to the ranks round-robin, as in PyTorch's `DistributedSampler`."""
        ...


@runtime_checkable
class HasReplayWitness(Protocol):
    """`DataLoader`s with a user's sampler: a replay iterates over its indices, and reads no element."""

    @property
    def replay_witness(self) -> Callable[[int], Any] | None:
        """Returns the indices of the batch before a step, or None if they are no longer known.

        They are compared instead of the batch. The property itself is None if nothing is replayed.
        """
        ...


@runtime_checkable
class HasWorkerStates(Protocol):
    """`DataLoader`s over iterable-style datasets, whose snapshots have a state of each worker."""

    def lenient(self, snapshot: Any) -> Any:
        """Return a snapshot with which `restore` only warns about differences in the workers (`strict=False`)."""
        ...

    def replayed(self, snapshot: Any) -> int:
        """Return how many elements restoring a snapshot reads again, for the log."""
        ...


@runtime_checkable
class LogicalStreams(Protocol):
    """`DataLoader`s that are read as a fixed number of streams (`wrap(..., streams=)`)."""

    @property
    def dealt_round_robin(self) -> bool:
        """Whether the streams are assigned to the ranks round-robin, and each rank reads only its own.

        The iterator yields `resumable.protocols.ELSEWHERE` for elements of other ranks, one per rank and step.
        """
        ...

    @property
    def resets_each_epoch(self) -> bool:
        """Whether each epoch starts in the same way, so nothing is kept between epochs."""
        ...

    @property
    def alternate_identity(self) -> Mapping[str, Any] | None:
        """A second identity that states of the same streams may have."""
        ...


@runtime_checkable
class Glimpsed(Protocol):
    """Sources that are opened again, and may depend on what they did before: iterables and `DataLoader`s over them."""

    @property
    def replays(self) -> bool:
        """Whether it is opened again, as it has no state."""
        ...

    @property
    def lives(self) -> bool:
        """Whether the same object is iterated over in each epoch, or a function that may remember something."""
        ...

    @property
    def remembering(self) -> Any:
        """The object that lives over epochs, as far as this process can inspect it."""
        ...

    def apart(self) -> Any:
        """Return the same backend over a copy of the source, or over the source itself if it cannot be copied.

        It has a method `leave`, which ends an epoch of which only the first elements were read, and `close`.
        """
        ...


@runtime_checkable
class RestoresOtherwise(Protocol):
    """Iterables: some need their state before they are iterated, some after."""

    def restore_otherwise(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Do the same as `restore`, in the opposite order."""
        ...


@runtime_checkable
class Reopens(Protocol):
    """Iterable objects. Their `restore` between two epochs would stay at the end of the earlier one."""

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
    """FFCV: users change the loader between epochs. `read` uses the settings at the time of the call."""

    def settings(self) -> dict[str, Any]:
        """Return a dict from name to plain value: settings that a user has changed since the backend was created."""
        ...

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Apply the result of `settings`, and reset everything else to its initial value."""
        ...
