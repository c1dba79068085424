"""Time limits for storage, log messages about slow operations, and errors of storage as CheckpointError."""

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

REMOTE = 1800.0  # seconds to wait for a server or a rank, as in PyTorch's collectives with gloo
FIRST = 10.0  # seconds until the first log message; the interval doubles each time

_current: contextvars.ContextVar[Limit | None] = contextvars.ContextVar("limit", default=None)


class TimeUpError(TimeoutError):
    """The time for an operation is over."""


class Limit:
    """The time limit of one save, load or listing, and its progress.

    Args:
        what: the operation, as it follows "still" in a sentence.
        seconds: for all of it; `math.inf` for no limit.
    """

    def __init__(self, what: str, seconds: float) -> None:
        self.what, self.seconds = what, seconds
        self.started = monotonic()
        self.moved = 0  # bytes written or read
        self.waits_for = ""

    def left(self) -> float:
        """Return the seconds that are left, 0 or more."""
        return max(0.0, self.started + self.seconds - monotonic())

    def up(self) -> TimeUpError:
        """Return the error for an exceeded limit."""
        return TimeUpError(f"not done after {self.seconds:g} s, the time limit{self._progress()}")

    def call(self, function: Callable[..., Result], *args: Any, drop: Callable[[Result], Any] | None = None) -> Result:
        """Call a function in a separate thread, which is abandoned when the time is up.

        Args:
            function: called with `args`.
            args: of the function.
            drop: called with the result if the function returns after it was abandoned.

        Raises:
            TimeUpError: the function has not returned in time. It may return later.
        """
        if self.left() <= 0:
            raise self.up()
        outcome: list[Result] = []
        errors: list[BaseException] = []
        done, decides, abandoned = threading.Event(), threading.Lock(), False

        def work() -> None:
            try:
                result = function(*args)
                with decides:
                    outcome.append(result)
                    done.set()
                if abandoned and drop is not None:
                    drop(result)
            except BaseException as error:  # noqa: BLE001  # the waiting thread raises it
                errors.append(error)
                done.set()

        detach(work)
        done.wait(self.left())
        with decides:
            abandoned = not done.is_set()
        if abandoned:
            raise self.up()
        if not errors:
            return outcome[0]
        error = errors.pop()
        if isinstance(error, TimeoutError) and self.left() <= 0:  # the request was cancelled at the same time
            raise self.up() from error
        raise error

    def watch(self, over: threading.Event) -> None:
        """Log a message at growing intervals until the operation is over."""
        interval = FIRST
        while not over.wait(interval):
            limit = "no time limit" if math.isinf(self.seconds) else f"the time limit is {self.seconds:g} s"
            logging.getLogger("resumable").warning(
                "still %s after %.0f s%s; %s", self.what, monotonic() - self.started, self._progress(), limit
            )
            interval *= 2

    def _progress(self) -> str:
        waits = f", waiting for {self.waits_for}" if self.waits_for else ""
        return f"; {self.moved / 1e6:.1f} MB transferred{waits}"


@contextlib.contextmanager
def limited(what: str, seconds: float) -> Iterator[Limit]:
    """Limit the time of the block's operations in this thread. Inside an outer limit, only the outer one applies."""
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
    """Call a function under the current limit, if there is one."""
    limit = _current.get()
    return function(*args) if limit is None or math.isinf(limit.seconds) else limit.call(function, *args, drop=drop)


def detach(function: Callable[..., Any], *args: Any) -> None:
    """Call a function in a thread without waiting for it. The current limit applies to it."""
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(function, *args), name="resumable-checkpoint", daemon=True).start()


def left() -> float:
    """Return the seconds that are left of the current limit; `math.inf` without one."""
    limit = _current.get()
    return math.inf if limit is None else limit.left()


def note(count: int) -> None:
    """Count transferred bytes."""
    if (limit := _current.get()) is not None:
        limit.moved += count


def waiting_for(what: str, grace: float = 0.0) -> None:
    """Set what the operation is waiting for, for log and error messages; an empty string for nothing.

    Raises:
        TimeUpError: the time has been up for `grace` seconds.
    """
    if (limit := _current.get()) is None:
        return
    limit.waits_for = what
    if what and limit.started + limit.seconds + grace <= monotonic():
        raise limit.up()


def resolve(timeout: float | None, *, alone: bool) -> float:
    """Return the time limit of a store in seconds.

    Args:
        timeout: the option.
        alone: the store waits for neither servers nor other ranks.

    Raises:
        ConfigurationError: the option is not a positive number.
    """
    if timeout is None:
        return math.inf if alone else REMOTE
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ConfigurationError(
            f"timeout must be a number of seconds greater than 0, but got {timeout!r}.\n"
            f"It limits each save, load and listing. None means {REMOTE:g} s, or no limit on local disks."
        )
    return float(timeout)


# ---------------------------------------------------------------------- errors of other libraries

LONGEST = 300  # characters of another library's error that are shown
REFUSED = "WeightsUnpickler error: "  # precedes the reason in PyTorch's message


@contextlib.contextmanager
def reporting(what: str, hint: str = "Fix the storage and try again.") -> Iterator[None]:
    """Convert an error of the storage into a CheckpointError that says what failed and how to fix it."""
    try:
        yield
    except ResumableError:
        raise
    except TimeUpError as error:
        more = "If the storage is only slow, pass a higher `timeout=` (seconds)."
        raise CheckpointTimeoutError(f"{what}.\n  {error}\n{hint} {more}") from error
    except Exception as error:  # cloud clients raise their own error classes
        raise CheckpointError(f"{what}.\n  {in_one_line(error)}\n{hint}") from error


def in_one_line(error: Exception) -> str:
    """Return an error's type and message in one line. PyTorch's long advice is reduced to the reason."""
    text = str(error)
    return " ".join(f"{type(error).__name__}: {text.partition(REFUSED)[2].split('. ')[0] or text}".split())[:LONGEST]
