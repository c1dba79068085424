"""The state of the prepared Loaders that `save_state` writes, in one file for all ranks.

format    version of this schema
ranks     per rank, at the last optimizer step: states of the Loaders (None: same as rank 0), RNG states, and the
          buffers of each model (None: same as rank 0; missing in states of earlier versions)
step      the accelerator's count of batches at that step
since     None, unless saved within an accumulation: then schedulers, parameter groups and buffers at the last step
number    number of the checkpoint with automatic_checkpoint_naming, else 0; missing in states of earlier versions
of_step   gradient_accumulation_steps of the run; missing in states of earlier versions

Accelerate writes its files one after the other, in place. A kill during a save leaves an incomplete checkpoint, or new
weights next to an old position if an older checkpoint is overwritten. The files of registered objects are written last,
when all ranks are done with the rest. So they are removed before a save, and if they exist, the save was completed.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from resumable.errors import ConfigurationError
from resumable.integrations._saved import RankedState
from resumable.integrations.accelerate import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

__all__ = ["AccelerateState", "go_on_counting", "last_whole_checkpoint", "unmark"]

_NUMBER = re.compile(r"\d+(?=\D*$)")
_COUNT = "resumable_objects.txt"
_RANDOM = "random_states_0.pkl"  # in every checkpoint; written after `_COUNT`


@dataclass(frozen=True)
class AccelerateState(RankedState):
    """The prepared Loaders' part of a checkpoint."""

    part: ClassVar[str] = "the state of the prepared Loaders"
    hint: ClassVar[str] = (
        "Call register_for_checkpointing() and prepare Loaders in the same order as the run that saved. "
    )

    ranks: Sequence[Mapping[str, Any]]
    step: int
    since: Mapping[str, Any] | None
    number: int = 0
    of_step: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        ranks = [
            {**one, "loaders": None if number and one["loaders"] == self.states else one["loaders"]}
            for number, one in enumerate(self.ranks)
        ]
        count = {"step": self.step, "since": self.since, "number": self.number, "of_step": self.of_step}
        return {"format": self.newest, "ranks": ranks, **count}

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Self:
        first = values["ranks"][0]["loaders"]
        ranks = [
            {"loaders": one["loaders"] or first, "generators": one["generators"], "buffers": one.get("buffers")}
            for one in values["ranks"]
        ]
        number, of_step = int(values.get("number", 0)), values.get("of_step")
        return cls(ranks, int(values["step"]), values["since"], number, of_step)


def unmark(folder: Path, number: int) -> None:
    """Mark the checkpoint in a folder as incomplete before a save overwrites it.

    Args:
        folder: of the checkpoint.
        number: of registered objects.
    """
    for path in _objects(folder):
        path.unlink()
    (folder / _COUNT).write_text(f"{number}\n", encoding="utf-8")


def last_whole_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Find the newest complete checkpoint of `accelerator.save_state`, for `load_state`.

    Args:
        folder: a folder with one subfolder per checkpoint, or a checkpoint itself. The names of the subfolders end in a
            number, such as `checkpoint_7` of `automatic_checkpoint_naming`. The highest number is the newest.

    Returns:
        The checkpoint's path; None if there is none, or if a kill in the first save left only an incomplete one.

    Raises:
        ConfigurationError: none can be resumed, because the complete ones were saved without a prepared Loader.
    """
    root = Path(folder)
    if not root.is_dir():
        return None
    folders = [path for path in root.iterdir() if path.is_dir()]
    found = [path for path in folders if _is_whole(path)]
    if found:
        return str(max(found, key=_number))
    if _is_whole(root):
        return str(root)
    if any((path / _RANDOM).is_file() and not (path / _COUNT).is_file() for path in (root, *folders)):
        raise ConfigurationError(
            f"{root} has checkpoints, but none can be resumed: they were saved without a prepared Loader, so they have "
            "no position of the data.\nThe run would start from scratch. Use a new folder, delete the checkpoints, or "
            "pass the path of one to load_state() before you call prepare() for the Loader."
        )
    return None


def go_on_counting(accelerator: Any, number: int) -> None:
    """Continue to number checkpoints after a resume.

    In a new process Accelerate counts from 0 again. With `automatic_checkpoint_naming`, its `total_limit` deletes the
    checkpoints with the lowest numbers: it would delete the new ones, and the old ones would stay the newest. So the
    next checkpoint gets a higher number than all existing ones.

    Args:
        accelerator: has loaded a checkpoint.
        number: of that checkpoint.
    """
    folder = private.saves_folder(accelerator)
    there = [_number(path)[0] for path in folder.iterdir()] if folder is not None and folder.is_dir() else []
    private.set_save_number(accelerator, max(number, *there, -1) + 1)


def _is_whole(folder: Path) -> bool:
    count = folder / _COUNT
    written = [
        path for path in _objects(folder) if zipfile.is_zipfile(path)
    ]  # the directory of a zip file is at its end
    return count.is_file() and len(written) == int(count.read_text(encoding="utf-8"))


def _objects(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if private.CUSTOM.fullmatch(path.name)]


def _number(folder: Path) -> tuple[int, str]:
    number = _NUMBER.search(folder.name)
    return (int(number[0]) if number else -1), folder.name
