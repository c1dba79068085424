"""Holders of a DALI iterator: each can bring it to a checkpoint, in place or by making a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from resumable.backends.dali.native.private import Blueprint, has_eaten_an_end, pipelines_of, rebuild
from resumable.backends.dali.native.refusals import check_holds_checkpoints, refuse_errors

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Holder", "Kept", "Made"]


class Holder(Protocol):
    """Holds a DALI iterator."""

    iterator: Any

    def rewind(self, checkpoints: list[bytes]) -> bool:
        """Bring the iterator to checkpoints; return whether it has passed an epoch's end by that."""
        ...


class Kept:
    """The user's own iterator, brought back in place, so that whoever holds it may keep it.

    Args:
        iterator: nothing was drawn from it yet.
        enable: build its pipelines again with checkpointing on.
    """

    def __init__(self, iterator: Any, *, enable: bool) -> None:
        self.iterator = iterator
        with refuse_errors([]):
            self._blueprints = [Blueprint(pipeline) for pipeline in pipelines_of(iterator)]
        if enable:
            self._build([None] * len(self._blueprints))

    def rewind(self, checkpoints: list[bytes]) -> bool:
        """Build the pipelines again at checkpoints."""
        self._build(checkpoints)
        return False

    def _build(self, checkpoints: list[Any]) -> None:
        with refuse_errors(checkpoints):
            rebuild(self.iterator, self._blueprints, checkpoints)


class Made:
    """An iterator that a function of the user's makes, for pipelines that cannot be serialized.

    Args:
        function: `function(checkpoints)` returns a new iterator; the checkpoints are None at the beginning of a run, or
            one `bytes` per pipeline, for `Pipeline(..., enable_checkpointing=True, checkpoint=checkpoints[i])`.
    """

    def __init__(self, function: Callable[[list[bytes] | None], Any]) -> None:
        self._function = function
        self.iterator = function(None)
        check_holds_checkpoints(self.iterator, at_checkpoint=False)

    def rewind(self, checkpoints: list[bytes]) -> bool:
        """Give the old iterator up, and make a new one at checkpoints."""
        self.iterator = None  # first, so that a GPU never has to hold both
        with refuse_errors(checkpoints):
            self.iterator = self._function(checkpoints)
        check_holds_checkpoints(self.iterator, at_checkpoint=True)
        return has_eaten_an_end(self.iterator)
