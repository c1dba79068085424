"""The callback beside other callbacks, in runs that fail early, with unusual modules, and as a copy."""

from __future__ import annotations

import copy
import pickle
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
)
from pytorch_lightning.utilities import CombinedLoader
from sources import indexed, replay, snapshot, validation
from trainer_runs import Model, PlannedError, SaveAlways, SaveOnce, check_rest, fit, make_trainer

from resumable.errors import ConfigurationError, PromiseWarning, StateMismatchError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from pathlib import Path


def always(*_: Any) -> bool:
    return True


def run(trainer: Any, model: Model, *data: Any, **options: Any) -> None:
    """Fit with callbacks in an order of one's own."""
    torch.manual_seed(11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, *data, **options)


def test_failure_before_the_optimizer_is_restored(tmp_path: Path) -> None:
    """A run that fails before its optimizer is restored saves nothing to continue from."""

    class Fails(Callback):
        def on_fit_start(self, *_: Any) -> None:
            raise PlannedError

    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    fit(Model(), indexed(), callbacks=[SaveOnce(first, "on_train_batch_end", lambda _, model: model.trained == 3)])
    trainer = make_trainer([Fails(), ResumableCallback(), SaveOnce(second, "on_exception", always)])
    with pytest.raises(PlannedError):
        run(trainer, Model(), indexed(), ckpt_path=first)
    with pytest.raises(StateMismatchError, match="saved without ResumableCallback"):
        fit(Model(), indexed(), checkpoint=second)


def test_failure_before_the_run_begins(tmp_path: Path) -> None:
    """A run that fails before it begins can be begun from its checkpoint."""

    class Fails(Callback):
        def on_fit_start(self, *_: Any) -> None:
            raise PlannedError

    path, whole = tmp_path / "saved.ckpt", fit(Model(), indexed())
    with pytest.raises(PlannedError):
        run(make_trainer([ResumableCallback(), Fails(), SaveOnce(path, "on_exception", always)]), Model(), indexed())
    rest = fit(Model(), indexed(), checkpoint=path)
    assert [event[:5] for event in rest.events] == [event[:5] for event in whole.events]


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_validation_end", "on_validation_start", "on_train_batch_end"])
def test_callbacks_do_not_count_a_validation_in_a_window_twice(hook: str, tmp_path: Path) -> None:
    def stopping() -> Any:
        return EarlyStopping("score", patience=3, min_delta=10.0)

    options: dict[str, Any] = {"accumulate_grad_batches": 3, "val_check_interval": 4, "max_epochs": 9}
    path = tmp_path / "saved.ckpt"
    whole = fit(Model(), indexed(), validation(), callbacks=[stopping()], **options)
    saver = SaveOnce(path, hook, lambda _, model: model.trained == 9)
    fit(Model(), indexed(), validation(), callbacks=[stopping(), saver], **options)
    rest = fit(Model(), indexed(), validation(), callbacks=[stopping()], checkpoint=path, **options)
    check_rest(whole, rest, trained=8, begins="train")


def test_means_over_an_epoch_that_are_not_whole_are_named(tmp_path: Path) -> None:
    class Logs(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("loss of training", loss, on_epoch=True)
            return loss

    saver = SaveAlways(tmp_path)
    fit(Logs(), indexed(), callbacks=[saver], max_epochs=1)
    with pytest.warns(PromiseWarning, match="the epoch means of loss of training"):
        fit(Logs(), indexed(), checkpoint=saver.saved[3], max_epochs=1)


class Draws(Callback):
    """Uses up random numbers at an epoch's start."""

    def on_train_epoch_start(self, *_: Any) -> None:
        torch.rand(3)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_train_epoch_start", "on_validation_start"])
def test_callbacks_that_stand_before_this_one(hook: str, tmp_path: Path) -> None:
    def callbacks(*more: Any) -> list[Any]:
        return [Draws(), *more, ResumableCallback()]

    def outcome(*more: Any, **options: Any) -> Any:
        trainer, model = make_trainer(callbacks(*more)), Model()
        run(trainer, model, indexed(), validation(), **options)
        return model.events, model.state_dict(), torch.rand(()).item()

    path = tmp_path / "saved.ckpt"
    whole = outcome()
    outcome(SaveOnce(path, hook, lambda _, model: model.trained == 5))
    events, weights, draw = outcome(ckpt_path=path)
    assert events == whole[0][-len(events) :]
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole[1].items())
    assert draw == whole[2]


@pytest.mark.slow
def test_a_schedule_of_accumulation(tmp_path: Path) -> None:
    def schedule() -> Any:
        return GradientAccumulationScheduler({0: 1, 1: 2})

    saver = SaveAlways(tmp_path)
    whole = fit(Model(), indexed(), callbacks=[schedule(), saver])
    for trained in (3, 7, 9, 12):
        rest = fit(Model(), indexed(), callbacks=[schedule()], checkpoint=saver.saved[trained])
        check_rest(whole, rest, trained=trained, begins="train")


