"""World: which of how many processes this one is."""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from resumable.errors import ConfigurationError

__all__ = ["Found", "World", "find", "several_ranks"]


class _Pair(NamedTuple):
    """Variables of the environment that a launcher sets on each rank."""

    rank: str
    size: str
    launcher: str

    def text(self) -> str:
        """Return both with their values, for messages."""
        return f"{self.rank}={os.environ[self.rank]!r}, {self.size}={os.environ[self.size]!r}"


# The first pair that is there counts. SLURM's last: mpirun starts one helper per node by `srun`, and the ranks that the
# helper starts inherit its variables.
_VARIABLES = (
    _Pair("RANK", "WORLD_SIZE", "torchrun"),
    _Pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpirun"),  # OpenMPI
    _Pair("PMI_RANK", "PMI_SIZE", "mpiexec"),  # MPICH, Intel MPI, `srun --mpi=pmi2`
    _Pair("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "mpirun_rsh"),  # MVAPICH2
    _Pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun"),  # the step's size: only inside it do tasks run this script
)
_PMIX = "PMIX_RANK"
_SAY_IT = (
    "say it in the script: wrap(..., world=World(rank, size)), with the number of this process, from 0 on, and the "
    "number of all processes."
)
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
                "No share of the data belongs to it. Give World(rank, size) the number of this process, from 0 on, and "
                "the number of all processes that train together. Each of them needs another rank."
            )
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "size", size)

    @classmethod
    def detect(cls) -> World:
        """Find the world of this process.

        From `torch.distributed` where a process group is initialised, else from the variables of `torchrun`, of MPI's
        launchers (OpenMPI, and those that speak PMI) and of SLURM's `srun`, else a single process. Imports nothing.

        Raises:
            ConfigurationError: variables say a rank that there is not, or which rank this is and not of how many.
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
    """Find the rank of this process and the number of ranks, as `World.detect` says.

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
    """Return the variable, with its value, that says that there are several ranks; None if none does."""
    sizes = (pair.size for pair in (*_VARIABLES, *_of_step()))
    return next((f"{name}={os.environ[name]}" for name in sizes if os.environ.get(name, "1") != "1"), None)


# Asking `os.environ` for a variable that is not there raises an error inside, so that all of them take 10 microseconds.
# The dict in which CPython keeps them tells in half of one that there are none. A rank is looked for at every step.
_ENVIRON = os.environ
_KEPT: Any = getattr(_ENVIRON, "_data", None)
_KEYS = frozenset(map(getattr(_ENVIRON, "encodekey", str), (*(rank for rank, *_ in _VARIABLES), _PMIX)))


def _names_ranks() -> bool:
    """Return whether the environment may say which rank this is; in most processes it does not."""
    known = os.environ is _ENVIRON and isinstance(_KEPT, dict)
    return not (known and _KEPT.keys().isdisjoint(_KEYS))


def _of_step() -> list[_Pair]:
    """Return SLURM's variables of a job, where `srun` has set them to those of a step: some containers keep no others.

    In a batch script without `srun` they are there, too, and one process runs it.
    """
    step = os.environ.get("SLURM_STEP_ID", "")
    return (
        [_Pair("SLURM_PROCID", "SLURM_NTASKS", "srun")] if step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP else []
    )


def _read(pair: _Pair, *others: _Pair) -> tuple[int, int]:
    """Return the rank and the number of ranks that two variables say.

    Args:
        pair: their names.
        others: further pairs that are set and do not count.

    Raises:
        ConfigurationError: they are not integers, or there is no such rank.
    """
    rank, size = _integer(pair.rank), _integer(pair.size)
    if rank is not None and size is not None and 0 <= rank < size:
        return rank, size
    also = "".join(
        f"\nThe environment also has {other.text()}: they count once the others are unset." for other in others
    )
    raise ConfigurationError(
        f"the environment says that this process is rank {os.environ[pair.rank]} of {os.environ[pair.size]}: "
        f"{pair.text()}.\n"
        "Both must be integers, the first from 0 to the second less 1. This process would read another rank's share of "
        f"the data, or none. {pair.launcher} sets both on each rank: start the script by it, or correct the variable "
        f"that is wrong. If the script runs in one process alone, unset both. Or {_SAY_IT}{also}"
    )


def _refuse_lone_rank() -> None:
    """Refuse a rank of which no variable says how many there are; number 0 may be the only one.

    Raises:
        ConfigurationError: there is one.
    """
    pair = next((pair for pair in _VARIABLES if pair.rank in os.environ and _integer(pair.rank) != 0), None)
    if pair is not None:
        name = pair.rank
        says = f"{pair.size}, which would say of how many, is not set"
        way = f"Start the script by {pair.launcher}, which sets both. If it runs in one process alone, unset {name}."
    elif _PMIX in os.environ:
        name, says, way = _PMIX, "no variable says of how many", "Start the script by torchrun or srun."
    else:
        return
    raise ConfigurationError(
        f"the environment says that this process is rank {os.environ[name]}: {name}={os.environ[name]!r}, and {says}.\n"
        f"Each rank would read all the data. {way} Or read the first batch after init_process_group(), or {_SAY_IT}"
    )


def _integer(name: str) -> int | None:
    try:
        return int(os.environ[name])
    except ValueError:
        return None
