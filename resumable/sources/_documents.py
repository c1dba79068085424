"""Lengths of documents: their sums by blocks, kept in a file beside them, so that later starts read no more."""

from __future__ import annotations

import contextlib
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._durable import write_whole
from resumable.errors import ConfigurationError
from resumable.sources._megatron import index_of, lengths_of
from resumable.sources._token_file import open_vector

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable._randomness.keyed import IntArray
    from resumable.sources._files import Files
    from resumable.sources._ranged import TokenSource

__all__ = ["Documents", "open_documents"]

_VERSION = 1
_AT_ONCE = 1 << 22  # lengths


def open_documents(documents: Any, tokens: Any, files: Files) -> TokenSource | None:
    """Open the lengths of the documents: those given, or those of the index beside a `.bin`; None where there are none.

    Raises:
        ConfigurationError: they are no integers of shape `(n,)`, there are none, or the index was cut.
    """
    if documents is None:
        index = index_of(tokens, files)
        return None if index is None else lengths_of(index, files)
    found = open_vector(documents, "the lengths of the documents", files)
    if not found.count:
        raise ConfigurationError(
            f"{found.name}: there are no documents.\nThere would be nothing to read. Check what wrote the lengths."
        )
    return found


class Documents:
    """The lengths of documents, in blocks.

    Args:
        lengths: of all documents.
        block: documents per block.
        total: tokens that all of them have to have.
        keep: keep sums in a file beside that of the lengths.

    Raises:
        ConfigurationError: they have another number of tokens, or a length is negative.

    Attributes:
        ends: tokens up to the end of each block, shape `(blocks,)`.
    """

    def __init__(self, lengths: TokenSource, block: int, total: int, *, keep: bool) -> None:
        self._source, self._size, self._keep = lengths, block, keep
        self.count = lengths.count
        self.ends = np.cumsum(self.kept(f"{block}", self._sum))
        if int(self.ends[-1]) != total:
            raise ConfigurationError(
                f"the lengths of the documents do not belong to the tokens.\n  tokens by the lengths: {self.ends[-1]}\n"
                f"  tokens there are:      {total}\nDocuments would begin in wrong places. Give one length for each "
                "document, in the order of the tokens: lengths, and not where the documents begin."
            )

    def block(self, number: int) -> IntArray:
        """Return the lengths of the documents of a block."""
        return self._source.read(number * self._size, (number + 1) * self._size)

    def _sum(self) -> IntArray:
        sums, step = [], max(_AT_ONCE // self._size, 1) * self._size
        for first in range(0, self.count, step):
            part = self._source.read(first, first + step)
            if part.min() < 0:
                wrong = int(np.flatnonzero(part < 0)[0])
                raise ConfigurationError(
                    f"the length of document {first + wrong} is {part[wrong]}.\nNo document has fewer than 0 tokens, "
                    "and all after it would begin in wrong places. Check what wrote the lengths."
                )
            sums.append(np.add.reduceat(part, np.arange(0, len(part), self._size), dtype=np.int64))
        return np.concatenate(sums)

    def kept(self, what: str, compute: Callable[[], IntArray]) -> IntArray:
        """Return an integer for each block: from the file beside the lengths, where there is one that belongs to them.

        Args:
            what: names the integers, in the name of the file.
            compute: computes them, where there is none. They are then written, if the folder can be written to.
        """
        source = self._source
        if not self._keep or source.path is None:
            return compute()
        path = source.path.with_name(f"{source.path.name}.packed-{what}.npz")
        mark = np.array([_VERSION, *source.stamp, source.count])
        found = _read(path, mark, -(-self.count // self._size))
        if found is None:
            found = compute()
            with contextlib.suppress(OSError):  # a folder that cannot be written to: computed again next time
                write_whole(path, partial(np.savez, mark=mark, values=found.astype(np.int64)))
        return found

    def digest(self) -> str:
        """Return what tells the lengths from others."""
        return self._source.digest()


def _read(path: Path, mark: IntArray, blocks: int) -> IntArray | None:
    """Return what is in a file; None where it is not there, damaged, or of other lengths."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            values: IntArray = file["values"]
            same = np.array_equal(file["mark"], mark)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return values if same and values.dtype == np.int64 and values.shape == (blocks,) else None
