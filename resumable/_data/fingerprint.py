"""The fingerprint of a loader's data, and its comparison with a state.

Data may change during a correct run: pseudo-labels, a curriculum, elements that the loop changes in place. So the
fingerprint is taken at two times, when the source is wrapped and when a stream was last opened. It is compared at two
times, when the source is wrapped and when the state is loaded. Data count as changed only if no fingerprint of one run
fits one of the other.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from itertools import accumulate
from pathlib import PosixPath, WindowsPath
from typing import TYPE_CHECKING, Any

from resumable._content.elements import ElementDigest, MixtureSample, element_digests, is_element_digest, spread
from resumable._data.columns import SAID
from resumable._introspection import is_exactly, shorten, survive
from resumable._randomness.keyed import derive, scale
from resumable.errors import StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["DataFingerprint"]

_SAMPLES = 16
_FIXED = (str, int, float, bool, bytes, type(None), PosixPath, WindowsPath)


class DataFingerprint:
    """The fingerprint of a loader's data.

    Args:
        stored: returns a dict from column to the stored values of some samples; None if they are unknown.
        length: number of samples.
    """

    def __init__(self, stored: Callable[[Sequence[int]], Mapping[str, Sequence[Any]]] | None, length: int) -> None:
        self._stored = stored
        self._indices = _chosen(getattr(stored, "lengths", [length]))
        columns = self._look()
        self._wrapped = {name: found for name, values in columns.items() if (found := _digests_of(values))}
        self._name = next(iter(self._wrapped), None)
        self._values = None if self._name is None else _fixed(columns[self._name], self._wrapped[self._name])
        self._text = "" if self._name is None else _text(self._wrapped[self._name])
        known = {name: getattr(stored, name, None) for name in ("version", "total")}
        self._known = {name: value for name, value in known.items() if value is not None}
        self._opened: str | None = None  # the fingerprint now, if it differs from when the source was wrapped

    def opened(self) -> None:
        """Take the fingerprint again, because a stream is opened."""
        if self._name is None or SAID in self._name:
            return
        values = self._again(self._name)
        if self._values is not None and values == self._values:
            self._opened = None
            return
        text = _text(_digests_of(values))
        self._opened = None if text == self._text else text

    def of_rank(self) -> list[tuple[int, str, float | None, float]] | None:
        """Return what is compared between ranks: the current index, digest, number and scale of each sample."""
        if self._name is None:
            return None
        now = self._wrapped[self._name] if self._opened is None else _digests_of(self._again(self._name))
        return [(index, *digest) for index, digest in zip(self._indices, now, strict=False)]

    def as_dict(self) -> dict[str, Any] | None:
        """Return the fingerprint for a state as plain values, or None."""
        if self._name is None:
            return None
        samples = [self._text, self._opened] if self._opened else [self._text]
        return {"of": self._name, "samples": samples, **self._known}

    def check(self, stored: Any, *, strict: bool) -> None:
        """Compare the data with a state.

        Args:
            stored: the state's `fingerprint`.
            strict: reject different data; else warn.

        Raises:
            StateMismatchError: the data differ.
        """
        for message in filter(None, (self._compare(stored), self._count(stored))):
            if strict:
                raise StateMismatchError(message)
            warnings.warn(message + "\nContinuing because of strict=False.", StateMismatchWarning, stacklevel=4)
        before, now = self._both(stored, "version")
        if before != now:
            warnings.warn(_other_version(before, now), StateMismatchWarning, stacklevel=4)

    def before(self, sizes: Sequence[int], firsts: Sequence[int | None]) -> DataFingerprint:
        """Return the fingerprint of the data before sources were added to a mixture.

        Args:
            sizes: number of samples of each former source.
            firsts: the present index of the first sample of each; None if it is missing, so nothing is compared.
        """
        return DataFingerprint(_Former(self._stored, sizes, firsts) if self._stored else None, sum(sizes))

    def _both(self, stored: Any, name: str) -> tuple[Any, Any]:
        """Return a value from a state and its current value, if both are known; else None twice."""
        before, now = stored.get(name) if isinstance(stored, dict) else None, self._known.get(name)
        return (before, now) if type(before) is type(now) else (None, None)

    def _count(self, stored: Any) -> str | None:
        before, now = self._both(stored, "total")
        return None if before == now else _other_total(before, now)

    def _compare(self, stored: Any) -> str | None:
        moments = _parsed(stored, len(self._indices))
        if not moments or _fits(self._wrapped.get(stored["of"]), moments):
            return None
        values = self._look().get(stored["of"], ())
        now = _digests_of(values)
        return None if _fits(now, moments) else self._describe(stored["of"], values, now, moments[0])

    def _look(self) -> Mapping[str, Sequence[Any]]:
        return {} if self._stored is None else self._stored(self._indices)

    def _again(self, name: str) -> Sequence[Any]:
        again = getattr(self._stored, "again", None)
        values = self._look().get(name) if again is None else again(name, self._indices)
        return () if values is None else values

    def _describe(self, name: str, values: Sequence[Any], now: list[ElementDigest], before: list[str]) -> str:
        differing = _differing(now, before)
        number = differing[0]
        which = "the data" if name == SAID else f"sample {self._indices[number]}"
        what = f"its {SAID} differs" if name == SAID else f"{which} ({name}) differs"
        many = "." if name == SAID else f"; {len(differing)} of {len(now)} compared samples differ."
        return (
            f"the dataset has changed since the checkpoint: {what}{many}\n"
            f"  in the checkpoint: {which} with the digest {before[number]}\n"
            f"  in this run:       {which} with the digest {now[number].text}: {shorten(values[number])}\n"
            "Some samples would be read twice, and others never. Restore the data that the run started with, in the "
            "same order (sort lists of files), or start a new run. If the data change deliberately, pass "
            'wrap(..., checks="ranks"). Or use load_state_dict(state, strict=False) to continue at this position '
            "anyway."
        )


class _Former:
    """The stored values of samples under the index that they had before sources were added to a mixture."""

    def __init__(self, stored: Any, sizes: Sequence[int], firsts: Sequence[int | None]) -> None:
        self._stored, self._sizes, self._firsts = stored, list(sizes), firsts
        self.lengths = self._sizes if len(getattr(stored, "lengths", [0])) > 1 else [sum(sizes)]

    def __call__(self, indices: Sequence[int]) -> Mapping[str, Sequence[Any]]:
        ends = list(accumulate(self._sizes))
        sources = [bisect_right(ends, index) for index in indices]
        now = []
        for source, index in zip(sources, indices, strict=True):
            if (first := self._firsts[source]) is None:
                return {}
            now.append(first + index - ends[source] + self._sizes[source])
        columns: Mapping[str, Sequence[Any]] = self._stored(now)
        return {
            name: [
                value._replace(number=source) if type(value) is MixtureSample else value
                for source, value in zip(sources, values, strict=False)
            ]
            for name, values in columns.items()
        }


def _other_total(before: int, now: int) -> str:
    return (
        "the stream has a different number of files or rows from the checkpoint's.\n"
        f"  in the checkpoint: {before}\n  in this run:       {now}\n"
        "A different stream would follow. Use the data that the run started with, or start a new run. Or use "
        "load_state_dict(state, strict=False) to continue at this position anyway."
    )


def _other_version(before: str, now: str) -> str:
    return (
        "the dataset's _fingerprint differs from the checkpoint's, so it may have been made in a different way: with "
        "a different map, filter, select or file.\n"
        f"  in the checkpoint: {shorten(before)}\n  in this run:       {shorten(now)}\n"
        "The compared samples are the same, and datasets uses a random fingerprint if it cannot hash a function, so "
        "the run continues. To reject changed data, pass wrap(..., identity=...) with a name for the data."
    )


def _chosen(lengths: Sequence[int]) -> list[int]:
    """Return the indices of the samples to compare: some from each part if there are few enough parts."""
    if len(lengths) > _SAMPLES:
        return _keyed(sum(lengths), _SAMPLES)
    most, more = divmod(_SAMPLES, len(lengths))
    begins = accumulate(lengths, initial=0)
    shares = [_keyed(length, most + (number < more)) for number, length in enumerate(lengths)]
    return [begin + index for begin, share in zip(begins, shares, strict=False) for index in share]


def _keyed(length: int, most: int) -> list[int]:
    """Return all indices if there are few, else some that depend only on the length."""
    if length <= most:
        return list(range(length))
    ends = spread(length, most)
    words = scale(derive(length, words=most, purpose=b"data"), max(1, length // (most + 1)))
    return sorted({min(length - 1, at + int(word)) for at, word in zip(ends, words, strict=True)})


def _fixed(values: Sequence[Any], digests: list[ElementDigest]) -> Sequence[Any] | None:
    """Return values that cannot be changed in place, so comparing them is enough; None for others.

    Files may be written again. Other values are not kept, because a row may hold a whole array.
    """
    fixed = all(map(_is_fixed, values)) and all(digest.number is None for digest in digests)
    return values if fixed else None


def _is_fixed(value: Any) -> bool:
    return is_exactly(value, _FIXED) or (type(value) is tuple and all(map(_is_fixed, value)))


def _fits(now: list[ElementDigest] | None, moments: list[list[str]]) -> bool:
    """Return whether data fit one of a state's fingerprints; also if there is no such column."""
    return not now or any(len(texts) != len(now) or not _differing(now, texts) for texts in moments)


def _digests_of(column: Sequence[Any]) -> list[ElementDigest]:
    return survive("what a dataset stores of its samples", lambda: element_digests(column), [])


def _text(digests: list[ElementDigest]) -> str:
    return " ".join(digest.text for digest in digests)


def _differing(now: list[ElementDigest], before: list[str]) -> list[int]:
    return [number for number, (digest, text) in enumerate(zip(now, before, strict=True)) if not digest.fits(text)]


def _parsed(stored: Any, most: int) -> list[list[str]]:
    """Return the fingerprints of the samples in a state; an empty list if it has none of this form."""
    moments = stored.get("samples") if isinstance(stored, dict) and isinstance(stored.get("of"), str) else None
    if not isinstance(moments, list) or not all(isinstance(text, str) for text in moments):
        return []
    parsed = [text.split() for text in moments]
    return (
        parsed if all(texts and len(texts) <= most and all(map(is_element_digest, texts)) for texts in parsed) else []
    )
