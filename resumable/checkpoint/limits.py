"""Time limits for what storage may keep waiting for ever, and a line of the log about what takes long."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from resumable.errors import CheckpointError, CheckpointTimeoutError, ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = ["call", "detach", "in_one_line", "left", "limited", "note", "reporting", "resolve", "waiting_for"]

Result = TypeVar("Result")

REMOTE = 1800.0  # seconds where a server or another rank is waited for: what torch gives a collective of gloo
FIRST = 10.0  # seconds until the log says that something is still under way; then twice as many each time

_current: contextvars.ContextVar[Limit | None] = contextvars.ContextVar("limit", default=None)


class TimeUpError(TimeoutError):
    """The time for an operation is over."""


class Limit:
    """The time that one save, load or listing has, and how far it is.

    Args:
        what: is done, in words that stand after "still".
        seconds: for all of it; `math.inf` for no limit.
    """

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
        self.began = monotonic()
        self.moved = 0  # bytes written or read
        self.waits_for = ""

    def left(self) -> float:
        """Return the seconds that are left, 0 or more."""
        return max(0.0, self.began + self.seconds - monotonic())

    def up(self) -> TimeUpError:
        """Return the error for the end of the time."""
        return TimeUpError(f"no end after {self.seconds:g} s, the time limit{self._how_far()}")

    def call(self, function: Callable[..., Result], *args: Any, drop: Callable[[Result], Any] | None = None) -> Result:
        """Call a function in a thread of its own, so that it can be left behind when the time is up.

        Args:
            function: called with `args`.
            args: of it.
            drop: called with what it returns after it was left behind.

        Raises:
            TimeUpError: it has not returned in time. It may do so later.
        """
        if self.left() <= 0:
            raise self.up()
        outcome: list[Result] = []
        errors: list[BaseException] = []
        done, decides, left_behind = threading.Event(), threading.Lock(), False

        def work() -> None:
            try:
                result = function(*args)
                with decides:
                    outcome.append(result)
                    done.set()
                if left_behind and drop is not None:
                    drop(result)
            except BaseException as error:  # noqa: BLE001  # it is raised where it was waited for
                errors.append(error)
                done.set()

        detach(work)
        done.wait(self.left())
        with decides:
            left_behind = not done.is_set()
        if left_behind:
            raise self.up()
        if not errors:
            return outcome[0]
        error = errors.pop()
        if isinstance(error, TimeoutError) and self.left() <= 0:  # the request was cancelled in the same moment
            raise self.up() from error
        raise error

    def watch(self, over: threading.Event) -> None:
        """Log a line now and then, until it is over."""
        interval = FIRST
        while not over.wait(interval):
            limit = "no time limit" if math.isinf(self.seconds) else f"the time limit is {self.seconds:g} s"
            logging.getLogger("resumable").warning(
                "still %s after %.0f s%s; %s", self.what, monotonic() - self.began, self._how_far(), limit
            )
            interval *= 2

    def _how_far(self) -> str:
        waits = f", waiting for {self.waits_for}" if self.waits_for else ""
        return f"; {self.moved / 1e6:.1f} MB are through{waits}"


@contextlib.contextmanager
def limited(what: str, seconds: float) -> Iterator[Limit]:
    """Limit what the block does in this thread; within another limit, that one holds."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    limit, over = Limit(what, seconds), threading.Event()
    token = _current.set(limit)
    threading.Thread(target=limit.watch, args=(over,), name="resumable-checkpoint-watch", daemon=True).start()
    try:
        yield limit
    finally:
        over.set()
        _current.reset(token)


def call(function: Callable[..., Result], *args: Any, drop: Callable[[Result], Any] | None = None) -> Result:
    """Call a function under the limit that holds here, if any does."""
    limit = _current.get()
    return function(*args) if limit is None or math.isinf(limit.seconds) else limit.call(function, *args, drop=drop)


def detach(function: Callable[..., Any], *args: Any) -> None:
    """Call a function in a thread that is not waited for; it sees the limit that holds here."""
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(function, *args), name="resumable-checkpoint", daemon=True).start()


def left() -> float:
    """Return the seconds that are left here; `math.inf` without a limit."""
    limit = _current.get()
    return math.inf if limit is None else limit.left()


def note(count: int) -> None:
    """Count bytes that are through."""
    if (limit := _current.get()) is not None:
        limit.moved += count


def waiting_for(what: str, grace: float = 0.0) -> None:
    """Say what is waited for, for the log and for the error; an empty text for nothing.

    Raises:
        TimeUpError: the time has been over for so many seconds.
    """
    if (limit := _current.get()) is None:
        return
    limit.waits_for = what
    if what and limit.began + limit.seconds + grace <= monotonic():
        raise limit.up()


def resolve(timeout: float | None, *, alone: bool) -> float:
    """Return the seconds that an option gives.

    Args:
        timeout: the option.
        alone: neither a server nor another rank is waited for.

    Raises:
        ConfigurationError: it is no positive number.
    """
    if timeout is None:
        return math.inf if alone else REMOTE
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigurationError(
            f"timeout has no meaning here.\n  needed: seconds, more than 0\n  got:    {timeout!r}\n"
            f"It limits each save, load and listing. None is {REMOTE:g} s, or no limit on local disks."
        )
    return float(timeout)


# The errors of other libraries, told in ours.

LONGEST = 300  # characters of another library's error in one of ours
REFUSED = "WeightsUnpickler error: "  # stands before the reason in what torch raises


@contextlib.contextmanager
def reporting(what: str, hint: str = "Mend the storage and try again.") -> Iterator[None]:
    """Turn the storage's error into a CheckpointError that says what failed and what to do."""
    try:
        yield
    except ResumableError:
        raise
    except TimeUpError as error:
        more = "Storage that is slow, and not dead, needs a higher `timeout=` (seconds)."
        raise CheckpointTimeoutError(f"{what}.\n  {error}\n{hint} {more}") from error
    except Exception as error:  # cloud clients raise errors of their own, which are no OSErrors
        raise CheckpointError(f"{what}.\n  {in_one_line(error)}\n{hint}") from error


def in_one_line(error: Exception) -> str:
    """Give an error's type and what it says in one line; of torch's long advice, only what it refused."""
    text = str(error)
    return " ".join(f"{type(error).__name__}: {text.partition(REFUSED)[2].split('. ')[0] or text}".split())[:LONGEST]
