"""The batch that was delivered last, with `ack="auto"`: whether it is in the weights, where an exception came after it.

It counts once the next one is asked for, or a state is taken outside of an exception. Until then it is in doubt, and it
does not count

    in a state that is taken while an exception is handled that came up after its delivery
    once its loop was left by an exception: a new loop begins with it

A loop that was left by `break` or `return` leaves no doubt: it had done what it wanted with the batch.
"""

from __future__ import annotations

import sys
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resumable._leaving import Left, is_running, last_raised, went_through
from resumable.errors import LoopWarning

if TYPE_CHECKING:
    from resumable._fetch import Fetcher, Owner
    from resumable._leaving import Driver
    from resumable._state import Mark

__all__ = ["Doubt", "Doubts", "depth_outside"]

_IN_EXCEPT = (
    "a state was taken while {} was handled in a loop, and does not count the batch that the loop has: step {} of "
    "epoch {}.\n"
    "If that is in the weights already, it will be trained on twice. Which is the case cannot be known here: wrap with "
    'ack="manual", and call loader.ack() after each optimizer step.'
)
_UNCLEAR = (
    "a loop was left in the middle, and whether by an exception cannot be known here: step {} of epoch {} counts as "
    "trained on.\n"
    'If it was not, it is lost. Wrap with ack="manual", and call loader.ack() after each optimizer step.'
)
_READ_ONCE = (
    "a loop was left by an exception at step {} of epoch {}, and this source cannot go back to it, as it has no state "
    "and goes on where it stands.\n"
    "The batch is left out. Give the function that makes the source, wrap(make) instead of wrap(make()), or keep the "
    "batch yourself."
)


@dataclass(slots=True)
class Doubt:
    """What is known about the batch that was delivered last.

    Args:
        before: the place before it.
        handled: the exception that was being handled when it was delivered.
        raised: identity of the one that the interactive session had shown last.
        is_whole: `before` has the source's state.
        drivers: the code that asked for it.
        left: how its loop was left; None while it may go on.
    """

    before: Mark
    handled: BaseException | None
    raised: int
    is_whole: bool
    drivers: tuple[Driver, ...] = ()
    left: Left | None = None


