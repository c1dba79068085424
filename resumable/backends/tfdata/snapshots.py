"""What goes into a state: TensorFlow's bytes, and what must be the same before they are given back to it.

TensorFlow restores the state of one pipeline into another one without an error, with other samples or a crash of the
process. So everything is compared first, also where the loader was told to accept differences.
"""

from __future__ import annotations

import hashlib
from typing import Any

from resumable.errors import StateFormatError, StateMismatchError

__all__ = ["Identity", "check", "seal"]

Identity = dict[str, str]
"""Names and values that must be the same in the run that took a snapshot and the one that restores it."""

_HINTS = {
    "tensorflow": "Use the version of TensorFlow that the run was started with.",
    "structure": "Build the pipeline as it was: the same operations, batch sizes, buffer sizes and element types.",
    "strategy": "Give tfdata.source(..., strategy=...) the strategy of the run that was stopped.",
}


def seal(state: bytes, identity: Identity) -> dict[str, Any]:
    """Return a snapshot: the state, its checksum, and what it belongs to."""
    return {"state": state, "checksum": _checksum(state), **identity}


def check(snapshot: Any, identity: Identity) -> bytes:
    """Return TensorFlow's bytes of a snapshot that belongs to this pipeline.

    Raises:
        StateFormatError: it is damaged.
        StateMismatchError: it belongs to another pipeline, version or strategy.
    """
    try:
        state, checksum = snapshot["state"], snapshot["checksum"]
        now = _checksum(state)
    except (KeyError, TypeError) as error:
        raise StateFormatError(
            f"the snapshot of the tf.data pipeline is damaged: {error}.\nNothing was restored. Load another checkpoint."
        ) from error
    if now != checksum:
        raise StateFormatError(
            "the snapshot of the tf.data pipeline is damaged: its bytes have another checksum.\n"
            f"  in the checkpoint: {checksum}\n  in this run:       {now} of {len(state)} bytes\n"
            "TensorFlow could crash on them. Load another checkpoint."
        )
    for name, own in identity.items():
        if snapshot.get(name) != own:
            raise StateMismatchError(
                f"the {name} of the tf.data pipeline differs from the checkpoint's, and TensorFlow would restore it "
                "all the same: with other samples, or with a crash of this process.\n"
                f"  in the checkpoint: {snapshot.get(name)}\n  in this run:       {own}\n{_HINTS[name]} "
                "strict=False cannot help here."
            )
    return bytes(state)


def _checksum(state: bytes) -> str:
    return hashlib.blake2b(state, digest_size=16).hexdigest()
