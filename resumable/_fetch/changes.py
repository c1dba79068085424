"""What a user changes in the middle of a run: samples per step, and the settings of the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._fetch.frameworks import HasSettings
from resumable._state import Journal, Resize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._state import Mark, State

__all__ = ["Changes"]


class Changes:
    """Knows what was changed, for the journal of a state.

    Args:
        backend: may have settings.
    """

    def __init__(self, backend: Any) -> None:
        self._settings = backend if isinstance(backend, HasSettings) else None
        self._resizes: tuple[Resize, ...] = ()

    def first_global_batch(self, now: int) -> int:
        """Return the samples per step with which the run began."""
        return self._resizes[0].was if self._resizes else now

    def settings(self) -> Mapping[str, Any] | None:
        """Return the settings that are set now, for the next epoch that begins."""
        return None if self._settings is None else self._settings.settings()

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
        if self._settings is not None and state.journal.settings is not None:
            self._settings.set_settings(state.journal.settings)
