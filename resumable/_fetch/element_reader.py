"""Reads elements from an iterator under keys, so the randomness of an element depends only on its position.

    begin    opens the source under the key of the epoch's opening
    has      reads ahead, to check whether elements are left
    take     returns the next elements
    skip     skips elements

The element fetcher uses it in the training process, and `DataLoader` workers use it for their streams.
"""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from resumable._content import Canary
from resumable._fetch.failures import note_first
from resumable._fetch.reader import no_end
from resumable._introspection import ask
from resumable._randomness.keyed import BlockCache
from resumable._randomness.keys import SampleKeys, isolated, reseed, states
from resumable._randomness.own_generators import OwnGenerators
from resumable._randomness.passed import borrow_rng, return_rng
from resumable._randomness.seeding import Seeding
from resumable._warn import warn
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from resumable._options import Options
    from resumable._randomness.keys import Randomness
    from resumable._randomness.passed import SampleRNG

__all__ = ["FEW", "OPENING", "ElementReader", "SeededReader", "too_few"]


OPENING = (1 << 62) - 1  # the counter of the batch key under which an epoch opens, at any position in it
FEW = 4  # elements of the start of an epoch that are noted
_SILENT_SECONDS = 1.0
_SKIP_BLOCK = 256
_WATCHED_SECONDS = 0.05, 0.25  # as long as the first element took, within these limits
_FARTHEST = 1 << 40  # elements to read again; at 1 µs each, that takes 12 days


