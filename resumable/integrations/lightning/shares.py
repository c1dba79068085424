"""By which ranks the strategy divides data: all of them, or those alone that have a whole model together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._order.world import World

if TYPE_CHECKING:
    from resumable.loader import Loader

__all__ = ["divide_as_strategy"]


def divide_as_strategy(loader: Loader, trainer: Any) -> None:
    """Let a Loader that was given no world divide its data as the Trainer would by a `DistributedSampler`.

    Raises:
        ConfigurationError: it was used before, in another world.
    """
    kwargs = getattr(trainer.strategy, "distributed_sampler_kwargs", None)
    if not kwargs:
        return
    world = World(int(kwargs["rank"]), int(kwargs["num_replicas"]))
    if world != loader.progress.world:
        loader.progress.divide_among(world)
