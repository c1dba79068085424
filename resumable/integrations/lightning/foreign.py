"""Resuming from a checkpoint that was saved without the callback: at the place of the Trainer's own counters."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from resumable.errors import PromiseWarning, StateMismatchError, StateMismatchWarning, UnsupportedError
from resumable.integrations.lightning.place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.integrations.lightning.asked import Asked
    from resumable.integrations.lightning.streams import TrainStream

__all__ = ["Foreign"]

_WHAT = "the checkpoint was saved without ResumableCallback, so it does not say which batches are in its weights."


class Foreign:
    """Takes the place of `Saved`.

    Args:
        loop: the counters of the Trainer's fit loop.
        strict: refuse it.
        every: `reload_dataloaders_every_n_epochs`.

    Raises:
        StateMismatchError: as asked for by `strict`.
    """

    metrics: Mapping[str, Any] = {}  # it is never changed
    accumulates = 1

    def __init__(self, loop: Mapping[str, Any], *, strict: bool, every: int) -> None:
        self.place = _place_of(loop)
        where = f"batch {self.place.batch} of epoch {self.place.epoch}"
        if strict:
            raise StateMismatchError(
                f"{_WHAT}\nLightning's counters are at {where}. Use ResumableCallback(strict=False) to go on there, or "
                "start a new run."
            )
        message = f"{_WHAT}\nGone on at {where} because of strict=False."
        if every > 1:
            message += (
                f"\nIts loaders are made for epoch {self.place.epoch}, and every {every} epochs from there, whenever "
                "the run before had made them."
            )
        warnings.warn(message, StateMismatchWarning, stacklevel=2)

    def restore_loaders(
        self,
        streams: Sequence[TrainStream],
        rank: int,  # noqa: ARG002  # as `Saved` has it
        world_size: int,  # noqa: ARG002  # the same
        *,
        strict: bool,  # noqa: ARG002  # the same
    ) -> None:
        """Bring the train loaders to the counted batch, as far as they can be."""
        for stream in streams:
            try:
                stream.go_to(self.place.epoch, self.place.batch)
            except UnsupportedError:
                warnings.warn(
                    f"the train loader {stream.name} cannot go to batch {self.place.batch} of epoch {self.place.epoch} "
                    "without a state of its own.\nIt begins where it stands.",
                    PromiseWarning,
                    stacklevel=2,
                )

    def asked(self, rank: int) -> Mapping[str, Asked]:  # noqa: ARG002  # as `Saved` has it
        """Lightning saves nothing of it."""
        return {}

    def restore_generators(self, rank: int) -> None:
        """There are none."""

    def warn(self, rank: int) -> None:
        """Nothing more is to be said."""


def _place_of(loop: Mapping[str, Any]) -> Place:
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    epoch, batch = int(epochs["processed"]), int(batches["current"]["processed"])
    total = int(batches["total"]["processed"])
    ended = epochs["started"] == epoch  # the epoch of the last batch, and none was begun since
    if epochs["started"] < epochs["ready"] or batches["is_last_batch"] or not batch:
        return Place("epoch", epoch if ended else epoch + bool(batches["is_last_batch"]), 0, total)
    return Place("ready", epoch - 1 if ended else epoch, batch, total)
