"""Random schedules of everything that happens to a training job, against a model of it; see `simulation.py`.

Steps, acknowledgements, saves, crashes at each fault point of a save, resizes, rollbacks, epochs that are left early,
failing reads and damaged checkpoints, in any order. Each schedule that Hypothesis finds is shrunk to the shortest one.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the helpers stand beside the tests

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
from simulation import POINTS, Case, Fault, Job, KilledError, Model, Storage, generators, new_folder

from resumable import registry

NUMBERS = st.integers(0, 11)


class Simulation(RuleBasedStateMachine):
    """A job, its storage, and everything that can happen to them."""

    case: Case
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

    @initialize(number=NUMBERS, keep=st.sampled_from([None, 2, 3]), nested=st.booleans())
    def launch(self, number: int, keep: int | None, nested: bool) -> None:
        self.storage = Storage(Path(self.folder.name), keep)
        self.start(number, nested)

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
        """Tell whether a job of this shape can go on from the newest checkpoint."""
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

    # ------------------------------------------------------------------ training

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.job.over:
                self.job.step()

    @precondition(lambda self: self.case.manual)
    @rule(count=st.integers(1, 3))
    def ack(self, count: int) -> None:
        self.job.ack(min(count, len(self.job.waiting)))

    @precondition(lambda self: not self.job.over)
    @rule()
    def leave_the_epoch(self) -> None:
        self.job.leave()

    @precondition(lambda self: not self.job.over)
    @rule()
    def iterate_again(self) -> None:
        self.job.iterate()

    @precondition(lambda self: self.case.indexed or self.case.kind in {"replay", "again"})
    @rule(epoch=st.integers(0, 3), step=st.integers(0, 4))
    def seek(self, epoch: int, step: int) -> None:
        self.job.seek(epoch, step)

    @precondition(lambda self: self.case.transform and not self.job.over)
    @rule(killed=st.booleans(), source=st.booleans())
    def fail_to_read(self, killed: bool, source: bool) -> None:
        where = "source" if source and not self.case.indexed else "transform"
        self.job.fail(where, KilledError("planned") if killed else RuntimeError("planned"))

    @precondition(lambda self: not self.case.indexed and not self.job.over)
    @rule()
    def fail_to_look_ahead(self) -> None:
        self.job.fail_ahead()

    @rule()
    def bookmark(self) -> None:
        self.job.bookmark()

    # ------------------------------------------------------------------ storage

    @rule()
    def save(self) -> None:
        assert self.storage.save(self.job)

    @rule(point=st.integers(0, len(POINTS) - 1), power=st.booleans(), number=NUMBERS, nested=st.booleans())
    def crash_in_a_save(self, point: int, power: bool, number: int, nested: bool) -> None:
        assert not self.storage.save(self.job, Fault(self.storage.root, point, "power" if power else "kill"))
        self.start(number, nested)

    @rule(point=st.integers(0, len(POINTS) - 1))
    def fail_to_save(self, point: int) -> None:
        assert not self.storage.save(self.job, Fault(self.storage.root, point, "error"))

    @rule(number=NUMBERS, nested=st.booleans())
    def crash(self, number: int, nested: bool) -> None:
        self.start(number, nested)

    @rule(number=NUMBERS)
    def roll_back(self, number: int) -> None:
        if (step := self.storage.pick(number)) is not None:
            self.job.load(*self.storage.load(step))

    @rule(number=NUMBERS, count=st.integers(1, 4), nested=st.booleans())
    def try_a_checkpoint(self, number: int, count: int, nested: bool) -> None:
        """Go on from any checkpoint in another process, beside the job."""
        if (step := self.storage.pick(number)) is None:
            return
        content, saved = self.storage.load(step)
        batch_size = None if self.case.size is None else saved.batch_size
        other = Job(self.case, saved.world, batch_size, nested=nested)
        other.load(content, saved)
        for _ in range(count):
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


CASES = {
    "drop": Case(),
    "partial": Case(tail="partial", worlds=(1, 2, 3)),
    "pad, by hand": Case(tail="pad", manual=True),
    "carry": Case(tail="carry"),
    "carry, uneven, by hand": Case(tail="carry", manual=True, worlds=(1, 2, 4, 5), options={"uneven": True}),
    "another batch size": Case(tail="carry", changes=True, worlds=(1, 2, 3)),
    "another batch size, padded": Case("array", tail="pad", changes=True, worlds=(1, 3), manual=True, transform=False),
    "samples as batches": Case(size=None, tail="drop", worlds=(1, 2, 3)),
    "replay": Case("replay"),
    "replay, alone, by hand": Case("replay", tail="partial", worlds=(1,), manual=True),
    "re-iterable, elements as batches": Case("again", size=None, worlds=(1, 2, 3)),
    "iterator": Case("iterator", worlds=(1, 3)),
    "iterator, by hand": Case("iterator", worlds=(1, 2), manual=True, options={"snapshot_every": 2}),
    "stateful": Case("stateful"),
    "stateful, partial, by hand": Case("stateful", tail="partial", worlds=(1,), manual=True),
    "stateful, by hand": Case("stateful", manual=True, options={"snapshot_every": 3}),
    "stateful, elements as batches": Case("stateful", size=None, worlds=(1, 2, 3), manual=True),
    "one pass": Case("one pass", tail="partial", worlds=(1,)),
    "a stream per rank": Case("sharded", size=3, tail="partial", worlds=(2,)),
}
FAST = settings(max_examples=60, stateful_step_count=25)
SLOW = settings(max_examples=600, stateful_step_count=50)


def run(name: str, profile: settings) -> type[Simulation]:
    machine: Any = type(name, (Simulation,), {"case": CASES[name]})
    quiet = settings(
        profile, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
    )
    run_state_machine_as_test(machine, settings=quiet)
    return machine  # type: ignore[no-any-return]  # made by `type`


@pytest.fixture(autouse=True)
def _entry_points_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a file of every installed package for every loader would take most of the time."""
    monkeypatch.setattr(registry, "_installed", cache(registry._installed))


@pytest.mark.parametrize("name", CASES)
def test_the_job_does_what_its_model_says(name: str) -> None:
    run(name, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_job_does_what_its_model_says_for_long(name: str) -> None:
    machine = run(name, SLOW)
    print(f"{machine.schedules} schedules, {machine.crashes} crashes")  # noqa: T201  # for `pytest -s`
