"""The timeline of a mixture: which source has which position, across all phases."""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from resumable._randomness.keyed import IntArray, Words, derive, random_u64
from resumable.errors import ConfigurationError
from resumable.samplers.base import LONGEST, check_length

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Counts", "Timeline", "Weights", "digest_of_text", "mixed", "text_of"]


Weights: TypeAlias = "Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]]"
_Number = TypeVar("_Number", int, IntArray)
_BITS = 31  # keeps a product of two weights below 2**62
_DIGITS = 12
_LONGEST_TEXT = 96


class Timeline:
    """Distributes each window of positions among the sources at random, with exact counts.

    The windows lie on one grid, whatever the phases. A phase that starts inside a window splits it: the positions
    before it do not change, and the rest of the window is distributed with the new weights.

    Args:
        mixed: sources, phases and limits.
        window: positions per window.
        seed: determines how they are distributed.

    Raises:
        ConfigurationError: a phase never starts, as no source is left before it.

    Attributes:
        end: number of positions; None if it is endless.
    """

    def __init__(self, mixed: Mixed, window: int, seed: int) -> None:
        self._mixed, self._window, self._seed = mixed, window, seed
        self._segments: list[_Segment] = []
        self.end: int | None = None
        self._plan()
        self._starts = [segment.start for segment in self._segments]

    def _plan(self) -> None:
        phases, sources = self._mixed.phases, len(self._mixed.names)
        phase, start, base = 0, 0, np.zeros(sources, np.int64)
        while True:
            shares = [0 if self._is_over(k, base) else share for k, share in enumerate(phases[phase][1])]
            if not any(shares):
                break
            segment = self._begin(start, base, shares)
            following = phases[phase + 1][0] if phase + 1 < len(phases) else None
            over = self._first_over(segment, shares, following)
            if over is None and following is None:
                return
            if over is not None and (following is None or over <= following):
                start = over
                phase += over == following
            else:
                assert following is not None
                start, phase = following, phase + 1
            base = self._before(segment, start)
            if self._mixed.stops and start == over:
                break
        self.end = start
        if phase + 1 < len(phases):
            raise ConfigurationError(
                f"the mixture ends at sample {start}, when its sources have completed their epochs, but a phase is "
                f"planned at {phases[phase + 1][0]}.\nThat phase would never start. Start it earlier, or increase the "
                "epochs of a source."
            )

    def _is_over(self, source: int, base: IntArray) -> bool:
        limit = self._mixed.limits.get(source)
        return limit is not None and int(base[source]) >= limit

    def _begin(self, start: int, base: IntArray, shares: list[float]) -> _Segment:
        number = len(self._segments)
        key = derive(self._seed, number, words=2, purpose=b"mixture-deal")
        self._segments.append(_Segment(start, base, Counts(shares, self._seed, number), key, shares))
        return self._segments[-1]

    def _first_over(self, segment: _Segment, shares: list[float], following: int | None) -> int | None:
        """Return the position after the last sample of the first source that is used up in a segment.

        Raises:
            ConfigurationError: it does not fit into 64 bits, and no phase starts before it.
        """
        needs = {k: limit - int(segment.base[k]) for k, limit in self._mixed.limits.items() if shares[k]}
        if not needs:
            return None
        guess = min(int(need * sum(shares) / shares[k]) for k, need in needs.items())
        window = self._first_window(segment, needs, (segment.start + guess) // self._window)
        if (window + 1) * self._window > LONGEST:
            if following is not None:
                return None
            raise ConfigurationError(
                f"no source of the mixture would be used up before sample 2**62 = {LONGEST}, although epochs limits "
                "them.\nPositions are 64-bit integers and would overflow. Remove epochs, or use fewer."
            )
        first = max(window * self._window, segment.start)
        dealt, before = self._deal(segment, first, (window + 1) * self._window)
        ends = []
        for source, need in needs.items():
            own = np.flatnonzero(dealt == source)
            if len(own) >= (missing := need - int(before[source])):
                ends.append(first + int(own[missing - 1]) + 1)
        return min(ends)

    def _first_window(self, segment: _Segment, needs: dict[int, int], guess: int) -> int:
        """Return the window in which the first source is used up, with a binary search around a guess."""

        def reached(window: int) -> bool:
            counts = segment.counts.after((window + 1) * self._window - segment.start)
            return any(counts[k] >= need for k, need in needs.items())

        most = LONGEST // self._window  # windows that can be counted
        guess = min(guess, most)
        least, width = segment.start // self._window, 1
        while guess > least and reached(guess):
            guess, width = max(guess - width, least), 2 * width
        low, width = guess, 1
        while low + width < most and not reached(low + width):
            width *= 2
        windows = range(low, min(low + width, most) + 1)
        return low + bisect.bisect_left(windows, True, key=reached)  # the first window for which it is True

    def _deal(self, segment: _Segment, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the sources of positions in a segment, and how many samples of each it has before them."""
        width = self._window
        borders = np.arange(start // width * width, -(-stop // width) * width + 1, width)
        borders[0] = first = max(int(borders[0]), segment.start)
        table = segment.counts.at(borders - segment.start)
        counts = np.diff(table, axis=0)
        windows, sources = np.indices(counts.shape)
        times = counts.ravel()
        words = random_u64(segment.key, np.arange(first, borders[-1]))
        order = np.lexsort((words, np.repeat(windows.ravel(), times)))
        dealt = np.repeat(sources.ravel(), times)[order]
        lead = start - first
        return dealt[lead : stop - first], table[0] + np.bincount(dealt[:lead], minlength=counts.shape[1])

    def _before(self, segment: _Segment, place: int) -> IntArray:
        return segment.base + self._deal(segment, place, place)[1]

    def before(self, place: int) -> IntArray:
        """Return how many samples of each source precede a position; shape `(sources,)`."""
        segment = self._segments[bisect.bisect_right(self._starts, place) - 1]
        return self._before(segment, place)

    def stretches(self, place: int) -> dict[int, tuple[tuple[str, float], ...]]:
        """Return sources and shares of the stretches that start before a position, keyed with their first position."""
        names = self._mixed.names
        return {
            one.start: tuple((name, share) for name, share in zip(names, one.shares, strict=True) if share)
            for one in self._segments
            if one.start < place
        }

    def sources(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the source of each position in `start..stop-1`, and how many samples of each precede them."""
        number = bisect.bisect_right(self._starts, start) - 1
        before = self.before(start)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            number += 1
            last = min(stop, self._starts[number]) if number < len(self._starts) else stop
            parts.append(self._deal(self._segments[number - 1], start, last)[0])
            start = last
        return np.concatenate(parts), before


class _Segment(NamedTuple):
    """A stretch with constant weights: a phase, or the rest of one after a source has left."""

    start: int
    base: IntArray  # samples of each source before it
    counts: Counts
    key: Words
    shares: list[float]


class Counts:
    """Divides `n` samples among sources in proportion to weights, for any `n`, as a closed form in integers.

    The sources are the leaves of a binary tree. A node with the weights `a` and `b - a` below it sends
    `(n * a + phase) // b` of its `n` samples to the left, and the rest to the right. So the counts add up to `n`, never
    decrease as `n` grows, and differ from their share by at most one per level of the tree.

    Args:
        shares: weight of each source, at least one above 0.
        key: determines the phases of the nodes.
    """

    def __init__(self, shares: Sequence[float], *key: int | str) -> None:
        self.sources = len(shares)
        weights = _integers(shares)
        phases = iter(derive(*key, words=self.sources, purpose=b"mixture-tree").tolist())
        self._root = self._build([k for k in range(self.sources) if weights[k]], weights, phases)

    def _build(self, members: list[int], weights: list[int], phases: Iterator[int]) -> _Node | int:
        """Split the sources where the sums of both parts are closest."""
        if len(members) == 1:
            return members[0]
        sums = list(accumulate(weights[k] for k in members))
        total = sums[-1]
        cut = min(range(len(members) - 1), key=lambda k: abs(2 * sums[k] - total))
        phase = next(phases) % total
        left = self._build(members[: cut + 1], weights, phases)
        return _Node(sums[cut], total, phase, left, self._build(members[cut + 1 :], weights, phases))

    def at(self, numbers: IntArray) -> IntArray:
        """Return the counts for each `n` of an array, shape `(len(numbers), sources)`."""
        counts = np.zeros((len(numbers), self.sources), np.int64)
        todo: list[tuple[_Node | int, IntArray]] = [(self._root, numbers)]
        while todo:
            below, n = todo.pop()
            if isinstance(below, int):
                counts[:, below] = n
            else:
                left = below.deal(n)
                todo += [(below.left, left), (below.right, n - left)]
        return counts

    def after(self, number: int) -> list[int]:
        """Return the counts for one `n`."""
        counts, todo = [0] * self.sources, [(self._root, number)]
        while todo:
            below, n = todo.pop()
            if isinstance(below, int):
                counts[below] = n
            else:
                left = below.deal(n)
                todo += [(below.left, left), (below.right, n - left)]
        return counts


class _Node:
    __slots__ = ("_part", "_phase", "_whole", "left", "right")

    def __init__(self, part: int, whole: int, phase: int, left: _Node | int, right: _Node | int) -> None:
        self._part, self._whole, self._phase = part, whole, phase
        self.left, self.right = left, right

    def deal(self, n: _Number) -> _Number:
        """Return `(n * part + phase) // whole`, where `n * part` may be too large for 64 bits."""
        rounds, rest = n // self._whole, n % self._whole
        return rounds * self._part + (rest * self._part + self._phase) // self._whole


def _integers(shares: Sequence[float]) -> list[int]:
    """Return integers in the proportions of the shares, with the sum 2**31; shares above 0 stay above 0."""
    exact = [Fraction(share) for share in shares]
    unit = Fraction(1 << _BITS) / sum(exact)
    found = [max(int(share * unit), 1) if share else 0 for share in exact]
    largest = max(range(len(found)), key=found.__getitem__)
    rest = (1 << _BITS) - sum(found)
    missing = sorted((k for k, share in enumerate(exact) if share), key=lambda k: found[k] - exact[k] * unit)
    for k in missing[: max(rest, 0)]:
        found[k] += 1
    found[largest] += min(rest, 0)
    return found


def mixed(sizes: Mapping[str, int], weights: Weights | None, epochs: Any, at_end: str) -> Mixed:
    """Check all parameters of a mixture.

    Raises:
        ConfigurationError: they do not define a mixture.
    """
    names, lengths = _sources(sizes)
    if at_end not in ("leave", "stop"):
        raise ConfigurationError(
            f'at_end must be "leave" or "stop", but it is {at_end!r}.\n'
            "It determines what happens when a source has completed its epochs: it leaves the mixture, or the mixture "
            "stops. To repeat a source indefinitely, leave it out of epochs."
        )
    limits = _limits(epochs, names, lengths)
    if at_end == "stop" and not limits:
        raise ConfigurationError(
            'at_end="stop" was passed without epochs, so no source would be used up.\n'
            "The mixture would never stop. Pass for example epochs=1, or epochs={name: number}."
        )
    return Mixed(names, lengths, _phases(weights, names, lengths), limits, at_end == "stop")


class Mixed(NamedTuple):
    """The checked parameters of a mixture.

    Args:
        names: of the sources.
        sizes: number of samples of each source.
        phases: first sample of each phase, and the share of each source in it.
        limits: by number of the source, how many of its samples are read before it is used up.
        stops: whether the mixture ends when the first source is used up.
    """

    names: list[str]
    sizes: list[int]
    phases: list[tuple[int, list[float]]]
    limits: dict[int, int]
    stops: bool


def _sources(sizes: Any) -> tuple[list[str], list[int]]:
    if not isinstance(sizes, Mapping) or not sizes or not all(isinstance(name, str) and name for name in sizes):
        raise ConfigurationError(
            f"the sources of a mixture must be a mapping with a name for each source, but they are {sizes!r}.\n"
            'A state could not identify the sources. Pass for example {"web": web, "code": code}.'
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
            f"the phases of a mixture must start at 0 and be in ascending order, but they start at {starts}.\n"
            "The weights of a sample would be ambiguous. Pass the first sample of each phase: "
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
            f"{weights!r}.\nThe shares of the sources would be unknown. Pass for example "
            '{"web": 0.7, "code": 0.3}, or [(0, {...}), (1_000_000, {...})] with the first sample of each phase.'
        ) from error
    return [(_start(start), given) for start, given in pairs]


def _start(start: Any) -> int:
    if (value := _whole(start)) is None:
        raise ConfigurationError(
            f"a phase of a mixture must start at an integer, but it starts at {start!r}.\n"
            "Its first sample would be ambiguous. Pass for example 1_000_000 instead of 1e6."
        )
    if value > LONGEST:
        raise ConfigurationError(
            f"a phase of a mixture must start at 2**62 = {LONGEST} or earlier, but it starts at {value}.\n"
            "Positions are 64-bit integers and would overflow. Remove the phase, which would never be reached."
        )
    return value


def _whole(value: Any) -> int | None:
    """Return a Python or NumPy integer as a Python integer; None for anything else."""
    try:
        return None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        return None


def _refuse_left_out(given: Mapping[str, Any], names: list[str]) -> None:
    if left := [name for name in names if name not in given]:
        raise ConfigurationError(
            f"no weight was passed for {', '.join(map(repr, left))}, but the sources are "
            f"{', '.join(map(repr, names))}.\nA source without a weight would never be read. Set its weight, or remove "
            "the source."
        )


def _shares(weights: Any, names: list[str], where: str) -> list[float]:
    if not isinstance(weights, Mapping):
        raise ConfigurationError(
            f"the weights{where} must be a mapping from the names of the sources to numbers, but they are {weights!r}."
            '\nThe shares of the sources would be unknown. Pass for example {"web": 0.7, "code": 0.3}.'
        )
    if unknown := [name for name in weights if name not in names]:
        raise ConfigurationError(
            f"the weights{where} contain {', '.join(map(repr, unknown))}, but the sources are "
            f"{', '.join(map(repr, names))}.\nA weight without a source has no effect. Use the names of the sources."
        )
    exact = [_exact(weights.get(name, 0), name, where) for name in names]
    if not (total := sum(exact)):
        raise ConfigurationError(
            f"the weights{where} are all 0: {dict(weights)!r}.\n"
            "There would be nothing to read. Set at least one weight above 0."
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
            "Its share would be unknown. Use for example 0.3, or 0 to skip the source."
        )
    return Fraction(value)


def _limits(epochs: Any, names: list[str], sizes: list[int]) -> dict[int, int]:
    if epochs is None:
        return {}
    given = epochs if isinstance(epochs, Mapping) else dict.fromkeys(names, epochs)
    if unknown := [name for name in given if name not in names]:
        raise ConfigurationError(
            f"epochs contains {', '.join(map(repr, unknown))}, but the sources are {', '.join(map(repr, names))}.\n"
            "An entry without a source has no effect. Use the names of the sources."
        )
    return {names.index(name): _limit(sizes[names.index(name)], count, name) for name, count in given.items()}


def _limit(size: int, count: Any, name: str) -> int:
    limit = size * _count(count, name)
    if limit > LONGEST:
        raise ConfigurationError(
            f"{name!r} would be used up after {count} epochs of {size} samples, which is more than 2**62 = {LONGEST}.\n"
            "Positions are 64-bit integers and would overflow. Leave it out of epochs to repeat it indefinitely."
        )
    return limit


def _count(count: Any, name: str) -> int:
    value = _whole(count)
    if value is None or value < 1:
        raise ConfigurationError(
            f"the epochs of {name!r} must be an integer of 1 or more, but they are {count!r}.\n"
            "The end of the source would be unknown. Leave it out of epochs to repeat it indefinitely."
        )
    return value


def text_of(value: Any, longest: int = _LONGEST_TEXT) -> str:
    """Return a value as text for a state: JSON if that is short, otherwise a digest."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= longest else digest_of_text(text)


def digest_of_text(text: str) -> str:
    """Return the digest that is in a state instead of a long text."""
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"resumable1").hexdigest()
