"""What each rank alone knows, in a checkpoint that rank 0 writes.

On a regular save the ranks exchange it. When the run is interrupted they do not: a rank that hangs or has died would
never answer, and all others would wait for it until the process group's time is over. Then the checkpoint has what the
others said last (at least once per epoch), and they go on from there to the place of rank 0 by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import distributed

from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RankState", "check_ranks", "exchange", "is_shared", "replace_own"]


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank alone knows.

    Args:
        loaders: states of its train loaders.
        generators: of its global generators.
        exact: of the place of the checkpoint, and not of an earlier one.
    """

    loaders: Sequence[Mapping[str, Any]]
    generators: Mapping[str, Any]
    exact: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"loaders": list(self.loaders), "generators": dict(self.generators), "exact": self.exact}


def check_ranks(world_size: int) -> None:
    """Refuse several ranks that cannot exchange anything.

    Raises:
        UnsupportedError: they have no process group of `torch.distributed`.
    """
    if world_size > 1 and not (distributed.is_available() and distributed.is_initialized()):
        raise UnsupportedError(
            f"the Trainer has {world_size} ranks and no process group of torch.distributed.\n"
            "The states of the other ranks could not be saved. Use a strategy that is based on it, such as "
            'strategy="ddp".'
        )


def exchange(own: RankState, world_size: int) -> list[RankState]:
    """Return what all ranks know. All of them have to call it."""
    if world_size == 1:
        return [own]
    everyone: list[Any] = [None] * world_size
    distributed.all_gather_object(everyone, own)
    return everyone


def replace_own(known: Sequence[RankState], own: RankState, rank: int) -> list[RankState]:
    """Return what is known of all ranks without asking: this one's state, and what the others said last."""
    return [
        own if number == rank else RankState(one.loaders, one.generators, exact=False)
        for number, one in enumerate(known)
    ]


def is_shared(state: Mapping[str, Any]) -> bool:
    """Tell whether a Loader's state is the same on all ranks: no source's snapshot, and no rank's own stream."""
    return "native" not in state and "rank" not in state
