"""What a mixture is asked for: the checks of its sources, weights, phases and epochs."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from resumable.errors import ConfigurationError
from resumable.samplers.base import LONGEST, check_length

__all__ = ["Mixed", "Weights", "mixed", "text_of"]

Weights: TypeAlias = "Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]]"

_DIGITS = 12
_LONGEST_TEXT = 96


class Mixed(NamedTuple):
    """A mixture as it was asked for.

    Args:
        names: of the sources.
        sizes: samples of each source.
        phases: first sample of each phase, and the share of each source in it.
        limits: after how many of its samples a source is used up, by its number.
        stops: the mixture ends where the first one is.
    """

    names: list[str]
    sizes: list[int]
    phases: list[tuple[int, list[float]]]
    limits: dict[int, int]
    stops: bool


def mixed(sizes: Mapping[str, int], weights: Weights | None, epochs: Any, at_end: str) -> Mixed:
    """Check all that a mixture depends on.

    Raises:
        ConfigurationError: it makes no mixture.
    """
    names, lengths = _sources(sizes)
    if at_end not in ("leave", "stop"):
        raise ConfigurationError(
            f'at_end must be "leave" or "stop", but it is {at_end!r}.\n'
            "It says what happens where a source has had its epochs: it leaves the mixture, or the mixture stops. A "
            "source that is to begin again has no entry in epochs."
        )
    limits = _limits(epochs, names, lengths)
    if at_end == "stop" and not limits:
        raise ConfigurationError(
            'at_end="stop" was given without epochs, so no source is ever used up.\n'
            "The mixture would never stop. Give for instance epochs=1, or epochs={name: number}."
        )
    return Mixed(names, lengths, _phases(weights, names, lengths), limits, at_end == "stop")


def _sources(sizes: Any) -> tuple[list[str], list[int]]:
    if not isinstance(sizes, Mapping) or not sizes or not all(isinstance(name, str) and name for name in sizes):
        raise ConfigurationError(
            f"the sources of a mixture must be a mapping with a name for each of them, but they are {sizes!r}.\n"
            'A state could not tell one source from another. Give for instance {"web": web, "code": code}.'
        )
    lengths = [check_length(size, f"the length of the source {name!r}") for name, size in sizes.items()]
    check_length(sum(lengths), "the length of all sources together")
    return list(sizes), lengths


def _phases(weights: Any, names: list[str], sizes: list[int]) -> list[tuple[int, list[float]]]:
    if weights is None:
        return [(0, _shares(dict(zip(names, sizes, strict=True)), names, ""))]
    if isinstance(weights, Mapping):
        _refuse_left_out(weights, names)
        return [(0, _shares(weights, names, ""))]
    pairs = _pairs(weights)
    starts = [start for start, _ in pairs]
    if starts[:1] != [0] or any(later <= start for start, later in pairwise(starts)):
        raise ConfigurationError(
            f"the phases of a mixture must begin at 0, each one after the one before it, but they begin at {starts}.\n"
            "Which weights are in force at a sample could not be known. Give the first sample of each phase: "
            "[(0, {...}), (1_000_000, {...})]."
        )
    phases = [(start, _shares(given, names, f" of the phase at {start}")) for start, given in pairs]
    _refuse_left_out({name: 1 for _, given in pairs for name in given}, names)
    return phases


def _pairs(weights: Any) -> list[tuple[int, Any]]:
    try:
        pairs = [(start, given) for start, given in weights]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "weights must be a mapping from the names of the sources to numbers, or a list of phases, but they are "
            f"{weights!r}.\nThe shares of the sources could not be known. Give for instance "
            '{"web": 0.7, "code": 0.3}, or [(0, {...}), (1_000_000, {...})] with the first sample of each phase.'
        ) from error
    return [(_start(start), given) for start, given in pairs]


def _start(start: Any) -> int:
    if (value := _whole(start)) is None:
        raise ConfigurationError(
            f"a phase of a mixture must begin at an integer, but it is {start!r}.\n"
            "The sample at which it begins could not be known. Give for instance 1_000_000 in place of 1e6."
        )
    if value > LONGEST:
        raise ConfigurationError(
            f"a phase of a mixture must begin at 2**62 = {LONGEST} or before, but it begins at {value}.\n"
            "Positions are 64-bit integers and would overflow. Leave out a phase that would never be reached."
        )
    return value


def _whole(value: Any) -> int | None:
    """Return an integer of Python or NumPy as one of Python; None for anything else."""
    try:
        return None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        return None


def _refuse_left_out(given: Mapping[str, Any], names: list[str]) -> None:
    if left := [name for name in names if name not in given]:
        raise ConfigurationError(
            f"no weight is given for {', '.join(map(repr, left))}, though the sources are "
            f"{', '.join(map(repr, names))}.\nIt would never be read. Give each source a weight, or leave it out."
        )


def _shares(weights: Any, names: list[str], where: str) -> list[float]:
    if not isinstance(weights, Mapping):
        raise ConfigurationError(
            f"the weights{where} must be a mapping from the names of the sources to numbers, but they are {weights!r}."
            '\nThe shares of the sources could not be known. Give for instance {"web": 0.7, "code": 0.3}.'
        )
    if unknown := [name for name in weights if name not in names]:
        raise ConfigurationError(
            f"the weights{where} name {', '.join(map(repr, unknown))}, but the sources are "
            f"{', '.join(map(repr, names))}.\nNothing could be read from there. Use the names of the sources."
        )
    exact = [_exact(weights.get(name, 0), name, where) for name in names]
    if not (total := sum(exact)):
        raise ConfigurationError(
            f"the weights{where} are all 0: {dict(weights)!r}.\n"
            "There would be nothing to read. Give at least one source a weight above 0."
        )
    return [float(f"{float(weight / total):.{_DIGITS}g}") for weight in exact]


def _exact(weight: Any, name: str, where: str) -> Fraction:
    try:
        value = math.nan if isinstance(weight, (bool, str)) else float(weight)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise ConfigurationError(
            f"the weight of {name!r}{where} must be a finite number of 0 or more, but it is {weight!r}.\n"
            "Its share could not be known. Use for instance 0.3, or 0 to leave the source out."
        )
    return Fraction(value)


def _limits(epochs: Any, names: list[str], sizes: list[int]) -> dict[int, int]:
    if epochs is None:
        return {}
    given = epochs if isinstance(epochs, Mapping) else dict.fromkeys(names, epochs)
    if unknown := [name for name in given if name not in names]:
        raise ConfigurationError(
            f"epochs names {', '.join(map(repr, unknown))}, but the sources are {', '.join(map(repr, names))}.\n"
            "They would have no effect. Use the names of the sources."
        )
    return {names.index(name): _limit(sizes[names.index(name)], count, name) for name, count in given.items()}


def _limit(size: int, count: Any, name: str) -> int:
    limit = size * _count(count, name)
    if limit > LONGEST:
        raise ConfigurationError(
            f"{name!r} would be used up after {count} epochs of {size} samples, which is more than 2**62 = {LONGEST}.\n"
            "Positions are 64-bit integers and would overflow. Leave it out of epochs to let it begin again and again."
        )
    return limit


def _count(count: Any, name: str) -> int:
    value = _whole(count)
    if value is None or value < 1:
        raise ConfigurationError(
            f"the epochs of {name!r} must be an integer of 1 or more, but they are {count!r}.\n"
            "When the source is used up could not be known. Leave it out to let it begin again and again."
        )
    return value


def text_of(value: Any) -> str:
    """Return a value as text for a state: JSON where that is short, else a digest of it."""
    text = json.dumps(value, separators=(",", ":"))
    if len(text) <= _LONGEST_TEXT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"resumable1").hexdigest()