class SeededReader:
    """Reads one epoch from a source.

    Args:
        keys: of the epoch.
        mode: how often the global RNGs are seeded.
        size: elements of a batch, for `mode="batch"`.
        guard: restores the global RNGs after the code inside, if that is not done around all of it.
        unit: the name of an element, for the progress bar; None for no bar.
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
        self._ahead: list[Any] = []  # read ahead, and not taken yet; at most a batch
        self._error: Exception | None = None
        self._threads: set[threading.Thread] | None = None  # before the source was opened; None after the first element
        self._opened = 0.0
        self._over = False  # the end was reached; some iterators would start over after it
        self.position = 0  # of the element that was read last, or failed
        self.skipped = False  # whether elements were skipped without being read
        self.first = dict[int, Canary]()  # the canaries of the first elements of the epoch, if they were read

    def begin(self, opener: Callable[[], Iterator[Any]]) -> None:
        """Open the source, with randomness that belongs to the epoch."""
        self._ahead, self._error, self.skipped, self._over = [], None, False, False
        with self._given_guard():
            if self._mode != "off":
                reseed(self._keys.batch(OPENING))
                self._threads, self._opened = set(threading.enumerate()), time.monotonic()
            self._elements = opener()
            if self._threads is not None and self._started():
                self._read_at_once()

    def begin_or(self, opener: Callable[[], Iterator[Any]], otherwise: Callable[[], Iterator[Any]]) -> None:
        """Open the source, or use a second opener if the first yields no element.

        If restored to a position between two epochs, some sources are at the end of the old epoch instead of the start
        of the new one.
        """
        self.begin(opener)
        if not self.has(0):
            self.begin(otherwise)

    def take(self, position: int, count: int, *, keep: bool = True) -> list[Any]:
        """Read up to `count` elements, fewer at the end; without `keep` each is replaced with None."""
        if self._error is not None and len(self._ahead) < count:
            error, self._error = self._error, None
            raise error
        ahead, self._ahead = self._ahead[:count], self._ahead[count:]
        drawn = ahead + self._draw(position + len(ahead), count - len(ahead), keep=keep)
        if keep and position < FEW:
            self.first |= {place: Canary(one) for place, one in zip(range(position, FEW), drawn, strict=False)}
        return drawn if keep else [None] * len(drawn)

    @property
    def ahead(self) -> list[Any]:
        """Elements that were read, and are not taken yet."""
        return self._ahead

    @property
    def failed(self) -> bool:
        """Whether reading ahead failed, so the next `take` raises."""
        return self._error is not None

    def has(self, position: int, count: int = 1) -> bool:
        """Return whether `count` more elements exist, by reading them ahead. If that fails, the next `take` raises."""
        while len(self._ahead) < count and self._error is None:
            try:
                drawn = self._draw(position + len(self._ahead), 1, keep=True)
            except Exception as error:  # noqa: BLE001  # of any type, raised when its element is taken
                self._error = error
            else:
                if not drawn:
                    return False
                self._ahead += drawn
        return True

    @property
    def strides(self) -> bool:
        """Whether elements between others can be skipped without being read."""
        return callable(ask(self._elements, "skip")) and bool(ask(self._elements, "anywhere", True))

    @property
    def borrows(self) -> bool:
        """Whether skipping uses a method that the iterator itself does not have."""
        return ask(self._elements, "borrowed", False) is True

    def skip(self, position: int, count: int, *, read: bool = False) -> int:
        """Skip `count` elements, with the iterator's own `skip` or by reading them, and return how many there were.

        Args:
            position: of the first.
            count: how many.
            read: read them, even if the iterator can skip.

        Raises:
            UnsupportedError: it would take forever.
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
        """Read elements and drop them."""
        if count > _FARTHEST:
            raise UnsupportedError(
                f"the position is {count} elements into the epoch, and this source must read all of them to get "
                "there.\n"
                "That would take forever. If the number is correct, add a state to the source, or a method skip(n)."
            )
        from tqdm import tqdm  # noqa: PLC0415  # would add a third to the import time of this package

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
        """Close the iterator, if it can be closed. When Python exits, this module may have lost its names."""
        close = None if ask is None else ask(self._elements, "close")
        if callable(close):
            close()

    def _read_at_once(self) -> None:
        """Read the first element without a new seed: a thread may still be drawing the order of the epoch."""
        try:
            self._ahead = list(islice(self._elements, 1))
        except Exception as error:  # noqa: BLE001  # of any type, raised when its element is taken
            self._error = error
        self._watch_threads()

    def _started(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in (self._threads or ())]

    def _watch_threads(self) -> None:
        """Check whether threads that the source started use the RNGs while this one waits.

        Warns:
            PromiseWarning: they do.
        """
        started, self._threads = self._started(), None
        if not started or threading.current_thread() is not threading.main_thread():
            return  # if the loop reads in a thread, the trainer may use the RNGs as well
        before, now = states(), time.monotonic()
        end = now + min(max(_WATCHED_SECONDS[0], now - self._opened), _WATCHED_SECONDS[1])
        while time.monotonic() < end:
            time.sleep(_WATCHED_SECONDS[0] / 16)
            if states() != before:
                warn(_IN_A_THREAD.format(", ".join(thread.name for thread in started)), PromiseWarning)
                return

    def _draw(self, position: int, count: int, *, keep: bool) -> list[Any]:
        if self._over:
            return []
        if self._mode == "off":
            self.position = position
            read = [self._kept(element, keep=keep) for element in islice(self._elements, count)]
            self._over = len(read) < count
            return read
        drawn: list[Any] = []
        with self._given_guard():
            for place, key in enumerate(self._seeds(position, count), start=position):
                self.position = place
                if key is not None:
                    reseed(key)
                try:
                    element = next(self._elements)
                except StopIteration:
                    self._over = True
                    break
                drawn.append(element if keep else None)
                if self._threads is not None:
                    self._watch_threads()
        return drawn

    def _kept(self, element: Any, *, keep: bool) -> Any:
        self.position += 1
        return element if keep else None

    def _seeds(self, position: int, count: int) -> list[int | None]:
        """Return the seed for each element; None if the RNGs continue without a new seed."""
        if self._mode == "sample":
            return list(self.sample_keys(position, count))
        places = range(position, position + count)
        return [self._keys.batch(place) if place % self._size == 0 else None for place in places]

    def sample_keys(self, position: int, count: int) -> list[int]:
        """Return the keys of `count` elements."""
        keys: list[int] = self._element_keys.take(position, position + count).tolist() if count else []
        return keys


