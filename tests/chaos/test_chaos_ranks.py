"""Runs of several ranks: which process a fault hits, what is recorded of each start of a rank, and how it is judged.

Most of them are started by `scripts/launch_ranks.py`, which does what torchrun does without importing torch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resumable
from resumable._order.world import World
from resumable.chaos.api import choose_ranks
from resumable.chaos.digests import digest_weights, parts_of
from resumable.chaos.launch.group import SHARED_STORE, environment_of_agents
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.ledger import Attempt, Batch, RankLog, StepRef
from resumable.chaos.plan import Case, Fault, Launch, aim, note_sizes, note_targets
from resumable.chaos.report import Outcome
from resumable.chaos.report.text import tell_lines
from resumable.chaos.verify.baseline import forgive_rounding
from resumable.chaos.verify.checks import (
    CHECKS,
    check,
    ranks_agree,
    same_checkpoints,
    same_shares,
    same_weights,
    whole_history,
)
from resumable.chaos.verify.history import steps_of
from resumable.errors import ConfigurationError

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLE = Path(__file__).parents[2] / "examples" / "chaos_ranks.py"
PEACE = Case((Launch(),))
KILL = Fault("kill", 9)
PATIENCE = 600.0
LONG = (pytest.mark.slow, pytest.mark.long)


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(*options: str, ranks: int | str = 2, restarts: int = 0) -> tuple[str, ...]:
    launch, script = (str(SCRIPTS / name) for name in ("launch_ranks.py", "ranks_loop.py"))
    return (sys.executable, launch, str(ranks), str(restarts), script, *options)


def by_torchrun(*options: str, script: Path = SCRIPTS / "ranks_loop.py", ranks: int = 2) -> tuple[str, ...]:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return (*torchrun, "--max-restarts=2", str(script), *options)


def with_ddp(ranks: int) -> tuple[str, ...]:
    return by_torchrun("train", script=EXAMPLE, ranks=ranks)


def run_one(fault: Fault, words: tuple[str, ...]) -> Outcome:
    """Run a baseline run and one case."""
    (ranks,) = choose_ranks(words, None, None)
    return run_launches(words, Launch(fault, ranks), Launch(None, ranks))


def run_launches(words: tuple[str, ...], *launches: Launch) -> Outcome:
    """Run a baseline run, with as many ranks as the first start of the case, and the case."""
    command, case = Command(words, patience=PATIENCE), Case(launches)
    (baseline,) = run_case(command, Case((Launch(None, launches[0].ranks),)), Path("baseline").absolute())
    assert baseline.status == 0, baseline.output
    attempts = run_case(command, case, Path("case").absolute())
    forgive_rounding(baseline, attempts)
    return Outcome.of(case, Path("case"), attempts, check(case, baseline, attempts), baseline)


# ---------------------------------------------------------------------- real processes


@pytest.mark.slow
@pytest.mark.parametrize("target", ["rank", "agent"])
def test_a_kill_of_a_rank_or_of_the_agent_breaks_no_promise(target: str) -> None:
    fault = Fault("kill", 20, rank=int(target == "rank"), target=target)
    found = run_one(fault, words())
    assert found.ok, found.violations
    assert (found.starts, found.fired, found.resumed) == (2, 1, 1)
    first, second = found.attempts
    assert first.status == {"rank": 1, "agent": -9}[target]
    assert set(first.ranks) == set(second.ranks) == {0, 1}
    assert not first.orphans
    assert len(first.ranks[0].batches) < len(first.ranks[0].batches | second.ranks[0].batches) == 12
    last = max(log.times[1] for log in first.ranks.values())
    assert last < min(log.times[0] for log in second.ranks.values()), "a rank of the first start lived on"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "cause"), [("--one-generator", "generators of other ranks"), ("--own-generators", "")]
)
def test_each_rank_needs_the_state_of_its_generator(option: str, cause: str) -> None:
    found = run_one(Fault("kill", 24, target="all"), words(option))
    assert found.resumed == 1
    assert found.ok is (not cause), found.violations
    assert found.diagnosis.cause == cause, found.diagnosis
    assert "the state of the RNG numpy of rank 1 differs" in found.diagnosis.text or not cause


@pytest.mark.slow
def test_agent_restarts_are_judged_together() -> None:
    """An agent that restarts its ranks is judged over all their starts.

    The fault happens once, and each start of the ranks has a record of its own.
    """
    found = run_one(Fault("kill", 10, rank=1, target="rank"), words(restarts=2))
    assert found.ok, found.violations
    assert [(one.number, one.launch, one.restarts, one.status) for one in found.attempts] == [
        (0, 0, 0, None),
        (1, 0, 1, 0),
    ]
    assert (found.fired, found.resumed, len(found.attempts[0].ranks[1].points)) == (1, 1, 10)
    lines = tell_lines(found)
    assert "the fault hit another rank, ended by the agent" in lines[0]
    assert "kill of rank 1 at point 10" in lines[1]
    assert all("restarted by the agent" in line and "finished" in line for line in lines[2:])


TORCH = """
import pathlib, resumable, torch, torch.distributed as dist
dist.init_process_group("gloo")
loader = resumable.wrap(list(range(16)), batch_size=2, seed=0)
pathlib.Path("out").mkdir(exist_ok=True)
store = resumable.CheckpointStore("out/store")
weight = torch.zeros(1)
if (last := store.latest()) is not None:
    loader.load_state_dict(last["loader"])
    weight = last["weight"]
