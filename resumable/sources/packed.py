"""Packed: documents of tokens in windows of equal length, packed differently in every epoch."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from resumable._randomness.keyed import check_seed
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.samplers.simple import Laps
from resumable.sources._files import Files
from resumable.sources._integers import Array, Joined, Ranged
from resumable.sources._packing import Concat, Documents, Fit, Flat, Pieces, open_documents
from resumable.sources.tokens import open_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.samplers import Sampler

__all__ = ["IGNORED", "How", "Packed", "Piece", "cu_seqlens"]

How = Literal["flat", "concat", "fit"]
IGNORED = -100  # targets that PyTorch's cross entropy ignores
_BLOCK = 4096


class Packed:
    """Documents packed into windows of `length` tokens; for `wrap`, a `DataLoader`, or use on its own.

    Sample `i` is a dict of arrays of shape `(length,)`, 64-bit integers:

        input     the tokens of one or several documents
        target    the next token of the same document; -100 if there is none, which PyTorch's losses ignore
        position  0, 1, ... from the start of each document's piece
        document  number of the document; -1 for padding

    The content of a window is a function of the epoch and the window's number. Only 16 bytes per block of documents are
    kept in memory. Index `e * len(packed) + i` is window `i` of epoch `e`. `wrap` reads the windows of its epoch in the
    order that its `shuffle` selects, and so does a mixture of `resumable.mix`. Without either, all windows are from
    epoch 0. `wrap` rejects other datasets around it, such as a `Subset`, which do not pass the epoch on.

    Args:
        tokens: as for `Tokens`: path or URL of a `.npy`, a `.bin`, or a Megatron `.bin` with its `.idx`; a list of
            them, or a pattern; or an array.
        length: tokens per window.
        documents: lengths of the documents, in the order of the tokens: path or URL of a `.npy`, a list of these, or
            integers of shape `(n,)`. None means the lengths in Megatron's index; without an index, all tokens are one
            document.
        how: "flat" splits the stored tokens into windows, with an offset that depends on the epoch. "concat" shuffles
            the documents of a block in every epoch before it splits. "fit" puts complete documents into windows, and
            splits only longer ones; every token is used exactly once, and windows are padded with `pad`.
        block: documents per block.
        seed: selects the content of the windows in each epoch. The seed of `wrap` selects their order.
        pad: token that fills up windows ("fit").
        dtype: dtype of a file with only tokens. None means `uint16` for a `.bin`.
        sidecar: if the lengths are in a local file, save the sums of the blocks next to it for later runs.
        storage_options: for the filesystem of URLs, as in fsspec.

    Raises:
        ConfigurationError: a file is truncated, the lengths do not match the tokens, or there are too few tokens.
        DataError: while reading, if a file was rewritten since it was opened.
    """

    def __init__(  # noqa: PLR0913  # keyword-only options with defaults
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
                f"{self._tokens.name} has {self._tokens.count} tokens, which is too few for a window of length="
                f'{self._length} with how="{how}".\nUse a smaller length, or how="fit", which keeps all tokens.'
            )

    @property
    def sizes(self) -> IntArray:
        """Numbers of windows from the same block of documents, for `shuffle="blocks"`; shape `(blocks,)`."""
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
        """Read the next windows from a remote file at the same time; see `protocols.Prefetching`."""
        del upcoming
        if isinstance(self._tokens, (Ranged, Joined)):
            self._tokens.hold(span for index in indices for span in _spans(self.pieces(index)))

    def pieces(self, index: int) -> Pieces:
        """Return the pieces of documents in a window, without reading tokens."""
        number = operator.index(index)
        if number < 0:
            raise IndexError(f"window {number} does not exist: the windows of epoch 0 are 0..{len(self) - 1}")
        return self._packing.pieces(*divmod(number, len(self)))

    def locate(self, indices: Iterable[int]) -> list[tuple[Piece, ...]]:
        """Return the pieces in windows, for example of `Loader.sample_indices`, without reading tokens."""
        found = map(self.pieces, indices)
        return [tuple(map(Piece, *(part.tolist() for part in one[:3]))) for one in found]

    def resumable_epochs(self, sampler: Sampler) -> Laps:
        """Return an order of the windows, with the epoch in its indices."""
        return Laps(sampler, len(self), self._what)

    def fingerprint(self) -> str:
        """Return a text that identifies the windows: digests of some tokens and lengths, and the packing."""
        return f"{self._tokens.digest()}; {self._documents.digest()}; {self._what} pad={self._pad}"

    def __repr__(self) -> str:
        return f"Packed({self._tokens.name!r}, <{self._documents.count} documents>, {self._what})"


def _spans(pieces: Pieces) -> list[tuple[int, int]]:
    """Return the token range of each piece, including the next token of its document."""
    stops = pieces.at + pieces.length + ~np.asarray(pieces.ends, bool)
    return list(zip(pieces.at.tolist(), stops.tolist(), strict=True))


def _token(pad: Any) -> int:
    try:
        return int(np.int64(operator.index(pad)))
    except (TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"pad must be an integer of at most 63 bits, but it is {pad!r}.\nIt is the token that fills up windows."
        ) from error


def _check_how(how: object, *, bare: bool) -> None:
    known = get_args(How)
    if how not in known:
        raise ConfigurationError(
            f"how must be one of {', '.join(known)}, but it is {how!r}.\nIt selects how documents fill the windows."
        )
    if bare and how != "flat":
        raise ConfigurationError(
            f'how="{how}" needs the lengths of the documents, but there are none.\nAll tokens would be one document, '
            'cut into windows in order. Pass documents=, or use how="flat".'
        )


class Piece(NamedTuple):
    """A piece of a document in a window: the document's tokens `first..first+length-1`."""

    document: int
    first: int
    length: int

    def __str__(self) -> str:
        return f"document {self.document}, tokens {self.first}..{self.first + self.length - 1}"


def cu_seqlens(positions: ArrayLike) -> NDArray[np.int32]:
    """Return the start of each piece in a batch and the end of the last one, for attention over packed sequences.

    Args:
        positions: of the tokens, as in the samples of `Packed`; shape `(length,)` or `(batch, length)`.

    Returns:
        Boundaries in the flattened batch; shape `(pieces + 1,)`, 32-bit integers.
    """
    flat = np.asarray(positions).reshape(-1)
    return np.append(np.flatnonzero(flat == 0), len(flat)).astype(np.int32)
