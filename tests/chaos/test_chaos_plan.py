"""The plan: every kind of moment first, spread over the run; and how far a campaign is."""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resumable
from resumable.chaos.campaign import plan_cases
from resumable.chaos.plan import FAULTS, Case, Survey, exhaustive, group_moments, in_turn, limited, main_loader
from resumable.chaos.report import progress
from resumable.chaos.report.progress import affordable, describe_plan, follow
from resumable.failpoints import POINTS

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = [sys.executable, str(SCRIPTS / "evaluating_loop.py")]

SAVE = ["store.save", "store.half", "store.written", "store.synced", "store.rename", "store.renamed", "store.saved"]
BATCH = ["loader.fetch", "loader.handed"]
END = ["loader.fetch", "loader.epoch_end"]
EVALUATION = ["evaluation.handed"] * 2
RUN = [
    *("store.load", "store.loaded"),
    *(BATCH * 2 + EVALUATION + BATCH + SAVE + BATCH + SAVE + SAVE + BATCH * 2 + END + EVALUATION + SAVE) * 3,
    "chaos.weights",
]


def faults(cases: Iterable[Case]) -> list[tuple[str, int]]:
    return [(fault.kind, fault.number) for case in cases for fault in case.faults]


def at(points: list[str], loaders: dict[int, int] | None = None) -> list[str]:
    """Return the kind of moment of each point."""
    groups = group_moments(points, loaders or {})
    kinds = {number: kind for kind, numbers in groups.items() for number in numbers}
    return [kinds[number] for number in range(1, len(points) + 1)]


def test_each_point_is_of_the_kind_that_a_reader_would_name() -> None:
    script = [
        ("store.load", "before any save"),
        ("loader.fetch", "before any save"),
        ("loader.handed", "before any save"),
        ("store.save", "within a save, at store.save"),
        ("store.half", "within a save, at store.half"),
        ("store.saved", "between two saves"),
        ("loader.state", "between two saves"),
        ("store.save", "between two saves"),
        ("store.half", "within a save, at store.half"),
        ("store.half", "within a save, at store.half"),
        ("store.saved", "right after a save, in the middle of an epoch"),
        ("loader.fetch", "right after a save, in the middle of an epoch"),
        ("worker.read", "in the middle of an epoch, after a save in one"),
        ("loader.handed", "in the middle of an epoch, after a save in one"),
        ("evaluation.handed", "a second loader is read, in the middle of an epoch"),
        ("worker.read", "a second loader is read, in the middle of an epoch"),
        ("loader.fetch", "in the middle of an epoch, after a save in one"),
        ("loader.handed", "at an epoch's last batch"),
        ("loader.fetch", "at an epoch's last batch"),
        ("loader.epoch_end", "at an epoch's last batch"),
        ("torch.save.begin", "within a save, at torch.save.begin"),
        ("torch.save.end", "within a save, at torch.save.end"),
        ("lightning.validation", "a second loader is read, after an epoch's end"),
        ("loader.fetch", "after an epoch's end"),
        ("loader.handed", "at the end of the run"),
        ("loader.epoch_end", "at the end of the run"),
        ("store.save", "within a save, at store.save"),
        ("store.saved", "right after a save, at the end of the run"),
        ("chaos.weights", "right after a save, at the end of the run"),
    ]
    assert at([point for point, _ in script])[:22] == [kind for _, kind in script][:22]
    found = at([point for point, _ in script])
    assert found[22] == "right after a save, after an epoch's end"  # a validation, too
    assert found[23:] == [kind for _, kind in script][23:]


def test_second_loader_is_told_by_batches() -> None:
    """A second loader is told from the main one by its batches."""
    points = [*BATCH, *BATCH, *BATCH, *END, *BATCH]
    loaders = {1: 0, 2: 0, 3: 1, 4: 1, 5: 0, 6: 0, 7: 0, 8: 0, 9: 0, 10: 0}
    kinds = at(points, loaders)
    assert kinds[2:4] == ["a second loader is read, in the middle of an epoch"] * 2
    assert main_loader(loaders.values()) == 0
    assert main_loader([1, 0, 1]) == 1
    assert main_loader([]) == 0


def test_saves_of_torch_one_after_the_other_are_two() -> None:
    one = ["torch.save.open", "torch.save.write", "torch.save.close"]
    assert at([*BATCH, *one, *one, *BATCH, *BATCH])[5] == "between two saves"
    assert at([*BATCH, *SAVE, *one, *BATCH, *BATCH])[8:10] == ["between two saves"] * 2
    assert "between two saves" not in at([*BATCH, "lightning.save", *one, *BATCH, *BATCH])
    assert "between two saves" not in at([*BATCH, *SAVE[:2], *one, *SAVE[2:], *BATCH])  # a store may use torch.save


def test_where_only_the_end_is_saved_no_kind_of_moment_is_lost() -> None:
    kinds = set(at([*BATCH * 3, *END, *EVALUATION, *BATCH * 3, *END, *SAVE]))
    assert {"at an epoch's last batch", "a second loader is read, after an epoch's end"} <= kinds


def test_the_first_cases_have_every_kind_of_moment_and_of_fault() -> None:
    survey = Survey(RUN, ["worker.start", *["worker.read"] * 9], [20, 40])
    kinds = ("kill", "truncate", "worker-kill", "worker-raise", "stop")
    plan = exhaustive(survey, kinds)
    groups = group_moments(RUN, {})
    assert len(groups) >= 14
    assert plan.least == len(groups) + 2 + 3  # two kinds of points in a worker; truncate, worker-raise and stop
    first = faults(islice(plan.cases, plan.least))
    killed = [number for kind, number in first if kind == "kill"]
    assert [sum(number in numbers for number in killed) for numbers in groups.values()] == [1] * len(groups)
    assert {kind for kind, _ in first} == set(kinds)


