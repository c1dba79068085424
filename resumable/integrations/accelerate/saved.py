"""What `save_state` writes of the prepared Loaders, in one file for all ranks.

format    of this dictionary
ranks     per rank, of the last optimizer step: states of the loaders (None: those of rank 0), generators, and the
          buffers of each model (None: those of rank 0; left out by earlier versions)
step      the accelerator's count then
since     None; saved within an accumulation: schedulers, parameter groups and buffers of the last step
number    of the checkpoint, as the accelerator counts its saves; left out by earlier versions
of_step   gradient_accumulation_steps of the run; left out by earlier versions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE
from resumable._state import is_shared
from resumable.errors import StateFormatError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FORMAT", "Saved"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """The prepared Loaders' part of a checkpoint."""

    ranks: Sequence[Mapping[str, Any]]
    step: int
    since: Mapping[str, Any] | None
    number: int = 0
    of_step: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        first = self.ranks[0]["loaders"]
        ranks = [
            {**one, "loaders": None if number and one["loaders"] == first else one["loaders"]}
            for number, one in enumerate(self.ranks)
        ]
        count = {"step": self.step, "since": self.since, "number": self.number, "of_step": self.of_step}
        return {"format": FORMAT, "ranks": ranks, **count}

    @classmethod
    def from_dict(cls, values: Any) -> Saved:
        """Read the part of a checkpoint.

        Raises:
            StateFormatError: it is something else, damaged, or of a newer version.
        """
        version = values.get("format") if isinstance(values, dict) and "ranks" in values else None
        if type(version) is not int or version > FORMAT:
            raise StateFormatError(
                f"this is no state of prepared Loaders of a format up to {FORMAT}, but {_told(values)}.\n"
                "The Loaders would begin somewhere else than the weights. Register objects in the order in which the "
                "run that saved did, and prepare Loaders at the same place among them; for a newer format, "
                f"{UPGRADE}"
            )
        try:
            first = values["ranks"][0]["loaders"]
            ranks = [
                {"loaders": one["loaders"] or first, "generators": one["generators"], "buffers": one.get("buffers")}
                for one in values["ranks"]
            ]
            number, of_step = int(values.get("number", 0)), values.get("of_step")
            return cls(ranks, int(values["step"]), values["since"], number, of_step)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StateFormatError(
                f"the state of the prepared Loaders is damaged: {error!r}.\n"
                "Nothing of it was loaded. Load another checkpoint."
            ) from error

    def of_rank(self, rank: int, size: int, loaders: int) -> Mapping[str, Any]:
        """Return what a rank goes on from.

        Args:
            rank: of this process.
            size: number of ranks now.
            loaders: how many are prepared.

        Raises:
            StateMismatchError: there are other loaders, or streams that this number of ranks cannot share.
        """
        states = self.ranks[0]["loaders"]
        if len(states) != loaders:
            raise StateMismatchError(
                f"the checkpoint has states of {len(states)} prepared Loaders, and {loaders} are prepared.\n"
                "Some would begin again. Prepare those that the run was started with, in the same order."
            )
        own = self.ranks[rank % len(self.ranks)]
        if len(self.ranks) == size:
            return own
        if not all(map(is_shared, states)):
            raise StateMismatchError(
                "each rank has a stream of its own, which cannot be divided by another number of ranks.\n"
                f"  in the checkpoint: {len(self.ranks)} ranks\n  in this run:       {size} ranks\n"
                "Restart with as many ranks."
            )
        return {"loaders": states, "generators": own["generators"], "buffers": None}


def _told(values: Any) -> str:
    if not isinstance(values, dict):
        return f"a {type(values).__name__}"
    return f"a dictionary with {', '.join(map(repr, list(values)[:5]))}"
