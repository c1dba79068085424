"""How the code around an iterator left its loop: by `break` or `return`, or by an exception.

A loop keeps its iterator on the stack of its frame. Leaving the loop drops it, at once in CPython, and the frame then
stands at the instruction that did it: one that pops, for `break` and `return`; any other one in the loop's body is one
that raised. So an iterator notes which code asks it for batches, and looks at that code when it is dropped.

What an iterator is wrapped in makes no difference where that is written in C (`enumerate`, `zip`, `islice`). A
generator around it (`tqdm`) is ended by whoever drops it, so then the code that drives the generator is looked at.
"""

from __future__ import annotations

import dis
import inspect
import opcode
import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = ["Driver", "Left", "drivers_of", "how_left", "is_running", "last_raised", "went_through"]

_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}
_DELETES = {"DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL", "DELETE_DEREF"}
_POPS = {"POP_TOP", "POP_ITER", "END_FOR", "END_SEND"} | _STORES | _DELETES
_RAISES = {"RAISE_VARARGS", "RERAISE"}
_YIELDS = {"YIELD_VALUE", "RESUME", "SEND", "RETURN_GENERATOR"}
_DEEPEST = 8  # generators around an iterator


class Left(Enum):
    """How a loop was left, as far as its code tells."""

    BY_EXCEPTION = auto()
    BY_ITSELF = auto()
    AT_NEXT = (
        auto()
    )  # as it asked for more: at the end of what is around the iterator, or by an exception in it (`map`)
    UNCLEAR = auto()  # it was, and nothing tells how
    UNKNOWN = auto()  # there may be no loop at all, as with `next(iter(loader))`


class Driver(NamedTuple):
    """Code that asks for batches, and where it does so."""

    code: CodeType
    at: int


def drivers_of(frame: FrameType | None, known: tuple[Driver, ...] = ()) -> tuple[Driver, ...]:
    """Return what asks for a batch, from the innermost to the first that is neither a generator nor a `__next__`.

    Args:
        frame: the innermost.
        known: what was returned for the batch before, which mostly is the same.
    """
    if frame is not None and len(known) == 1 and known[0].code is frame.f_code and known[0].at == frame.f_lasti:
        return known
    drivers: list[Driver] = []
    while frame is not None and len(drivers) < _DEEPEST:
        code = frame.f_code
        drivers.append(Driver(code, frame.f_lasti))
        if not code.co_flags & inspect.CO_GENERATOR and code.co_name != "__next__":
            break
        frame = frame.f_back
    return tuple(drivers)


def how_left(drivers: tuple[Driver, ...], frame: FrameType | None) -> Left:
    """Return how a loop was left.

    Args:
        drivers: of the iterator.
        frame: what drops it.
    """
    left = list(drivers)
    while frame is not None:
        if _ends_handler(frame.f_code, frame.f_lasti):
            return Left.UNCLEAR  # a traceback held it, so an exception passed code that had it
        while left and left[0].code is not frame.f_code:
            del left[0]
        if not left:
            break
        code, at = left.pop(0)
        if code.co_flags & inspect.CO_ASYNC_GENERATOR:
            break  # it is ended later, by the event loop
        now = _operation(code, frame.f_lasti)
        if not (code.co_flags & inspect.CO_GENERATOR and now in _YIELDS):
            return _of_loop(code, at, frame.f_lasti, now)
        frame = frame.f_back  # of a generator that is ended from outside
    return Left.UNKNOWN


def last_raised() -> BaseException | None:
    """Return the exception that a notebook or an interactive Python showed last."""
    shown = sys.__dict__  # as they are not there in a script, where `getattr` would take long
    return shown.get("last_exc") or shown.get("last_value")


def went_through(error: BaseException, drivers: tuple[Driver, ...], *, at_next: bool = False) -> bool:
    """Return whether an exception passed the code that asked for batches.

    Args:
        error: the exception.
        drivers: the code.
        at_next: only where it passed the very place that asks for one.
    """
    places, entry = {driver.code: _start(*driver) for driver in drivers}, error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code in places and (not at_next or _start(code, entry.tb_lasti) == places[code]):
            return True
        entry = entry.tb_next
    return False


def is_running(drivers: tuple[Driver, ...]) -> bool:
    """Return whether the code that asked for batches is still at it, as far up as this thread's frames tell."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # nothing else knows
    while frame is not None:
        if drivers and frame.f_code is drivers[-1].code:
            return True
        frame = frame.f_back
    return False


def _ends_handler(code: CodeType, at: int) -> bool:
    """Return whether an instruction drops an exception at the end of a handler; the name that it has comes later."""
    operation = _operation(code, at)
    following = code.co_code[at + 2 : at + 4]
    cleans = operation in _STORES and len(following) > 1 and opcode.opname[following[0]] in _DELETES
    return operation == "POP_EXCEPT" or (cleans and code.co_code[at + 1] == following[1])


def _of_loop(code: CodeType, at: int, left: int, operation: str) -> Left:
    if _operation(code, at) != "FOR_ITER":
        return Left.UNKNOWN
    if operation == "FOR_ITER":
        return Left.AT_NEXT
    if operation in _POPS:
        return Left.BY_ITSELF
    if operation in _RAISES or _start(code, at) < left < _end(code, at):
        return Left.BY_EXCEPTION
    return Left.UNCLEAR  # as in an `except` in the loop, whose code stands elsewhere


def _operation(code: CodeType, at: int) -> str:
    at = _start(code, at)
    return opcode.opname[code.co_code[at]] if at >= 0 else ""


def _start(code: CodeType, at: int) -> int:
    """Return where an instruction begins: a frame that has called another one may stand after what it caches."""
    operations = code.co_code
    while at > 0 and opcode.opname[operations[at]] == "CACHE":
        at -= 2
    return at


def _end(code: CodeType, at: int) -> int:
    """Return where the code after a loop begins."""
    begin = _start(code, at)
    return next((one.argval for one in dis.get_instructions(code) if one.offset == begin), 0)
