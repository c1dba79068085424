"""What starts, kills and follows the training processes: the plan, the ledger, and the groups of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from demo.attempt import Attempt, Place, Trained
from demo.ledger import Ledger, read_events
from demo.plan import Kill, plan_kills

from resumable._processes import living_members
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def baseline(batches: int = 72) -> Attempt:
    """Make a run that was not killed, in epochs of 24 batches."""
    trained = {count: Trained(Place(*divmod(count, 24)), "digest") for count in range(1, batches + 1)}
    return Attempt(batches=trained, saves=[6], epoch_ends=[24, 48, 72])


def test_kills_are_the_same_for_the_same_seed_only() -> None:
    plans = [plan_kills(baseline(), 5, seed) for seed in ("0 list", "0 list", "1 list", "0 generator")]
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
    assert plans[0] != plans[3]


@pytest.mark.parametrize("number", [1, 2, 3, 8, 30])
def test_kills_are_spread_over_the_run_with_one_at_an_evaluation(number: int) -> None:
    for seed in range(50):
        kills = plan_kills(baseline(), number, str(seed))
        assert len(kills) == number
        assert [kill.after for kill in kills if kill.epoch_end] in ([[]] if number == 1 else [[24], [48]])
        assert all(6 < kill.after <= 56 and 0 <= kill.delay < 0.02 for kill in kills)
        assert all(before.after <= later.after for before, later in pairwise(kills))


def test_a_run_that_is_too_short_for_the_kills_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"27 batches has room for 5 kills, but 6"):
        plan_kills(baseline(27), 6, "0")


@pytest.mark.parametrize(
    ("kind", "count", "in_epoch", "at_end"),
    [
        ("batch", 23, False, False),
        ("batch", 24, True, False),
        ("batch", 25, True, True),
        ("epoch-end", 24, True, True),
        ("save", 30, False, False),
    ],
)
def test_a_kill_waits_for_its_event(kind: str, count: int, in_epoch: bool, at_end: bool) -> None:
    event = {"kind": kind, "count": count}
    assert Kill(24, epoch_end=False, delay=0.0).is_due(event) is in_epoch
    assert Kill(24, epoch_end=True, delay=0.0).is_due(event) is at_end


def test_a_line_that_was_cut_off_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert read_events(path) == ([], 0)
    Ledger(path).write("batch", 1, digest="a")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:9])
    events, offset = read_events(path)
    assert [event["count"] for event in events] == [1]
    assert read_events(path, offset) == ([], offset)
    path.write_bytes(whole + whole)
    assert read_events(path, offset) == (events, 2 * len(whole))


def test_a_ledger_is_never_written_over(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger")
    with pytest.raises(FileExistsError):
        Ledger(tmp_path / "ledger")


def test_finds_the_living_processes_of_a_group_and_no_others() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as leader:
        try:
            while len(members := living_members(leader.pid)) < 2:
                time.sleep(0.01)
            assert leader.pid in members
            assert os.getpid() not in members
        finally:
            os.killpg(leader.pid, signal.SIGKILL)
    while living_members(leader.pid):  # the grandchild dies a moment later
        time.sleep(0.01)
