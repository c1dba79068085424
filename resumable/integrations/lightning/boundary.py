"""What a run is resumed to: the last moment at which the weights held whole batches, and all that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.nn.parameter import is_lazy

from resumable import rng

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resumable.integrations.lightning.place import Place

__all__ = ["Boundary", "copy_buffers"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A moment between two optimizer steps; never changed, and replaced by one assignment, as signal handlers save.

    Args:
        place: where training stood.
        steps: optimizer steps in the weights (`trainer.global_step`).
        logged: those behind which everything was done, validation included.
        loaders: make the states of the train loaders.
        generators: makes the state of this rank's global generators.
        buffers: of the module, by name: the running means of a normalisation change in each forward pass.
        callbacks: states of the other callbacks, where gradients are accumulated: batches are trained on again then.
    """

    place: Place
    steps: int
    logged: int
    loaders: Sequence[Callable[[], dict[str, Any]]]
    generators: Callable[[], dict[str, Any]] = field(default_factory=rng.capture)
    buffers: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Mapping[str, Any] = field(default_factory=dict)


def copy_buffers(module: Any) -> dict[str, Any]:
    """Copy the buffers that a checkpoint holds, by their names in it."""
    buffers = module.named_buffers(remove_duplicate=False)
    return {name: buffer.detach().clone() for name, buffer in buffers if not is_lazy(buffer)}
