"""Checkpoints inside of checkpoints: a part that is itself a file of JSON, `torch.save` or pickle, as bytes or as text.

A state that has to go where only text or bytes may stand is packed so: in Hugging Face's `trainer_state.json`, or as
one leaf of `torch.distributed.checkpoint`.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any

from resumable._inspect.torch_files import read_bare_pickle, read_torch_zip
from resumable.errors import CheckpointError

__all__ = ["MOST_PACKED", "unpack"]

MOST_PACKED = 4  # files in one another
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_ENCODED = ("UEsDB", "gA")  # how these begin in base64


def unpack(value: Any) -> Any:
    """Return the dict or list that was packed into bytes or a text; None where none was. Nothing of it is executed."""
    try:
        inside = _read(value)
    except (CheckpointError, ValueError, RecursionError):
        return None
    return inside if isinstance(inside, dict | list) else None


def _read(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_ENCODED):
        value = base64.b64decode(value, validate=True)
    if isinstance(value, str | bytes) and value[:1] in {"{", b"{", "[", b"["}:
        return json.loads(value)
    if not isinstance(value, bytes):
        return None
    if value.startswith(_ZIP):
        return read_torch_zip(io.BytesIO(value))
    return read_bare_pickle(io.BytesIO(value))[1] if value.startswith(_PICKLE) else None
