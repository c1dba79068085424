"""The call that made the Trainer's loaders: its epoch, step and RNG state, for a resumed run to make the same ones.

`train_dataloader()` and `val_dataloader()` are the user's code. It may read `current_epoch` for a curriculum, or choose
a part of the data at random. The Trainer calls it when a run starts, at every `reload_dataloaders_every_n_epochs`, and
when a run is resumed, which may be in a later epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from resumable import rng
from resumable.integrations.lightning import private

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Asked", "Asking"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of the code that makes loaders.

    Args:
        epoch: `current_epoch` during the call.
        step: `global_step` during the call.
        reloaded_at: the epoch from which Lightning counts to the next reload; None if it does not count yet.
        generators: state of the global generators before the call, if the call changed it.
    """

    epoch: int
    step: int
    reloaded_at: int | None
    generators: Mapping[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        return asdict(self)


class Asking:
    """Asks the Trainer's source for the loaders of a loop, and notes when.

    Args:
        trainer: the Trainer.
        loop: the loop.
    """

    def __init__(self, trainer: Any, loop: private.Loop) -> None:
        self._trainer, self._loop = trainer, loop
        self._resumed = self._training = False
        self._again: Asked | None = None  # the saved call, to be repeated
        self.asked: Asked | None = None  # for the loaders in use

    def __call__(self, make: Callable[[], Any]) -> Any:
        """Return what the source makes."""
        again, trainer = self._again, self._trainer
        if again is not None and not (self._training and private.is_reload_due(trainer, again.reloaded_at)):
            made = self._make_as(again, make)
            self.asked = again
            private.note_reload(trainer, self._loop, again.reloaded_at)
            return made
        epoch, step, before = trainer.current_epoch, trainer.global_step, rng.capture()
        made = make()
        unchanged = _are_equal(before(), rng.state_dict())
        # Lightning notes a reload for validation before it asks, and one for training after that.
        reloaded_at = epoch if self._loop == "train" else private.reloaded_at(trainer, self._loop)
        self.asked = Asked(epoch, step, reloaded_at, None if unchanged else before())
        return made

    def _make_as(self, asked: Asked, make: Callable[[], Any]) -> Any:
        now = rng.state_dict()
        if asked.generators is not None:
            rng.restore(asked.generators)
        try:
            with private.counters_at(self._trainer, asked.epoch, asked.step):
                return make()
        finally:
            rng.restore(now)

    def resume(self, asked: Asked | None) -> bool:
        """Repeat the call that made the checkpoint's loaders; None if nothing had made them yet.

        Returns:
            Whether a different call made the loaders in use.
        """
        self._resumed, self._again = True, asked
        if self.asked is None or asked is None:
            return False
        same_place = (self.asked.epoch, self.asked.step) == (asked.epoch, asked.step)
        return not same_place or asked.generators is not None

    def start(self) -> None:
        """Training starts: from now on, the Trainer asks when a reload is due."""
        if self._resumed and self._again is None and self.asked is not None:
            private.forget_loaders(self._trainer, self._loop)  # the checkpoint's run asks only when it first validates
            self.asked = None
        self._training = True
        if self.asked is not None:
            self._again = None
            private.note_reload(self._trainer, self._loop, self.asked.reloaded_at)


def _are_equal(one: Any, other: Any) -> bool:
    """Compare two states of the global generators."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return bool(one == other)
