"""World: which of how many processes this one is."""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from typing import NamedTuple

from resumable.errors import ConfigurationError

__all__ = ["Found", "World", "find"]

# (name of the rank's variable, name of the world size's variable), the first pair that is there counts.
# SLURM's step size, not its job size: only inside `srun` does it mean processes that run this script.
_VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


@dataclass(frozen=True, slots=True)
class World:
    """Rank and world size: who reads which part of a global batch, never the order.

    Args:
        rank: number of this process, `0..size-1`.
        size: number of processes that train together.

    Both are kept as Python integers, whatever kind of integer was given.

    Raises:
        ConfigurationError: `rank` or `size` is no integer, or out of range.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        try:
            rank, size = operator.index(self.rank), operator.index(self.size)
        except TypeError:
            rank, size = -1, 0
        if not 0 <= rank < size or isinstance(self.rank, bool) or isinstance(self.size, bool):
            raise ConfigurationError(
                f"a rank must be an integer in 0..size-1, but rank={self.rank!r} and size={self.size!r}.\n"
                "No share of the data belongs to it. Use for instance World(rank=0, size=1)."
            )
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "size", size)

    @classmethod
    def detect(cls) -> World:
        """Find the world of this process.

        From `torch.distributed` where a process group is initialised, else from the variables of `torchrun` and of
        SLURM's `srun`, else a single process. Imports nothing.
        """
        found = find()
        return _ALONE if found is _NOTHING else cls(found.rank, found.size)


class Found(NamedTuple):
    """Rank and world size as they were found, and what said so.

    `variables` are those of the environment, where they alone said it.
    """

    rank: int = 0
    size: int = 1
    by: str = "no process group, no launcher"
    variables: str | None = None


_NOTHING, _ALONE = Found(), World()


def find() -> Found:
    """Find the rank of this process and the number of ranks, as `World.detect` says."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Found(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    for rank, size in _VARIABLES:
        if rank in os.environ and size in os.environ:
            variables = f"{rank}, {size}"
            return Found(_integer(rank), _integer(size), f"the environment: {variables}", variables)
    return _NOTHING


def _integer(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ConfigurationError(
            f"the environment variable {name} must be an integer, but it is {os.environ[name]!r}.\n"
            f"Unset it, or give the world yourself: wrap(..., world=World(rank, size))."
        ) from None
