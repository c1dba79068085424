"""Tokens: a file of tokens, cut into windows of one length."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.sources._files import Files
from resumable.sources._ranged import Ranged
from resumable.sources._token_file import open_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import DTypeLike

    from resumable._randomness.keyed import IntArray

__all__ = ["Span", "Tokens"]


class Span(NamedTuple):
    """The input of a sample: the tokens `start..stop-1` of a file."""

    file: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"tokens {self.start}..{self.stop - 1} of {self.file}"


class Tokens:
    """A file of tokens as samples `(input, target)`, one token apart; for `wrap`, a `DataLoader`, or by itself.

    Sample `i` has the tokens `i * length..(i + 1) * length - 1` as input, and as target those that follow each of them.
    Both are of shape `(length,)` and 64-bit integers, so that nothing overflows in what a model computes with them. The
    file is mapped into memory in each process that reads it; of a remote one, a sample is one range, and those of a
    batch are requested at the same time.

    Args:
        tokens: path or URL of a `.npy`, of a `.bin` of nothing but tokens (nanoGPT's), or of Megatron's `.bin` with its
            `.idx` beside it; or an array of integers of shape `(n,)`.
        length: tokens per sample.
        dtype: of the tokens of a `.bin`. None: what its index says, or `uint16`.
        storage_options: for the file system of a URL, as fsspec takes them.

    Raises:
        ConfigurationError: what is no such file, was cut, has another dtype, or has too few tokens.
        DataError: while reading, if the file was written again since it was opened, or storage fails.
    """

    def __init__(
        self,
        tokens: Any,
        length: int,
        *,
        dtype: DTypeLike | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokens = open_tokens(tokens, dtype, Files(storage_options))
        self._length = check_length(length, "the length of a sample")
        self._samples = (self._tokens.count - 1) // self._length
        if not self._samples:
            raise ConfigurationError(
                f"{self._tokens.name} has {self._tokens.count} tokens, but a sample takes {self._length + 1}: its "
                f"{self._length}, and the target of the last.\nThere would be no sample. Give a smaller length."
            )

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> tuple[IntArray, IntArray]:
        window = self._tokens.read(*self._span(self._checked(index)))
        return window[:-1].copy(), window[1:].copy()

    def _checked(self, index: int) -> int:
        number = operator.index(index)
        if not 0 <= number < self._samples:
            raise IndexError(f"there are the samples 0..{self._samples - 1}, so there is no sample {number}")
        return number

    def _span(self, number: int) -> tuple[int, int]:
        return number * self._length, (number + 1) * self._length + 1

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Any]) -> None:
        """Read the windows of a remote file that will be asked for at the same time; see `protocols.Prefetching`."""
        del upcoming
        if isinstance(self._tokens, Ranged):
            self._tokens.hold(self._span(operator.index(index)) for index in indices)

    def locate(self, indices: Iterable[int]) -> list[Span]:
        """Return the tokens of samples, as of those of `Loader.sample_indices`; none is read."""
        spans = [self._span(self._checked(index)) for index in indices]
        return [Span(self._tokens.name, start, stop - 1) for start, stop in spans]

    def fingerprint(self) -> str:
        """Return what tells these samples from others: the file's name, its size, some of its tokens, and `length`."""
        return f"{self._tokens.digest()} length={self._length}"

    def __repr__(self) -> str:
        return f"Tokens({self._tokens.name!r}, {self._length})"
