"""Recognises loops over a Loader that do something else than they seem to, by the code that called it.

A loop that counts epochs from 0 after a resume in epoch 5 trains 5 epochs too many, and nothing else would tell. So a
resumed Loader that is iterated looks once at the innermost loop whose variable is named like an epoch: if that number
is lower than its own, it says so.
"""

from __future__ import annotations

import inspect
import math
import opcode
import operator
import re
import warnings
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import ConfigurationError, LoopWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

__all__ = ["check_count", "refuse_unpacking", "warn_of_no_step_left", "warn_of_nothing_left"]

_UNPACK = opcode.opmap["UNPACK_SEQUENCE"]
_FRAMES = 4  # a loop in a function that was called in the loop over epochs, and wrappers in between
_AN_EPOCH = re.compile(
    r"_*(i|n|the|this|cur|curr|current)?_?(e|ep|epoch)_?(i|n|id|idx|index|no|nr|num|number)?_*", re.IGNORECASE
)


class _Counter(NamedTuple):
    """The variable of a loop that is under way."""

    name: str
    value: int
    frame: FrameType


def check_count(frame: FrameType | None, epoch: int) -> None:
    """Look whether the loop around a resumed Loader counts its epochs from elsewhere.

    Args:
        frame: what asked for an iterator.
        epoch: the one that is read next.

    Warns:
        LoopWarning: the loop is in an earlier epoch.
    """
    found = _innermost(frame)
    if found is None or found.value >= epoch:
        return
    warnings.warn_explicit(
        f"a loop counts from {found.name} = {found.value}, but the loader was resumed and is in epoch {epoch}.\n"
        f"  in the loop:   {found.value}\n  in the loader: {epoch}\n"
        f"The epochs before the resume would be trained once more. Loop by `for epoch in loader.epochs(total):` and "
        f"`for batch in epoch:`; or begin at `range(loader.epoch, total)`.",
        LoopWarning,
        found.frame.f_code.co_filename,
        found.frame.f_lineno or 0,
    )


def refuse_unpacking(frame: FrameType | None, number: int) -> None:
    """Refuse `for x, y in loader.epochs(n)`, which takes an epoch for a batch.

    Args:
        frame: what asked for an iterator over the epoch.
        number: of the epoch.

    Raises:
        UnsupportedError: that is what it does.
    """
    if frame is not None and frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _UNPACK:
        raise UnsupportedError(
            f"epoch {number} was to be unpacked into variables, as if it were a batch.\n"
            "Its first batches would be taken for inputs and targets. loader.epochs(n) gives epochs: loop by "
            "`for epoch in loader.epochs(n):` and, inside of it, `for x, y in epoch:`."
        )


def check_acknowledged(batches: object) -> int:
    """Return how many batches `ack` was given.

    Raises:
        ConfigurationError: it was given something else, such as the batch.
    """
    try:
        return operator.index(batches)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise ConfigurationError(
            f"ack() was given a {type(batches).__name__}, but it takes how many batches were trained on.\n"
            "None was acknowledged. Call ack() after each optimizer step, or ack(2) for two."
        ) from None


def check_total(what: str, total: object) -> float:
    """Return the number that `epochs` or `steps` was given: whole, or infinite.

    Raises:
        ConfigurationError: it is none, or below 0.
    """
    number: Any = total
    if not isinstance(number, float):
        try:
            number = operator.index(number)
        except TypeError:
            number = None
    if number is not None and number >= 0 and (number == math.inf or number == int(number)):
        return number  # type: ignore[no-any-return]  # an int or a float
    raise ConfigurationError(
        f"{what}() must be given a whole number of 0 or more, but it was given {total!r}.\n"
        f"It counts the {what} of the whole run, those before a resume included; math.inf is for no end."
    )


def warn_of_nothing_left(total: float) -> None:
    """Say that `epochs(total)` gave nothing, though an earlier call in this process went through as many epochs.

    Warns:
        LoopWarning: always.
    """
    warnings.warn(
        f"epochs({total}) gives no epoch, as all {total} were gone through by an earlier call.\n"
        "The loop's body is not run. The number counts the epochs of the whole run, so that one loop over epochs(n) "
        "trains all of them: leave out the loop around it, or give a larger number to go on.",
        LoopWarning,
        stacklevel=3,
    )


def warn_of_no_step_left(total: float, done: int) -> None:
    """Say that `steps(total)` gives nothing, though batches were delivered in this process and none was asked for.

    Warns:
        LoopWarning: always.
    """
    warnings.warn(
        f"steps({total}) gives no batch, as {done} were trained on in this process.\n"
        "The loop's body is not run. The number counts the steps of the whole run, over all epochs: leave out the loop "
        "around it, or give a larger number to go on.",
        LoopWarning,
        stacklevel=3,
    )


def _innermost(frame: FrameType | None) -> _Counter | None:
    for _ in range(_FRAMES):
        if frame is None:
            return None
        for name in _loop_variables(frame.f_code, frame.f_lasti) if _names_an_epoch(frame.f_code) else ():
            value = _value_of(frame, name)
            if type(value) is int and _AN_EPOCH.fullmatch(name):
                return _Counter(name, value, frame)
        frame = frame.f_back
    return None


def _names_an_epoch(code: CodeType) -> bool:
    """Return whether any variable of some code may be it, as to take the code apart costs as much as a resume."""
    return any(map(_AN_EPOCH.fullmatch, chain(code.co_varnames, code.co_names, code.co_cellvars, code.co_freevars)))


def _value_of(frame: FrameType, name: str) -> object:
    """Return a variable of running code, and keep none of the others alive.

    Up to Python 3.12 the frame of a function keeps the copies that it gives: batches and loaders would live as long.
    """
    variables = frame.f_locals
    value = variables.get(name, frame.f_globals.get(name))
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(variables, dict):
        variables.clear()
    return value


def _loop_variables(code: CodeType, at: int) -> Iterator[str]:
    """Yield the variables of the `for` loops around a place in the code, from the innermost one."""
    import dis  # noqa: PLC0415  # once after a resume only

    around, stores = [], {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}
    instructions = list(dis.get_instructions(code))
    for loop, store in pairwise(instructions):
        if loop.opname == "FOR_ITER" and store.opname in stores and loop.offset < at < loop.argval:
            around.append(store.argval)
    yield from reversed(around)