_IN_A_THREAD = (
    "the source started a thread ({}) that uses random, numpy.random or torch, while the Loader seeds the same RNGs.\n"
    "Which numbers the thread gets depends on the time, so its elements differ in every run. Do not read ahead in the "
    'source: wrap it without the thread, and start the thread over the Loader, with wrap(..., ack="manual"). Or let '
    "the code in the thread use its own generator, seeded with the epoch."
)
_TRANSFORM = 0x5DEECE66D1234567  # makes a transform's key differ from the key of reading the element
_OF_ITS_OWN = (
    "the transform or collate function uses its own random generator, {}: a {}.\n"
    "With a source that is read by index, it would be seeded for each sample. Here it is not, so its numbers differ "
    "after a resume. Use random, numpy.random or torch, or create a new generator in each call, seeded from one of "
    "these."
)


class ElementReader(SeededReader):
    """Reads one epoch from a source, and makes batches from it.

    Args:
        options: transform, collate, batch size, seed, and whether RNGs are passed.
        epoch: the epoch.
        stream: integers that make this rank's keys different, if ranks have separate streams.
        seeds: seed the global RNGs, and restore them afterwards.
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
        self._passed_to = Seeding(roots) if options.randomness == "passed" else None

    def guard(self, key: int | None = None) -> AbstractContextManager[None]:
        """Restore the global RNGs after the code inside, if they are seeded at all."""
        return isolated(key) if self._seeds_them else nullcontext()

    def take(self, position: int, count: int, *, keep: bool = True) -> list[Any]:
        """Read elements; an exception of the source gets a note with its element."""
        try:
            return super().take(position, count, keep=keep)
        except Exception as error:
            note_first(error, f"element {self.position} of the epoch")
            raise

    def has_ended(self, position: int, tells: Callable[[], bool] | None) -> bool:
        """Return whether no elements are left: by reading one ahead, or as the source says if none was read."""
        if tells is None or self.ahead:
            return not self.has(position)
        with self.guard():
            return tells()

    def assemble(self, elements: list[Any], position: int) -> Any:
        """Make the batch from this rank's elements: transform each, and collate them.

        Warns:
            PromiseWarning: the transform uses its own generator. An element cannot be read again with it seeded.
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
        if self._passed_to is None:
            return self._made(elements, position, None)
        rng = borrow_rng()
        try:
            return self._passed_to.watched(partial(self._made, elements, position, rng), self._epoch)
        finally:
            return_rng(rng)

    def _made(self, elements: list[Any], position: int, rng: SampleRNG | None) -> Any:
        transform, collate, single = self._options.transform, self._options.collate, self._options.batch_size is None
        if transform is not None:
            with self.guard():
                keys = self.sample_keys(position, len(elements))
                elements = [self._transformed(*pair, transform, rng) for pair in zip(elements, keys, strict=True)]
        if single or collate is None:
            return elements[0] if single else elements
        key = self._keys.batch(position)
        with self.guard(key):
            return no_end("collate", collate, elements, *(() if rng is None else (rng.at(key),)))

    def _transformed(self, element: Any, key: int, transform: Callable[..., Any], rng: SampleRNG | None) -> Any:
        if rng is not None:
            return no_end("transform", transform, element, rng.at(key))
        if self._seeds_them:
            reseed(key ^ _TRANSFORM)
        return no_end("transform", transform, element)


def too_few(before: int, now: int) -> StateMismatchError:
    """Return the error for a source that yielded fewer elements than there are before the requested position."""
    return StateMismatchError(
        "the source ended before the position that the state or seek() asked for.\n"
        f"  elements before that position: {before}\n  elements in the source:        {now}\n"
        "The next batch would have a different position. For a state, restore the data that the run started with, "
        "or start a new run. For seek(), pass a step that the epoch has."
    )
