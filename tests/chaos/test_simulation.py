"""Random schedules of everything that happens to a training job, against a model of it; see `simulation.py`.

Steps, acknowledgements, saves, crashes at each failpoint of a save, resizes, rollbacks, epochs that are left early,
failing reads and damaged checkpoints, in any order. Each schedule that Hypothesis finds is shrunk to the shortest one.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from simulation import POINTS, Case, Fault, Job, KilledError, Model, Storage, Switch, generators, new_folder

from resumable import World
from resumable.loader import registry

pytestmark = pytest.mark.slow

NUMBERS = st.integers(0, 11)
STEPS = st.integers(0, 4)  # of training, before something happens
KEEP = st.sampled_from([None, 2, 3])
POINT = st.integers(0, len(POINTS) - 1)


class Simulation(RuleBasedStateMachine):
    """A job, its storage, and everything that can happen to them."""

    case: Case
    storage: Storage
    job: Job
    schedules = crashes = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).schedules += 1
        self.folder = new_folder()
        for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
            seed(7)
        np.random.randn()  # NumPy keeps a second one for the next call, which loading must not lose
        self.trainers = generators()

    def teardown(self) -> None:
        self.folder.cleanup()

    def shape(self, number: int) -> tuple[int, int | None]:
        """Choose ranks and batch size for a job that loads the newest checkpoint."""
        case, step = self.case, self.storage.pick(-1)
        saved = None if step is None else self.storage.saved[step]
        shapes: list[tuple[int, int | None]] = []
        for world in case.worlds:
            size = saved.size if saved else case.size
            sharers = case.sharers(world)
            sizes: set[int | None] = {None} if size is None or case.size is None else {size // sharers}
            if case.changes and case.size is not None:
                sizes |= {1, 2, 3}
            if saved is not None and case.size is not None:
                sizes.add(saved.batch_size)
            shapes += [(world, each) for each in sorted(sizes, key=lambda each: each or 0) if each != 0]
        fitting = [shape for shape in shapes if self.fits(*shape)]
        return fitting[number % len(fitting)]

    def fits(self, world: int, batch_size: int | None) -> bool:
        """Return whether a job of this shape can go on from the newest checkpoint."""
        step, fresh = self.storage.pick(-1), Model(self.case, world, batch_size)
        return self.case.fits(fresh.size, world) if step is None else fresh.agreed(self.storage.saved[step]) is not None

    def start(self, number: int, nested: bool) -> None:
        """Begin a process: from the newest checkpoint, if there is one."""
        if hasattr(self, "job"):
            type(self).crashes += 1
        world, batch_size = self.shape(number)
        self.storage.reopen()
        self.job = Job(self.case, world, batch_size, nested=nested)
        if (found := self.storage.newest()) is not None:
            self.job.load(*found)
        self.job.begin()

    # ------------------------------------------------------------------ training

    def train(self, steps: int) -> None:
        for _ in range(steps):
            if not self.job.over:
                self.job.step()

    @rule(steps=st.integers(1, 9))
    def go_on(self, steps: int) -> None:
        self.train(steps)

    @precondition(lambda self: self.job.model.manual)
    @rule(steps=STEPS, count=st.integers(1, 3))
    def acknowledge(self, steps: int, count: int) -> None:
        self.train(steps)
        self.job.ack(min(count, len(self.job.waiting)))

    @rule(steps=STEPS)
    def leave_the_epoch(self, steps: int) -> None:
        self.train(steps)
        if not self.job.over:
            self.job.leave()

    @rule(steps=STEPS)
    def iterate_again(self, steps: int) -> None:
        self.train(steps)
        if not self.job.over:
            self.job.iterate()

    @rule(steps=STEPS)
    def go_on_with_the_iterators_before(self, steps: int) -> None:
        self.train(steps)
        if not self.job.over:
            self.job.swap()
            self.job.next()

    @rule(steps=STEPS)
    def change_acknowledgement(self, steps: int) -> None:
        self.train(steps)
        self.job.change_acknowledgement()

    @precondition(lambda self: self.case.indexed or self.case.kind in {"replay", "again"})
    @rule(steps=STEPS, epoch=st.integers(0, 3), step=st.integers(0, 4))
    def seek(self, steps: int, epoch: int, step: int) -> None:
        self.train(steps)
        self.job.seek(epoch, step)

    @precondition(lambda self: self.case.transform)
    @rule(steps=STEPS, killed=st.booleans(), source=st.booleans())
    def fail_to_read(self, steps: int, killed: bool, source: bool) -> None:
        self.train(steps)
        where = "source" if source and not self.case.indexed else "transform"
        if not self.job.over:
            self.job.fail(where, KilledError("planned") if killed else RuntimeError("planned"))

    @precondition(lambda self: not self.case.indexed)
    @rule(steps=STEPS)
    def fail_to_look_ahead(self, steps: int) -> None:
        self.train(steps)
        if not self.job.over:
            self.job.fail_ahead()

    @rule(steps=STEPS)
    def bookmark(self, steps: int) -> None:
        self.train(steps)
        self.job.bookmark()

    # ------------------------------------------------------------------ storage

    @rule(steps=STEPS)
    def save(self, steps: int) -> None:
        self.train(steps)
        assert self.storage.save(self.job)

    @rule(steps=STEPS, point=POINT, power=st.booleans(), number=NUMBERS, nested=st.booleans())
    def crash_in_a_save(self, steps: int, point: int, power: bool, number: int, nested: bool) -> None:
        self.train(steps)
        assert not self.storage.save(self.job, Fault(self.storage.root, point, "power" if power else "kill"))
        self.start(number, nested)

    @rule(steps=STEPS, point=POINT)
    def fail_to_save(self, steps: int, point: int) -> None:
        self.train(steps)
        assert not self.storage.save(self.job, Fault(self.storage.root, point, "error"))

    @rule(steps=STEPS, number=NUMBERS, nested=st.booleans())
    def crash(self, steps: int, number: int, nested: bool) -> None:
        self.train(steps)
        self.start(number, nested)

    @rule(steps=STEPS, number=NUMBERS)
    def roll_back(self, steps: int, number: int) -> None:
        self.train(steps)
        if (step := self.storage.pick(number)) is not None:
            self.job.load(*self.storage.load(step))

    @rule(number=NUMBERS, steps=STEPS, nested=st.booleans(), world=NUMBERS, batch_size=st.integers(0, 4))
    def try_a_checkpoint(self, number: int, steps: int, nested: bool, world: int, batch_size: int) -> None:
        """Go on from any checkpoint in another process, beside the job; in one that it does not fit, be refused."""
        if (step := self.storage.pick(number)) is None:
            return
        content, saved = self.storage.load(step)
        ranks = self.case.worlds[world % len(self.case.worlds)] if batch_size else saved.world
        size = min(batch_size, self.case.length // ranks) or saved.batch_size
        other = Job(self.case, ranks, self.case.size and size, nested=nested)
        other.load(content, saved)
        other.check()
        other.begin()
        for _ in range(steps + 1 if other.model.agreed(saved) else 0):
            if not other.over:
                other.step()
                other.check()

    @rule(number=st.integers(-3, -1), how=st.integers(0, 300))
    def damage(self, number: int, how: int) -> None:
        if (step := self.storage.pick(number)) is not None:
            self.storage.damage(step, how)

    # ------------------------------------------------------------------ always

    @invariant()
    def the_job_is_where_the_model_is(self) -> None:
        if hasattr(self, "job"):
            self.job.check()

    @invariant()
    def the_trainers_generators_are_left_alone(self) -> None:
        assert generators() == self.trainers


FAMILIES = {
    "indexed": {
        "drop": Case(worlds=(1, 2, 3, 6)),
        "partial": Case(tail="partial"),
        "pad, by hand": Case(tail="pad", manual=True),
        "carry": Case(tail="carry"),
        "carry, uneven, by hand": Case(tail="carry", manual=True, worlds=(1, 2, 4, 5)),
    },
    "other batches": {
        "carry": Case(tail="carry", changes=True),
        "drop, by hand": Case(tail="drop", changes=True, manual=True),
        "partial": Case(tail="partial", changes=True, worlds=(1,)),
        "array, pad, by hand": Case("array", tail="pad", changes=True, worlds=(1, 3), manual=True, transform=False),
        "samples as batches": Case(size=None, tail="drop"),
    },
    "replayed": {
        "generator": Case("replay"),
        "generator, alone, by hand": Case("replay", tail="partial", worlds=(1,), manual=True),
        "generator, other batches": Case("replay", changes=True),
        "re-iterable, elements as batches": Case("again", size=None),
        "re-iterable, by hand": Case("again", manual=True),
    },
    "stateful": {
        "drop": Case("stateful"),
        "drop, by hand": Case("stateful", manual=True, rarely=3),
        "partial, by hand": Case("stateful", tail="partial", worlds=(1,), manual=True),
        "restarting": Case("restarting"),
        "restarting, partial": Case("restarting", tail="partial", worlds=(1,)),
        "elements as batches, by hand": Case("stateful", size=None, manual=True),
        "other batches": Case("stateful", changes=True, rarely=2),
    },
    "iterators": {
        "function": Case("iterator", worlds=(1, 3)),
        "function, by hand": Case("iterator", worlds=(1, 2), manual=True, rarely=2),
        "one pass": Case("one pass", tail="partial", worlds=(1,)),
        "one pass, by hand": Case("one pass", manual=True),
        "a stream per rank": Case("sharded", size=3, tail="partial", worlds=(2,)),
        "a stream per rank, by hand": Case("sharded", size=3, worlds=(3,), manual=True),
    },
}
FIRST, *OTHERS = FAMILIES
FAST = settings(max_examples=100, stateful_step_count=20)
SLOW = settings(max_examples=80, stateful_step_count=40)


def run(family: str, profile: settings) -> type[Simulation]:
    class Machine(Simulation):
        @initialize(name=st.sampled_from(list(FAMILIES[family])), number=NUMBERS, keep=KEEP, nested=st.booleans())
        def launch(self, name: str, number: int, keep: int | None, nested: bool) -> None:
            self.case = FAMILIES[family][name]
            self.storage = Storage(Path(self.folder.name), keep)
            self.start(number, nested)

    quiet = settings(
        profile, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
    )
    run_state_machine_as_test(Machine, settings=quiet)
    return Machine


@pytest.fixture(autouse=True)
def _entry_points_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a file of every installed package for every loader would take most of the time."""
    monkeypatch.setattr(registry, "_installed", cache(registry._installed))


