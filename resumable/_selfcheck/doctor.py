"""`resumable doctor`: installed versions, the rank of this process, and how its workers start."""

from __future__ import annotations

import multiprocessing
import os
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from resumable._distribution import other_project
from resumable._order.world import find
from resumable._requirements import find_old
from resumable._version import __version__
from resumable.errors import ConfigurationError

__all__ = ["Health", "doctor"]


def doctor() -> Health:
    """Check the versions, the rank and how workers start in this process. No framework is imported."""
    known = {"python": f"{platform.python_version()} on {platform.system()} {platform.machine()}"}
    known["resumable"] = __version__
    for name in _PACKAGES:
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    known["start method"] = (
        multiprocessing.get_start_method(allow_none=True) or (multiprocessing.get_all_start_methods()[0])
    )
    traps = [*find_old(), *([told] if (told := other_project()) else [])]
    try:
        world = find()
    except ConfigurationError as error:
        return Health(known | {"rank": "unknown"}, (*traps, str(error)))
    known["rank"] = f"{world.rank} of {world.size} ({world.by})"
    return Health(known, (*traps, *(_alone() if world.size == 1 else ())))


@dataclass(frozen=True, slots=True)
class Health:
    """The result of `doctor`.

    Args:
        known: from name to value: versions, rank and how workers start.
        traps: packages that are too old, and problems that make each process read all the data, or stop it, or break
            this package.
    """

    known: dict[str, str]
    traps: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.traps

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        width = max(map(len, self.known))
        known = "\n".join(f"{name:<{width}}  {value}" for name, value in self.known.items())
        verdict = "PASSED: no problems found." if self.ok else "\n\n".join(f"WARNING: {trap}" for trap in self.traps)
        return f"{verdict}\n\n{known}"


_PACKAGES = (
    *("numpy", "fsspec", "torch", "torchdata", "pytorch-lightning", "lightning", "accelerate", "transformers", "trl"),
    *("datasets", "keras", "tensorflow", "tensorflow-cpu", "tensorflow-datasets", "nvidia-dali-cuda120", "ffcv"),
)
_SIZES = {"OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "MPI"}
_WORLD = "Pass wrap(..., world=World(rank, size)), or call init_process_group() before the first batch."


def _alone() -> list[str]:
    """Return the environment variables that contradict a single process."""
    traps = []
    if "RANK" in os.environ and "WORLD_SIZE" not in os.environ:
        traps.append(f"RANK is set but WORLD_SIZE is not, so each process reads all the data. {_WORLD}")
    traps += [
        f"{launcher} started {os.environ[name]} processes ({name}), but the rank of this one is unknown, so each "
        f"process reads all the data. {_WORLD}"
        for name, launcher in _SIZES.items()
        if os.environ.get(name, "1") != "1"
    ]
    return traps
