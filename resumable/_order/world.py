"""World: which of how many processes this one is."""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from resumable.errors import ConfigurationError

__all__ = ["Found", "World", "find"]

# (name of the rank's variable, name of the world size's variable), the first pair that is there counts. SLURM's last:
# mpirun starts one helper per node by `srun`, and the ranks that this starts inherit the variables of the helper.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # OpenMPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, `srun --mpi=pmi2`
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # the step's size: only inside `srun` do tasks run this script
)
_PMIX = "PMIX_RANK"
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # SLURM's numbers of the batch script, of an interactive shell and the like


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

        From `torch.distributed` where a process group is initialised, else from the variables of `torchrun`, of MPI's
        launchers (OpenMPI, and those that speak PMI) and of SLURM's `srun`, else a single process. Imports nothing.

        Raises:
            ConfigurationError: a launcher says which rank this is, and not how many there are.
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

    @property
    def world(self) -> World:
        """Rank and world size alone."""
        return _ALONE if self is _NOTHING else World(self.rank, self.size)


_NOTHING, _ALONE = Found(), World()


def find() -> Found:
    """Find the rank of this process and the number of ranks, as `World.detect` says."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Found(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    if not _names_ranks():
        return _NOTHING
    for rank, size in (*_VARIABLES, *_of_step()):
        if rank in os.environ and size in os.environ:
            variables = f"{rank}, {size}"
            return Found(_integer(rank), _integer(size), f"the environment: {variables}", variables)
    if _PMIX in os.environ:
        raise ConfigurationError(
            f"{_PMIX} says that this is rank {os.environ[_PMIX]}, and no variable says of how many.\n"
            "Each rank would read all the data. Call torch.distributed.init_process_group() before the first batch, or "
            "give wrap(..., world=World(rank, size))."
        )
    return _NOTHING


# Asking `os.environ` for a variable that is not there raises an error inside, so that all of them take 10 microseconds.
# The dict in which CPython keeps them tells in half of one that there are none. A rank is looked for at every step.
_ENVIRON = os.environ
_KEPT: Any = getattr(_ENVIRON, "_data", None)
_KEYS = frozenset(map(getattr(_ENVIRON, "encodekey", str), (*(rank for rank, _ in _VARIABLES), _PMIX)))


def _names_ranks() -> bool:
    """Return whether the environment may say which rank this is; in most processes it does not."""
    known = os.environ is _ENVIRON and isinstance(_KEPT, dict)
    return not (known and _KEPT.keys().isdisjoint(_KEYS))


def _of_step() -> list[tuple[str, str]]:
    """Return SLURM's variables of a job, where `srun` has set them to those of a step: some containers keep no others.

    In a batch script without `srun` they are there, too, and one process runs it.
    """
    step = os.environ.get("SLURM_STEP_ID", "")
    return [("SLURM_PROCID", "SLURM_NTASKS")] if step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP else []


def _integer(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ConfigurationError(
            f"the environment variable {name} must be an integer, but it is {os.environ[name]!r}.\n"
            f"Unset it, or give the world yourself: wrap(..., world=World(rank, size))."
        ) from None
