"""Random walks over what a Loader can do: each batch is the one that an uninterrupted loader gives at that place.

What has to come, `loader_model.Model` says.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import warnings
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from fuzz_sources import MAKERS, one_lookup, plain
from loader_model import EPOCHS, Counting, Model, Place, Reading, Stepping

from resumable.errors import ConfigurationError, LoopError, LoopWarning, StateError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable import Cursor, Loader

STEPS = 60  # of a walk
WALKS = 60  # per seed
GO_ON = {"reader", "batch sampler"}  # an epoch that is left is gone on with in the next one, so that is another one
GO_ON |= {"remembering", "remembering, map-style"}  # what was read before decides
KINDS = [kind for kind in MAKERS if kind not in GO_ON]
INDEXED = [kind for kind in MAKERS if kind.startswith(("list", "array", "map-style"))]
SEEKABLE = [*INDEXED, "sampler, told", "sampler, turning", "function", "function, rank 1 of 2", "again", "replayed"]


class Failed(Exception):  # noqa: N818  # what a loop raises
    """What the body of a loop raises."""


def ahead(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Fetch a number of batches ahead of the one that is handed on, as a prefetcher does."""
    fetched: deque[Any] = deque()
    for batch in batches:
        fetched.append(batch)
        if len(fetched) > count:
            yield fetched.popleft()
    yield from fetched


class Modelled:
    """The iterator that a model has in place of a loader's."""

    def __init__(self, model: Model, reading: Reading) -> None:
        self._model, self._reading = model, reading

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._model.next_batch(self._reading)


