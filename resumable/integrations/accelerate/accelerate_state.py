"""What `save_state` writes of the prepared Loaders, in one file for all ranks.

format    of this dictionary
ranks     per rank, of the last optimizer step: states of the loaders (None: those of rank 0), generators, and the
          buffers of each model (None: those of rank 0; left out by earlier versions)
step      the accelerator's count then
since     None; saved within an accumulation: schedulers, parameter groups and buffers of the last step
number    of the checkpoint, as the accelerator counts its saves; left out by earlier versions
of_step   gradient_accumulation_steps of the run; left out by earlier versions

Accelerate writes file after file in place, so that a kill within a save leaves a part of it; written over an older
checkpoint, new weights beside an old place. What is registered is written last, after everything of all ranks. So
those files are removed first, and their presence says that the save came to its end.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from resumable.integrations._saved import RankedState
from resumable.integrations.accelerate import private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

__all__ = ["AccelerateState", "go_on_counting", "last_whole_checkpoint", "unmark"]

_NUMBER = re.compile(r"\d+(?=\D*$)")
_COUNT = "resumable_objects.txt"


@dataclass(frozen=True)
class AccelerateState(RankedState):
    """The prepared Loaders' part of a checkpoint."""

    part: ClassVar[str] = "the state of the prepared Loaders"
    hint: ClassVar[str] = (
        "Register objects in the order in which the run that saved did, and prepare Loaders at the same place among "
        "them. "
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
    """Take away what says that a folder has a whole checkpoint, as another one is about to be written there.

    Args:
        folder: of the checkpoint.
        number: how many objects are registered.
    """
    for path in _objects(folder):
        path.unlink()
    (folder / _COUNT).write_text(f"{number}\n", encoding="utf-8")


def last_whole_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Find the newest checkpoint of `accelerator.save_state` that was written to its end, for `load_state`.

    Args:
        folder: that has one folder per checkpoint, whose names end in a number, such as `checkpoint_7` of
            `automatic_checkpoint_naming`. The highest number is the newest. Or a checkpoint itself.

    Returns:
        Its path; None where there is none. A checkpoint without a prepared Loader is none.
    """
    root = Path(folder)
    if not root.is_dir():
        return None
    found = [path for path in root.iterdir() if path.is_dir() and _is_whole(path)]
    if not found:
        return str(root) if _is_whole(root) else None
    return str(max(found, key=_number))


def go_on_counting(accelerator: Any, number: int) -> None:
    """Go on counting saves after a checkpoint, as the run that saved it did.

    In a new process Accelerate counts from 0 again. With `automatic_checkpoint_naming`, what its `total_limit` deletes
    are the lowest numbers: each new checkpoint would make room for the next one, beside old ones that stay the newest.
    So there the next one gets a higher number than all that are there.

    Args:
        accelerator: that has loaded a checkpoint.
        number: of that one.
    """
    folder = private.saves_folder(accelerator)
    there = [_number(path)[0] for path in folder.iterdir()] if folder is not None and folder.is_dir() else []
    private.set_save_number(accelerator, max(number, *there, -1) + 1)


def _is_whole(folder: Path) -> bool:
    count = folder / _COUNT
    written = [path for path in _objects(folder) if zipfile.is_zipfile(path)]  # a zip file's list is at its end
    return count.is_file() and len(written) == int(count.read_text(encoding="utf-8"))


def _objects(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if private.CUSTOM.fullmatch(path.name)]


def _number(folder: Path) -> tuple[int, str]:
    number = _NUMBER.search(folder.name)
    return (int(number[0]) if number else -1), folder.name
