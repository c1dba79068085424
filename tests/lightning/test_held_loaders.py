"""In each hook, the loaders that the Trainer holds show and reject the same as a Loader."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import lightning.pytorch as lp
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.tuner.tuning import Tuner
from pytorch_lightning.utilities import CombinedLoader
from sources import Samples, indexed, replay
from torch.utils.data import DataLoader, IterableDataset
from trainer_runs import Model, SaveOnce, check_rest, fit, ids, make_trainer

import resumable
from resumable.errors import LoopError, UnsupportedError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHOWN = ("dataset", "batch_size", "num_workers", "collate_fn")
HIDDEN = ("sampler", "batch_sampler", "drop_last", "shuffle")
FIXED = (*SHOWN, *HIDDEN, "epoch", "cursor", "global_step", "seed", "name", "samples_seen", "pin_memory")
DATA = Samples(10, 0)


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples)


def plain(**options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, batch_size=2, collate_fn=collate, **options)


def wrapped(**options: Any) -> Any:
    return resumable.wrap(plain(), seed=3, **options)


class Summed(Model):
    """Validates with several loaders."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        pass


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(10.0).reshape(-1, 1))


def rejection(call: Callable[[], Any]) -> str:
    """The message of an AttributeError, or an empty one without an error."""
    try:
        call()
    except AttributeError as error:
        return str(error)
    return ""


def seen_in(loader: Any) -> dict[str, Any]:
    """All that a script could find out about a loader without iterating over it."""
    answers: dict[str, Any] = {name: getattr(loader, name) for name in SHOWN if hasattr(loader, name)}
    answers |= {f"no {name}": rejection(partial(getattr, loader, name)) for name in (*SHOWN, *HIDDEN)}
    answers |= {f"set {name}": rejection(partial(setattr, loader, name, 1)) for name in FIXED}
    return {**answers, "length": len(loader), "true": bool(loader)}


VALIDATION = ("validation_start", "validation_batch_end", "validation_epoch_end", "validation_end")
TRAINING = ("train_start", "train_epoch_start", "train_batch_start", "train_batch_end", "train_epoch_end", "train_end")
HOOKS = {
    "fit": (*TRAINING, *VALIDATION),
    "validate": VALIDATION,
    "test": ("test_start", "test_batch_end", "test_epoch_end", "test_end"),
    "predict": ("predict_start", "predict_batch_end", "predict_epoch_end", "predict_end"),
}


class Asks(Callback):
    """Calls a function with the Trainer in each hook of a stage, and keeps each answer under the hook's name."""

    def __init__(self, stage: str, ask: Callable[[Any], Any]) -> None:
        self.ask, self.answers = ask, dict[str, Any]()
        for hook in HOOKS[stage]:
            setattr(self, f"on_{hook}", lambda trainer, *_, hook=hook, **__: self._keep(trainer, hook))

    def _keep(self, trainer: Any, hook: str) -> None:
        if not trainer.sanity_checking:
            self.answers[hook] = self.ask(trainer)


class Reads(pl.LightningModule):
    def test_step(self, *_: Any, **__: Any) -> None:
        pass

    validation_step = predict_step = test_step


def asked_in_fit(
    ask: Callable[[Any], Any], loader: Any, validation: Any = None, *, model: Any = None, **options: Any
) -> dict[str, Any]:
    asks = Asks("fit", ask)
    fit(model or Model(), loader, validation, callbacks=[asks], **{"max_epochs": 2, **options})
    assert set(HOOKS["fit"]) - set(asks.answers) <= (set(VALIDATION) if validation is None else set())
    return asks.answers


def asked_in(stage: str, ask: Callable[[Any], Any], loader: Any) -> dict[str, Any]:
    asks = Asks(stage, ask)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning")
        getattr(make_trainer([ResumableCallback(), asks]), stage)(Reads(), loader)
    assert set(asks.answers) == set(HOOKS[stage])
    return asks.answers


# ---------------------------------------------------------------------- each stage


@pytest.mark.parametrize("made", ["wrap=True", "a Loader"])
def test_every_hook_of_a_fit_sees_what_the_loader_shows(made: str) -> None:
    callback = ResumableCallback(wrap={"seed": 3} if made == "wrap=True" else False)
    loader = plain() if made == "wrap=True" else wrapped()
    expected = seen_in(wrapped())
    assert expected["dataset"] is DATA
    assert (expected["batch_size"], expected["num_workers"], expected["collate_fn"]) == (2, 0, collate)
    assert all(expected[f"set {name}"] for name in FIXED), "the Loader rejects each of them"
    answers = asked_in_fit(lambda trainer: seen_in(trainer.train_dataloader), loader, wrapped(), resume=callback)
    assert answers == dict.fromkeys(HOOKS["fit"], expected)


