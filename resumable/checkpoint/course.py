"""The course of a run through the steps of a store: a save that `latest()` would not give is refused, or told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._warn import warn
from resumable.checkpoint.reports import reporting
from resumable.errors import ConfigurationError, StepOrderWarning

if TYPE_CHECKING:
    from resumable.checkpoint.steps import Steps

__all__ = ["Course"]


class Course:
    """The step to which a run has come, by what it has saved to a store and loaded from it.

    Args:
        steps: those of the store.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._at: int | None = None  # None before the first save or load
        self._loads = False  # a step was loaded since the last save
        self._looked = False  # for later steps, since the last load

    def saved(self, step: int) -> None:
        """Note that a step is saved; threads may save at once, in any order."""
        self._at, self._loads = step if self._at is None else max(self._at, step), False

    def resumed(self, step: int | None) -> None:
        """Note that the run goes on from the latest step; None where there was none."""
        if step is not None:
            self._go_to(step)

    def loaded(self, step: int) -> None:
        """Note that the run may go on from a step: of several, from the earliest, as others may only be looked at."""
        self._go_to(min(step, self._at) if self._loads and self._at is not None else step)

    def _go_to(self, step: int) -> None:
        self._looked = self._looked and step == self._at
        self._at, self._loads = step, True

    def admit(self, step: int) -> None:
        """Look whether a step that is about to be saved would be the one that `latest()` gives.

        Raises:
            ConfigurationError: it would not, as the run counts backwards.
            CheckpointError: the storage failed.

        Warns:
            StepOrderWarning: it would not, as there are later steps that the run does not come from; once.
        """
        at = self._at
        backwards = at is not None and step < at
        if self._looked and not backwards:
            return
        with reporting(f"step {step} was not saved to {self._steps.root}, as its steps could not be listed"):
            newest = self._steps.newest_above(step)
        if newest is not None and backwards:
            raise ConfigurationError(_backwards(self._steps.root, step, at, newest))
        self._looked = True
        if backwards:
            self._at = step  # the later ones were deleted
        if newest is not None:
            warn(_not_the_latest(self._steps.root, step, newest), StepOrderWarning)


def _backwards(root: str, step: int, at: int | None, newest: int) -> str:
    return (
        f"step {step} was not saved to {root}: this run has already saved or loaded a later one.\n"
        f"  to be saved:          {step}\n  the run has come to:  {at}\n  newest in the store:  {newest}\n"
        f"`latest()` would go on giving step {newest}, and all that is trained meanwhile would be lost with a crash. "
        "Number checkpoints by what only grows: `save(loader.global_step, ...)`. A new run needs a folder of its own. "
        "If the run went back on purpose, `delete` the steps that it left, or `load` the one that it went back to."
    )


def _not_the_latest(root: str, step: int, newest: int) -> str:
    return (
        f"step {step} is saved to {root}, but a later one is there, which this run does not come from.\n"
        f"  saved now:            {step}\n  newest in the store:  {newest}\n"
        f"`latest()` goes on giving step {newest}, so a restart would not go on from here. Give a new run a folder of "
        "its own. If this run went back to an earlier step, `delete` the later ones, which it left."
    )
