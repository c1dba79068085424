"""Draws: takes elements from a source's iterator, each under the randomness of its position."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from resumable.errors import StateMismatchError
from resumable.keyed import BlockCache
from resumable.randomness import SampleKeys, isolated, reseed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from resumable.options import Options

__all__ = ["Draws", "too_few"]

_SILENT_SECONDS = 1.0
_SKIP_BLOCK = 256
_TRANSFORM = 0x5DEECE66D1234567  # sets a transform's key apart from that of the draw before it
_OPENING = (1 << 62) - 1  # the counter whose batch key opens an epoch


class Draws:
    """One epoch's draws from a source.

    Args:
        options: transform, collate, batch size and seed.
        epoch: the epoch.
        stream: integers that set this rank's keys apart, where ranks have streams of their own.
        seeds: seed the global generators, and give them back as they were.
    """

    def __init__(self, options: Options, epoch: int, stream: tuple[int, ...], *, seeds: bool) -> None:
        self._options, self._seeds = options, seeds
        self._keys = SampleKeys(options.seed, epoch, *stream)
        self._element_keys = BlockCache(self._keys.samples, 1 << 62)
        self._elements: Iterator[Any] = iter(())
        self._ahead: list[Any] = []  # drawn, and not taken yet; at most a batch
        self._error: Exception | None = None

    def guard(self, key: int | None = None) -> AbstractContextManager[None]:
        """Give the global generators back behind what runs inside, where they are seeded at all."""
        return isolated(key) if self._seeds else nullcontext()

    def begin(self, opener: Callable[[], Iterator[Any]]) -> None:
        """Open the source, under a randomness that belongs to the epoch."""
        with self.guard(self._keys.batch(_OPENING)):
            self._elements = opener()

    def begin_or(self, opener: Callable[[], Iterator[Any]], otherwise: Callable[[], Iterator[Any]]) -> None:
        """Open the source, and in another way if that gives no element.

        Brought back to a place between two epochs, some sources are at the end of the old epoch instead of the
        beginning of the new one.
        """
        self.begin(opener)
        if not self.has(0):
            self.begin(otherwise)

    def take(self, position: int, count: int, *, keep: bool = True) -> list[Any]:
        """Draw up to `count` elements, fewer at the end; without `keep` they are dropped and None stands for each."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        ahead, self._ahead = self._ahead[:count], self._ahead[count:]
        drawn = ahead + self._draw(position + len(ahead), count - len(ahead), keep=keep)
        return drawn if keep else [None] * len(drawn)

    @property
    def is_ahead(self) -> bool:
        """Whether elements were drawn that are not taken yet."""
        return bool(self._ahead)

    def has(self, position: int, count: int = 1) -> bool:
        """Tell whether there are so many more elements, by drawing them ahead; if that fails, the next draw fails."""
        while len(self._ahead) < count and self._error is None:
            try:
                drawn = self._draw(position + len(self._ahead), 1, keep=True)
            except Exception as error:  # noqa: BLE001  # of whatever type, it is raised where it belongs
                self._error = error
            else:
                if not drawn:
                    return False
                self._ahead += drawn
        return True

    def skip(self, position: int, count: int) -> None:
        """Go past `count` elements: by the iterator's own `skip`, or by drawing them.

        Raises:
            StateMismatchError: the source has fewer.
        """
        if hasattr(self._elements, "skip") and not self._ahead:
            with self.guard():
                self._elements.skip(count)
            return
        from tqdm import tqdm  # noqa: PLC0415  # a third of the time that importing this package would take

        with tqdm(total=count, desc="resuming", unit="element", delay=_SILENT_SECONDS, leave=False) as bar:
            for begin in range(position, position + count, _SKIP_BLOCK):
                asked = min(_SKIP_BLOCK, position + count - begin)
                drawn = len(self.take(begin, asked, keep=False))
                bar.update(drawn)
                if drawn < asked:
                    raise too_few(position + count, begin + drawn)

    def assemble(self, elements: list[Any], position: int) -> Any:
        """Make the batch of this rank's elements: transform each, and collate them."""
        transform, collate, single = self._options.transform, self._options.collate, self._options.batch_size is None
        if transform is not None:
            with self.guard():
                keys = self._sample_keys(position, len(elements))
                elements = [self._transformed(*pair, transform) for pair in zip(elements, keys, strict=True)]
        if single or collate is None:
            return elements[0] if single else elements
        with self.guard(self._keys.batch(position)):
            return collate(elements)

    def close(self) -> None:
        """Close the iterator, where it can be closed."""
        close = getattr(self._elements, "close", None)
        if close is not None:
            close()

    def _draw(self, position: int, count: int, *, keep: bool) -> list[Any]:
        if not self._seeds:
            return [element if keep else None for element in islice(self._elements, count)]
        drawn: list[Any] = []
        with self.guard():
            for key in self._sample_keys(position, count):
                reseed(key)
                try:
                    element = next(self._elements)
                except StopIteration:
                    break
                drawn.append(element if keep else None)
        return drawn

    def _transformed(self, element: Any, key: int, transform: Callable[[Any], Any]) -> Any:
        if self._seeds:
            reseed(key ^ _TRANSFORM)
        return transform(element)

    def _sample_keys(self, position: int, count: int) -> list[int]:
        keys: list[int] = self._element_keys.take(position, position + count).tolist() if count else []
        return keys


def too_few(before: int, now: int) -> StateMismatchError:
    """Return what to raise for a source that gave fewer elements than a state says were read of it."""
    return StateMismatchError(
        "the source gave fewer elements than the run that saved the state had read of it.\n"
        f"  in the checkpoint: {before}\n  in this run:       {now}\n"
        "The data changed, or seek() went past the epoch's last whole batch. Give the data that the run was started "
        "with, or start a new run."
    )
