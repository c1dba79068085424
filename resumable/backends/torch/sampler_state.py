"""The state of a ResumableSampler: its schema and how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resumable._introspection import shorten
from resumable._order.cursor import Cursor
from resumable._state import damaged
from resumable.errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FORMAT", "SamplerState", "facts_of", "parse"]

FORMAT = 1
_LARGEST = 1 << 30  # as no run has


@dataclass(frozen=True, slots=True)
class SamplerState:
    """A parsed state; `fingerprint` are what has to be the same in both runs."""

    fingerprint: dict[str, Any]
    cursor: Cursor
    within: int
    batch_size: int
    world_size: int


def parse(values: Any) -> SamplerState:
    """Read what `ResumableSampler.state_dict()` returned.

    Raises:
        StateFormatError: it is no such state, or damaged.
    """
    version = values.get("format") if hasattr(values, "get") else None
    if type(version) is not int or version != FORMAT or "within_batch" not in values:
        raise StateFormatError(
            f"this is no state of a ResumableSampler of format {FORMAT}: {shorten(values)}.\n"
            "Nothing was loaded. Give what sampler.state_dict() returned; the state of a Loader goes to the Loader."
        )
    try:
        return _read(values)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(values, error) from error


def _read(values: Mapping[str, Any]) -> SamplerState:
    numbers = {name: values[name] for name in ("within_batch", "batch_size", "world_size")}
    for name, number in numbers.items():
        least = 0 if name == "within_batch" else 1
        if type(number) is not int or not least <= number <= _LARGEST:
            raise ValueError(f"{name} must be an integer of {least} to {_LARGEST}, but it is {shorten(number)}")
    cursor = Cursor.from_dict(values["cursor"])
    spec = dict(values["sampler"])
    end = spec["length"] + numbers["batch_size"] * numbers["world_size"]
    if cursor.position > end or numbers["within_batch"] >= numbers["batch_size"]:
        raise ValueError(f"{cursor} and {numbers['within_batch']} indices lie outside of an epoch of {spec['length']}")
    return SamplerState(facts_of(spec), cursor, *numbers.values())


def facts_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has to be the same in both runs, of a sampler's spec."""
    return {f"sampler.{name}": value for name, value in spec.items()}
