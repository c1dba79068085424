"""The report of a kill has what the flight recorder of the killed process says, and it is what the ledger says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resumable.chaos.campaign import survey
from resumable.chaos.launch.flights import find_flights, read_flights
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import Case, Fault, Leg
from resumable.chaos.report import Outcome
from resumable.chaos.report.text import tell_lines
from resumable.chaos.verify.checks import check

if TYPE_CHECKING:
    from resumable.chaos.recorder.attempts import Attempt

LOOP = str(Path(__file__).parent / "scripts" / "small_loop.py")
SAID = re.compile(
    r"flight recorder: killed in epoch (\d), step (\d), (while reading|while training|after a state was taken)"
)
BETWEEN = re.compile(r"flight recorder: killed after (\d) steps of epoch (\d)")
ENDED = "ended cleanly after 6 steps of epoch 1, between epochs"
EPOCH = 6  # steps


def handed(attempt: Attempt) -> int:
    """Return how many batches the ledger has."""
    _, place = list(attempt.ranks[0].batches)[-1]
    return place.epoch * EPOCH + place.step


def recorded(line: str) -> tuple[str, int]:
    """Return what the process did by the record that a line tells of, and how many batches it had been given."""
    if between := BETWEEN.search(line):
        return "between", int(between[2]) * EPOCH + int(between[1])
    found = SAID.search(line)
    assert found, line
    return found[3], int(found[1]) * EPOCH + int(found[2]) + (found[3] != "while reading")


@pytest.mark.slow
def test_every_kill_is_told_as_the_flight_recorder_saw_it(tmp_path: Path) -> None:
    with Preload(["numpy"]) as preload:
        command = Command((sys.executable, LOOP, "--record"), preload=preload)
        baseline, seen, _ = survey(command, tmp_path / "baseline", (1,))
        assert baseline.flights == {0: [ENDED]}
        phases = set()
        for number in range(3, len(seen.points), 4):
            case, directory = Case((Leg(Fault("kill", number)), Leg())), tmp_path / str(number)
            attempts = run_case(command, case, directory)
            found = Outcome.of(case, directory, attempts, check(case, baseline, attempts), baseline)
            assert found.ok, found.violations
            first, last = tell_lines(found)[0], tell_lines(found)[-1]
            assert last.endswith(f"came to its end; flight recorder: {ENDED}")
            if attempts[0].ranks[0].batches:
                phase, given = recorded(first)
                phases.add(phase)
                assert given - handed(attempts[0]) in {0, 1}, first  # the ledger notes a batch a moment later
    assert phases >= {"while training", "after a state was taken"}


def test_only_what_a_start_has_written_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "work" / "flights"
    folder.mkdir(parents=True)
    (folder / "rank-00000.flight").write_bytes(b"torn")
    before = find_flights(tmp_path)
    assert read_flights(tmp_path, before) == {}
    assert read_flights(tmp_path, {}) == {}  # damaged: it says nothing
    assert read_flights(tmp_path / "none", before) == {}
