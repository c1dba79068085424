"""Looks from outside into the stores that a command wrote to: what is committed there, and whether it loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable.errors import CheckpointError, CheckpointNotFoundError, CorruptCheckpointError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["committed", "find_unloadable", "is_inside", "local_roots"]


def is_inside(path: str | Path, case: Path) -> bool:
    """Return whether a path leads into a directory, whichever links are on the way."""
    return Path(path).resolve().is_relative_to(case.resolve())


def local_roots(attempts: Sequence[Attempt], case: Path) -> list[str]:
    """Return the roots in a case's directory that checkpoints were committed to, and which are still there."""
    roots = {root for attempt in attempts for log in attempt.ranks.values() for root, _ in log.saved}
    return sorted(root for root in roots if "://" not in root and Path(root).is_dir() and is_inside(root, case))


def committed(root: str) -> Iterator[tuple[int, Path]]:
    """Yield the committed steps of a store, each with its data file."""
    steps = _steps(root)
    for step in steps.committed():
        if (name := steps.data_file(step)) and (data := Path(steps.directory(step), name)).exists():
            yield step, data


def find_unloadable(attempts: Sequence[Attempt], case: Path, *, damaged: bool) -> list[str]:
    """Load every committed checkpoint, as `torch.load(weights_only=True)` does.

    Args:
        attempts: those that are over.
        case: the directory of the case.
        damaged: the newest one was damaged on purpose: then one that is whole is enough in each store.

    Returns:
        What cannot be loaded, in words.
    """
    found: list[str] = []
    for root in local_roots(attempts, case):
        steps = _steps(root)
        errors = [error for step in steps.committed() if (error := _try(steps, root, step))]
        if not damaged or len(errors) > 1:
            found += errors
    return found


def _steps(root: str) -> Any:
    from resumable.checkpoint.steps import Steps  # noqa: PLC0415  # its file systems are imported with it

    return Steps(root, {})


def _try(steps: Any, root: str, step: int) -> str:
    from resumable.checkpoint.saving import unpickle  # noqa: PLC0415  # the same

    def load(number: int, file: BinaryIO) -> None:
        try:
            unpickle(root, "cpu", number, file)
        except (CheckpointError, MissingDependencyError):
            return  # its bytes are whole; a class that the script allows, or torch, may be missing here

    try:
        steps.read(step, load)
    except (CorruptCheckpointError, CheckpointNotFoundError) as error:
        return f"the committed checkpoint of step {step} in {root} does not load: {error}"
    except Exception as error:  # noqa: BLE001  # whatever torch raises for bytes that are those which were written
        return f"the committed checkpoint of step {step} in {root} does not load: {type(error).__name__}: {error}"
    return ""
