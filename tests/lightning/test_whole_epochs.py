"""No epoch of the Trainer is empty or short, where elements are left over after the last whole batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from sources import SizedStateful, Stateful
from trainer_runs import Model, SaveAlways, check_rest, fit

import resumable
from resumable import World

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 4


def elements(kind: type[Stateful]) -> resumable.Loader:
    return resumable.wrap(kind(9, 0), batch_size=2, tail="drop", collate=torch.cat, identity="reader")


def batches_of_two_ranks(kind: type[Stateful]) -> resumable.Loader:
    return resumable.wrap(kind(9, 0), seed=0, world=World(0, 2), identity="reader")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stateful, SizedStateful])
@pytest.mark.parametrize("make", [elements, batches_of_two_ranks])
def test_each_epoch_has_all_its_steps(make: Any, kind: type[Stateful], tmp_path: Path) -> None:
    every = SaveAlways(tmp_path)
    whole = fit(Model(), make(kind), callbacks=[every])
    trained = [event[1] for event in whole.events if event[0] == "train"]
    assert trained == [epoch for epoch in range(3) for _ in range(STEPS)]
    for done, path in every.saved.items():
        begins = "epoch end" if done % STEPS == 0 else "train"
        check_rest(whole, fit(Model(), make(kind), checkpoint=path), trained=done, begins=begins)