def test_one_loader_cannot_stand_in_two_places() -> None:
    loader = indexed()
    with pytest.raises(ConfigurationError, match=r"passed to the Trainer twice; the second is train loader \['b'\]"):
        fit(Model(), {"a": loader, "b": loader})
    with pytest.raises(ConfigurationError, match="for both training and validation"):
        fit(Model(), loader, loader)


class Shared(Model):
    """Its normalisation goes by a second name, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.again = self.net[1]


@pytest.mark.parametrize("fails", [3, 4])
def test_a_buffer_under_two_names(fails: int, tmp_path: Path) -> None:
    path, whole = tmp_path / "saved.ckpt", fit(Shared(), indexed())
    with suppress(PlannedError):
        fit(Shared(fail_at=fails), indexed(), callbacks=[SaveOnce(path, "on_exception", always)])
    check_rest(whole, fit(Shared(), indexed(), checkpoint=path), trained=fails, begins="train")


def test_a_normalisation_that_is_not_initialised_yet(tmp_path: Path) -> None:
    class Lazy(Model):
        def __init__(self) -> None:
            super().__init__()
            self.lazy = torch.nn.LazyBatchNorm1d()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.lazy(batch)
            return super().training_step(batch, batch_idx)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    assert len(fit(Lazy(), indexed(), max_epochs=1).events) == 7


@pytest.mark.parametrize("make", [indexed, snapshot])
def test_loaders_due_behind_a_checkpoint(make: Any, tmp_path: Path) -> None:
    """Loaders that are due to be made anew behind a checkpoint are made anew.

    The uninterrupted run makes them again in the next epoch, whatever stands in the checkpoint of the old ones.
    """

    class Reloads(Model):
        def train_dataloader(self) -> Any:
            return make(5, 1000.0 * self.trainer.current_epoch)

    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 3}
    path = tmp_path / "saved.ckpt"
    saver = SaveOnce(path, "on_train_epoch_end", lambda _, model: model.trained == 5)
    whole = fit(Reloads(), None, callbacks=[saver], **options)
    rest = fit(Reloads(), None, checkpoint=path, **options)
    check_rest(whole, rest, trained=5, begins="epoch start")


def test_what_was_given_is_given_back() -> None:
    loaders = {"a": indexed(), "b": replay()}
    combined = CombinedLoader(loaders, "min_size")
    fit(Model(), combined, max_epochs=1)
    assert combined.flattened == list(loaders.values())
    assert loaders["a"].ack_mode == "auto"
    assert len(list(loaders["a"])) == 5


@pytest.mark.parametrize("make", [indexed, snapshot])
def test_fit_after_a_failed_last_batch(make: Any) -> None:
    """A fit works after one that failed in the last batch of an epoch."""
    loader = make()
    with suppress(PlannedError):
        fit(Model(fail_at=4), loader)
    outcome = fit(Model(), loader, max_epochs=1)
    assert [event[0] for event in outcome.events] == ["epoch start", "train", "epoch end"]


def test_copies_have_the_options_and_nothing_of_a_run() -> None:
    callback = ResumableCallback(wrap={"seed": 3}, save_on_sigterm=True)
    fit(Model(), indexed(), resume=callback, max_epochs=1)
    made: Any
    for made in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):  # noqa: S301  # made here
        assert (made.wrap, made.save_on_sigterm, made.strict) == ({"seed": 3}, True, True)
        assert made._session is None
        assert isinstance(made, pl.Callback)


def test_a_validation_of_its_own_does_not_move_the_place(tmp_path: Path) -> None:
    whole, model = fit(Model(), indexed()), Model()
    trainer = make_trainer([ResumableCallback()], max_steps=7)
    run(trainer, model, indexed())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = torch.get_rng_state()
        trainer.validate(model, validation(), verbose=False)
        torch.set_rng_state(state)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    rest = fit(Model(), indexed(), checkpoint=tmp_path / "saved.ckpt")
    check_rest(whole, rest, trained=7, begins="train")


@pytest.mark.parametrize("strict", [True, False])
def test_generators_of_other_devices_are_named_once(strict: bool, tmp_path: Path) -> None:
    """A checkpoint of a machine with eight GPUs goes on without them, or with fewer."""
    saver = SaveAlways(tmp_path)
    whole = fit(Model(), indexed(), callbacks=[saver])
    saved = torch.load(saver.saved[3], weights_only=True)
    generators = saved["callbacks"]["ResumableCallback"]["ranks"][0]["generators"]
    generators["cuda"] = [*generators.get("cuda", []), *[torch.get_rng_state()] * (8 - torch.cuda.device_count())]
    torch.save(saved, tmp_path / "eight.ckpt")
    with pytest.warns(PromiseWarning, match="of 8 CUDA devices") as told:
        rest = fit(Model(), indexed(), resume=ResumableCallback(strict=strict), checkpoint=tmp_path / "eight.ckpt")
    assert len(told) == 1
    check_rest(whole, rest, trained=3, begins="train")
