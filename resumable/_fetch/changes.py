"""What a user changes in the middle of a run: samples per step, and the settings of the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._state import Journal, Resize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._state import Mark, State
    from resumable.protocols import Capabilities

__all__ = ["Changes"]


class Changes:
    """Knows what was changed, for the journal of a state.

    Args:
        can: how the backend tells and takes its settings.
    """

    def __init__(self, can: Capabilities) -> None:
        self._tell, self._set = can.settings, can.set_settings
        self._resizes: tuple[Resize, ...] = ()

    def first_global_batch(self, now: int) -> int:
        """Return the samples per step with which the run began."""
        return self._resizes[0].was if self._resizes else now

    def settings(self) -> Mapping[str, Any] | None:
        """Return the settings that are set now, for the next epoch that begins."""
        return None if self._tell is None else self._tell()

    def in_force(self, mark: Mark) -> Mapping[str, Any] | None:
        """Return the settings with which a mark's epoch began, or begins now."""
        return self.settings() if mark.in_force is None else mark.in_force

    def journal_at(self, mark: Mark, *, stays: Callable[[], bool]) -> Callable[[], Journal]:
        """Return a function that makes the journal of a mark.

        Args:
            mark: where the run is now.
            stays: tells, when the journal is made, whether it is there still: what is set at the end of an epoch, after
                its last batch was counted, belongs to this place, too.
        """
        resizes, then = self._resizes, self.settings()
        return lambda: Journal(resizes, mark.in_force, self.settings() if stays() else then)

    def load(self, state: State, global_batch: int) -> None:
        """Take over the changes of a state, and another global batch from its place on."""
        self._resizes, cursor = state.journal.resizes, state.mark.cursor
        if global_batch != state.global_batch:
            self._resizes += (Resize(cursor.epoch, cursor.position, state.global_batch, global_batch),)
        if self._set is not None and state.journal.settings is not None:
            self._set(state.journal.settings)
