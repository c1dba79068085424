"""The first thing in which two ranks differ, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
_TOLERANCE = 0.01  # of the mean size of the numbers in a sample, as hosts compute features in their own last bits
_WIDTH = 160


def first_difference(rank: int, own: Mapping[str, Any], other_rank: int, other: Mapping[str, Any]) -> str | None:
    """Return what differs between the fingerprints of two ranks, as an error says it; None where nothing does."""
    for name in [*own, *(name for name in other if name not in own)]:
        mine, its = own.get(name), other.get(name)
        if mine == its:
            continue
        what = _NAMES.get(name, name)
        if name == "samples":
            if (which := _other_sample(mine, its)) is None:
                continue
            what, mine, its = f"sample {which[0]}", f"digest {which[1]}", f"digest {which[2]}"
        values = {rank: mine, other_rank: its}
        told = "\n".join(f"  rank {number}: {_short(values[number])}" for number in sorted(values))
        hint = _HINTS.get(name) or _HINTS.get(name.partition(".")[0], "Give all ranks the same options.")
        return (
            f"the ranks disagree: {what} differs.\n{told}\n{_WOULD} {hint} Ranks that are to read different data are "
            'divided by world=, such as a process group, or have names of their own; checks="data" compares no ranks.'
        )
    return None


def _other_sample(own: Any, other: Any) -> tuple[int, str, str] | None:
    """Return the first sample that differs by more than the last bits of its numbers, with both digests."""
    for mine, its in zip(own or [], other or [], strict=False):
        close = mine[:2] == its[:2] and abs((mine[2] or 0.0) - (its[2] or 0.0)) <= _TOLERANCE * max(mine[3], its[3])
        if not close:
            return mine[0], _digest(mine), _digest(its)
    return None


def _digest(sample: Any) -> str:
    return str(sample[1]) if sample[2] is None else f"{sample[1]}~{sample[2]:.4g}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
