"""Pass: a DALI iterator whose place is known after every batch, and whose epochs end in one way for all options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from resumable.backends.dali.native.private import at_end, place_of, resets_itself
from resumable.backends.dali.native.refusals import check_place

if TYPE_CHECKING:
    from resumable.backends.dali.native.holders import Holder

__all__ = ["Pass", "Source"]


class Source(Protocol):
    """Gives batches, epoch after epoch, and can be brought back to where it was."""

    def draw(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over; the next batch is the first one of the next epoch.
        """
        ...

    def ended(self) -> bool:
        """Return whether no batch is left in this epoch; then the source stands at the beginning of the next one."""
        ...

    def begin(self) -> None:
        """Go on with the next epoch, if this one is over."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """Return the place after the batch that was returned last."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go to the place at which a snapshot was taken."""
        ...


class Pass:
    """One iterator.

    Args:
        holder: holds it.
    """

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._ahead: list[Any] = []  # at most one batch, drawn to find out whether there is one
        self._error: Exception | None = None  # what came of drawing ahead
        self._over = False
        self._place = place_of(holder.iterator)  # where it was left
        self._snapshot: dict[str, Any] | None = self._take()

    def draw(self) -> Any:
        """Return the next batch; a failing one leaves the snapshot as it is."""
        self.snapshot()
        if self._over:
            raise StopIteration
        batch = self._ahead.pop() if self._ahead else self._next()
        self._snapshot = None
        return batch

    def ended(self) -> bool:
        """Return whether the epoch is over: by DALI's own count, or where it has none, by drawing ahead."""
        if self._over or self._ahead or self._error is not None:
            return self._over
        self.snapshot()
        self._check_place()
        if at_end(self._holder.iterator) is not False:
            try:
                self._ahead = [self._next()]
            except StopIteration:
                self._over = True
            except Exception as error:  # noqa: BLE001  # of whatever type, it is raised where it belongs
                self._error = error
        return self._over

    def begin(self) -> None:
        """Go on with the next epoch, if this one is over."""
        self._over = False

    def snapshot(self) -> dict[str, Any]:
        """Return DALI's checkpoints after the batch that was returned last, or of the next epoch's beginning."""
        if self._snapshot is None:
            self._snapshot = self._take()
        return self._snapshot

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Build the pipelines again at a snapshot."""
        self._ahead, self._error = [], None
        self._over = self._holder.rewind(list(snapshot["checkpoints"]))
        self._place = place_of(self._holder.iterator)
        self._snapshot = self._take() if self._over else snapshot

    def _next(self) -> Any:
        """Draw; at an epoch's end, begin the next one at once, as DALI's own state between the two is no good place."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._check_place()
        iterator = self._holder.iterator
        try:
            return next(iterator)
        except StopIteration:
            if not resets_itself(iterator):
                iterator.reset()
            self._place = place_of(iterator)
            self._over, self._snapshot = True, self._take()
            raise
        finally:
            self._place = place_of(iterator)

    def _check_place(self) -> None:
        check_place(self._place, place_of(self._holder.iterator))

    def _take(self) -> dict[str, Any]:
        self._check_place()
        return {"checkpoints": list(self._holder.iterator.checkpoints())}