SLOW_AND_LONG = [pytest.mark.slow, pytest.mark.long]  # each takes minutes


@pytest.mark.parametrize("family", [FIRST, *(pytest.param(family, marks=SLOW_AND_LONG) for family in OTHERS)])
def test_the_job_does_what_its_model_says(family: str) -> None:
    run(family, FAST)


# Each family is run above by the same machine, with fewer steps.
@pytest.mark.slow
@pytest.mark.parametrize("family", [FIRST, *(pytest.param(family, marks=pytest.mark.long) for family in OTHERS)])
def test_the_job_does_what_its_model_says_for_long(family: str) -> None:
    machine = run(family, SLOW)
    print(f"{machine.schedules} schedules, {machine.crashes} crashes")  # noqa: T201  # for `pytest -s`


# ---------------------------------------------------------------------- what it has found


def test_an_epoch_that_was_read_to_its_end_is_over() -> None:
    """A reader with elements that `drop` leaves out; the last batch is acknowledged after the inner loop."""
    loader, counts = Case("stateful", manual=True).wrap(Switch(), 6, World()), []
    for epoch in loader.epochs(3):
        counts.append(len(list(epoch)))
        loader.ack(counts[-1])
    assert counts == [2, 2, 3]  # of 12, 16 and 20 elements


def test_length_of_the_coming_epoch() -> None:
    """The length of the coming epoch is the one that it will have."""
    loader = Case(tail="carry").wrap(Switch(), 5, World())
    loader.end_epoch()
    lengths = [len(loader) for _ in loader]
    assert [*lengths, len(loader), sum(1 for _ in loader)] == [4, 4, 4, 3, 3, 3]


def test_an_epoch_that_was_over_stays_so_for_fewer_ranks() -> None:
    """Of 17 samples two ranks read 16, and one rank would have one more."""
    machine = Simulation()
    machine.case = FAMILIES["other batches"]["samples as batches"]
    machine.storage = Storage(Path(machine.folder.name), None)
    for number, steps in ((0, 10), (1, 3), (0, 4)):  # ranks, less one
        machine.start(number, nested=False)
        machine.save(steps)
        machine.the_job_is_where_the_model_is()
    assert [machine.storage.saved[step].place[:3] for step in sorted(machine.storage.saved)] == [
        (0, 10, 10),
        (0, 16, 13),
        (1, 4, 4),
    ]
    machine.teardown()
