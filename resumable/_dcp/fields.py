"""What has to be the same on all ranks that save or load together, and the first field that is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resumable._parts import digest_of
from resumable._state import shorten
from resumable.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["SEEN", "differing", "fields_of", "named", "seen_of", "told"]

_OF_A_RANK = ("source_state", "digest")  # the digest is that of the other fields and of a part of this one
_OF_A_STREAM = ("cursor", "samples_seen", "backend")  # may differ where each rank has its own
SEEN = ("fingerprint", "canary")  # what was seen of the data, which a rank need not have looked at; None then
_NAMED = 8  # ranks in a message
_HINTS = {
    "cursor": "Let all ranks save after the same step.",
    "global_step": "Let all ranks save after the same step.",
    "samples_seen": "Let all ranks save after the same step.",
    "backend": "Give all ranks the same data.",
    "fingerprint": "Give all ranks the same data, in the same order: sort what was listed, such as names of files.",
    "canary": "Give all ranks the same data, in the same order: sort what was listed, such as names of files.",
    "rank": "Wrap the same kind of source on all ranks, with the same shard=.",
}


def fields_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has to be the same on all ranks, under dotted names, in their order.

    Where each rank has a stream of its own, that are the settings: such streams may be of other data and at other
    places.
    """
    own = state.get("rank") is not None
    values = {**state, "rank": "each rank has a stream or state of its own" if own else None}
    found = dict(_flat({name: part for name, part in values.items() if name not in (*_OF_A_RANK, *SEEN)}))
    if own:
        found = {name: part for name, part in found.items() if name == "backend.kind" or not _is_of(name, _OF_A_STREAM)}
    return dict(sorted(found.items()))


def seen_of(state: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Digest each of `SEEN`; None where nothing was seen, or where each rank has data of its own."""
    if state.get("rank") is not None:
        return (None,) * len(SEEN)
    return tuple(None if state.get(name) is None else digest_of(state[name]) for name in SEEN)


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _is_of(name: str, heads: tuple[str, ...]) -> bool:
    return name.partition(".")[0] in heads


def named(fields: Mapping[str, Any]) -> str:
    """Digest fields."""
    return digest_of(list(fields.items()))


def differing(ranks: Sequence[Mapping[str, Any]], outcome: str) -> StateMismatchError:
    """Return the error that names the first field that differs, with the ranks of each value.

    Args:
        ranks: the fields of each.
        outcome: what was not done.
    """
    names = list(dict.fromkeys(name for fields in ranks for name in fields))
    name = next(name for name in names if len({shown(fields, name) for fields in ranks}) > 1)
    values: dict[str, list[int]] = {}
    for rank, fields in enumerate(ranks):
        values.setdefault(shown(fields, name), []).append(rank)
    lines = "".join(f"  {told(which)}: {value}\n" for value, which in values.items())
    hint = _HINTS.get(name.partition(".")[0], "Give all ranks the same options and the same seed.")
    return StateMismatchError(
        f"{name} differs between the ranks, so no common place could be gone on from.\n{lines}{outcome} {hint}"
    )


def shown(fields: Mapping[str, Any], name: str) -> str:
    """Return a field as text; of a long one, its digest tells it apart."""
    if name not in fields:
        return "none"
    text = shorten(fields[name])
    return f"{text} ({digest_of(fields[name])[:8]})" if text.endswith("...") else text


def told(ranks: Sequence[int]) -> str:
    """Name ranks."""
    first = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {first}{more}"
