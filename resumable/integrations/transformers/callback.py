"""The callback that counts batches at the optimizer's steps, and is asked for the Loader's state within a save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

if TYPE_CHECKING:
    from resumable.integrations.transformers.session import Session

__all__ = ["ResumableState"]


class ResumableState(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers is untyped here
    """Files the Loader's state under its own name in `trainer_state.json`.

    Args:
        session: the run of the Trainer. The Trainer makes a callback without one where it restores callbacks from a
            checkpoint; the session puts the right one back.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = session

    def state(self) -> dict[str, Any]:
        """Return what goes into the checkpoint; nothing, before the first save."""
        saved = None if self._session is None else self._session.to_save
        return {"args": {}, "attributes": {} if saved is None else {"saved": saved.as_dict()}}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Go on with what the Trainer itself begins again."""
        if self._session is not None:
            self._session.go_on()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count all that was delivered as trained on: the Trainer draws the batches of one step, and no more."""
        if self._session is not None:
            self._session.acknowledge()

    def on_epoch_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        """Count the epoch as done, unless the run stops in the middle of it."""
        if self._session is not None:
            self._session.end_epoch(stops=control.should_training_stop)
