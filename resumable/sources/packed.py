"""Packed: documents of tokens in windows of one length, in another order in every epoch."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from resumable._randomness.keyed import check_seed
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.samplers.simple import Laps
from resumable.sources._files import Files
from resumable.sources._integers import Array, Ranged
from resumable.sources._packing import Concat, Documents, Fit, Flat, Pieces, open_documents
from resumable.sources.tokens import open_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.samplers import Sampler

__all__ = ["IGNORED", "How", "Packed", "Piece", "cu_seqlens"]

How = Literal["flat", "concat", "fit"]

IGNORED = -100  # what torch's cross entropy leaves out
_BLOCK = 4096


class Piece(NamedTuple):
    """A piece of a document in a window: the tokens `first..first+length-1` of that."""

    document: int
    first: int
    length: int

    def __str__(self) -> str:
        return f"document {self.document}, tokens {self.first}..{self.first + self.length - 1}"


class Packed:
    """Documents packed into windows of `length` tokens; for `wrap`, a `DataLoader`, or by itself.

    Sample `i` is a dict of arrays of shape `(length,)`, 64-bit integers:

        input     the tokens of one or several documents
        target    the token that follows in the same document; -100 where none does, which torch's losses leave out
        position  0, 1, ... from the beginning of each document's piece
        document  number of the document; -1 where a window is filled up

    What is in a window is a function of the epoch and its number, and nothing is kept but 16 bytes for each block
    of documents. Index `e * len(packed) + i` is window `i` of epoch `e`; `wrap` reads those of its epoch, and says by
    `shuffle` in which order. Without `wrap`, and inside of a mixture or a `Subset`, the windows are those of epoch 0.

    Args:
        tokens: as for `Tokens`: path or URL of a `.npy`, a `.bin`, or Megatron's `.bin` and `.idx`; or an array.
        length: tokens per window.
        documents: lengths of the documents, in the order of the tokens: path or URL of a `.npy`, or integers of shape
            `(n,)`. None: those of Megatron's index; without one, all tokens are one document.
        how: "flat" cuts the documents as they are stored, from a place that differs by epoch. "concat" puts those of a
            block in another order in every epoch before it cuts. "fit" puts whole documents into windows, and cuts
            only those that are longer; every token comes exactly once, and windows are filled up with `pad`.
        block: documents per block.
        seed: selects what is in the windows of each epoch; the order of the windows has the seed of `wrap`.
        pad: token that fills up windows ("fit").
        dtype: of the tokens of a `.bin`. None: what its index says, or `uint16`.
        sidecar: keep the sums of the blocks in files beside that of the lengths, for later starts, if that is local.
        storage_options: for the file system of URLs, as fsspec takes them.

    Raises:
        ConfigurationError: files that were cut, lengths that do not belong to the tokens, or too few tokens.
        DataError: while reading, if a file was written again since it was opened.
    """

    def __init__(  # noqa: PLR0913  # what a packing depends on; each has a default
        self,
        tokens: Any,
        length: int,
        *,
        documents: Any = None,
        how: How = "flat",
        block: int = _BLOCK,
        seed: int = 0,
        pad: int = 0,
        dtype: DTypeLike | None = None,
        sidecar: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        files = Files(storage_options)
        self._tokens, self._length = open_tokens(tokens, dtype, files), check_length(length, "the length of a window")
        self._pad, size = _token(pad), check_length(block, "the documents of a block")
        given = open_documents(documents, tokens, files)
        _check_how(how, bare=given is None)
        lengths = given or Array(np.array([self._tokens.count]))
        self._documents = Documents(lengths, size, self._tokens.count, keep=sidecar)
        self._what = f"{how}-v1 length={self._length} block={size} seed={check_seed(seed)}"
        common = self._documents.block, self._documents.ends, size, self._length, seed
        self._packing: Flat | Concat | Fit
        if how == "flat":
            self._packing = Flat(*common, targets=int(given is None))
        elif how == "concat":
            self._packing = Concat(*common)
        else:
            counts = self._documents.kept(f"{size}-fit-{self._length}", lambda: Fit(*common).sizes)
            self._packing = Fit(*common, counts=counts)
        self._refuse_empty(how)

    def _refuse_empty(self, how: str) -> None:
        if not self._packing.windows:
            raise ConfigurationError(
                f"{self._tokens.name} has {self._tokens.count} tokens, which fill no window of {self._length} "
                f'(how="{how}").\nThere would be no sample. Give a smaller length; "fit" leaves nothing out.'
            )

    @property
    def sizes(self) -> IntArray:
        """Windows that come from the same documents, as `shuffle="blocks"` takes them together; shape `(blocks,)`."""
        return self._packing.sizes

    def __len__(self) -> int:
        return self._packing.windows

    def __iter__(self) -> Iterator[dict[str, IntArray]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> dict[str, IntArray]:
        pieces, room = self.pieces(index), self._length
        sample = {name: np.full(room, value) for name, value in (("input", self._pad), ("target", IGNORED))}
        filled = 0
        for count, span in zip(pieces.length.tolist(), _spans(pieces), strict=True):
            read = self._tokens.read(*span)
            sample["input"][filled : filled + count] = read[:count]
            sample["target"][filled : filled + len(read) - 1] = read[1:]
            filled += count
        counts = np.append(pieces.length, room - filled)
        begins = np.cumsum(counts) - counts
        sample["position"] = np.arange(room) - np.repeat(begins, counts)
        sample["document"] = np.repeat(np.append(pieces.document, -1), counts)
        return sample

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Any]) -> None:
        """Read the pieces of remote windows that will be asked for at the same time; see `protocols.Prefetching`."""
        del upcoming
        if isinstance(self._tokens, Ranged):
            self._tokens.hold(span for index in indices for span in _spans(self.pieces(index)))

    def pieces(self, index: int) -> Pieces:
        """Return which piece of which document is in a window, without reading a token."""
        number = operator.index(index)
        if number < 0:
            raise IndexError(f"the windows of epoch 0 are 0..{len(self) - 1}, so there is no window {number}")
        return self._packing.pieces(*divmod(number, len(self)))

    def locate(self, indices: Iterable[int]) -> list[tuple[Piece, ...]]:
        """Return the pieces of documents in windows, as of those of `Loader.sample_indices`; no token is read."""
        found = map(self.pieces, indices)
        return [tuple(map(Piece, *(part.tolist() for part in one[:3]))) for one in found]

    def resumable_epochs(self, sampler: Sampler) -> Laps:
        """Return an order of the windows, with the epoch in its indices."""
        return Laps(sampler, len(self), self._what)

    def fingerprint(self) -> str:
        """Return what tells these windows from others: of tokens and lengths, the number and some; and the packing."""
        return f"{self._tokens.digest()}; {self._documents.digest()}; {self._what} pad={self._pad}"

    def __repr__(self) -> str:
        return f"Packed({self._tokens.name!r}, <{self._documents.count} documents>, {self._what})"


def _spans(pieces: Pieces) -> list[tuple[int, int]]:
    """Return the tokens of each piece, with the one that follows it in its document."""
    stops = pieces.at + pieces.length + ~np.asarray(pieces.ends, bool)
    return list(zip(pieces.at.tolist(), stops.tolist(), strict=True))


def cu_seqlens(positions: ArrayLike) -> NDArray[np.int32]:
    """Return where the pieces of a batch begin, and where the last one ends, as attention over packed sequences wants.

    Args:
        positions: of the tokens, as in the samples of `Packed`; shape `(length,)` or `(batch, length)`.

    Returns:
        Borders in the batch as one row; shape `(pieces + 1,)`, 32-bit integers.
    """
    flat = np.asarray(positions).reshape(-1)
    return np.append(np.flatnonzero(flat == 0), len(flat)).astype(np.int32)


def _token(pad: Any) -> int:
    try:
        return int(np.int64(operator.index(pad)))
    except (TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"pad must be an integer of at most 63 bits, but it is {pad!r}.\nWindows are filled up with it, as a token."
        ) from error


def _check_how(how: object, *, bare: bool) -> None:
    known = get_args(How)
    if how not in known:
        raise ConfigurationError(
            f"how must be one of {', '.join(known)}, but it is {how!r}.\nIt says how documents fill the windows."
        )
    if bare and how != "flat":
        raise ConfigurationError(
            f'how="{how}" was given, but no lengths of documents.\nAll tokens would be one document, in one window '
            'after the other. Give documents=, or leave how="flat".'
        )
