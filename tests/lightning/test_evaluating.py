"""Validation, test and prediction: each pass begins at the first batch of epoch 0, whatever was read before."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import CombinedLoader
from sources import Samples, Stateful, indexed, replay, sized_replay, sized_snapshot, snapshot
from torch.utils.data import DataLoader
from trainer_runs import Model, PlannedError, SaveOnce, check_rest, fit, ids, make_trainer

import resumable
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError
from resumable.integrations.lightning import ResumableCallback
from resumable.loader import startup_checks as _opening

if TYPE_CHECKING:
    from pathlib import Path


class Reads(pl.LightningModule):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[list[Any]] = []

    def _begin(self) -> None:
        self.passes.append([])

    on_validation_start = on_test_start = on_predict_start = _begin

    def _read(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.passes[-1].append(ids(batch))

    validation_step = test_step = predict_step = _read


def evaluate(stage: str, loader: Any, *, times: int = 1, fail: bool = False, **options: Any) -> list[list[Any]]:
    """What a number of calls of one Trainer read."""
    trainer, module = make_trainer([ResumableCallback()], **options), Reads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning")
        for _ in range(times):
            getattr(trainer, stage)(module, loader)
    return module.passes


def evaluation() -> Any:
    return resumable.wrap(DataLoader(Samples(10, 0), batch_size=2, shuffle=True), seed=3, evaluation=True)


STAGES = ["validate", "test", "predict"]
MAKERS: list[Any] = [indexed, evaluation, snapshot, replay, sized_snapshot, sized_replay]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_pass_is_the_same_after_whole_and_limited_ones(stage: str, make: Any) -> None:
    first = [ids(batch) for batch in make()]
    assert len(first) == 5
    loader = make()
    limit: dict[str, Any] = {f"limit_{stage.replace('validate', 'val')}_batches": 2}
    assert evaluate(stage, loader, times=2, **limit) == [first[:2]] * 2
    assert evaluate(stage, loader, times=2) == [first] * 2
    assert evaluate(stage, loader, **limit) == [first[:2]]
    assert [ids(batch) for batch in loader] == first, "the Loader is given back where it was given"


def test_ranks_of_the_trainer_evaluate(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Ranks of the Trainer divide an evaluation as Lightning does.

    What is said is who this rank is, and not that it reads a part: the Trainer puts the parts together.
    """
    monkeypatch.setattr(_opening, "_said", set())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = resumable.wrap(DataLoader(Samples(8, 0), batch_size=2), evaluation=True)
    assert evaluate("validate", loader) == [[ids(batch) for batch in loader]]
    assert len(list(loader)) == 2
    (told,) = [record.getMessage() for record in caplog.records if record.name == "resumable"]
    assert told.startswith("rank 1 of 2 from environment variables alone")


def test_several_loaders_of_which_some_are_not_wrapped() -> None:
    first = [ids(batch) for batch in indexed()]
    plain: Any = DataLoader(torch.arange(4.0), batch_size=2)  # type: ignore[arg-type]  # a tensor is a dataset
    combined = CombinedLoader([indexed(), plain, evaluation()], "sequential")
    loaders = list(combined.flattened)
    assert evaluate("validate", combined, times=2) == [[*first, [0, 1], [2, 3], *first]] * 2
    assert combined.flattened == loaders


@pytest.mark.parametrize("make", [indexed, snapshot], ids=lambda make: make.__name__)
def test_train_loader_evaluated_in_between(make: Any) -> None:
    """A train loader is evaluated from its beginning and continues at its place."""
    loader, first = make(), [ids(batch) for batch in make()]
    assert [ids(batch) for batch in islice(loader, 2)] == first[:2]
    if make is indexed:
        assert evaluate("validate", loader, times=2) == [first] * 2
    else:
        with pytest.warns(PromiseWarning, match="cannot go back to the first batch.*\\n.*evaluation=True"):
            passes = evaluate("validate", loader, times=2)
        assert passes == [first[2:]] * 2
    assert [ids(batch) for batch in loader] == first[2:]


def test_left_evaluation_starts_over() -> None:
    """A loader for evaluation that was left in the middle starts over."""
    loader, first = evaluation(), [ids(batch) for batch in evaluation()]
    assert [ids(batch) for batch in islice(loader, 2)] == first[:2]
    assert evaluate("validate", loader, times=2) == [first] * 2
    assert [ids(batch) for batch in loader] == first


def test_a_pass_that_fails_gives_the_loader_back() -> None:
    class Fails(Reads):
        def test_step(self, *_: Any) -> None:
            raise PlannedError

    loader = indexed()
    first = [ids(batch) for batch in loader]
    taken = [ids(batch) for batch in islice(loader, 2)]
    with pytest.raises(PlannedError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer([ResumableCallback()]).test(Fails(), loader)
    whole = indexed()
    list(whole)
    assert taken + [ids(batch) for batch in loader] == [ids(batch) for batch in whole]
    assert evaluate("test", loader) == [first]


@pytest.mark.parametrize("make", [evaluation, indexed, snapshot], ids=lambda make: make.__name__)
def test_validation_inside_of_fit_and_after_a_resume(make: Any, tmp_path: Path) -> None:
    first = [ids(batch) for batch in make()]
    options: dict[str, Any] = {
        "val_check_interval": 3,
        "limit_val_batches": 2,
        "num_sanity_val_steps": 1,
        "max_epochs": 2,
    }
    path, loader = tmp_path / "saved.ckpt", make()
    saver = SaveOnce(path, "on_train_batch_end", lambda _, model: model.trained == 4)
    whole = fit(Model(), indexed(), loader, callbacks=[saver], **options)
    validations = [event[2] for event in whole.events if event[0] == "validation"]
    assert validations == first[:2] * 2
    assert evaluate("validate", loader) == [first], "a pass of its own, after those of the run"
    rest = fit(Model(), indexed(), make(), checkpoint=path, **options)
    check_rest(whole, rest, trained=4, begins="train")


def test_one_loader_to_train_and_validate() -> None:
    """One loader for training and validation is rejected, with a sanity check too."""
    loader = indexed()
    with pytest.raises(ConfigurationError, match="for both training and validation"):
        fit(Model(), loader, loader, num_sanity_val_steps=1)


def test_a_loader_for_evaluation_is_refused_for_training() -> None:
    with pytest.raises(UnsupportedError, match=r"train loader .* was wrapped with evaluation=True"):
        fit(Model(), evaluation())


def test_manual_acknowledgement_does_not_matter() -> None:
    loader = resumable.wrap(Stateful(3, 0), ack="manual")
    first = [ids(batch) for batch in resumable.wrap(Stateful(3, 0))]
    assert evaluate("predict", loader, times=2) == [first] * 2