def test_hooks_see_the_validation_loader() -> None:
    """Every hook of a fit sees what the validation loader shows."""
    for validation in (wrapped(), wrapped(evaluation=True)):
        expected = seen_in(validation)
        answers = asked_in_fit(lambda trainer: seen_in(trainer.val_dataloaders), indexed(), validation)
        assert answers == dict.fromkeys(HOOKS["fit"], expected)


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_every_hook_of_an_evaluation_sees_what_the_loader_shows(stage: str, evaluation: bool) -> None:
    name = {"validate": "val"}.get(stage, stage) + "_dataloaders"
    loader = wrapped(evaluation=evaluation)
    answers = asked_in(stage, lambda trainer: seen_in(getattr(trainer, name)), loader)
    assert answers == dict.fromkeys(HOOKS[stage], seen_in(loader))


def test_a_stream_shows_all_but_its_dataset() -> None:
    def stream() -> DataLoader[Any]:
        return DataLoader(Stream(), batch_size=2)

    def ask(trainer: Any) -> Any:
        held = trainer.train_dataloader
        return held.batch_size, held.num_workers, hasattr(held, "dataset"), rejection(lambda: held.dataset), bool(held)

    answers = asked_in_fit(ask, stream(), resume=ResumableCallback(wrap=True), max_epochs=1)
    expected = (2, 0, False, rejection(lambda: resumable.wrap(stream()).dataset), True)
    assert "Iterating the dataset of a stream" in expected[3]
    assert set(answers.values()) == {expected}


def test_what_a_loader_counts_is_shown_as_well() -> None:
    def ask(trainer: Any) -> Any:
        held = trainer.train_dataloader
        return held.stats().batches, held.global_step, held.is_sized

    answers = asked_in_fit(ask, indexed(), max_epochs=1)
    assert answers["train_start"] == (0, 0, True)
    assert answers["train_batch_end"] == (5, 5, True)


def test_a_name_that_a_loader_takes_is_its_own() -> None:
    loader: Any = indexed()

    def ask(trainer: Any) -> Any:
        trainer.train_dataloader.note = "mine"
        return trainer.train_dataloader.note

    assert set(asked_in_fit(ask, loader, max_epochs=1).values()) == {"mine"}
    assert loader.note == "mine"


# ---------------------------------------------------------------------- collections, modules, datamodules


def test_collections_of_loaders() -> None:
    def ask(trainer: Any) -> Any:
        found = trainer.train_dataloader
        return found["a"].batch_size, found["b"][0].dataset is DATA, [one.batch_size for one in trainer.val_dataloaders]

    train: dict[str, Any] = {
        "a": resumable.wrap(list(torch.arange(9.0)), batch_size=3, collate=torch.stack),
        "b": [wrapped()],
    }
    for tree in (train, CombinedLoader(train, "min_size")):
        validation = [wrapped(), plain(), wrapped(evaluation=True)]
        answers = asked_in_fit(ask, tree, validation, model=Summed())
        assert list(answers.values()) == [(3, True, [2, 2, 2])] * len(answers)


class InModule(Model):
    """Has its loaders from itself, and asks for them while the optimizer is made."""

    def train_dataloader(self) -> Any:
        return plain(shuffle=True)

    def val_dataloader(self) -> Any:
        return wrapped()

    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches == 10
        held: Any = self.trainer.train_dataloader
        assert held.dataset is DATA
        return super().configure_optimizers()


class InData(pl.LightningDataModule):
    train_dataloader, val_dataloader = InModule.train_dataloader, InModule.val_dataloader


@pytest.mark.parametrize("reload", [0, 1])
def test_loaders_of_a_module_or_a_datamodule_after_a_resume_too(reload: int, tmp_path: Path) -> None:
    asks = Asks("fit", lambda trainer: (trainer.train_dataloader.dataset is DATA, trainer.val_dataloaders.batch_size))
    options: dict[str, Any] = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": reload}
    path = tmp_path / "saved.ckpt"
    for data in (None, InData()):
        saver = SaveOnce(path, "on_train_batch_end", lambda _, model: model.trained == 3)
        whole = fit(InModule(), data, resume=ResumableCallback(wrap=True), callbacks=[asks, saver], **options)
        rest = fit(InModule(), data, resume=ResumableCallback(wrap=True), callbacks=[asks], checkpoint=path, **options)
        check_rest(whole, rest, trained=3, begins="train")
        assert set(asks.answers.values()) == {(True, 2)}


