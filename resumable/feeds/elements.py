"""The feed of snapshot and replay backends: sources that give elements in an order of their own.

In each round, every rank draws the elements of the whole global batch and keeps its share, so that ranks with the same
source get disjoint parts of one stream (with one element per rank: round-robin). Where a source divides itself over the
ranks already (`shard=False`), each rank draws only for itself, and the state belongs to that rank.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from resumable.backend import SnapshotBackend
from resumable.cursor import Cursor
from resumable.errors import ConfigurationError, StateMismatchError
from resumable.keyed import BlockCache
from resumable.randomness import SampleKeys, isolated, reseed
from resumable.schedule import Schedule, check_share, share
from resumable.state import Mark
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from resumable.backend import ReplayBackend
    from resumable.options import Options
    from resumable.randomness import Randomness
    from resumable.schedule import Tail

__all__ = ["ElementFeed"]

_SILENT_SECONDS = 1.0
_SKIP_BLOCK = 256
_TRANSFORM = 0x5DEECE66D1234567


class ElementFeed:
    """Rounds of elements, each under the randomness of its position.

    Args:
        backend: gives the elements, and snapshots where it can. A backend with a true attribute `keyed` seeds the
            randomness of its elements itself.
        tail: "drop" or "partial".
        randomness: how often the global generators are seeded.
        options: seed, world, batch size, transform, collate, shard, and how often to take a snapshot.
    """

    def __init__(self, backend: ReplayBackend, tail: Tail, randomness: Randomness, options: Options) -> None:
        self._backend, self._tail, self._options = backend, tail, options
        self._randomness = randomness
        self._seeds = randomness != "off" and not getattr(backend, "keyed", False)
        self._base: tuple[Any, int] = (None, 0)  # the last snapshot, and the position at which it was taken
        self._position = 0
        self._global_batch = 1
        self._frozen = False  # the source's own state is no longer that behind the batch handed over last
        self._ended = False  # the source said that the epoch is over while the last batch was drawn
        self._begun: Cursor | None = None  # the beginning of an epoch at which the source stands by itself

    def facts(self) -> dict[str, Any]:
        facts = {
            "backend.kind": self._backend.kind,
            **{f"backend.{name}": value for name, value in self._backend.identity.items()},
            "randomness.mode": self._randomness,
            "randomness.seed": self._options.seed,
            "sampler.name": "source-order-v1",
            "tail": self._tail,
        }
        if self._options.shard is False:
            world = self._options.find_world()
            facts |= {"rank": world.rank, "world_size": world.size}
        return facts

    def schedule(self, global_batch: int) -> Schedule | None:
        """Return the epoch's schedule where the source knows its length; used for `len()` only."""
        length = getattr(self._backend, "length", None)
        return Schedule(length, global_batch, self._tail) if length else None

    def finished(self, cursor: Cursor, global_batch: int) -> bool:  # noqa: ARG002  # the protocol has it
        return False

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:  # noqa: ARG002  # the protocol has it
        return Cursor(cursor.epoch + 1)

    def world(self) -> World:
        """Return the world that shares a stream: of all ranks, or of this one where each draws its own."""
        return World() if self._options.shard is False else self._options.find_world()

    def native(self) -> dict[str, Any] | None:
        """Return a snapshot and the elements to skip after it; None where the source is replayed."""
        if not isinstance(self._backend, SnapshotBackend):
            return None
        snapshot, taken = self._base
        stale = self._position - taken >= self._options.snapshot_every * self._global_batch
        if (snapshot is None or stale or self._ended) and not self._frozen:
            with self._guard():
                snapshot, taken = copy.deepcopy(self._backend.snapshot()), self._position
            self._base = (snapshot, taken)
        if snapshot is None:
            return None
        native = {"snapshot": copy.deepcopy(snapshot), "skip": self._position - taken}
        return {**native, "ended": True} if self._ended else native

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        world, cursor = self.world(), mark.cursor
        self._check(global_batch, world)
        self._global_batch = global_batch
        keys = self._epoch_keys(cursor.epoch)
        self._ended = self._frozen = False
        if mark.native is not None and "ended" in mark.native and cursor.position:
            self._base, self._position, self._frozen = (mark.native["snapshot"], 0), 0, True
            return
        elements = self._start(mark, keys)
        try:
            while drawn := self._draw(elements, keys, cursor):
                self._ended = len(drawn) < global_batch
                if self._ended and self._tail == "drop":
                    break
                start, stop = share(0, len(drawn), world)
                batch = self._assemble(drawn[start:stop], keys, cursor.position + start)
                cursor = Cursor(cursor.epoch, cursor.position + len(drawn), cursor.step + 1)
                self._position = cursor.position
                yield batch, cursor
                if self._ended:
                    break
        except BaseException:
            self._frozen = True
            raise
        finally:
            close = getattr(elements, "close", None)
            if close is not None:
                close()
        self._base, self._position, self._ended = (None, 0), 0, False
        self._begun = Cursor(cursor.epoch + 1)

    def _start(self, mark: Mark, keys: _ElementKeys) -> Iterator[Any]:
        """Open the source at a mark: where it stands already, by its snapshot, or from the epoch's beginning."""
        cursor, native = mark.cursor, mark.native
        if native is None or cursor == self._begun:
            elements, skip = self._enter(keys, lambda: self._backend.open(cursor.epoch)), cursor.position
            self._base = (native["snapshot"] if native else None, 0)
        elif "left" in native:
            return self._start_after_left(mark, native, keys)
        else:
            elements, skip = self._restore(mark, keys), native["skip"]
            self._base = (native["snapshot"], cursor.position - skip)
        self._begun, self._position = None, cursor.position
        self._skip(elements, keys, cursor.position - skip, skip)
        return elements

    def _start_after_left(self, mark: Mark, native: dict[str, Any], keys: _ElementKeys) -> Iterator[Any]:
        """Go the way of a run that left the epoch before in its middle: to that place, and then into the next epoch."""
        last = replace(mark.cursor, epoch=mark.cursor.epoch - 1, position=native["left"])
        self._start(Mark(last, {"snapshot": native["snapshot"], "skip": native["skip"]}), self._epoch_keys(last.epoch))
        self._base, self._position, self._frozen = (None, 0), 0, False
        return self._enter(keys, lambda: self._backend.open(mark.cursor.epoch))

    def _restore(self, mark: Mark, keys: _ElementKeys) -> Iterator[Any]:
        assert isinstance(self._backend, SnapshotBackend)
        backend, native, epoch = self._backend, mark.native or {}, mark.cursor.epoch
        elements = self._enter(keys, lambda: backend.restore(epoch, copy.deepcopy(native["snapshot"])))
        if mark.cursor.position == 0:
            # Between epochs, some sources come back at the end of the old epoch instead of the beginning of the new one.
            return self._reopen_if_empty(elements, keys, epoch)
        return elements

    def _reopen_if_empty(self, elements: Iterator[Any], keys: _ElementKeys, epoch: int) -> Iterator[Any]:
        first = self._take(elements, keys, 0, 1)
        if first:
            return _Pushed(first[0], elements)
        return self._enter(keys, lambda: self._backend.open(epoch))

    def _enter(self, keys: _ElementKeys, action: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        with self._guard(keys.opening):
            return action()

    def _skip(self, elements: Iterator[Any], keys: _ElementKeys, position: int, count: int) -> None:
        if hasattr(elements, "skip"):
            with self._guard():
                elements.skip(count)
            return
        with tqdm(total=count, desc="resuming", unit="element", delay=_SILENT_SECONDS, leave=False) as bar:
            for begin in range(position, position + count, _SKIP_BLOCK):
                asked = min(_SKIP_BLOCK, position + count - begin)
                drawn = len(self._take(elements, keys, begin, asked, keep=False))
                bar.update(drawn)
                if drawn < asked:
                    raise StateMismatchError(
                        f"the source gave fewer elements than the run that saved the state had read of it.\n"
                        f"  in the checkpoint: {position + count}\n  in this run:       {begin + drawn}\n"
                        "The data changed. Give the data that the run was started with, or start a new run."
                    )

    def _draw(self, elements: Iterator[Any], keys: _ElementKeys, cursor: Cursor) -> list[Any]:
        return self._take(elements, keys, cursor.position, self._global_batch)

    def _take(
        self, elements: Iterator[Any], keys: _ElementKeys, position: int, count: int, *, keep: bool = True
    ) -> list[Any]:
        """Draw up to `count` elements, each under the key of its position."""
        if not self._seeds:
            return [element if keep else None for element in islice(elements, count)]
        drawn: list[Any] = []
        with self._guard():
            for key in keys.samples(position, position + count):
                reseed(key)
                try:
                    element = next(elements)
                except StopIteration:
                    break
                drawn.append(element if keep else None)
        return drawn

    def _assemble(self, share_: list[Any], keys: _ElementKeys, position: int) -> Any:
        transform, collate = self._options.transform, self._options.collate
        if transform is None and (self._options.batch_size is None or collate is None):
            return share_[0] if self._options.batch_size is None else share_
        with self._guard():
            if transform is not None:
                share_ = [
                    self._transformed(element, key, transform)
                    for element, key in zip(share_, keys.samples(position, position + len(share_)), strict=True)
                ]
            if self._options.batch_size is None:
                return share_[0]
            if self._seeds:
                reseed(keys.batch(position))
            return collate(share_) if collate is not None else share_

    def _transformed(self, element: Any, key: int, transform: Callable[[Any], Any]) -> Any:
        if self._seeds:
            reseed(key ^ _TRANSFORM)
        return transform(element)

    def _guard(self, key: int | None = None) -> AbstractContextManager[None]:
        return isolated(key) if self._seeds else nullcontext()

    def _epoch_keys(self, epoch: int) -> _ElementKeys:
        stream = (self._options.find_world().rank,) if self._options.shard is False else ()
        return _ElementKeys(self._options.seed, epoch, *stream)

    def _check(self, global_batch: int, world: World) -> None:
        if world.size > 1 and self._options.shard is None and getattr(self._backend, "needs_shard", False):
            raise ConfigurationError(
                f"with {world.size} ranks, nobody can tell whether this source gives each rank the whole stream or its "
                "own part.\nBatches would be lost or repeated by a wrong guess. Give wrap(..., shard=True) if every rank's "
                "source gives the same, and the ranks are to divide it; or shard=False if the source or its sampler "
                "looks at the rank itself."
            )
        check_share(global_batch, world, uneven=self._options.uneven)
        if self._tail == "partial" and world.size > 1:
            raise ConfigurationError(
                f'with tail="partial", {world.size} ranks could end with different numbers of batches: nobody knows the '
                'length of this source before its end.\nThe ranks would wait for each other. Use tail="drop".'
            )


class _ElementKeys(SampleKeys):
    """The keys of the elements of an epoch, as Python integers."""

    def __init__(self, seed: int, epoch: int, *stream: int) -> None:
        super().__init__(seed, epoch, *stream)
        self._cache = BlockCache(super().samples, 1 << 62)
        self.opening = self.batch((1 << 62) - 1)

    def samples(self, start: int, stop: int) -> Any:
        return self._cache.take(start, stop).tolist()


class _Pushed:
    """An iterator with one element put back in front."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._first, self._rest = [first], rest

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._rest)
