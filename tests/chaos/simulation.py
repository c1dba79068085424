"""A training job of several ranks in one process, and beside it a model of the job that is assumed perfect.

`Job` drives real Loaders, `Storage` a real CheckpointStore. `Model` says what they must do: it knows the data, by an
`Oracle`, and the rules that the documentation gives for epochs, acknowledgement and resizes. It computes places from
the data alone, and has no cursors, streams or snapshots that could share an error with the library.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import random
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import pytest
import torch

import resumable
from resumable import failpoints
from resumable._fetch.element_reader import _TRANSFORM, FEW, OPENING
from resumable._randomness.keys import SampleKeys
from resumable.checkpoint import CheckpointStore
from resumable.checkpoint.marker import MARKER
from resumable.errors import (
    ConfigurationError,
    CorruptCheckpointError,
    CorruptCheckpointWarning,
    LoopError,
    ResumableError,
    StepOrderWarning,
    UnsupportedError,
)
from resumable.samplers import Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable import Loader

SEED = 5
Kind = Literal["indexed", "array", "replay", "again", "iterator", "stateful", "restarting", "one pass", "sharded"]
MOST_STARTS = 16  # that a state keeps
READERS: tuple[Kind, ...] = ("stateful", "restarting", "sharded")  # which go on where they stand, pass after pass
Record = tuple[int, int, int]  # epoch, step and digest of a global batch that is in the weights


class KilledError(BaseException):
    """Stands for SIGKILL: no `except Exception` may stop it."""


# ---------------------------------------------------------------------- data


def drawn(number: int, python: Callable[[], float], numpy: Callable[[], float], torch_: Callable[[], float]) -> float:
    """Draw from a generator or two; from which ones depends on the sample, so some are idle for a while."""
    total = torch_()
    if number % 5 == 1:
        total += python()
    if number % 7 == 3:
        total += numpy()
    return total


@functools.cache
def drawn_under(key: int, number: int) -> float:
    """Return what `drawn` gives where the three global generators were seeded with a key."""
    generator = torch.Generator().manual_seed(key)
    numpy = np.random.RandomState(key >> 32)
    return drawn(number, random.Random(key).random, numpy.rand, lambda: torch.rand((), generator=generator).item())


@functools.cache
def key_of(epoch: int, position: int, *stream: int) -> int:
    return int(SampleKeys(SEED, epoch, *stream).samples(position, position + 1)[0])


@functools.cache
def order(length: int, epoch: int) -> list[int]:
    indices: list[int] = Shuffle(length, seed=SEED).indices(epoch, 0, length).tolist()
    return indices


def number_of(sample: Any) -> int:
    return int(sample if isinstance(sample, int) else sample[1])


class Switch:
    """Makes sources and transforms fail while it is on."""

    def __init__(self) -> None:
        self.where = ""
        self.error: BaseException = RuntimeError("planned")

    def check(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def augment(self, sample: Any) -> tuple[Any, float]:
        """Augment a sample from the global generators; the transform."""
        self.check("transform")
        number = number_of(sample)
        return sample, drawn(number, random.random, np.random.rand, lambda: torch.rand(()).item())


class Numbers:
    """An iterator with a state, which is one dict that it goes on changing."""

    def __init__(self, switch: Switch, epoch: int, length: int, salt: float) -> None:
        self.switch, self.epoch, self.length, self.salt = switch, epoch, length, salt
        self.state = {"given": 0}

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.state["given"] == self.length:
            raise StopIteration
        self.switch.check("source")
        self.state["given"] += 1
        return self.epoch, self.state["given"] - 1, random.random() + self.salt

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


class Stateful:
    """A reader that goes on where it stands, pass after pass; its state is one dict that it goes on changing.

    Brought back after the last element of a pass, it gives nothing, or with `restarts` the next pass.
    """

    def __init__(self, switch: Switch, length: Callable[[int], int], rank: int = 0, *, restarts: bool = False) -> None:
        self.switch, self.length, self.rank, self.restarts = switch, length, rank, restarts
        self.state = {"pass": 0, "given": 0}

    def __iter__(self) -> Iterator[Any]:
        if self.restarts and self.state["given"] == self.length(self.state["pass"]):
            self._turn()
        while self.state["given"] < self.length(self.state["pass"]):
            self.switch.check("source")
            self.state["given"] += 1
            yield self.state["pass"], self.state["given"] - 1, random.random() + self.rank
        if not self.restarts:
            self._turn()

    def _turn(self) -> None:
        self.state["pass"], self.state["given"] = self.state["pass"] + 1, 0

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


class Again:
    """A re-iterable object with a length, which is told the epoch."""

    def __init__(self, switch: Switch, length: int) -> None:
        self.switch, self.length, self.epoch = switch, length, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            self.switch.check("source")
            yield self.epoch, number, random.random()


# ---------------------------------------------------------------------- oracles


class Place(NamedTuple):
    """Where the weights are: in an epoch that began at `origin`, the (pass, number) at which a source stood then."""

    epoch: int = 0
    position: int = 0
    step: int = 0
    origin: tuple[int, int] = (0, 0)


class Oracle(Protocol):
    """What the data are."""

    def batch(self, place: Place, size: int) -> tuple[list[Any], Place] | None:
        """Return the next global batch and the place after it; None where the epoch has no more."""
        ...

    def following(self, place: Place, *, left: bool) -> Place:
        """Return the beginning of the next epoch, where this one was read to its end or left."""
        ...


@dataclass(frozen=True)
class IndexedOracle:
    """A list of the samples of each epoch, in their order."""

    case: Case

    def sample(self, epoch: int, position: int) -> Any:
        length = self.case.length
        if position >= length and self.case.tail == "carry":
            return self.sample(epoch + 1, position - length)
        index = order(length, epoch)[position % length]
        return (index, drawn_under(key_of(epoch, position), index)) if self.case.transform else index

    def batch(self, place: Place, size: int) -> tuple[list[Any], Place] | None:
        left = self.case.length - place.position
        if left <= 0 or (left < size and self.case.tail == "drop"):
            return None
        count = min(left, size) if self.case.tail == "partial" else size
        samples = [self.sample(place.epoch, place.position + number) for number in range(count)]
        return samples, place._replace(position=place.position + count, step=place.step + 1)

    def following(self, place: Place, *, left: bool) -> Place:
        over = place.position - self.case.length if self.case.tail == "carry" else 0
        return Place(place.epoch + 1, max(over, 0))


@dataclass(frozen=True)
class StreamOracle:
    """A list of the elements of each pass through the source; with `sharded`, of each rank's own."""

    case: Case
    ranks: int = 0  # that have streams of their own

    def element(self, place: Place, position: int, *stream: int) -> Any:
        key = key_of(place.epoch, position, *stream)
        first, number, salt = place.epoch, position, float(sum(stream))
        if self.case.kind in READERS:
            first, number = place.origin[0], place.origin[1] + position
        if self.case.kind == "iterator":
            salt = random.Random(SampleKeys(SEED, place.epoch).batch(OPENING)).random()
        sample = first, number, random.Random(key).random() + salt
        return (sample, drawn_under(key ^ _TRANSFORM, number)) if self.case.transform else sample

    def count(self, place: Place) -> int:
        """Count the elements of the place's epoch."""
        if self.case.kind in READERS:
            return self.case.length_of(place.origin[0]) - place.origin[1]
        return self.case.length_of(place.epoch)

    def batch(self, place: Place, size: int) -> tuple[list[Any], Place] | None:
        left = self.count(place) - place.position
        if left <= 0 or (left < size and self.case.tail == "drop"):
            return None
        positions = range(place.position, place.position + min(left, size))
        streams: list[tuple[int, ...]] = [(rank,) for rank in range(self.ranks)] or [()]
        elements = [self.element(place, position, *stream) for stream in streams for position in positions]
        return elements, place._replace(position=positions.stop, step=place.step + 1)

    def following(self, place: Place, *, left: bool) -> Place:
        number, position = place.origin
        origin = (number, position + place.position)
        if not left or place.position == self.count(place):
            origin = (number + 1, 0)
        return Place(place.epoch + 1, origin=origin)


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A kind of training job.

    Args:
        kind: of the source.
        tail: tail policy.
        worlds: numbers of ranks.
        size: the global batch with which the first run begins; None where each element is a batch.
        manual: whether the job acknowledges.
        transform: whether samples are augmented.
        changes: whether the global batch may change.
        rarely: steps between two snapshots of the source that are taken in advance.
    """

    kind: Kind = "indexed"
    tail: Literal["drop", "partial", "pad", "carry"] = "drop"
    worlds: tuple[int, ...] = (1, 2, 3)
    size: int | None = 6
    manual: bool = False
    transform: bool = True
    changes: bool = False
    rarely: int | None = None

    @property
    def length(self) -> int:
        return 17

    def length_of(self, number: int) -> int:
        """Count the elements of an epoch, or of a pass: not always as many."""
        return self.length if self.kind in {"again", "one pass"} else 12 + number % 3 * 4

    @property
    def indexed(self) -> bool:
        return self.kind in {"indexed", "array"}

    @property
    def sized(self) -> bool:
        return self.indexed or self.kind == "again"

    @property
    def epochs(self) -> int:
        """Number of epochs of a run."""
        return 1 if self.kind == "one pass" else 1000

    def sharers(self, world: int) -> int:
        """Count the ranks that share a global batch."""
        return 1 if self.kind == "sharded" else world

    def fits(self, size: int, world: int) -> bool:
        """Return whether so many ranks can share global batches of this size."""
        return size >= self.sharers(world) and (
            self.tail != "partial" or world == 1 or self.length % size == 0 or self.length % size >= world
        )

    def wrap(self, switch: Switch, batch_size: int | None, world: resumable.World) -> Loader:
        options: dict[str, Any] = {"ack": "manual" if self.manual else "auto", "tail": self.tail}
        if self.transform:
            options["transform"] = switch.augment
        if self.indexed:
            options["shuffle"] = True
        else:
            options["identity"] = "reader"
        if self.kind == "sharded":
            options["shard"] = False
        if self.changes or batch_size is None:
            options["on_change"] = "continue"
        return resumable.wrap(self._source(switch, world), seed=SEED, batch_size=batch_size, world=world, **options)

    def _source(self, switch: Switch, world: resumable.World) -> Any:
        def generate(epoch: int) -> Iterator[Any]:
            for number in range(self.length_of(epoch)):
                switch.check("source")
                yield epoch, number, random.random()

        makers: dict[Kind, Callable[[], Any]] = {
            "indexed": lambda: range(self.length),
            "array": lambda: np.arange(self.length),
            "replay": lambda: generate,
            "again": lambda: Again(switch, self.length),
            "iterator": lambda: lambda epoch: Numbers(switch, epoch, self.length_of(epoch), random.random()),
            "stateful": lambda: Stateful(switch, self.length_of),
            "restarting": lambda: Stateful(switch, self.length_of, restarts=True),
            "one pass": lambda: Numbers(switch, 0, self.length, 0.0),
            "sharded": lambda: Stateful(switch, self.length_of, world.rank),
        }
        source = makers[self.kind]()
        if self.rarely:
            source.snapshot_every = self.rarely
        return source

    def oracle(self, world: int) -> Oracle:
        return IndexedOracle(self) if self.indexed else StreamOracle(self, world if self.kind == "sharded" else 0)


# ---------------------------------------------------------------------- the model


@dataclass
class Pass:
    """What the model knows of an iterator over batches: an epoch of `epochs()`, or a plain one (`only` is None)."""

    only: int | None
    started: bool = False
    over: bool = False
    rejected: bool = False
    moves: int = -1
    epoch: int = -1
    start: int = 0


@dataclass(frozen=True)
class Saved:
    """What a checkpoint must hold."""

    place: Place
    plan: tuple[Record, ...]
    size: int
    batch_size: int
    world: int
    resized: bool
    begins: dict[int, int]
    starts: tuple[int, ...]


class Model:
    """Where a job is, what is in its weights, and what comes next.

    Args:
        case: the kind of job.
        world: number of ranks.
        batch_size: as the job's script says.
    """

    def __init__(self, case: Case, world: int, batch_size: int | None) -> None:
        self.case, self.world, self.batch_size = case, world, batch_size
        self.oracle = case.oracle(world)
        self.size = (batch_size or 1) * case.sharers(world)
        self.acked = self.handed = Place()
        self.waiting: list[tuple[Place, Record]] = []
        self.resized = False  # whether the batch size or the number of ranks has changed
        self.plan: list[Record] = []
        self.manual = case.manual
        self.begins = {0: 0}  # the position at the start of each epoch of the run
        self.starts: tuple[int, ...] = ()  # epochs whose start is in the state, as the loop left the one before
        self.moves = 0  # how often the place was set from outside
        self.delivers = False  # a batch was delivered since the position was set
        self.reader: Pass | None = None  # the loop that started last

    def next(self, loop: Pass, *, hand_over: bool = True) -> list[Any] | None:
        """Return the next global batch of an iterator, None at its end; without `hand_over` it is read in vain.

        Raises:
            LoopError: a newer loop was started, or the epoch of this one was over when it started.
        """
        if loop.over:
            return None
        if self.reader is not loop and (loop.started or (loop.only is not None and self.handed.epoch > loop.only)):
            raise LoopError
        loop.started, self.reader = True, loop
        if loop.moves != self.moves:
            loop.moves, loop.epoch, loop.start = self.moves, self.handed.epoch, self.handed.position
        if (loop.only is not None and loop.only != loop.epoch) or self.handed.epoch != loop.epoch:
            loop.over = True
            return None
        found = self.oracle.batch(self.handed, self.size)
        if found is not None:
            if hand_over:
                self._hand_over(*found)
            return found[0]
        at_end_from_the_start = self.handed.position == loop.start > 0
        self.handed = self.oracle.following(self.handed, left=False)
        self.begins[self.handed.epoch] = self.handed.position
        if not self.waiting:
            self.acked = self.handed
        if loop.only is None and at_end_from_the_start:
            loop.moves = -1
            return self.next(loop, hand_over=hand_over)
        loop.over = True
        return None

    def coming(self, loop: Pass) -> list[Any]:
        """Return the next global batch of an iterator; nothing where that begins or ends an epoch first."""
        place, epoch = self.handed, loop.only if loop.moves != self.moves else loop.epoch
        found = self.oracle.batch(place, self.size)
        taken = loop.started and self.reader is not loop
        return [] if loop.over or taken or epoch not in {None, place.epoch} or found is None else found[0]

    def ack(self, count: int) -> None:
        for place, record in self.waiting[:count]:
            self.acked = place
            self.plan.append(record)
        del self.waiting[:count]

    def change_acknowledgement(self) -> None:
        self.waiting.clear()
        self.handed, self.delivers = self.acked, False
        self.manual = not self.manual

    def leave(self) -> None:
        """End the epoch."""
        assert not self.waiting
        if self.handed.epoch > self.acked.epoch:
            self.acked = self.handed  # it ended before its last batch was acknowledged
        else:
            has_more, position = self.oracle.batch(self.acked, self.size) is not None, self.acked.position
            self.move(self.oracle.following(self.acked, left=has_more))
            self.begins[self.handed.epoch] = self.handed.position
            if self.case.tail == "carry" and has_more and (self.case.length - position) % self.size:
                self.starts = (*self.starts, self.handed.epoch)[-MOST_STARTS:]

    def move(self, place: Place) -> None:
        self.waiting.clear()
        self.moves += 1
        self._go_to(place)

    def agreed(self, saved: Saved) -> int | None:
        """Return the global batch after a state was loaded; None where it must be refused."""
        asked = (self.batch_size or 1) * self.case.sharers(self.world)
        of_now = self.case.changes or self.batch_size is None or saved.size == asked
        size = asked if of_now else saved.size
        accepted = of_now or saved.batch_size == self.batch_size
        return size if accepted and self.case.fits(size, self.world) else None

    def load(self, saved: Saved) -> None:
        size = self.agreed(saved)
        assert size is not None
        self.resized = saved.resized or (size, self.world) != (saved.size, saved.world)
        self.size, self.plan = size, list(saved.plan)
        self.begins, self.starts = dict(saved.begins), saved.starts
        self.move(self.taken_up(saved))

    def taken_up(self, saved: Saved) -> Place:
        """Return where a checkpoint goes on: an epoch that was over stays so, also if it has more samples now."""
        size, place = self.agreed(saved), saved.place
        over = self.oracle.batch(place, saved.size) is None
        if not self.case.indexed or not over or size is None or self.oracle.batch(place, size) is None:
            return place
        return place._replace(position=self.case.length // size * size)  # with "drop", as all others read to the end

    def saved(self) -> Saved:
        begins = {epoch: begin for epoch, begin in self.begins.items() if epoch <= self.acked.epoch}
        starts = tuple(epoch for epoch in self.starts if epoch <= self.acked.epoch)
        return Saved(
            self.acked, tuple(self.plan), self.size, self.batch_size or 1, self.world, self.resized, begins, starts
        )

    def sought(self, epoch: int, step: int) -> Place | None:
        """Return the place before a batch, or the last one of the epoch; None if the state no longer knows it.

        An epoch of the run has the start that it had, even if the loop left the one before; a later one, the start that
        it will have.
        """
        if len(self.starts) == MOST_STARTS and 0 < epoch < self.starts[0]:
            return None
        for number in range(self.handed.epoch + 1, epoch + 1):
            place = self.handed if number == self.handed.epoch + 1 else Place(number - 1, self.begins[number - 1])
            while (found := self.oracle.batch(place, self.size)) is not None:
                place = found[1]
            self.begins[number] = self.oracle.following(place, left=False).position
        place = Place(epoch, self.begins[epoch])
        for _ in range(step):
            if (found := self.oracle.batch(place, self.size)) is not None:
                place = found[1]
        return place

    def seek(self, place: Place) -> None:
        self.starts = tuple(epoch for epoch in self.starts if epoch <= place.epoch)
        self.move(place)

    def next_epoch(self) -> Place:
        """Return the place in the epoch of the next batch, as far as anybody can know it."""
        return self.after_the_end() if self.case.sized else self.handed

    def after_the_end(self) -> Place:
        """Return the place of the next batch: in the next epoch where this one has none left."""
        over = self.oracle.batch(self.handed, self.size) is None
        return self.oracle.following(self.handed, left=False) if over else self.handed

    def length(self) -> int:
        place = self.next_epoch()
        while (found := self.oracle.batch(place, self.size)) is not None:
            place = found[1]
        return place.step

    def _hand_over(self, elements: list[Any], place: Place) -> None:
        self.handed, self.delivers = place, True
        self.waiting.append((place, record(place.epoch, place.step, elements)))
        if not self.manual:
            self.ack(1)

    def _go_to(self, place: Place) -> None:
        self.acked = self.handed = place
        self.delivers = False


def record(epoch: int, step: int, elements: list[Any]) -> Record:
    return epoch, step, hash(tuple(elements))


def plain(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


def spoil(state: dict[str, Any]) -> None:
    """Change a state in all its parts, which must be of no effect on any loader."""
    for name, value in state.items():
        if isinstance(value, dict):
            spoil(value)
        else:
            state[name] = -7


# ---------------------------------------------------------------------- the job


class Job:
    """The loaders of all ranks, which step together, the weights that they train, and the model of it all.

    Args:
        case: the kind of job.
        world: number of ranks.
        batch_size: per rank.
        nested: iterate by `epochs()`; otherwise over the loaders themselves.
    """

    def __init__(self, case: Case, world: int, batch_size: int | None, *, nested: bool) -> None:
        self.case, self.nested, self.switch = case, nested or case.epochs == 1, Switch()
        self.model = Model(case, world, batch_size)
        ranks = [resumable.World(rank, world) for rank in range(world)]
        self.loaders = [case.wrap(self.switch, batch_size, rank) for rank in ranks]
        self.weights: list[Record] = []
        self.waiting: list[Record] = []
        self.bookmarks: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """Begin the training loop."""
        self.generators = [loader.epochs(self.case.epochs) for loader in self.loaders]
        self.number, self._number_moves = -1, -1
        self.epochs: list[Any] = []
        if self.nested:
            self.turn()
        else:
            self._enter()
        self.earlier = self.loop, self.iterators

    @property
    def over(self) -> bool:
        """Whether the run is at its end."""
        return self.nested and not self.epochs

    def _enter(self) -> None:
        """Enter the inner loop."""
        self.loop = Pass(self.number if self.nested else None)
        self.iterators = [iter(source) for source in (self.epochs if self.nested else self.loaders)]

    def iterate(self) -> None:
        """Iterate again, over the rest of the epoch: the inner loop was left, and is entered again."""
        self.earlier = self.loop, self.iterators
        self._enter()

    def swap(self) -> None:
        """Continue with the iterators before these, which is rejected if these have started meanwhile."""
        self.earlier, (self.loop, self.iterators) = (self.loop, self.iterators), self.earlier

    def turn(self) -> None:
        """Go through the end of the outer loop's body, to the next epoch of `epochs()`."""
        model = self.model
        if model.acked.epoch <= self.number and (self._number_moves == model.moves or model.delivers):
            if model.waiting:
                for generator in self.generators:
                    with pytest.raises(ConfigurationError, match="was left with"):
                        next(generator)
                self.begin()
                return
            model.leave()
        epochs = [next(generator, None) for generator in self.generators]
        self.number, self._number_moves = model.handed.epoch, model.moves
        numbers = [epoch and epoch.number for epoch in epochs]
        assert numbers == [self.number if self.number < self.case.epochs else None] * len(epochs)
        self.epochs = [epoch for epoch in epochs if epoch is not None]
        self._enter()

    def step(self) -> None:
        """Go on with the training loop: take a batch, or go through the end of the epoch."""
        if not self.loop.over and not self.loop.rejected:
            self.next()
        elif self.nested and (self.loop.over or self.model.handed.epoch > self.number):
            self.ack(len(self.waiting))
            self.turn()
        else:
            self.iterate()

    def next(self, *, again: bool = False) -> None:
        """Take the next batch, on all ranks; with `again` in a second attempt where the first one fails."""
        began = self.model.handed
        try:
            expected = self.model.next(self.loop)
        except LoopError:
            for iterator in self.iterators:
                with pytest.raises(LoopError):
                    next(iterator)
            self.loop.rejected = True
            return
        batches = [self._draw(iterator, again=again) for iterator in self.iterators]
        assert batches == self._shares(expected), f"behind {began}"
        if expected is None:
            return
        cursor = self.loaders[0].cursor
        elements = batches if self.model.batch_size is None else [sample for batch in batches for sample in batch]
        self.waiting.append(record(cursor.epoch, cursor.step, elements))
        if not self.model.manual:
            self._train(1)

    def fail(self, where: str, error: BaseException) -> None:
        """Fail to read the next batch, on all ranks, if it needs more than what may have been read ahead."""
        if len(self.model.coming(self.loop)) <= max(self.model.world, FEW):
            return
        self.model.next(self.loop, hand_over=False)
        self.switch.where, self.switch.error = where, error
        for iterator in self.iterators:
            with pytest.raises((RuntimeError, KilledError), match="planned"):
                next(iterator)
        self.switch.where = ""

    def fail_ahead(self) -> None:
        """Take a state while the source fails, which may be noticed only when the next batch is read."""
        if self.model.coming(self.loop):
            self.next()
        if not self.model.coming(self.loop):
            return
        self.switch.where, self.switch.error = "source", RuntimeError("planned")
        self.states()
        self.switch.where = ""
        self.next(again=True)

    def ack(self, count: int) -> None:
        """Train on the oldest batches that wait, and acknowledge them."""
        if not self.model.manual:
            return
        self._train(count)
        for loader in self.loaders:
            loader.ack(count)
        self.model.ack(count)

    def leave(self) -> None:
        """End the epoch, which may not be at its end."""
        if self.nested:
            self.turn()
        elif self.model.waiting:
            for loader in self.loaders:
                with pytest.raises(ConfigurationError, match="was left with"):
                    loader.end_epoch()
        else:
            for loader in self.loaders:
                loader.end_epoch()
            self.model.leave()

    def seek(self, epoch: int, step: int) -> None:
        if self.model.resized:
            return  # past steps keep their samples: tests/order/test_history.py
        if (place := self.model.sought(epoch, step)) is None:
            for loader in self.loaders:
                with pytest.raises(UnsupportedError, match="are unknown"):
                    loader.seek(epoch=epoch, step=0)
            return
        if not self.case.sized and place.position % self.model.size:
            return  # nobody knows that the epoch's last batch is smaller
        for loader in self.loaders:
            loader.seek(epoch=epoch, step=place.step)
        self.model.seek(place)
        self.waiting.clear()

    def states(self) -> list[dict[str, Any]]:
        """Return the states to save: one, or where ranks have streams of their own one of each."""
        for loader in self.loaders:
            spoil(loader.state_dict())
        states = [loader.state_dict() for loader in self.loaders]
        if self.case.kind == "sharded":
            return states
        assert all(state == states[0] for state in states)
        return states[:1]

    def bookmark(self) -> None:
        """Remember the place, to make a state of it at any time later."""
        self.bookmarks += [(loader.progress.bookmark(), loader.state_dict()) for loader in self.loaders]

    def content(self) -> dict[str, Any]:
        return {"weights": torch.tensor(self.weights, dtype=torch.int64).reshape(-1, 3), "loaders": self.states()}

    def load(self, content: dict[str, Any], saved: Saved) -> None:
        """Load a checkpoint; a refusal must leave everything as it was."""
        states = content["loaders"] * (1 if self.case.kind == "sharded" else self.model.world)
        if self.model.agreed(saved) is None:
            for loader, state in zip(self.loaders, states, strict=True):
                with pytest.raises(ResumableError, match=r"differs from the checkpoint's|cannot share a global batch"):
                    loader.load_state_dict(state)
            return
        for loader, state in zip(self.loaders, states, strict=True):
            given = copy.deepcopy(state)
            loader.load_state_dict(given)
            spoil(given)
            again = loader.state_dict()
            epoch, position, step, _ = self.model.taken_up(saved)
            at = {"epoch": epoch, "position": position, "step": step}
            assert again["cursor"] == (at if saved.place.position != position else state["cursor"])
            assert all(again[name] == state.get(name) for name in again if name in {"source_state", "backend"})
        self.weights = [(epoch, step, what) for epoch, step, what in content["weights"].tolist()]
        self.waiting.clear()
        self.model.load(saved)

    def check(self) -> None:
        """Compare the job with its model."""
        model, coming = self.model, self.model.next_epoch()
        assert self.weights == model.plan, "the weights are not those of the run that the model made"
        for loader in self.loaders:
            cursor, acknowledged = loader.cursor, loader.acknowledged
            assert (cursor.epoch, cursor.position, cursor.step) == model.handed[:3]
            assert (acknowledged.epoch, acknowledged.position, acknowledged.step) == model.acked[:3]
            assert loader.global_batch_size == model.size
            # A source that has no length may know its end, from the element that a state has drawn ahead.
            assert loader.epoch in {coming.epoch, model.after_the_end().epoch}
            assert loader.is_sized == self.case.sized
        # Until test_length_of_the_coming_epoch passes: not at an end, with "carry".
        if self.case.sized and not (self.case.tail == "carry" and coming != model.handed):
            assert {len(loader) for loader in self.loaders} == {model.length()}
        for bookmark, state in self.bookmarks:
            assert bookmark.state_dict() == state
        del self.bookmarks[:-2]

    def _draw(self, iterator: Iterator[Any], *, again: bool) -> Any:
        try:
            return plain(next(iterator, None))
        except RuntimeError:
            if not again:
                raise
            return plain(next(iterator, None))

    def change_acknowledgement(self) -> None:
        """Let the loaders acknowledge instead of the job, or the other way round."""
        for loader in self.loaders:
            loader.progress.set_ack("auto" if self.model.manual else "manual")
        self.waiting.clear()
        self.model.change_acknowledgement()

    def _train(self, count: int) -> None:
        self.weights += self.waiting[:count]
        del self.waiting[:count]

    def _shares(self, elements: list[Any] | None) -> list[Any]:
        """Cut a global batch into what each rank must get."""
        world = self.model.world
        if elements is None:
            return [None] * world
        borders = [len(elements) * rank // world for rank in range(world + 1)]
        parts = [elements[start:stop] for start, stop in itertools.pairwise(borders)]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        return [part[0] for part in parts] if self.model.batch_size is None else parts


# ---------------------------------------------------------------------- storage

# Each failpoint of a save, how often a save comes by, and whether the checkpoint must be there after a crash.
POINTS: tuple[tuple[str, int, bool], ...] = (
    ("store.save", 1, False),
    ("store.half", 1, False),
    ("store.written", 1, False),
    ("store.synced", 1, False),
    ("store.written", 2, False),
    ("store.synced", 2, False),
    ("store.rename", 1, False),
    ("store.renamed", 1, True),
    ("store.saved", 1, True),
)


class Fault:
    """Watches a save, and stops it at a failpoint.

    Args:
        root: the store's folder.
        number: which of `POINTS`.
        how: "kill" freezes the files as they are then, "power" tears the ones that are not durable by then, "error"
            is one that the job survives.
    """

    def __init__(self, root: Path, number: int, how: Literal["kill", "power", "error"]) -> None:
        self.root, self.how = root, how
        self.point, self.left, self.commits = POINTS[number]
        self.fired = False
        self._frozen: dict[Path, bytes] = {}
        self._volatile: set[str] = set()

    def __call__(self, name: str, about: tuple[Any, ...]) -> None:
        if name == "store.written":
            self._volatile.add(str(about[0]))
        elif name == "store.synced":
            self._volatile.discard(str(about[0]))
        if name != self.point or self.fired:
            return
        self.left -= 1
        if self.left == 0:
            self.fired = True
            self._freeze()
            raise OSError("planned") if self.how == "error" else KilledError("planned")

    def _freeze(self) -> None:
        for path in self.root.rglob("*.*"):
            if path.is_file():
                data = path.read_bytes()
                torn = self.how == "power" and str(path) in self._volatile
                self._frozen[path] = data[: len(data) // 2] if torn else data

    def thaw(self) -> None:
        """Undo what a process that was killed could not have done."""
        if self.how == "error":
            return
        for path in self.root.rglob("*.*"):
            if path.is_file() and path not in self._frozen:
                path.unlink()
        for path, data in self._frozen.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)


class Storage:
    """A store in a folder, and what it must hold.

    Args:
        root: the folder.
        keep: how many steps stay.
    """

    def __init__(self, root: Path, keep: int | None) -> None:
        self.root, self.keep = root, keep
        self.saved: dict[int, Saved] = {}
        self.corrupt: set[int] = set()
        self.reopen()

    def reopen(self) -> None:
        """Use the store from a new process."""
        self.store = CheckpointStore(self.root, keep=self.keep, verify=False)

    def save(self, job: Job, fault: Fault | None = None) -> bool:
        """Save a job's checkpoint; tell whether that came to its end."""
        step, content, saved = len(job.weights), job.content(), job.model.saved()
        failpoints.watch(fault)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StepOrderWarning)  # jobs are rolled back on purpose
                self.store.save(step, content)
        except BaseException:
            if fault is None or not fault.fired:
                raise
        finally:
            failpoints.watch(None)
        stopped = fault is not None and fault.fired
        if fault is not None and fault.fired:
            fault.thaw()
        if fault is None or not stopped or fault.commits:
            self.saved[step] = saved
            self.corrupt.discard(step)
        if fault is None or not stopped or fault.point == "store.saved":
            self._prune(step)
            self._check(step)
        assert self.store.steps() == sorted(self.saved)
        return not stopped

    def pick(self, number: int) -> int | None:
        """Choose a step that is whole."""
        whole = sorted(set(self.saved) - self.corrupt)
        return whole[number % len(whole)] if whole else None

    def newest(self) -> tuple[Any, Saved] | None:
        """Load the newest checkpoint: the newest one that is whole, with a warning for each that had to be skipped."""
        step = self.pick(-1)
        skipped = len([other for other in self.corrupt if step is None or other > step])
        if step is None and self.corrupt:
            with pytest.raises(CorruptCheckpointError, match="all checkpoints in .* are corrupt"):
                self.store.latest()
            for other in self.corrupt:
                self.store.delete(other)
            self.saved.clear()
            self.corrupt.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            content = self.store.latest()
        if step is None:
            assert (content, caught) == (None, [])
            return None
        assert [warning.category for warning in caught] == [CorruptCheckpointWarning] * skipped
        return content, self.saved[step]

    def load(self, step: int) -> tuple[Any, Saved]:
        return self.store.load(step), self.saved[step]

    def damage(self, step: int, how: int) -> None:
        """Change a checkpoint's files, each in one of several ways."""
        directory = self.root / f"step-{step:012d}"
        path = directory / json.loads((directory / MARKER).read_bytes())["file"]
        if how == 0:
            path.unlink()
        elif how == 1:
            (directory / MARKER).write_bytes(b"")
        elif how == 2:
            path.write_bytes(path.read_bytes()[:-1])
        else:
            data = bytearray(path.read_bytes())
            data[how * 7 % len(data)] ^= 1 << how % 8
            path.write_bytes(data)
        self.corrupt.add(step)

    def _prune(self, saved: int) -> None:
        for step in sorted(self.saved)[: -self.keep] if self.keep else ():
            if step != saved:
                del self.saved[step]
                self.corrupt.discard(step)

    def _check(self, step: int) -> None:
        content, saved = self.load(step)
        assert tuple(map(tuple, content["weights"].tolist())) == saved.plan
        place = content["loaders"][0]["cursor"]
        assert (place["epoch"], place["position"], place["step"]) == saved.place[:3]


def new_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for a store, in memory where that is possible."""
    memory = Path("/dev/shm")  # noqa: S108  # a folder with a name of its own is made in it
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)


def generators() -> list[Any]:
    """Return the states of the trainer's global generators."""
    name, words, *rest = np.random.get_state()
    return [random.getstate(), name, np.asarray(words).tobytes(), rest, bytes(torch.get_rng_state().numpy())]
