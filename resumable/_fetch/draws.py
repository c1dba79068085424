"""Draws: takes elements from a source's iterator, each under the key of its position, and makes batches of them."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from resumable._fetch.failures import note_first
from resumable._fetch.keyed_draws import KeyedDraws
from resumable._fetch.reader import no_end
from resumable._randomness.keys import SampleKeys, isolated, reseed
from resumable._randomness.own import OwnGenerators
from resumable.errors import PromiseWarning, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from resumable._options import Options

__all__ = ["Draws", "too_few"]

_TRANSFORM = 0x5DEECE66D1234567  # sets a transform's key apart from that of the draw before it
_OF_ITS_OWN = (
    "what is done to the elements draws from a random generator of its own, {}: a {}.\n"
    "Over a source that is read by index it would be seeded for each sample. Here it is not, so after a resume it "
    "would give other numbers. Draw from random, numpy.random or torch; or make a new generator in each call, from "
    "a number that these give."
)


class Draws(KeyedDraws):
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
