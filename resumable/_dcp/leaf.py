"""The leaf: the states of all ranks as bytes, `{"format": 1, "states": [...]}`.

JSON where that gives back the same values, else what `torch.save` writes. Neither runs code when it is read.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE
from resumable._state import shorten
from resumable.errors import StateFormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LEAF", "PLACEHOLDER", "is_leaf", "pack", "unpack"]

LEAF = "states"
PLACEHOLDER = b""  # while DCP loads: it asks for the leaves that an object has, and for what they hold no rank is asked
_FORMAT = 1


def is_leaf(values: Any) -> bool:
    """Return whether it is what DCP gets of a Loader, and no state."""
    return isinstance(values, Mapping) and set(values) == {LEAF} and isinstance(values[LEAF], bytes)


def pack(states: Sequence[Mapping[str, Any]]) -> bytes:
    """Make the leaf of the states of all ranks, or of one that all of them have.

    Raises:
        UnsupportedError: a source's own state holds what cannot be read again without running code.
    """
    content = {"format": _FORMAT, LEAF: [dict(state) for state in states]}
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        if json.loads(text) == content:
            return text.encode()
    except (TypeError, ValueError, RecursionError):
        pass
    return _saved(content)


def _saved(content: Mapping[str, Any]) -> bytes:
    import torch  # noqa: PLC0415  # who calls has it

    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as error:
        raise UnsupportedError(
            "the source's own state holds what torch.load(weights_only=True) does not read again: "
            f"{_culprit(error)}.\n"
            "The checkpoint could be written, and never be loaded. Let the source's state_dict() return numbers, "
            "texts, bytes, lists, dicts and tensors."
        ) from error
    return buffer.getvalue()


def _culprit(error: Exception) -> str:
    """Return the name of the class that torch refuses, which its message has somewhere; else how that begins."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f"a {found[1]}" if found else shorten(error, show=_first_line)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def unpack(data: bytes) -> list[Mapping[str, Any]]:
    """Return the states of all ranks, or the one that all of them have.

    Raises:
        StateFormatError: it is no leaf, cut, damaged, or of a newer version.
    """
    content = _read(data)
    version = content.get("format") if isinstance(content, Mapping) else None
    if type(version) is int and version > _FORMAT:
        raise StateFormatError(
            f"the states of the ranks were written by a newer version of resumable: format {version}, this version "
            f"reads up to {_FORMAT}.\nNothing was loaded. Use the version that wrote it, or a newer one: {UPGRADE}"
        )
    states = content.get(LEAF) if version == _FORMAT else None
    if not isinstance(states, list) or not states or not all(isinstance(one, Mapping) for one in states):
        raise _damaged("it holds no states")
    return states


def _read(data: bytes) -> Any:
    if not data:
        raise _damaged("it is empty, as it is before anything is loaded into it")
    try:
        if data.startswith(b"{"):
            return json.loads(data)
        import torch  # noqa: PLC0415  # who calls has it

        return torch.load(io.BytesIO(data), weights_only=True)
    except (pickle.PickleError, ValueError, RuntimeError, EOFError, RecursionError, KeyError, TypeError) as error:
        raise _damaged(_first_line(error)) from error


def _damaged(reason: str) -> StateFormatError:
    return StateFormatError(
        f"the leaf of a Loader in a checkpoint of torch.distributed.checkpoint is damaged: {reason}.\n"
        f"Nothing was loaded. Load another checkpoint; the leaf is what dcp.save wrote under the Loader's key as "
        f"{LEAF!r}."
    )
