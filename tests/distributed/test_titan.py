"""torchtitan's checkpoint manager with a Loader, in an environment of its own: killed, on other ranks, to the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import resumable

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.executable).parents[1] / "titan/bin/python"
BATCH, EPOCHS, SAMPLES = 6, 2, 42


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("tests/distributed/titan_run.py", tmp_path_factory.mktemp("titan")))
    return found


def run(script: str, *given: Path) -> str:
    """Run a script in torchtitan's environment, and return its last line."""
    child = subprocess.run(
        [PYTHON, ROOT / script, *given],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout.splitlines()[-1]


@pytest.mark.slow
def test_each_start_has_other_ranks(told: dict[str, Any]) -> None:
    """Each start continues with other ranks to the end of the epochs."""
    loader = resumable.wrap(list(range(SAMPLES)), batch_size=BATCH, shuffle=True, seed=0)
    baseline = [batch for epoch in loader.epochs(EPOCHS) for batch in epoch]
    assert [len(ranks) for ranks in told["starts"]] == [2, 3, 1, 2]
    done = 0
    for ranks in told["starts"]:
        assert 0 < ranks[0][0][0] <= done + 1  # an asynchronous save that the kill cut is done again
        for parts in zip(*ranks, strict=True):
            (step,) = {step for step, _ in parts}
            assert [sample for _, part in parts for sample in part] == baseline[step - 1]
            done = step
    assert done == len(baseline) == 14


@pytest.mark.slow
def test_separate_streams_of_two_ranks(told: dict[str, Any]) -> None:
    """Separate streams of two ranks each continue at their place."""
    for rank in range(2):
        stream, steps = range(100 * rank, 100 * rank + SAMPLES // 2), BATCH // 2
        baseline = [[*stream[at : at + steps]] for at in range(0, len(stream), steps)] * EPOCHS
        done = 0
        for start in told["streams"]:
            assert 0 < start[rank][0][0] <= done + 1
            for step, batch in start[rank]:
                assert batch == baseline[step - 1], (rank, step)
                done = step
        assert done == len(baseline) == 14


@pytest.mark.slow
def test_what_makes_no_loader_of_this_rank_is_refused(told: dict[str, Any]) -> None:
    for nothing, other in told["refused"]:
        assert nothing.startswith("LoaderConfig.make must return a Loader, but returned None.")
        assert "torchtitan: World(rank=0, size=1)\n  the Loader: World(rank=" in other
        assert "pass the world on: resumable.wrap(..., world=world)" in other


@pytest.mark.slow
def test_the_example_runs() -> None:
    assert run("examples/torchtitan_loader.py").startswith("Five steps on two ranks, seven on one")
