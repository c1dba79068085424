"""Which source is at which place of a mixture, over all of its phases."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable._randomness.keyed import IntArray, Words, derive, random_u64
from resumable.errors import ConfigurationError
from resumable.samplers.base import LONGEST
from resumable.samplers.counts import Counts

if TYPE_CHECKING:
    from resumable.samplers.phases import Mixed

__all__ = ["Timeline"]


class _Segment(NamedTuple):
    """A stretch in which the weights stay: a phase, or what is left of it after a source has left."""

    start: int
    base: IntArray  # samples of each source before it
    counts: Counts
    key: Words


class Timeline:
    """Deals each window of places to the sources at random, with exact counts.

    The windows lie on one grid, whatever the phases. A phase that begins inside of one cuts it: what was dealt before
    stays, and the rest of the window is dealt by the new weights.

    Args:
        mixed: sources, phases and limits.
        window: places per window.
        seed: selects how they are dealt.

    Raises:
        ConfigurationError: a phase never begins, as no source is left before it.

    Attributes:
        end: number of places; None where it goes on without end.
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
                f"the mixture ends at sample {start}, as its sources have had their epochs, and a phase is planned at "
                f"{phases[phase + 1][0]}.\nIt would never begin. Let it begin earlier, or give a source more epochs."
            )

    def _is_over(self, source: int, base: IntArray) -> bool:
        limit = self._mixed.limits.get(source)
        return limit is not None and int(base[source]) >= limit

    def _begin(self, start: int, base: IntArray, shares: list[float]) -> _Segment:
        number = len(self._segments)
        key = derive(self._seed, number, words=2, purpose=b"mixture-deal")
        self._segments.append(_Segment(start, base, Counts(shares, self._seed, number), key))
        return self._segments[-1]

    def _first_over(self, segment: _Segment, shares: list[float], following: int | None) -> int | None:
        """Return the place after the last sample of the first source that is used up in a segment.

        Raises:
            ConfigurationError: it is beyond what 64 bits can count, and no phase comes before it.
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
                f"no source of the mixture would be used up before sample 2**62 = {LONGEST}, though epochs says when.\n"
                "Positions are 64-bit integers and would overflow. Leave epochs out, or give fewer of them."
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
        """Return the window in which the first source is used up, by bisection around a guess."""

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
        return low + bisect.bisect_left(windows, True, key=reached)  # what is sought

    def _deal(self, segment: _Segment, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the sources of places in a segment, and how many samples of each it has before them."""
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
        """Return how many samples of each source lie before a place; shape `(sources,)`."""
        segment = self._segments[bisect.bisect_right(self._starts, place) - 1]
        return self._before(segment, place)

    def sources(self, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Return the source of each place of `start..stop-1`, and how many samples of each lie before them."""
        number = bisect.bisect_right(self._starts, start) - 1
        before = self.before(start)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            number += 1
            last = min(stop, self._starts[number]) if number < len(self._starts) else stop
            parts.append(self._deal(self._segments[number - 1], start, last)[0])
            start = last
        return np.concatenate(parts), before
