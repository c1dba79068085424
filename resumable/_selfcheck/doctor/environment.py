"""The ranks, the processes and the variables of the environment."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from resumable._order.world import find
from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from resumable._selfcheck.doctor.findings import Findings

__all__ = ["look_at_processes", "look_at_ranks", "look_at_variables"]

_PAIRS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
_OF_LAUNCHERS = (("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "MPI"))
_MEBI = 1 << 20
_FEW_FILES = 1024
_LITTLE = 128 * _MEBI  # of shared memory; Docker gives 64 MiB
_WORLD = "Give wrap(..., world=World(rank, size)), or init_process_group() before the first batch."


def look_at_ranks(found: Findings) -> None:
    """Look at which rank this process would be, and who says so."""
    try:
        world = find()
    except ConfigurationError as error:
        found.known["rank"] = "unknown"
        found.breaks(str(error))
        return
    found.known["rank"] = f"{world.rank} of {world.size} ({world.by})"
    if world.variables is not None:
        found.mind(
            f"every loader is divided among {world.size} ranks, by {world.variables} alone. If this is one process, "
            "unset them: it would read a part of the data."
        )
    for pair in _PAIRS:
        there = [name for name in pair if name in os.environ]
        if len(there) == 1 and pair[0] == "RANK":
            (missing,) = set(pair) - set(there)
            found.breaks(f"{there[0]} is set and {missing} is not, so each process reads all the data. {_WORLD}")
    for name, launcher in _OF_LAUNCHERS:
        if os.environ.get(name, "1") != "1" and world.size == 1:
            found.breaks(
                f"{launcher} has started {os.environ[name]} processes ({name}), and nothing says the rank of this "
                f"one: each reads all the data. {_WORLD}"
            )
    if os.environ.get("SLURM_NTASKS", "1") != "1" and "SLURM_STEP_NUM_TASKS" not in os.environ and world.size == 1:
        found.mind(f"the SLURM job has {os.environ['SLURM_NTASKS']} tasks, but this was not started by srun: 1 rank.")


def look_at_processes(found: Findings) -> None:
    """Look at how workers start, and what they need."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    found.known["start method"] = method
    threads = threading.active_count()
    if method == "fork" and threads > 1:
        found.mind(
            f"workers are forked from a process with {threads} threads; a lock that one of them holds stays "
            'locked in the worker. Give the DataLoader multiprocessing_context="forkserver" if they hang.'
        )
    if (files := _open_files()) is not None:
        found.known["open files"] = f"at most {files}"
        if files < _FEW_FILES:
            found.mind(f"{files} open files are few for workers, which need one per tensor: ulimit -n 65536")
    shared = Path("/dev/shm")  # noqa: S108  # its size is looked at
    if shared.is_dir() and hasattr(os, "statvfs"):
        room = os.statvfs(shared)
        size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
        found.known["shared memory"] = f"{size // _MEBI} MiB, {free // _MEBI} MiB free"
        if free < _LITTLE:
            found.mind(
                f"{free // _MEBI} MiB of shared memory are little: workers put their batches there, and die by a bus "
                "error where it is full. In Docker: --shm-size=8g"
            )


def look_at_variables(found: Findings) -> None:
    """Look at variables that change what a run does."""
    if path := os.environ.get(VARIABLE):
        stale = not Path(path).exists()
        text = "names a chaos run that is not there" if stale else "is set: a chaos run watches each process"
        found.mind(f"{VARIABLE} {text}. Remove it: unset {VARIABLE}")
    for name in sorted(os.environ):
        if name.startswith("RESUMABLE_") and name != VARIABLE:
            found.mind(f"{name} is set, which nothing reads.")
    if (seed := os.environ.get("PYTHONHASHSEED", "random")) != "random":
        found.known["PYTHONHASHSEED"] = seed
        found.mind(
            f"PYTHONHASHSEED={seed} hides an order that comes out of a set: a run without it reads another one. "
            "resumable check finds such an order."
        )
    if "PL_GLOBAL_SEED" in os.environ:
        found.known["PL_GLOBAL_SEED"] = seed = os.environ["PL_GLOBAL_SEED"]
        found.mind(
            f"PL_GLOBAL_SEED={seed} is left from seed_everything, and is the seed of Lightning's runs that give none."
        )


def _open_files() -> int | None:
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415  # not on Windows

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
