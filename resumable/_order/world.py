"""World: the rank of this process and the number of ranks."""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from resumable.errors import ConfigurationError

__all__ = ["Found", "World", "find", "several_ranks"]


class _Pair(NamedTuple):
    """Environment variables that a launcher sets on each rank."""

    rank: str
    size: str
    launcher: str

    def text(self) -> str:
        """Return both variables with their values, for messages."""
        return f"{self.rank}={os.environ[self.rank]!r}, {self.size}={os.environ[self.size]!r}"


# The first pair that is set counts. SLURM's is last: mpirun starts one helper per node with `srun`, and the ranks that
# the helper starts inherit its variables.
_VARIABLES = (
    _Pair("RANK", "WORLD_SIZE", "torchrun"),
    _Pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),  # OpenMPI
    _Pair("PMI_RANK", "PMI_SIZE", "mpiexec"),  # MPICH, Intel MPI, `srun --mpi=pmi2`
    _Pair("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "mpirun_rsh"),  # MVAPICH2
    _Pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),  # the step's size: only inside it do tasks run this script
)
_PMIX = "PMIX_RANK"
_SAY_IT = (
    "set it in the script: wrap(..., world=World(rank, size)), with the number of this process, counted from 0, and "
    "the number of all processes."
)
_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # SLURM's step numbers for the batch script, an interactive shell and others


@dataclass(frozen=True, slots=True)
class World:
    """Rank and world size: they decide who reads which part of a global batch, never the order.

    Args:
        rank: number of this process, `0..size-1`.
        size: number of processes that train together.

    Both are stored as Python integers.

    Raises:
        ConfigurationError: `rank` or `size` is not an integer, or is out of range.
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
                f"rank must be an integer from 0 to size - 1, but rank={self.rank!r} and size={self.size!r}.\n"
                "No share of the data would belong to it. Pass World(rank, size) with the number of this process, "
                "counted from 0, and the number of all processes that train together. Each process needs a different "
                "rank."
            )
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "size", size)

    @classmethod
    def detect(cls) -> World:
        """Detect the world of this process.

        From `torch.distributed` if a process group is initialized, else from the variables of `torchrun`, of MPI
        launchers (OpenMPI, and those that support PMI) and of SLURM's `srun`, else a single process. Imports nothing.

        Raises:
            ConfigurationError: the variables set an impossible rank, or a rank without the number of ranks.
        """
        found = find()
        return _ALONE if found is _NOTHING else cls(found.rank, found.size)


class Found(NamedTuple):
    """Rank and world size, and how they were detected.

    `variables` lists the environment variables if only they were used.
    """

    rank: int = 0
    size: int = 1
    by: str = "no process group, no launcher"
    variables: str | None = None

    @property
    def world(self) -> World:
        """Only rank and world size."""
        return _ALONE if self is _NOTHING else World(self.rank, self.size)


_NOTHING, _ALONE = Found(), World()


def find() -> Found:
    """Detect the rank of this process and the number of ranks, in the same way as `World.detect`.

    Raises:
        ConfigurationError: as for `World.detect`.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Found(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")
    if not _names_ranks():
        return _NOTHING
    pairs = [pair for pair in (*_VARIABLES, *_of_step()) if pair.rank in os.environ and pair.size in os.environ]
    if not pairs:
        _refuse_lone_rank()
        return _NOTHING
    variables = f"{pairs[0].rank}, {pairs[0].size}"
    return Found(*_read(*pairs), f"the environment: {variables}", variables)


def several_ranks() -> str | None:
    """Return a variable, with its value, that shows that there are several ranks; None if there is none."""
    sizes = (pair.size for pair in (*_VARIABLES, *_of_step()))
    return next((f"{name}={os.environ[name]}" for name in sizes if os.environ.get(name, "1") != "1"), None)


# Reading a missing variable from `os.environ` raises an exception internally, so reading all of them takes 10 µs. The
# dict in which CPython keeps them shows in 0.5 µs that none is set. This is checked at every step.
_ENVIRON = os.environ
_KEPT: Any = getattr(_ENVIRON, "_data", None)
_KEYS = frozenset(map(getattr(_ENVIRON, "encodekey", str), (*(rank for rank, *_ in _VARIABLES), _PMIX)))


def _names_ranks() -> bool:
    """Return whether the environment may set the rank of this process; in most processes it does not."""
    known = os.environ is _ENVIRON and isinstance(_KEPT, dict)
    return not (known and _KEPT.keys().isdisjoint(_KEYS))


def _of_step() -> list[_Pair]:
    """Return SLURM's variables of a job, if `srun` has set them for a step: some containers keep no others.

    In a batch script without `srun` they are also set, although a single process runs it.
    """
    step = os.environ.get("SLURM_STEP_ID", "")
    return (
        [_Pair("SLURM_PROCID", "SLURM_NTASKS", "srun")] if step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP else []
    )


def _read(pair: _Pair, *others: _Pair) -> tuple[int, int]:
    """Return the rank and the number of ranks from two variables.

    Args:
        pair: their names.
        others: further pairs that are set but not used.

    Raises:
        ConfigurationError: they are not integers, or there is no such rank.
    """
    rank, size = _integer(pair.rank), _integer(pair.size)
    if rank is not None and size is not None and 0 <= rank < size:
        return rank, size
    also = "".join(
        f"\nThe environment also has {other.text()}: they are used once the others are unset." for other in others
    )
    raise ConfigurationError(
        f"the environment says that this process is rank {os.environ[pair.rank]} of {os.environ[pair.size]}: "
        f"{pair.text()}.\n"
        "Both must be integers, and the first must be from 0 to the second minus 1. This process would read the data "
        f"of a different rank, or none. {pair.launcher} sets both on each rank: start the script with it, or fix the "
        f"wrong variable. If the script runs as a single process, unset both. Or {_SAY_IT}{also}"
    )


def _refuse_lone_rank() -> None:
    """Reject a rank if no variable says how many ranks there are, unless it is rank 0, which may be the only one.

    Raises:
        ConfigurationError: there is such a rank.
    """
    pair = next((pair for pair in _VARIABLES if pair.rank in os.environ and _integer(pair.rank) != 0), None)
    if pair is not None:
        name = pair.rank
        says = f"but {pair.size}, which says how many there are, is not set"
        way = f"Start the script with {pair.launcher}, which sets both. If it runs as a single process, unset {name}."
    elif _PMIX in os.environ:
        name, says, way = _PMIX, "but no variable says how many there are", "Start the script with torchrun or srun."
    else:
        return
    raise ConfigurationError(
        f"the environment says that this process is rank {os.environ[name]}: {name}={os.environ[name]!r}, {says}.\n"
        f"Each rank would read all the data. {way} Or read the first batch after init_process_group(), or {_SAY_IT}"
    )


def _integer(name: str) -> int | None:
    try:
        return int(os.environ[name])
    except ValueError:
        return None