class Walk:
    """A loader and its model, which do the same."""

    def __init__(self, kind: str, ack: str, rng: random.Random) -> None:
        self.kind, self.ack, self.rng = kind, ack, rng
        self.loader: Loader = MAKERS[kind](ack=ack)
        self.model = Model(kind, auto=ack == "auto")
        self.readings: list[Reading] = []
        self.outers: list[Counting | Stepping] = []
        self.prefetchers: list[tuple[Iterator[Any], Iterator[Any]]] = []
        self.states: list[tuple[dict[str, Any], Place]] = []
        self.done: list[str] = []

    def go(self) -> None:
        actions: list[Callable[[], None]] = [
            *[self.next] * 12,
            *[self.to_the_end] * 2,
            *[self.iterate] * 3,
            *[self.acknowledge] * (4 if self.ack == "manual" else 1),
            *[self.count, self.next_epoch, self.next_epoch, self.end_epoch, self.seek, self.save, self.save, self.load],
            *[self.step, self.next_step, self.next_step, self.prefetch, self.next_fetched, self.next_fetched],
            *[self.fail, self.fail, self.fail_and_read_on, self.rewind, self.rewind, self.evaluate],
            *[self.load_wrong, self.crash, self.peek, self.peek, self.close, self.sizes, self.indices],
            *[self.refuse_copies, self.drop, self.end_outer],
        ]
        for _ in range(STEPS):
            action = self.rng.choice(actions)
            self.done.append(action.__name__)
            action()
            self.look()
            if self.model.delivered.epoch >= EPOCHS - 1:
                return

    def both(self, real: Callable[[], Any], modelled: Callable[[], Any]) -> Any:
        """Do a thing in both, and see that it gives the same, or fails alike."""
        refused: type[Exception] | None = None
        try:
            wanted = modelled()
        except (StopIteration, ConfigurationError) as error:  # an UnsupportedError is one, and a LoopError
            refused = type(error)
        if refused is not None:  # not in the handler, where the last batch would not count
            with pytest.raises(refused):
                real()
            return None
        found = real()
        assert plain(found) == wanted, f"gave {plain(found)} instead of {wanted}"
        return found

    def look(self) -> None:
        loader, model = self.loader, self.model
        for cursor, place in ((loader.cursor, model.delivered), (loader.acknowledged, model.acknowledged)):
            assert _plain(cursor) == place[:3], f"at {cursor} instead of {place}"
        assert loader.global_step == model.acknowledged.global_step
        assert str(loader.cursor) in repr(loader)
        assert loader.progress.in_flight == len(model.in_flight)
        assert loader.accumulation == 1

    # ------------------------------------------------------------------ loops

    def iterate(self) -> None:
        self.readings = [*self.readings, Reading(iter(self.loader))][-4:]

    def next(self) -> None:
        if not self.readings:
            self.iterate()
        reading = self.rng.choice(self.readings)
        self.both(lambda: next(reading.iterator), lambda: self.model.next_batch(reading))

    def to_the_end(self) -> None:
        if not self.readings:
            self.iterate()
        reading = self.rng.choice(self.readings)
        while not reading.over:
            if self.both(lambda: next(reading.iterator), lambda: self.model.next_batch(reading)) is None:
                return

    def drop(self) -> None:
        if self.readings:
            self.readings.pop(self.rng.randrange(len(self.readings)))

    def prefetch(self) -> None:
        reading, count = Reading(iter(self.loader)), self.rng.randint(1, 3)
        pair = ahead(reading.iterator, count), ahead(iter(Modelled(self.model, reading)), count)
        self.prefetchers = [*self.prefetchers, pair][-2:]

    def next_fetched(self) -> None:
        if not self.prefetchers:
            self.prefetch()
        real, modelled = self.rng.choice(self.prefetchers)
        self.both(lambda: next(real), lambda: next(modelled))

    def acknowledge(self) -> None:
        waiting, asked = self.model.in_flight, self.rng.choice([-1, 0, 1, 1, 1, 2, len(self.model.in_flight)])
        if self.ack == "auto" or not 0 <= asked <= len(waiting):
            with pytest.raises(ConfigurationError):
                self.loader.ack(asked)
            return
        self.loader.ack(asked)
        for _ in range(asked):
            self.model.acknowledged = waiting.pop(0)

    def count(self) -> None:
        total = self.rng.randint(0, EPOCHS)
        self._add(Counting(self.loader.epochs(total), total))

    def step(self) -> None:
        total = self.model.delivered.global_step + self.rng.randint(0, 9)
        self._add(Stepping(self.loader.steps(total), total))

    def _add(self, outer: Counting | Stepping) -> None:
        if len(self.outers) == 3:
            self._end(self.outers.pop(0))
        self.outers.append(outer)

    def end_outer(self) -> None:
        """Drop `epochs()` or `steps()`, as `break` does, or close it."""
        if self.outers:
            outer = self.outers.pop(self.rng.randrange(len(self.outers)))
            if self.rng.random() < 0.5:
                iterator: Any = outer.epochs if isinstance(outer, Counting) else outer.iterator
                iterator.close()
            self._end(outer)

    def _end(self, outer: Counting | Stepping) -> None:
        self.model.end(outer)
        if isinstance(outer, Counting):
            del outer.epochs
        else:
            del outer.iterator

    def next_epoch(self) -> None:
        countings = [one for one in self.outers if isinstance(one, Counting)]
        if not countings:
            self.count()
            return
        counting = self.rng.choice(countings)
        found = self.both(lambda: next(counting.epochs), lambda: self.model.next_epoch(counting))
        if found is not None:
            self.readings = [*self.readings, Reading(iter(found), int(found))][-4:]

    def next_step(self) -> None:
        steppings = [one for one in self.outers if isinstance(one, Stepping)]
        if not steppings:
            self.step()
            return
        stepping = self.rng.choice(steppings)
        self.both(lambda: next(stepping.iterator), lambda: self.model.next_step(stepping))

    # ------------------------------------------------------------------ exceptions

    def fail(self) -> None:
        """Save while an exception is handled that came up after the last batch."""
        try:
            raise Failed  # noqa: TRY301  # as the body of a loop does
        except Failed:
            self._save(self.model.after_an_exception)
            assert self.loader.global_step == self.model.after_an_exception.global_step

    def fail_and_read_on(self) -> None:
        """Read in a handler: the exception was there before, so the batch counts."""
        try:
            raise Failed  # noqa: TRY301  # as above
        except Failed:
            moved = self.model.delivered
            self.next()
            if self.model.delivered != moved and not self.model.settled:
                self._save(self.model.acknowledged)

    def rewind(self) -> None:
        self.loader.rewind()
        self.model.rewind()

    def evaluate(self) -> None:
        try:
            evaluation = self.loader.for_evaluation()
        except UnsupportedError:
            assert self.kind not in INDEXED
            return
        assert [plain(batch) for batch in evaluation] == evaluated(self.kind)

    # ------------------------------------------------------------------ the place

    def end_epoch(self) -> None:
        self.both(self.loader.end_epoch, self.model.end_epoch)

    def left_before(self, epoch: int, step: int) -> bool:
        """Return whether a step is in the past of a run with carry that left epochs early: see test_history.py."""
        here, journal = self.model.delivered, self.loader.state_dict()["journal"]
        past = (epoch, step) < (here.epoch, here.step)
        return past and self.kind == "list, carry" and any("global_batch" in change for _, change in journal)

    def seek(self) -> None:
        epoch, step = self.rng.randint(-1, EPOCHS - 3), self.rng.randint(-1, 5)
        known = self.model.golden
        if self.left_before(epoch, step):
            return
        place = known.at(epoch, step, self.model.delivered) if epoch >= 0 <= step else None
        if epoch >= 0 <= step and not known.sized and (place is None or known.batch(place) is None):
            return  # that this is no batch is noticed when it is asked for
        try:
            self.loader.seek(epoch=epoch, step=step)
        except UnsupportedError:
            assert self.kind not in SEEKABLE
        except ConfigurationError:
            assert place is None
        else:
            assert place is not None, f"went to step {step} of epoch {epoch}"
            self.done[-1] += f" to {place[:3]}"
            counts = self.model.acknowledged
            self.model.go_to(place._replace(global_step=counts.global_step, seen=counts.seen))

    def save(self) -> None:
        self._save(self.model.acknowledged)

    def _save(self, place: Place) -> None:
        state = self.loader.state_dict()
        cursor = state["cursor"]
        found = Place(cursor["epoch"], cursor["position"], cursor["step"], state["global_step"], state["samples_seen"])
        assert found == place, f"a state of {found} instead of {place}"
        self.states.append((json.loads(json.dumps(state)), place))

    def load(self) -> None:
        if self.states:
            state, place = self.rng.choice(self.states)
            before = copy.deepcopy(state)
            self.loader.load_state_dict(state)
            assert state == before
            self.model.go_to(place)
            self.done[-1] += f" of {place[:3]}"

    def load_wrong(self) -> None:
        if self.states:
            state, _ = self.rng.choice(self.states)
            wrong: dict[str, Any] = {"tail": "?", "global_step": 99, "cursor": None, "format": 9, "batch_size": 1 << 20}
            name = self.rng.choice([*wrong])
            with pytest.raises(StateError):
                self.loader.load_state_dict({**state, name: wrong[name]})

    def crash(self) -> None:
        """Go on in another loader, from a state of this one."""
        self.save()
        state, place = self.states[-1]
        self.loader, self.model = MAKERS[self.kind](ack=self.ack), Model(self.kind, place, auto=self.ack == "auto")
        self.loader.load_state_dict(state)
        self.readings, self.outers, self.prefetchers = [], [], []

    def peek(self) -> None:
        found = self.both(self.loader.peek, self.model.peek)
        if found is not None:
            assert self.loader.peek() is found

    def close(self) -> None:
        before = self.loader.state_dict()
        self.loader.close()
        assert self.loader.state_dict() == before

    def sizes(self) -> None:
        loader, here, known = self.loader, self.model.delivered, self.model.golden
        following = known.following(here) if known.batch(here) is None else here
        assert loader.epoch == following.epoch or (not known.sized and loader.epoch == here.epoch)
        assert loader.is_sized == known.sized
        number = self.rng.randint(0, EPOCHS - 1)
        if known.sized and not self.left_before(number, 0):
            assert loader.total_steps(number) == known.total(number, here)
            assert len(loader) == known.total(loader.epoch, here)
        elif not known.sized:
            with pytest.raises(TypeError):
                len(loader)
            with pytest.raises(TypeError):
                loader.total_steps(number)

    def indices(self) -> None:
        epoch, step = self.rng.randint(-1, EPOCHS - 1), self.rng.randint(-1, 5)
        if self.left_before(epoch, step):
            return
        place = self.model.golden.at(epoch, step, self.model.delivered) if epoch >= 0 <= step else None
        found = None if place is None else self.model.golden.batch(place)
        own = self.loader.progress._fetcher.world()  # nothing public has it
        if found is None or self.kind not in INDEXED:
            with pytest.raises(ConfigurationError):
                self.loader.sample_indices(epoch=epoch, step=step, rank=own.rank)
            return
        given = self.loader.sample_indices(epoch=epoch, step=step, rank=own.rank)
        whole = self.loader.sample_indices(epoch=epoch, step=step)
        assert set(given) <= set(whole)
        batch = [row[0] // 2 for row in found[0]] if self.kind == "array" else found[0]
        assert given == (batch if isinstance(batch, list) else [batch])

    def refuse_copies(self) -> None:
        with pytest.raises(UnsupportedError):
            copy.copy(self.loader)
        assert self.loader


@functools.cache
def evaluated(kind: str) -> list[Any]:
    return [plain(batch) for batch in MAKERS[kind](evaluation=True)]


def _plain(cursor: Cursor) -> tuple[int, int, int]:
    return cursor.epoch, cursor.position, cursor.step


def walk(seed: int) -> str:
    """Take a walk, which its seed alone decides, and return the kind of its source.

    Raises:
        AssertionError: something was otherwise than in the model.
    """
    rng = random.Random(seed)
    taken = Walk(rng.choice(KINDS), rng.choice(["auto", "manual"]), rng)
    try:
        taken.go()
    except (Exception, pytest.fail.Exception) as error:
        where = f"walk {seed}, {taken.kind!r}, ack={taken.ack!r}: {', '.join(taken.done)}"
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    return taken.kind


def evaluation(seed: int) -> str:
    """Loop over a loader for evaluation, in loops that are left, and loops that others cut off."""
    rng = random.Random(seed)
    kind = rng.choice([kind for kind in MAKERS if not kind.startswith("remembering")])
    loader, whole = MAKERS[kind](evaluation=True), [plain(batch) for batch in next(iter(MAKERS[kind]().epochs(1)))]
    passes: list[list[Any]] = []  # iterator, batches given, whether it is at its end
    current: list[Any] | None = None
    for _ in range(STEPS):
        if not passes or rng.random() < 0.15:
            passes = [*passes, [iter(loader), 0, False]][-3:]
        one = rng.choice(passes)
        cut_off = one[1] and one is not current and not one[2]
        if cut_off:
            with pytest.raises(LoopError, match="newer pass"):
                next(one[0])
            continue
        found = next(one[0], None)
        wanted = None if one[2] or one[1] == len(whole) else whole[one[1]]
        assert (None if found is None else plain(found)) == wanted, f"evaluation {seed} of {kind!r}"
        current = current if one[2] else one
        one[1:] = [one[1] + (found is not None), found is None]
        if rng.random() < 0.1:
            refused: list[Callable[[], Any]] = [loader.state_dict, loader.end_epoch, loader.peek]
            with pytest.raises(UnsupportedError):
                rng.choice(refused)()
            assert not loader.is_sized or len(loader) == len(whole)
    return kind


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), one_lookup():
        warnings.simplefilter("ignore", LoopWarning)
        yield


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 26))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_batch_is_that_of_an_uninterrupted_loader(seed: int) -> None:
    with quiet():
        kinds = Counter(walk(seed * WALKS + number) for number in range(WALKS))
    assert len(kinds) > len(KINDS) // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_each_pass_of_an_evaluation_begins_at_the_beginning(seed: int) -> None:
    with quiet():
        assert all(evaluation(seed * WALKS + number) for number in range(WALKS))
