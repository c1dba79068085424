"""The streams of a Trainer's collection of loaders are independent, and each goes on from every checkpoint."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sources import Samples
from torch.utils.data import DataLoader
from trainer_runs import Model, Outcome, PlannedError, SaveAlways, check_rest, fit

import resumable
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from pathlib import Path


def pair() -> dict[str, DataLoader[Any]]:
    return {name: DataLoader(Samples(16, 0.0), batch_size=2, shuffle=True) for name in ("src", "tgt")}


def batches(outcome: Outcome) -> list[dict[str, list[float]]]:
    return [event[4] for event in outcome.events if event[0] == "train"]


@pytest.mark.slow
def test_loaders_of_a_collection_are_no_twins(tmp_path: Path) -> None:
    """The loaders of a collection are no twins and continue from every checkpoint."""
    saver = SaveAlways(tmp_path)
    whole = fit(Model(), pair(), callbacks=[saver], resume=ResumableCallback(wrap=True), max_epochs=2)
    steps = batches(whole)
    assert len(steps) == 16
    values = [(left, right) for step in steps for left, right in zip(step["src"], step["tgt"], strict=True)]
    assert sum(int(left) == int(right) for left, right in values) <= 8  # 2 of 32 by chance
    assert not any(left % 1 == right % 1 for left, right in values)
    for trained, path in saver.saved.items():
        rest = fit(Model(), pair(), checkpoint=path, resume=ResumableCallback(wrap=True), max_epochs=2)
        if trained % 8:
            check_rest(whole, rest, trained=trained, begins="train")
        assert batches(rest) == steps[trained:]


def test_a_checkpoint_of_streams_without_names_keeps_them(tmp_path: Path) -> None:
    saver = SaveAlways(tmp_path)
    unnamed = ResumableCallback(wrap={"name": ""})
    data = DataLoader(Samples(16, 0.0), batch_size=2, shuffle=True)
    whole = fit(Model(), data, callbacks=[saver], resume=unnamed, max_epochs=2)
    rest = fit(Model(), data, checkpoint=saver.saved[5], resume=ResumableCallback(wrap=True), max_epochs=2)
    assert batches(rest) == batches(whole)[5:]
    named = fit(Model(), data, resume=ResumableCallback(wrap=True), max_epochs=2)
    assert batches(named) != batches(whole)


def test_loaders_that_the_user_wrapped_without_names_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def wrapped(**options: Any) -> dict[str, Any]:
        return {name: resumable.wrap(loader, **options) for name, loader in pair().items()}

    with caplog.at_level(logging.WARNING, "resumable"):
        fit(Model(), wrapped(seed=201), max_epochs=1)
        fit(Model(), wrapped(seed=201), max_epochs=1)
    (record,) = caplog.records
    assert "seed 201 and no name" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "resumable"):
        with suppress(PlannedError):
            fit(Model(fail_at=3), resumable.wrap(pair()["src"], seed=202), max_epochs=1)
        fit(Model(), resumable.wrap(pair()["tgt"], seed=202), max_epochs=1)  # one after the other
    assert not caplog.records
