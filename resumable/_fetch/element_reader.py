"""Draws elements from an iterator under keys, so that what an element gets belongs to its position.

    begin    opens the source under the key of the epoch's opening
    has      draws ahead, to look whether there is more
    take     gives the next elements
    skip     goes past some

Used by the fetcher of elements in the training process, and by `DataLoader` workers for their streams.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from resumable._fetch.failures import note_first
from resumable._fetch.reader import no_end
from resumable._introspection import ask
from resumable._randomness.keyed import BlockCache
from resumable._randomness.keys import SampleKeys, isolated, reseed
from resumable._randomness.own_generators import OwnGenerators
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from resumable._options import Options
    from resumable._randomness.keys import Randomness

__all__ = ["OPENING", "ElementReader", "SeededReader", "too_few"]


OPENING = (1 << 62) - 1  # the counter whose batch key opens an epoch, wherever in it a run begins
_SILENT_SECONDS = 1.0
_SKIP_BLOCK = 256
_FARTHEST = 1 << 40  # elements to draw again; at a microsecond each, that takes 12 days


class SeededReader:
    """One epoch's draws from a source.

    Args:
        keys: of the epoch.
        mode: how often the global generators are seeded.
        size: elements of a batch, for `mode="batch"`.
        guard: gives the global generators back after what runs inside, where that is not done around all of it.
        unit: what an element is, for the progress bar; None for no bar.
    """

    def __init__(
        self,
        keys: SampleKeys,
        mode: Randomness,
        *,
        size: int = 1,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
        unit: str | None = "element",
    ) -> None:
        self._keys, self._mode, self._size, self._given_guard, self._unit = keys, mode, size, guard, unit
        self._element_keys = BlockCache(keys.samples, 1 << 62)
        self._elements: Iterator[Any] = iter(())
        self._ahead: list[Any] = []  # drawn, and not taken yet; at most a batch
        self._error: Exception | None = None
        self.position = 0  # of the element that was drawn last, or failed
        self.skipped = False  # whether elements were gone past without being drawn

    def begin(self, opener: Callable[[], Iterator[Any]]) -> None:
        """Open the source, under a randomness that belongs to the epoch."""
        self._ahead, self._error, self.skipped = [], None, False
        with self._given_guard():
            if self._mode != "off":
                reseed(self._keys.batch(OPENING))
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
    def ahead(self) -> list[Any]:
        """Elements that were drawn and are not taken yet."""
        return self._ahead

    def has(self, position: int, count: int = 1) -> bool:
        """Return whether there are so many more elements, by drawing them ahead; if that fails, the next draw fails."""
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

    @property
    def strides(self) -> bool:
        """Whether elements between others can be skipped without being drawn."""
        return callable(ask(self._elements, "skip")) and bool(ask(self._elements, "anywhere", True))

    @property
    def borrows(self) -> bool:
        """Whether the way to skip is one that the iterator itself does not have."""
        return ask(self._elements, "borrowed", False) is True

    def skip(self, position: int, count: int, *, read: bool = False) -> int:
        """Go past `count` elements, by the iterator's own `skip` or by drawing them, and return how many there were.

        Args:
            position: of the first.
            count: how many.
            read: draw them, whatever the iterator can do.

        Raises:
            UnsupportedError: it would never end.
        """
        if not read and self._error is None and count:
            ahead = min(len(self._ahead), count)
            self._ahead = self._ahead[ahead:]
            position, count = position + ahead, count - ahead
            return ahead + (self._skip(position, count) if count else 0)
        return self._read_on(position, count)

    def _skip(self, position: int, count: int) -> int:
        skip = ask(self._elements, "skip")
        if callable(skip):
            with self._given_guard():
                try:
                    skipped = skip(count) is not False
                except StopIteration:
                    self._elements, skipped = iter(()), True
            if skipped:
                self.skipped = True
                return count
        return self._read_on(position, count)

    def _read_on(self, position: int, count: int) -> int:
        """Draw elements and drop them."""
        if count > _FARTHEST:
            raise UnsupportedError(
                f"the place is {count} elements into the epoch, and this source is read up to it, one by one.\n"
                "That would take forever. If the number is right, give the source a state, or a method skip(n)."
            )
        from tqdm import tqdm  # noqa: PLC0415  # a third of the time that importing this package would take

        hidden, begin = self._unit is None, position
        with tqdm(
            total=count, desc="resuming", unit=self._unit or "", delay=_SILENT_SECONDS, leave=False, disable=hidden
        ) as bar:
            while begin < position + count:
                asked = min(_SKIP_BLOCK, position + count - begin)
                drawn = len(self.take(begin, asked, keep=False))
                bar.update(drawn)
                begin += drawn
                if drawn < asked:
                    break
        return begin - position

    def close(self) -> None:
        """Close the iterator, where it can be closed."""
        close = ask(self._elements, "close")
        if callable(close):
            close()

    def _draw(self, position: int, count: int, *, keep: bool) -> list[Any]:
        if self._mode == "off":
            self.position = position
            return [self._kept(element, keep=keep) for element in islice(self._elements, count)]
        drawn: list[Any] = []
        with self._given_guard():
            for place, key in enumerate(self._seeds(position, count), start=position):
                self.position = place
                if key is not None:
                    reseed(key)
                try:
                    element = next(self._elements)
                except StopIteration:
                    break
                drawn.append(element if keep else None)
        return drawn

    def _kept(self, element: Any, *, keep: bool) -> Any:
        self.position += 1
        return element if keep else None

    def _seeds(self, position: int, count: int) -> list[int | None]:
        """Return what to seed with before each element; None where the generators run on."""
        if self._mode == "sample":
            return list(self.sample_keys(position, count))
        places = range(position, position + count)
        return [self._keys.batch(place) if place % self._size == 0 else None for place in places]

    def sample_keys(self, position: int, count: int) -> list[int]:
        """Return the keys of `count` elements."""
        keys: list[int] = self._element_keys.take(position, position + count).tolist() if count else []
        return keys


_TRANSFORM = 0x5DEECE66D1234567  # sets a transform's key apart from that of the draw before it
_OF_ITS_OWN = (
    "what is done to the elements draws from a random generator of its own, {}: a {}.\n"
    "Over a source that is read by index it would be seeded for each sample. Here it is not, so after a resume it "
    "would give other numbers. Draw from random, numpy.random or torch; or make a new generator in each call, from "
    "a number that these give."
)


class ElementReader(SeededReader):
    """One epoch's draws from a source.

    Args:
        options: transform, collate, batch size and seed.
        epoch: the epoch.
        stream: integers that set this rank's keys apart, where ranks have streams of their own.
        seeds: seed the global generators, and give them back as they were.
    """

    def __init__(self, options: Options, epoch: int, stream: tuple[int, ...], *, seeds: bool) -> None:
        super().__init__(
            SampleKeys(options.stream_seed, epoch, *stream),
            "sample" if seeds else "off",
            guard=isolated if seeds else nullcontext,
        )
        self._options, self._seeds_them, self._epoch = options, seeds, epoch
        roots = {"transform": options.transform, "collate": options.collate}
        self._own = OwnGenerators({name: root for name, root in roots.items() if seeds and root is not None})

    def guard(self, key: int | None = None) -> AbstractContextManager[None]:
        """Give the global generators back after what runs inside, where they are seeded at all."""
        return isolated(key) if self._seeds_them else nullcontext()

    def take(self, position: int, count: int, *, keep: bool = True) -> list[Any]:
        """Draw elements; what the source raises gets a note of its element."""
        try:
            return super().take(position, count, keep=keep)
        except Exception as error:
            note_first(error, f"element {self.position} of the epoch")
            raise

    def has_ended(self, position: int, tells: Callable[[], bool] | None) -> bool:
        """Return whether there are no more elements: by drawing one ahead, or by its own word if none was."""
        if tells is None or self.ahead:
            return not self.has(position)
        with self.guard():
            return tells()

    def assemble(self, elements: list[Any], position: int) -> Any:
        """Make the batch of this rank's elements: transform each, and collate them.

        Warns:
            PromiseWarning: that draws from a generator of its own. An element cannot be read again with it seeded.
        """
        with self._told_of_own():
            return self._assembled(elements, position)

    @contextmanager
    def _told_of_own(self) -> Iterator[None]:
        own = self._own.before(self._epoch)
        looks = [generator.look() for generator in own]
        yield
        for generator, look in zip(own, looks, strict=True):
            if generator.changed(look):
                warnings.warn(_OF_ITS_OWN.format(generator.name, generator.kind), PromiseWarning, stacklevel=2)

    def _assembled(self, elements: list[Any], position: int) -> Any:
        transform, collate, single = self._options.transform, self._options.collate, self._options.batch_size is None
        if transform is not None:
            with self.guard():
                keys = self.sample_keys(position, len(elements))
                elements = [self._transformed(*pair, transform) for pair in zip(elements, keys, strict=True)]
        if single or collate is None:
            return elements[0] if single else elements
        with self.guard(self._keys.batch(position)):
            return no_end("collate", collate, elements)

    def _transformed(self, element: Any, key: int, transform: Callable[[Any], Any]) -> Any:
        if self._seeds_them:
            reseed(key ^ _TRANSFORM)
        return no_end("transform", transform, element)


def too_few(before: int, now: int) -> StateMismatchError:
    """Return what to raise for a source that gave fewer elements than there are before a place to go to."""
    return StateMismatchError(
        "the source ended before the place to go to, which a state or seek() gave.\n"
        f"  elements before that place:   {before}\n  elements that the source has: {now}\n"
        "The next batch would be one of another place. For a state, give the data that the run was started with, or "
        "start a new run; for seek(), give a step that the epoch has."
    )