@pytest.mark.parametrize("package", [lp, pl], ids=lambda package: package.__name__)
def test_both_packages(package: Any) -> None:
    class Net(package.LightningModule):  # type: ignore[misc]  # the class of either package
        found: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def on_train_epoch_start(self) -> None:
            self.found = self.trainer.train_dataloader.dataset

        def training_step(self, batch: torch.Tensor, _: int) -> Any:
            return self.net(batch).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    net = Net()
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "enable_checkpointing": False, "max_epochs": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package.Trainer(callbacks=[ResumableCallback(wrap=True)], **options).fit(net, plain())
    assert net.found is DATA


def test_loaders_that_the_trainer_holds_can_be_given_to_it_again() -> None:
    trainer, loader = make_trainer([ResumableCallback()], max_epochs=1), indexed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), loader, wrapped())
        held = trainer.train_dataloader
        assert held.dataset is loader.dataset
        again = make_trainer([ResumableCallback()], max_epochs=1)
        again.fit(Model(), held, trainer.val_dataloaders)
    assert loader.epoch == 2
    assert again.train_dataloader.dataset is loader.dataset


# ---------------------------------------------------------------------- what Lightning does with a dataset


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("other", [plain(shuffle=True), DataLoader(Stream(), batch_size=2)], ids=["shuffled", "stream"])
def test_overfit_with_unwrapped_validation(other: Any, evaluation: bool) -> None:
    """`overfit_batches` works with validation loaders of which some are not wrapped.

    Lightning makes a DataLoader again over the dataset of everything that shows one, and raises for a Loader.
    """
    answers = asked_in_fit(
        lambda trainer: [getattr(one, "dataset", None) for one in trainer.val_dataloaders],
        indexed(),
        [wrapped(evaluation=evaluation), other],
        overfit_batches=2,
        model=Summed(),
    )
    assert list(answers.values()) == [[DATA, other.dataset]] * len(answers)


@pytest.mark.parametrize("callbacks", [[], [ResumableCallback(wrap=True)]], ids=["Lightning", "wrap=True"])
def test_the_tuner_stops_at_a_batch_that_holds_the_whole_dataset(callbacks: list[Any], tmp_path: Path) -> None:
    class Sized(Model):
        batch_size = 2

        def train_dataloader(self) -> Any:
            return DataLoader(DATA, batch_size=self.batch_size)

        def val_dataloader(self) -> Any:
            return wrapped()

    trainer, model = make_trainer(callbacks, max_epochs=1, default_root_dir=tmp_path), Sized()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Tuner(trainer).scale_batch_size(model, max_trials=8)
    assert model.batch_size == 16  # the first one by doubling that is 10 or more


def test_it_is_copied_no_more_than_a_loader() -> None:
    trainer = make_trainer([ResumableCallback()], max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), indexed())
    for make in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="cannot be copied or pickled"):
            make(trainer.train_dataloader)
    assert copy.copy(trainer.train_dataloader).batch_size == 2
    assert "Loader of torch-map" in repr(trainer.train_dataloader)


# ---------------------------------------------------------------------- a second loop


@pytest.mark.parametrize("make", [indexed, replay], ids=lambda make: make.__name__)
def test_a_loop_over_it_while_the_trainer_reads_it_is_rejected(make: Any) -> None:
    class Looks(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            next(iter(trainer.train_dataloader))

    with pytest.raises(
        LoopError, match=r"Lightning's Trainer delivers its batches\.\n.*use `self\.trainer\.train_dataloader\.for_"
    ):
        fit(Model(), make(), callbacks=[Looks()])


@pytest.mark.parametrize("hook", ["on_train_epoch_start", "on_train_batch_end", "on_train_epoch_end"])
def test_a_look_at_a_batch_moves_nothing(hook: str) -> None:
    class Looks(Callback):
        seen: Any = None

    def look(trainer: Any, *_: Any) -> None:
        looks.seen = ids(trainer.train_dataloader.peek())

    looks, whole = Looks(), fit(Model(), indexed())
    setattr(looks, hook, look)
    outcome = fit(Model(), indexed(), callbacks=[looks])
    assert outcome.events == whole.events
    assert looks.seen is not None