points = st.lists(st.sampled_from([*POINTS, "torch.save.open", "torch.save.close"]), min_size=1, max_size=120)


@given(points, st.lists(st.sampled_from(list(POINTS)), max_size=9), st.integers(0, 9), st.data())
def test_plan_without_a_limit_is_all_cases(names: list[str], worker: list[str], seed: int, data: st.DataObject) -> None:
    """A plan without a limit is all cases, and a shorter one its beginning."""
    loaders = data.draw(st.dictionaries(st.integers(1, len(names)), st.integers(0, 2)))
    survey = Survey(names, worker, [1, 2], loaders=loaders)
    kinds = data.draw(st.lists(st.sampled_from(list(FAULTS)), min_size=1, max_size=4, unique=True))
    plan = exhaustive(survey, kinds, seed)
    every = faults(plan.cases)
    assert sorted(every) == sorted((kind, number) for kind in kinds for number in survey.moments(kind))
    assert len(every) == plan.number >= plan.least
    assert faults(exhaustive(survey, kinds, seed).cases) == every
    for limit in (1, 3, 1000):
        some = faults(limited(exhaustive(survey, kinds, seed).cases, limit))
        for kind in kinds:
            assert [one for one in some if one[0] == kind] == [one for one in every if one[0] == kind][:limit]


def test_moments_of_one_kind_are_spread_and_in_step_with_nothing() -> None:
    for limit in (1, 2, 7, 100, 1000):
        moments = sorted(islice(in_turn(range(1000), 0), limit))
        assert len(set(moments)) == limit
        gaps = [later - earlier for earlier, later in zip([0, *moments], [*moments, 1000], strict=True)]
        assert max(gaps) < 5 * 1000 / limit
    for period in (2, 3, 4, 5):
        assert {number % period for number in islice(in_turn(range(1000), 0), 12)} == set(range(period))
    assert list(in_turn(range(50), 0)) != list(in_turn(range(50), 1))


def test_a_large_run_is_planned_in_a_moment() -> None:
    """A plan that takes a time quadratic in the points would take minutes."""
    survey = Survey(RUN[2:-1] * (30_000 // len(RUN)), ["worker.read"] * 1000, [20, 40])
    began = time.process_time()
    plan = exhaustive(survey, ("kill", "worker-kill"))
    assert len(list(plan.cases)) == plan.number > 25_000
    assert time.process_time() - began < 4


def test_default_plan_covers_every_moment() -> None:
    """The default plan takes what fits the budget and what every kind of moment needs."""
    survey = Survey(RUN, [], [20, 40])

    def plan(points: str | int, affordable: int = 0) -> list[tuple[str, int]]:
        planned = plan_cases(survey, ["kill"], points, pairs_=0, random_=0, seed=0, affordable=affordable)
        assert planned.number == len(RUN)
        return faults(planned.cases)

    every = plan("all")
    least = exhaustive(survey, ["kill"]).least
    assert len(every) == len(RUN)
    assert plan("auto") == plan(least) == every[:least]
    assert plan("auto", 40) == every[:40]
    assert plan("auto", 10**6) == every
    assert plan(0) == []
    assert [affordable(seconds, 1) for seconds in (0.5, 300.0)] == [180, 0]
    assert affordable(0.5, 4) == 720


def test_the_head_says_how_many_cases_of_how_many_and_how_long() -> None:
    assert describe_plan(34, 2118, 5.3, 1).split("\n") == [
        "A baseline run takes 5.3 s.",
        "34 cases of 2118; about 6.0 min; --points all runs them all.",
    ]
    assert describe_plan(1, 1, 30.0, 2).endswith("\n1 case; about 30 s.")
    assert max(map(len, describe_plan(123456, 2345678, 4000.0, 1).split("\n"))) <= 60


def test_lines_of_progress_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a pipe, a line comes after the first case and then every ten seconds."""
    told: list[str] = []
    clock = iter(float(second) for second in range(0, 1000, 4))
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    outcome = type("Passed", (), {"ok": True})()
    with follow(9, told.append) as show:
        for _ in range(9):
            show(outcome)
    assert told == [
        "1 of 9 cases, 0 failed; 32 s left",
        "4 of 9 cases, 0 failed; 20 s left",
        "7 of 9 cases, 0 failed; 8 s left",
    ]
    with follow(9, None) as show:
        show(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("points", [3, pytest.param(None, marks=pytest.mark.long)])  # some twenty
def test_plan_finds_a_skipped_evaluation(points: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan finds an evaluation that is skipped at the end of an epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("resumable.chaos.report.progress._WHOLE", 0.0)  # as for a script that takes an hour
    told: list[str] = []
    found = resumable.chaos.run([*LOOP, "--skip"], preload="numpy", jobs=2, points=points, tell=told.append)
    assert {one.diagnosis.cause for one in found.failed} == {"evaluation skipped"}
    assert any(f"{len(found.outcomes)} cases of " in line for line in told)
    assert any("0 failed; " in line or "1 failed; " in line for line in told)
    if points is not None:
        return
    assert len(found.outcomes) <= 24
    struck = {one.case.launches[0].fault.number for one in found.outcomes if one.case.launches[0].fault}
    groups = group_moments(found.baseline.ranks[0].points, found.baseline.ranks[0].loaders)
    assert all(struck & set(numbers) for numbers in groups.values())
    assert {"a second loader is read, in the middle of an epoch", "between two saves"} <= groups.keys()
