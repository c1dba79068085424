"""The first thing in which two ranks differ, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._content import compare
from resumable._content.elements import ElementDigest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["first_difference"]

_NAMES = {
    "backend.length": "the length of the data",
    "length": "the length of the source",
    "batch_size": "the batch size",
    "global_batch": "the global batch",
    "randomness.seed": "the seed",
    "place": "the place in the stream",
    "world_size": "the number of ranks",
}
_DATA = "Give all ranks the same data in the same order: sort what lists files, and seed what shuffles them."
_HINTS = {
    "samples": _DATA,
    "element": _DATA,
    "elements": _DATA,
    "place": "Load the same checkpoint on all ranks: let rank 0 look for the latest one, and tell the others which.",
    "backend": _DATA,
    "length": _DATA,
    "randomness": "Give all ranks the same seed and randomness.",
}
_WOULD = "Samples would be read twice and others never, and a rank that ends earlier would leave the others waiting."
_WIDTH = 160


def first_difference(rank: int, own: Mapping[str, Any], other_rank: int, other: Mapping[str, Any]) -> str | None:
    """Return what differs between the fingerprints of two ranks, as an error says it; None where nothing does."""
    for name, mine, its in compare(own, other):
        what, values = _NAMES.get(name, name), {rank: mine, other_rank: its}
        if name == "samples":
            if (which := _other_sample(mine, its)) is None:
                continue
            what, values = f"sample {which[0]}", {rank: f"digest {which[1]}", other_rank: f"digest {which[2]}"}
        told = "\n".join(f"  rank {number}: {_short(values[number])}" for number in sorted(values))
        hint = _HINTS.get(name) or _HINTS.get(name.partition(".")[0], "Give all ranks the same options.")
        return (
            f"the ranks disagree: {what} differs.\n{told}\n{_WOULD} {hint} Ranks that are to read different data are "
            "divided by process_group=, or have names of their own; watch=False compares nothing."
        )
    return None


def _other_sample(own: Any, other: Any) -> tuple[int, str, str] | None:
    """Return the first sample that differs by more than the last bits of its numbers, with both digests."""
    for (index, *mine), (its_index, *its) in zip(own or [], other or [], strict=False):
        one, two = ElementDigest(*mine), ElementDigest(*its)
        if index != its_index or not one.is_close(two):
            return index, one.text, two.text
    return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
