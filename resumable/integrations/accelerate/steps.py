"""Whether an optimizer has stepped: what was delivered before that is in the weights."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from resumable.integrations.accelerate import private

__all__ = ["Steps"]


class Steps:
    """Watches the optimizers of an Accelerator.

    Args:
        accelerator: whose optimizers may be prepared at any time.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._watched: WeakSet[Any] = WeakSet()
        self._stepped = False

    def watch(self) -> None:
        """Watch the optimizers that were prepared since, too."""
        for optimizer in private.optimizers(self._accelerator):
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                optimizer.register_step_post_hook(self._note)

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def forget(self) -> None:
        """Look for a step from now on."""
        self._stepped = False

    @property
    def taken(self) -> bool:
        """Whether one was taken since, or left out as the gradients overflowed.

        Without a prepared optimizer, what counts is that the gradients were synchronised.
        """
        accelerator = self._accelerator
        if self._stepped:
            return True
        if not self._watched:
            return bool(accelerator.sync_gradients)
        skipped = accelerator.scaler is not None and accelerator.optimizer_step_was_skipped
        return bool(skipped and accelerator.sync_gradients)