dist.barrier()
for epoch in loader.epochs(2):
    for batch in epoch:
        gradient = torch.tensor([sum(batch) / 3])
        dist.all_reduce(gradient)
        weight = 0.9 * weight + 0.1 * gradient
        pathlib.Path(f"out/rank-{dist.get_rank()}").write_text("x")
        if dist.get_rank() == 0:
            store.save(loader.global_step, {"loader": loader.state_dict(), "weight": weight})
        dist.barrier()
resumable.chaos.record_weights([weight])
"""


@pytest.mark.slow
def test_torchrun_restarts_write_to_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`torchrun` restarts its ranks, and they write to the case."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(TORCH)
    found = run_one(Fault("kill", 14, rank=1, target="rank"), by_torchrun(script=script))
    assert found.ok, found.violations
    kept = [(one.number, one.launch, one.restarts, one.status, sorted(one.ranks)) for one in found.attempts]
    assert kept == [(0, 0, 0, None, [0, 1]), (1, 0, 1, 0, [0, 1])]
    assert (found.fired, found.resumed) == (1, 1)
    assert found.attempts[1].ranks[0].weights
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [words("--own-newest"), pytest.param(by_torchrun("--own-newest", "--torch"), marks=LONG)]
)
def test_rank_with_its_own_checkpoint(command: tuple[str, ...]) -> None:
    """Each rank that looks for a checkpoint of itself is caught with its cause.

    Rank 1 is killed when it has the state of its third checkpoint, and has not written it.
    """
    found = run_one(Fault("kill", 3, point="loader.state", rank=1, target="rank"), command)
    text = "rank 1 resumed from epoch 0, step 4, but rank 0 resumed from epoch 0, step 6, of loader 0"
    assert found.violations["ranks agree"] == f"in launch 1, {text}"
    assert found.diagnosis.cause == "ranks resume apart"
    assert text in found.diagnosis.text


@pytest.mark.slow
def test_ranks_that_wait_for_a_dead_one() -> None:
    """Ranks that wait for a dead one without an agent are ended."""
    began = time.monotonic()
    found = run_one(Fault("kill", 20, rank=1, target="rank"), words("--no-agent"))
    assert found.ok, found.violations
    assert found.attempts[0].killed == "a rank was killed, and the others made no progress for 10 s"
    assert time.monotonic() - began < PATIENCE


@pytest.mark.slow
@pytest.mark.parametrize("command", [words(ranks=4), pytest.param(with_ddp(3), marks=LONG)])
def test_weights_above_two_ranks_may_round(command: tuple[str, ...]) -> None:
    """Above two ranks, weights may be rounded differently and data may not."""
    found = run_one(Fault("kill", 20, target="all"), command)
    assert found.ok, found.violations
    assert found.attempts[0].status == -9
    shown = {log.weights for one in found.attempts for log in one.ranks.values() if log.weights}
    assert len(shown) == 1, "they were not made those of the baseline run"


@pytest.mark.slow
def test_weights_that_are_lost_are_no_rounding() -> None:
    found = run_one(Fault("kill", 28, target="all"), words("--lose-weights", ranks=3))
    assert set(found.violations) == {"same weights", "same files"}
    assert " ~ " not in found.violations["same weights"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [words(), pytest.param(with_ddp(2), marks=LONG)])
def test_the_targets_take_turns_and_the_report_names_them(command: tuple[str, ...]) -> None:
    found = resumable.chaos.run(command, points=4, jobs=2, patience=PATIENCE)
    assert found.ok, found.timeline()
    texts = [str(outcome.case) for outcome in found.outcomes]
    assert [text.removeprefix("kill of ").partition(" at point")[0] for text in texts] == [
        "rank 1",
        "the agent",
        "all processes",
        "rank 0",
    ]
    assert "faults hit rank 0 (1), rank 1 (1), the agent (1), all processes (1)" in found.notes
    case = found.as_dict()["cases"][1]
    assert case["legs"][0]["fault"]["target"] == "agent"
    assert Case.from_dict(case) == found.outcomes[1].case


KILLS = {  # of the starts of four, three and one ranks: at which point, and what of it
    "while it trains": ((9, "rank"), (13, "all"), (16, "agent")),
    "while it loads": ((24, "all"), (1, "rank"), (2, "all")),
    "at its first batch": ((16, "agent"), (3, "all"), (4, "rank")),
    "while it saves": ((15, "all"), (7, "all"), (12, "all")),
    "late": ((31, "rank"), (15, "agent"), (5, "all")),
}
RESIZED = [(words("--resized", ranks="{ranks}"), kills) for kills in KILLS]
RESIZED.append((by_torchrun("--resized", "--torch", ranks=4), "while it saves"))


@pytest.mark.slow
@pytest.mark.parametrize(("command", "kills"), [RESIZED[0], *(pytest.param(*cell, marks=LONG) for cell in RESIZED[1:])])
def test_four_ranks_become_three_then_one_then_two(command: tuple[str, ...], kills: str) -> None:
    """Each launch but the last is killed, and the next one has a different number of ranks.

    A killed rank stops the others at points that nobody chooses, so a launch may start at an epoch's start by chance.
    """
    faults = [Fault("kill", number, target=target) for number, target in KILLS[kills]]
    found = run_launches(command, *map(Launch, [*faults, None], (4, 3, 1, 2)))
    assert found.ok, found.violations
    assert (found.starts, found.fired) == (4, 3)
    assert [max(log.world for log in one.ranks.values()) for one in found.attempts] == [4, 3, 1, 2]
    if kills == "while it trains":
        begun = [one.ranks[0].loaded[0] for one in found.attempts[1:]]
        assert begun == sorted(begun)
        assert any(place.step % 8 for place in begun), "every launch started at the start of an epoch"
    last = [json.loads(Path(run, "work", "0-016.json").read_text()) for run in ("baseline", "case")]
    assert last[0]["loader"]["cursor"] == last[1]["loader"]["cursor"]
    assert last[0]["weights"] == pytest.approx(last[1]["weights"], rel=1e-12)


def test_ranks_that_fail_by_themselves_are_refused() -> None:
    script = Path("train.py")
    failing = 'import os, sys\nif os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": loader.state_dict(); sys.exit(1)\n'
    script.write_text("import resumable\nloader = resumable.wrap([1, 2])\n" + failing + "for _ in loader: pass\n")
    with pytest.raises(ConfigurationError, match="their agent restarted them 1 times"):
        resumable.chaos.run([sys.executable, str(SCRIPTS / "launch_ranks.py"), "1", "1", str(script.absolute())])


def test_torchrun_is_told_not_to_share_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_STORE, raising=False)
    assert environment_of_agents() == {SHARED_STORE: "1"}
    monkeypatch.setenv(SHARED_STORE, "0")
    assert environment_of_agents() == {SHARED_STORE: "0"}


# ---------------------------------------------------------------------- records that are made here


def log(rank: int, delivered: int, acked: int, *, world: int = 2, first: int = 0) -> RankLog:
    """Make a rank that was delivered some steps, and acknowledged fewer."""
    made = RankLog(rank, world, agent=True)
    for step in range(first + 1, delivered + 1):
        made.batches[0, StepRef(0, step)] = Batch((f"{step} of {rank}",), (f"digest {step} of {rank}",))
        made.points += ["loader.fetch", "loader.handed"]
        if rank == 0 and step % 2 == 0:
            made.points.append("store.written")
    made.acked[0] = StepRef(0, acked)
    if delivered:
        made.begun[0] = StepRef(0, first)
    if first:
        made.loaded[0] = StepRef(0, first)
        made.went[0] = [StepRef(0, first)]
    return made


def attempt(number: int, *logs: RankLog, fired: bool = False) -> Attempt:
    return Attempt(number, {one.rank: one for one in logs}, status=0, fired=fired)


BASELINE = attempt(0, log(0, 6, 6), log(1, 6, 6))


def test_a_step_that_one_rank_acknowledged_is_one_of_all() -> None:
    """Rank 0 saved at step 4, and rank 1 was killed before it acknowledged it: the weights have it."""
    first = attempt(0, log(0, 5, 4), log(1, 4, 3), fired=True)
    second = attempt(1, log(0, 6, 6, first=4), log(1, 6, 6, first=4))
    assert max(key[1].step for key in steps_of(first)) == 4
    assert check(Case((Launch(KILL), Launch())), BASELINE, [first, second]) == {}
    lagging = attempt(0, log(0, 5, 4), log(1, 3, 3), fired=True)
    assert "1 steps of the baseline run are not in the weights" in whole_history(PEACE, BASELINE, [lagging, second])


def test_what_was_delivered_and_not_acknowledged_is_told() -> None:
    first = attempt(0, log(0, 5, 5), log(1, 5, 4), fired=True)
    case = Case((Launch(Fault("kill", 9, rank=1, target="rank"), 2), Launch(None, 2)))
    second = attempt(1, log(0, 6, 6, first=4), log(1, 6, 6, first=4))
    lines = tell_lines(Outcome.of(case, Path("0001"), [first, second], {}))
    assert "not acknowledged" not in lines[0]
    assert "trained 0.0-0.3; delivered, not acknowledged: 0.4; kill of rank 1 at point 9" in lines[1]


def test_wrong_share_is_found_before_the_ack() -> None:
    """A rank that got a wrong share is found before it acknowledges the batch."""
    first = attempt(0, log(0, 5, 4), log(1, 5, 4))
    first.ranks[1].batches[0, StepRef(0, 5)] = Batch(("5 of 0",), ("digest 5 of 0",))
    found = CHECKS["same content"](PEACE, BASELINE, [first])
    assert found == "rank 1 of launch 0 received a different batch in epoch 0, step 4"
    resized = attempt(1, log(0, 6, 6, world=1))
    assert same_shares(BASELINE, [resized]) == ""


@pytest.mark.parametrize(
    ("first", "delivered", "words"),
    [
        (4, 6, ""),
        (2, 6, "rank 1 resumed from epoch 0, step 2, but rank 0 resumed from epoch 0, step 4"),
        (0, 6, "rank 1 started at epoch 0, step 0, but rank 0 resumed from epoch 0, step 4"),
        (0, 0, ""),  # it was killed before it could load anything
    ],
)
def test_ranks_that_went_on_from_other_places_are_named(first: int, delivered: int, words: str) -> None:
    again = attempt(1, log(0, 6, 6, first=4), log(1, delivered, delivered, first=first))
    found = ranks_agree(PEACE, BASELINE, [BASELINE, again])
    assert found == (f"in launch 1, {words}, of loader 0" if words else "")


def plain(number: int, ranks: int = 1) -> Case:
    return Case((Launch(Fault("kill", number), ranks), Launch(None, ranks)))


def test_faults_get_their_targets_in_turn_at_the_same_moments() -> None:
    baseline = attempt(0, *(log(rank, 8, 8, world=3) for rank in range(3)))
    moments = [number for number, name in enumerate(baseline.ranks[0].points, 1) if name != "store.written"]
    cases = aim([plain(number, 3) for number in moments], baseline)
    faults = [case.launches[0].fault for case in cases]
    hit = [(fault.target, fault.rank) for fault in faults if fault]
    assert hit[:6] == [("rank", 1), ("agent", 0), ("all", 0), ("rank", 0), ("rank", 2), ("rank", 1)]
    for moment, fault in zip(moments, faults, strict=True):
        assert fault
        if fault.rank == 0:
            assert fault.number == moment
        else:  # the same part of its run, in points of its own
            assert abs(fault.number / 16 - moment / 20) < 0.1
    assert note_targets(cases[:2], baseline) == [
        "faults hit rank 1 (1), the agent (1)",
        "no fault hits rank 0, rank 2, all processes: use kill, and more points",
    ]


def test_fault_in_a_save_and_power_cut_of_all() -> None:
    """A fault in a save hits the rank that saves, and a power cut all."""
    saving = BASELINE.ranks[0].points.index("store.written") + 1
    found = [case.launches[0].fault for case in aim([plain(saving)] * 3, BASELINE)]
    assert [(one.target, one.rank, one.number) for one in found if one] == [
        ("all", 0, saving), ("rank", 0, saving), ("all", 0, saving),
    ]  # fmt: skip
    cut = Case((Launch(Fault("lost-fsync", saving)), Launch()))
    assert str(aim([cut], BASELINE)[0]) == f"lost-fsync of all processes at point {saving}"
    raised = Case((Launch(Fault("raise", 2)), Launch()))
    assert str(aim([raised], BASELINE)[0]) == "raise of rank 1 at point 2"


def test_one_rank_no_agent_and_clock_failures() -> None:
    """One rank, ranks without an agent and failures by the clock work too."""
    alone = attempt(0, log(0, 6, 6, world=1))
    assert aim([plain(3)], alone) == [plain(3)]
    assert note_targets([plain(3)], alone) == []
    without = attempt(0, *(log(rank, 6, 6) for rank in range(2)))
    for one in without.ranks.values():
        one.agent = False
    texts = [str(case).partition(" at ")[0] for case in aim([plain(1), plain(2), plain(4)], without)]
    assert texts == ["kill of rank 1", "kill of all processes", "kill of rank 0"]
    clock = Case((Launch(Fault("kill", 0, after=2.0)), Launch()))
    assert aim([clock], BASELINE) == [clock]
    resized = Case((Launch(None, 2), Launch(Fault("kill", 3), 1), Launch()))
    assert "rank 1" not in "".join(str(aim([resized] * 3, BASELINE)))


def test_numbers_of_ranks_that_no_case_comes_to_are_named() -> None:
    starts = (4, 3, 1, 2, 3)
    case = Case(tuple(Launch(KILL, ranks) for ranks in starts[:2]))
    told = "no launch has 1 or 2 ranks: a case has only one launch more than faults: use random, or mtbf and failures"
    assert note_sizes([case], starts) == [told]
    assert note_sizes([case, Case(tuple(Launch(KILL, ranks) for ranks in starts))], starts) == []


# ---------------------------------------------------------------------- rounding


def rounded(weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch, world: int = 3) -> Attempt:
    """Make a run whose ranks saved and showed these weights."""
    monkeypatch.setattr(World, "detect", lambda: World(0, world))
    made = attempt(0, *(RankLog(rank, world) for rank in range(world)))
    for one in made.ranks.values():
        one.weights = digest_weights(weights)
        one.parts["store", 3] = [parts_of({"model": weights, "step": 3})]
    return made


WEIGHTS: dict[str, Any] = {
    "layer": np.linspace(-1, 1, 500, dtype=np.float32),
    "loss": 0.25,
    "losses": [0.5, 0.25],
    "epoch": 2,
}


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({}, []),
        ({"layer": WEIGHTS["layer"] * np.float32(1 + 3e-7), "loss": 0.25000001, "losses": [0.5, 0.25000001]}, []),
        ({"layer": WEIGHTS["layer"] * np.float32(1.01)}, ["model.layer"]),
        ({"layer": WEIGHTS["layer"][::-1].copy()}, ["model.layer"]),  # of the same norm
        ({"layer": WEIGHTS["layer"].astype(np.float64)}, ["model.layer"]),
        ({"loss": 0.26}, ["model.loss"]),
        ({"losses": [0.5]}, ["model.losses"]),
        ({"epoch": 3}, ["model.epoch"]),
    ],
)
def test_above_two_ranks_what_differs_by_rounding_is_equal(
    change: dict[str, Any], differing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline, found = rounded(WEIGHTS, monkeypatch), rounded(WEIGHTS | change, monkeypatch)
    forgive_rounding(baseline, [found])
    for one, is_same in ((same_checkpoints, not differing), (same_weights, not differing)):
        assert (one(PEACE, baseline, [found]) == "") is is_same
    parts, expected = (one.ranks[0].parts["store", 3][0] for one in (found, baseline))
    assert [path for path in expected if parts[path] != expected[path]] == differing


def test_on_two_ranks_the_last_bit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    other = WEIGHTS | {"layer": WEIGHTS["layer"] * np.float32(1 + 3e-7)}
    baseline, found = rounded(WEIGHTS, monkeypatch, 2), rounded(other, monkeypatch, 2)
    forgive_rounding(baseline, [found])
    assert same_checkpoints(PEACE, baseline, [found])
    assert same_weights(PEACE, baseline, [found])
    assert "~" not in json.dumps(baseline.ranks[0].parts["store", 3])
