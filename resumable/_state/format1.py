"""States of format 1, read as states of format 2; what they lack is left empty and is not compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["upgrade"]


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same state in format 2.

    Its counters begin with the cursor's epoch, as it does not say how long the epochs before were.

    Raises:
        ValueError: it is one of a later format, whose number was damaged.
    """
    if "digest" in values:
        raise ValueError("its format is 1, but it has a digest, which states of format 1 have not")
    cursor, native = values["cursor"], values.get("native")
    return {
        **{name: values[name] for name in _SAME},
        "format": 2,
        "global_step": cursor["step"],
        "samples_seen": cursor["position"],
        "rank": values.get("rank"),
        "name": "",
        "unit": "sample",
        "journal": [],
        "fingerprint": None,
        "canary": None,
        "source_state": None if native is None else _source_state(native, cursor["epoch"]),
        "digest": None,
    }


_SAME = ("backend", "sampler", "cursor", "global_batch", "batch_size", "world_size", "tail", "randomness")


def _source_state(native: Mapping[str, Any], epoch: int) -> Mapping[str, Any]:
    marks = {"skip": native["skip"], "ended": native.get("ended", False)}
    if "before" not in native:
        return {"snapshot": native["snapshot"], **marks}
    before = _source_state(native["before"], epoch - 1)
    if native["position"] == 0 and not marks["skip"]:
        return before  # nothing was read of the epoch that was left
    left = {"epoch": epoch - 1, "position": native["position"], "source_state": before}
    return {"left_early": left, **marks}
