"""A checkpoint of the callback's goes on without it: Lightning accepts what is left, as far as it resumes alone."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

from sources import Samples, indexed
from trainer_runs import Model, PlannedError, SaveOnce, fit, make_trainer


def plain() -> Any:
    return DataLoader(Samples(10, 0), batch_size=2)


def both() -> Any:
    return {"a": indexed(), "b": plain()}


def trained(model: Model) -> list[Any]:
    return [event[1:5] for event in model.events if event[0] == "train"]


@pytest.mark.parametrize("make", [plain, indexed, both], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("hook", "at"),
    [("on_train_batch_end", 3), ("on_train_batch_end", 5), ("on_train_epoch_end", 5), ("on_exception", 7)],
)
def test_lightning_alone_goes_on(make: Callable[[], Any], hook: str, at: int, tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    saver = SaveOnce(path, hook, lambda _, model: model.trained == at)
    model = Model(fail_at=7 if hook == "on_exception" else None)
    with suppress(PlannedError):
        fit(model, make(), callbacks=[saver], resume=ResumableCallback(wrap=True), max_epochs=2)
    alone = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning says that the callback is missing, and the loader not resumable
        make_trainer([], max_epochs=2).fit(alone, make(), ckpt_path=path)
    steps = [event[:3] for event in trained(alone)]
    assert steps == [(number // 5, number % 5, number) for number in range(at, 10)]


def test_user_s_loaders_keep_their_place(tmp_path: Path) -> None:
    """Loaders that the user made keep their place in the middle of an epoch."""
    path = tmp_path / "saved.ckpt"
    saver = SaveOnce(path, "on_train_batch_end", lambda _, model: model.trained == 3)
    fit(whole := Model(), indexed(), callbacks=[saver], max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer([], max_epochs=1).fit(alone := Model(), indexed(), ckpt_path=path)
    assert trained(alone) == trained(whole)[3:]


def test_the_weights_can_be_read_without_anything(tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    saver = SaveOnce(path, "on_train_batch_end", lambda _, model: model.trained == 3)
    fit(Model(), plain(), callbacks=[saver], resume=ResumableCallback(wrap=True), max_epochs=1)
    saved = torch.load(path, weights_only=True)
    assert "combined_loader" not in saved["loops"]["fit_loop"]["state_dict"]
    Model().load_state_dict(saved["state_dict"])