class Doubts:
    """Keeps the doubt about the last batch."""

    _fetcher: Fetcher
    _owner: Owner
    _delivered: Mark
    _acknowledged: Mark
    _opened_at: Mark | None
    _doubt: Doubt | None = None

    if TYPE_CHECKING:  # what Progress has

        def _close(self) -> None: ...
        def _stand_at(self, mark: Mark) -> None: ...

    @property
    def doubt(self) -> Doubt | None:
        """The doubt about the batch that was delivered last; None where there is none."""
        return self._doubt

    def begin_doubt(self, before: Mark) -> None:
        """A batch is delivered, after a place."""
        whole = before is self._opened_at or before.source is not None
        self._doubt = Doubt(before, sys.exception(), id(last_raised()), whole)

    @property
    def failed(self) -> Doubt | None:
        """The doubt about a batch that does not count now, as an exception came up after it."""
        return self._doubt if self._doubt is not None and self._is_out(self._doubt) else None

    def not_handed(self) -> None:
        """An exception came up on the way of a batch to the loop."""
        if self._doubt is not None:
            self._doubt.left = Left.BY_EXCEPTION

    def leave(self, doubt: Doubt | None, left: Left) -> None:
        """The iterator that delivered a batch is dropped."""
        if doubt is None or doubt is not self._doubt or doubt.left is Left.BY_EXCEPTION:
            return
        if left is Left.BY_ITSELF:
            self._doubt = None
        elif left is not Left.UNKNOWN:
            doubt.left = left

    @property
    def _counts(self) -> Mark:
        """The mark after the last batch that counts now."""
        return self._doubt.before if self._doubt is not None and self._is_out(self._doubt) else self._acknowledged

    def _is_out(self, doubt: Doubt) -> bool:
        """Return whether the last batch does not count now."""
        if doubt.left is Left.BY_EXCEPTION:
            return True
        error = _handled()
        if error is None:
            return _was_shown(doubt)
        if doubt.left is Left.AT_NEXT and not went_through(error, doubt.drivers, at_next=True):
            return False
        return threading.get_ident() == self._owner.reader and not _is_older(error, doubt.handled)

    def _mark_without(self) -> Mark | None:
        """Return the mark to save if the last batch does not count; else it counts from now on.

        Warns:
            LoopWarning: the loop may have trained on it.
        """
        doubt, error = self._doubt, _handled()
        if doubt is None or not self._is_out(doubt):
            self._doubt = None
            if doubt is not None:
                _tell_unclear(doubt)
            return None
        if doubt.left is Left.AT_NEXT:
            doubt.left = Left.BY_EXCEPTION  # which is known only now
        passed = error is None or (went_through(error, doubt.drivers) and not is_running(doubt.drivers))
        if doubt.left is not Left.BY_EXCEPTION and not passed:
            cursor = doubt.before.cursor
            told = _IN_EXCEPT.format(type(error).__name__, cursor.step, cursor.epoch)
            warnings.warn(told, LoopWarning, stacklevel=depth_outside())
        return self._whole(doubt)

    def _whole(self, doubt: Doubt) -> Mark:
        """Return the mark before a batch, with the state that the source had there."""
        if not doubt.is_whole:
            source, canary = self._fetcher.state_before(doubt.before.cursor)
            doubt.before = doubt.before._replace(source=source, canary=canary)
            doubt.is_whole = True
        return doubt.before

    def _keep_before(self) -> None:
        """Note the source's state before the last batch, as the source is about to take another snapshot."""
        if self._doubt is not None:
            self._whole(self._doubt)

    def _go_back(self, *, new_loop: bool = False) -> None:
        """Go back to before the last batch, if that does not count.

        Args:
            new_loop: another loop begins; else only where the loop of that batch was left by an exception.

        Warns:
            LoopWarning: that cannot be known; or the source cannot go back.
        """
        doubt = self._doubt
        if doubt is None:
            return
        if doubt.left is Left.BY_EXCEPTION or (new_loop and self._is_out(doubt)):
            self._leave_out(doubt)
        else:
            _tell_unclear(doubt)
        if new_loop:
            self._doubt = None

    def _leave_out(self, doubt: Doubt) -> None:
        mark, cursor = self._whole(doubt), doubt.before.cursor
        if mark.source is None and cursor.position and self._fetcher.can.goes_on:
            self._doubt = None
            warnings.warn(_READ_ONCE.format(cursor.step, cursor.epoch), LoopWarning, stacklevel=depth_outside())
            return
        self._close()
        self._stand_at(mark)
        self._doubt = None  # at the end, as an interrupt may come in between


def _tell_unclear(doubt: Doubt) -> None:
    """Say, once, that it cannot be known how a loop was left, if that is so.

    Warns:
        LoopWarning: it is.
    """
    if doubt.left is Left.UNCLEAR:
        doubt.left, cursor = None, doubt.before.cursor
        warnings.warn(_UNCLEAR.format(cursor.step, cursor.epoch), LoopWarning, stacklevel=depth_outside())


def _handled() -> BaseException | None:
    """Return the exception that is being handled, if it is one: that an iterator has come to its end is none."""
    error = sys.exception()
    return None if isinstance(error, (StopIteration, StopAsyncIteration)) else error


def _is_older(error: BaseException, handled: BaseException | None) -> bool:
    """Return whether an exception was there already while another one was handled."""
    seen: set[int] = set()
    while handled is not None and id(handled) not in seen:
        if handled is error:
            return True
        seen.add(id(handled))
        handled = handled.__context__
    return False


def _was_shown(doubt: Doubt) -> bool:
    """Return whether an interactive session has shown an exception since that passed the code of the loop."""
    error = last_raised()
    if error is None or id(error) == doubt.raised:
        return False
    return went_through(error, doubt.drivers, at_next=doubt.left is Left.AT_NEXT)


def depth_outside() -> int:
    """Return how far above the caller the first code is that is not of this package, for `warnings.warn`."""
    frame, depth = sys._getframe(1), 1  # noqa: SLF001  # what `skip_file_prefixes` does from Python 3.12 on
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("resumable."):
        frame, depth = frame.f_back, depth + 1
    return depth
