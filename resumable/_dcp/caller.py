"""Recognises `torch.distributed.checkpoint` by the code that called, and what it was told.

DCP calls `state_dict()` without a word about itself, also by way of a user's own object with a `state_dict` around the
Loader. What it needs of a state differs from what a plain loop needs, so the frames around the call are looked at.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Call", "find_call"]

_PACKAGE = "torch.distributed.checkpoint"
_LOADER = f"{_PACKAGE}.state_dict_loader"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of DCP's that is under way on all ranks of a group.

    Args:
        loads: it loads, and does not save.
        group: the process group that it was given; None for the default one.
        alone: this process does it by itself, so that no other one would answer.
    """

    loads: bool = False
    group: Any = None
    alone: bool = False


def find_call(frame: FrameType | None) -> Call | None:
    """Return the innermost call of DCP's around a frame; None where there is none.

    Args:
        frame: what called.
    """
    if _PACKAGE not in sys.modules:
        return None
    while frame is not None:
        if _is_inside(frame):
            return _read(frame)
        frame = frame.f_back
    return None


def _is_inside(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.startswith(_PACKAGE)


def _read(inside: FrameType) -> Call:
    """Read the arguments of DCP's function that users call, which is among the frames of its package."""
    loads = inside.f_globals["__name__"] == _LOADER
    frame: FrameType | None = inside
    while frame is not None and _is_inside(frame):
        code = frame.f_code
        if "process_group" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            given = frame.f_locals
            alone = bool(given.get("no_dist")) or not given.get("use_collectives", True)
            return Call(loads, given["process_group"], alone)
        frame = frame.f_back
    return Call(loads)
