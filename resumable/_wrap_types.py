"""What a type checker is told of the sources and options of `wrap`; nothing here exists at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from resumable._checks import Resume
    from resumable._order.plan import Tail
    from resumable._order.world import World
    from resumable._randomness.keys import Randomness
    from resumable.samplers import Sampler

__all__ = ["Given", "MapStyle", "Source"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class MapStyle(Protocol[T_co]):
    """Samples by their index."""

    def __len__(self) -> int:
        """Return their number."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Return one of them."""
        ...


Source: TypeAlias = "Iterable[T] | MapStyle[T] | Callable[..., Iterable[T]]"


class Given(TypedDict, total=False):
    """The options of `wrap` that say nothing of the type of a batch."""

    seed: int | None
    name: str | None
    shuffle: bool | Literal["blocks"] | None
    sampler: Sampler | None
    tail: Tail | None
    randomness: Randomness | None
    shard: bool | None
    identity: str | None
    world: World | None
    mesh: DeviceMesh | None
    process_group: ProcessGroup | None
    watch: bool
    ack: Literal["auto", "manual"]
    on_batch_change: Literal["error", "continue"]
    on_world_change: Literal["keep_global", "keep_local"]
    uneven: bool
    snapshot_every: int | None
    evaluation: bool
    resume: Resume | None
    canary: bool
    flight_recorder: str | PathLike[str] | None
    stall_after: float | None
    on_worker_death: Literal["error", "restart"]
    streams: int | None
    order: Literal["feistel", "torch"] | None
