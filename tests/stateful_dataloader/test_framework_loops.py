"""Loops of frameworks, killed after each step and at each epoch's end, in a process whose global RNG differs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torchdata.stateful_dataloader
from framework_loops import LOOPS, STEPS, TOTAL, Settings

import resumable.torch
from resumable.errors import LoopWarning

if TYPE_CHECKING:
    from framework_loops import Outcome

EXACT = set[int]()
ENDS = {STEPS, 2 * STEPS}
# Stops after which a resumed run differs, for both values of `after_last`; the page explains them.
EMPTY = {"verl_ppo": ENDS, "areal": {6, 7, 8, 9, 10}}
NEXT = {"nemo_rl": ENDS, "automodel": ENDS, "areal": {5, 6, 7, 8, 9}}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Accelerate import our class as torchdata's."""
    monkeypatch.setattr(torchdata.stateful_dataloader, "StatefulDataLoader", resumable.torch.StatefulDataLoader)


def run(name: str, outcome: Outcome | None, stop: int, settings: Settings) -> Outcome:
    torch.manual_seed(1 if outcome is None else 2)  # each process has a different seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopWarning)
        return LOOPS[name](None if outcome is None else outcome[1], stop, settings)


@pytest.mark.parametrize("after_last", ["empty", "next"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_killed_run_continues_exactly(name: str, after_last: str) -> None:
    settings = Settings(after_last)
    baseline, _ = run(name, None, 0, settings)
    assert len(baseline) == TOTAL
    differs = set()
    for stop in range(1, TOTAL):
        killed = run(name, None, stop, settings)
        resumed, _ = run(name, killed, 0, settings)
        if killed[0] + resumed != baseline:
            differs.add(stop)
    assert differs == (EMPTY if after_last == "empty" else NEXT).get(name, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_workers_continue_exactly(name: str) -> None:
    """Killed with two workers, continued with two and with none; near an epoch's end and in the middle."""
    baseline, _ = run(name, None, 0, Settings())
    wrong = EMPTY.get(name, EXACT)
    for stop in (2, STEPS - 1, STEPS, STEPS + 1):
        killed = run(name, None, stop, Settings(num_workers=2))
        for workers in (0, 2):
            resumed, _ = run(name, killed, 0, Settings(num_workers=workers))
            assert (killed[0] + resumed == baseline) == (stop not in wrong), (stop, workers)
