"""Whether an optimizer has stepped: what was delivered before that is in the weights."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from resumable._warn import warn
from resumable.errors import LoopWarning
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
        self._backwards, self._warned = 0, False
        private.watch_backward(accelerator, self._count)

    def renew(self) -> None:
        """Forget the optimizers from before `accelerator.free_memory()`."""
        self._watched.clear()
        self.forget()

    def watch(self) -> None:
        """Watch the optimizers that were prepared since, too."""
        for optimizer in private.optimizers(self._accelerator):
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                optimizer.register_step_post_hook(self._note)

    def _count(self) -> None:
        self._backwards += 1

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def forget(self) -> None:
        """Look for a step from now on."""
        self._stepped, self._backwards = False, 0

    def compare(self, delivered: int) -> None:
        """Look, at a step, whether all batches had a backward pass, as far as `accelerator.backward` did them.

        Args:
            delivered: how many batches the step is about to count for.

        Warns:
            LoopWarning: some had none; once.
        """
        if 0 < self._backwards < delivered and not self._warned:
            self._warned = True
            warn(
                "a batch was delivered before an optimizer step, and accelerator.backward() was not called for it.\n"
                f"  delivered since the last step: {delivered}\n  calls of backward():           {self._backwards}\n"
                "It counts as trained on. If the loop left it out, that is right. If the loop fetches a batch ahead, a "
                "resumed run would lose it: fetch a batch after the step of the one before.",
                LoopWarning,
            )

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
