"""The callback with what else the Trainer can do."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint, OnExceptionCheckpoint
from sources import MAKERS, Again, Samples, Stateful, indexed, replay, snapshot, validation
from torch.utils.data import DataLoader, Sampler
from trainer_runs import Model, PlannedError, SaveAlways, SaveOnce, check_rest, fit, make_trainer

import resumable
from resumable.errors import (
    ConfigurationError,
    PromiseWarning,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    UnsupportedError,
)
from resumable.integrations.lightning import ResumableCallback
from resumable.integrations.lightning.loaders import make_loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


KINDS = ["indexed", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("snapshot", "replay"))]


def after(count: int) -> Callable[[Any, Any], bool]:
    return lambda _, model: model.trained == count


def always(*_: Any) -> bool:
    return True


# ---------------------------------------------------------------------- checkpoints as users save them


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("saver", "trained"),
    [
        ({"every_n_train_steps": 2, "save_last": True}, 6),
        ({"every_n_train_steps": 3, "save_last": "link"}, 6),
        ({"save_last": True}, 5),
        ({"monitor": "score", "save_last": True}, 5),
        ({"save_on_exception": True, "save_last": True}, 7),
    ],
)
def test_model_checkpoint(kind: str, saver: dict[str, Any], trained: int, tmp_path: Path) -> None:
    whole = fit(Model(), MAKERS[kind](), validation(), callbacks=[ModelCheckpoint(tmp_path / "whole", **saver)])
    with suppress(PlannedError):
        fit(Model(fail_at=7), MAKERS[kind](), validation(), callbacks=[ModelCheckpoint(tmp_path, **saver)])
    rest = fit(Model(), MAKERS[kind](), validation(), callbacks=[ModelCheckpoint(tmp_path, **saver)], checkpoint="last")
    check_rest(whole, rest, trained=trained, begins="epoch start" if trained == 5 else "train")


def test_on_exception_checkpoint(tmp_path: Path) -> None:
    whole = fit(Model(), indexed())
    with suppress(PlannedError):
        fit(Model(fail_at=7), indexed(), callbacks=[OnExceptionCheckpoint(tmp_path)])
    rest = fit(Model(), indexed(), callbacks=[OnExceptionCheckpoint(tmp_path)], checkpoint="last")
    check_rest(whole, rest, trained=7, begins="train")


@pytest.mark.slow
def test_a_time_interval(tmp_path: Path) -> None:
    from datetime import timedelta  # noqa: PLC0415  # here only

    saver = ModelCheckpoint(tmp_path, train_time_interval=timedelta(0), save_top_k=-1)
    whole = fit(Model(), indexed(), callbacks=[saver])
    saved = sorted(tmp_path.glob("*.ckpt"))
    assert len(saved) == 15
    for path in saved:
        trained = int(path.stem.partition("step=")[2])
        rest = fit(Model(), indexed(), checkpoint=path)
        check_rest(whole, rest, trained=trained, begins="train" if trained % 5 else "epoch end")


@pytest.mark.slow
def test_a_chain_of_resumed_runs(tmp_path: Path) -> None:
    whole = fit(Model(), snapshot(), validation(), val_check_interval=2)
    events: list[Any] = []
    path = None
    for trained in (2, 3, 5, 9, 10, 11):
        model, saved = Model(), tmp_path / f"{trained}.ckpt"
        model.trained = len([event for event in events if event[0] == "train"])
        model.fail_at = trained
        with suppress(PlannedError):
            fit(
                model,
                snapshot(),
                validation(),
                callbacks=[SaveOnce(saved, "on_exception", always)],
                checkpoint=path,
                val_check_interval=2,
            )
        events += model.events
        path = saved
    rest = fit(Model(), snapshot(), validation(), checkpoint=path, val_check_interval=2)
    check_rest(whole, rest, trained=11, begins="train")
    starts = ("epoch start",)  # repeated where a run ends in the first batch of an epoch
    assert [event for event in events + rest.events if event[0] not in starts] == [
        event for event in whole.events if event[0] not in starts
    ]


def test_checkpoint_resumed_from_twice(tmp_path: Path) -> None:
    """A checkpoint can be resumed from twice, and by the same trainer."""
    path = tmp_path / "saved.ckpt"
    whole = fit(Model(), snapshot(), callbacks=[SaveOnce(path, "on_train_batch_end", after(7))])
    loader, callback = snapshot(), ResumableCallback()
    for _ in range(2):
        rest = fit(Model(), loader, resume=callback, checkpoint=path)
        check_rest(whole, rest, trained=7, begins="train")


# ---------------------------------------------------------------------- the length of the run


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_epochs_than_the_run_that_was_finished(kind: str, tmp_path: Path) -> None:
    whole = fit(Model(), MAKERS[kind]())
    for hook in ("on_train_epoch_end", "on_train_end"):
        path = tmp_path / f"{hook}.ckpt"
        fit(Model(), MAKERS[kind](), callbacks=[SaveOnce(path, hook, after(10))], max_epochs=2)
        rest = fit(Model(), MAKERS[kind](), checkpoint=path)
        check_rest(whole, rest, trained=10, begins="epoch start")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end", "on_train_end"])
def test_more_steps_than_the_run_that_was_finished(kind: str, hook: str, tmp_path: Path) -> None:
    whole = fit(Model(), MAKERS[kind](), max_steps=12)
    path = tmp_path / "saved.ckpt"
    fit(Model(), MAKERS[kind](), callbacks=[SaveOnce(path, hook, after(7))], max_steps=7)
    rest = fit(Model(), MAKERS[kind](), checkpoint=path, max_steps=12)
    check_rest(whole, rest, trained=7, begins="train")


def test_a_checkpoint_behind_the_run(tmp_path: Path) -> None:
    """Saved by hand, when `fit` is over."""
    whole, model, trainer = fit(Model(), indexed()), Model(), make_trainer([ResumableCallback()], max_epochs=1)
    torch.manual_seed(11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, indexed())
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    rest = fit(Model(), indexed(), checkpoint=tmp_path / "saved.ckpt")
    check_rest(whole, rest, trained=5, begins="epoch start")


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    whole = fit(Model(), indexed(), callbacks=[SaveOnce(path, "on_train_end", always)])
    rest = fit(Model(), indexed(), checkpoint=path)
    assert not rest.events
    assert all(torch.equal(rest.weights[name], tensor) for name, tensor in whole.weights.items())


def test_stopped_early_in_an_epoch(tmp_path: Path) -> None:
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 7

    whole, path = fit(Model(), indexed()), tmp_path / "saved.ckpt"
    fit(Model(), indexed(), callbacks=[Stop(), SaveOnce(path, "on_train_epoch_end", after(7))])
    rest = fit(Model(), indexed(), checkpoint=path)
    check_rest(whole, rest, trained=7, begins="train")


@pytest.mark.slow
def test_the_rest_of_an_epoch_skipped_by_the_module(tmp_path: Path) -> None:
    class Skips(Model):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 3 else None

    for make in (indexed, replay, snapshot):
        saver = SaveAlways(tmp_path)
        whole = fit(Skips(), make(), callbacks=[saver])
        count = sum(event[0] == "train" for event in whole.events)
        assert count == (7 if make is snapshot else 9)  # that reader goes on where it stands, with one batch left
        for trained, path in saver.saved.items():
            rest = fit(Skips(), make(), checkpoint=path)
            ends = {3, 4, 7} if make is snapshot else {3, 6, 9}
            check_rest(whole, rest, trained=trained, begins="epoch end" if trained in ends else "train")


# ---------------------------------------------------------------------- loaders


@pytest.mark.slow
def test_loaders_made_anew_in_some_epochs(tmp_path: Path) -> None:
    class Reloads(Model):
        made = 0

        def train_dataloader(self) -> Any:
            self.events.append(("made in", self.trainer.current_epoch))
            return indexed()

    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 2, "max_epochs": 5}
    saver = SaveAlways(tmp_path)
    whole = fit(Reloads(), None, callbacks=[saver], **options)
    assert [event[1] for event in whole.events if event[0] == "made in"] == [0, 2, 4]
    epochs = [[event[4] for event in whole.events if event[:2] == ("train", number)] for number in range(5)]
    assert all(one != other for number, one in enumerate(epochs) for other in epochs[:number]), "an order was repeated"
    for trained, path in saver.saved.items():
        rest = fit(Reloads(), None, checkpoint=path, **options)
        assert rest.events.pop(0)[0] == "made in"
        check_rest(whole, rest, trained=trained, begins="train" if trained % 5 else "epoch end")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["indexed", pytest.param("sized snapshot", marks=pytest.mark.slow)])
def test_estimated_stepping_batches(kind: str, tmp_path: Path) -> None:
    class OneCycle(Model):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            steps = int(self.trainer.estimated_stepping_batches)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps, cycle_momentum=False)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    saver = SaveAlways(tmp_path)
    whole = fit(OneCycle(), MAKERS[kind](), callbacks=[saver])
    for trained, path in saver.saved.items():
        rest = fit(OneCycle(), MAKERS[kind](), checkpoint=path)
        check_rest(whole, rest, trained=trained, begins="train" if trained % 5 else "epoch end")


@pytest.mark.parametrize("kind", ["indexed", "snapshot", "replay"])
def test_overfit_batches(kind: str, tmp_path: Path) -> None:
    saver = SaveAlways(tmp_path)
    whole = fit(Model(), MAKERS[kind](), callbacks=[saver], overfit_batches=2)
    epochs = [[event[4] for event in whole.events if event[:2] == ("train", number)] for number in range(3)]
    assert len(epochs[0]) == 2
    assert epochs[0] == epochs[1] == epochs[2]
    for trained, path in saver.saved.items():
        rest = fit(Model(), MAKERS[kind](), checkpoint=path, overfit_batches=2)
        check_rest(whole, rest, trained=trained, begins="train" if trained % 2 else "epoch end")


def test_overfit_batches_do_not_shuffle_what_is_wrapped() -> None:
    data = DataLoader(Samples(10, 0), batch_size=2, shuffle=True)
    outcome = fit(Model(), data, resume=ResumableCallback(wrap=True), overfit_batches=2)
    batches = [[int(value) for value in event[4]] for event in outcome.events if event[0] == "train"]
    assert batches == [[0, 1], [2, 3]] * 3


class Pairs(Sampler[list[int]]):
    """A batch sampler of one's own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[8, 9], [0, 1], [2, 3], [6, 7], [4, 5]])

    def __len__(self) -> int:
        return 5


def test_overfit_batches_keep_an_order_of_one_s_own() -> None:
    data = DataLoader(Samples(10, 0), batch_sampler=Pairs())
    outcome = fit(Model(), data, resume=ResumableCallback(wrap=True), overfit_batches=2)
    batches = [[int(value) for value in event[4]] for event in outcome.events if event[0] == "train"]
    assert batches == [[8, 9], [0, 1]] * 3


def test_an_order_of_one_s_own_on_several_ranks_needs_a_word() -> None:
    data = DataLoader(Samples(10, 0), batch_sampler=Pairs())
    loader = make_loader(data, "the loader", {"world": resumable.World(1, 2)}, world_size=2, overfit=False)
    with pytest.raises(ConfigurationError, match="shard=True"):
        next(iter(loader))


def test_plain_loaders_are_padded_on_several_ranks() -> None:
    data = DataLoader(Samples(10, 0), batch_size=4)
    worlds = [{"world": resumable.World(rank, 2)} for rank in range(2)]
    loaders = [make_loader(data, "the loader", world, world_size=2, overfit=False) for world in worlds]
    batches = [[len(batch) for batch in loader] for loader in loaders]
    assert batches == [[4, 4], [4, 4]]


def test_fast_dev_run() -> None:
    outcome = fit(Model(), indexed(), validation(), fast_dev_run=2)
    assert sum(event[0] == "train" for event in outcome.events) == 2


def test_wrapped_validation_begins_anew(tmp_path: Path) -> None:
    """A validation loader that is wrapped begins anew each time."""

    def reader() -> Any:
        return resumable.wrap(Stateful(3, 50))

    options: dict[str, Any] = {"val_check_interval": 2, "num_sanity_val_steps": 2, "limit_val_batches": 2}
    path = tmp_path / "saved.ckpt"
    whole = fit(Model(), indexed(), reader(), callbacks=[SaveOnce(path, "on_train_batch_end", after(4))], **options)
    validations = [event[2] for event in whole.events if event[0] == "validation"]
    assert validations[:2] == validations[2:4] == validations[-2:]
    rest = fit(Model(), indexed(), reader(), checkpoint=path, **options)
    check_rest(whole, rest, trained=4, begins="validation")


def test_reloaded_validation_loader(tmp_path: Path) -> None:
    """A validation loader that is reloaded begins at the same place."""
    reader = resumable.wrap(Stateful(3, 50))

    class Reloads(Model):
        def train_dataloader(self) -> Any:
            return indexed()

        def val_dataloader(self) -> Any:
            return reader

    outcome = fit(Reloads(), None, reload_dataloaders_every_n_epochs=1, limit_val_batches=2)
    validations = [event[2] for event in outcome.events if event[0] == "validation"]
    assert validations[:2] == validations[2:4] == validations[4:]


@pytest.mark.slow
def test_an_epoch_that_is_shorter_than_its_length_says(tmp_path: Path) -> None:
    class Short(Again):
        def __len__(self) -> int:
            return self.batches + 1

    def loader() -> Any:
        return resumable.wrap(Short(5, 0), identity="short")

    saver = SaveAlways(tmp_path)
    whole = fit(Model(), loader(), callbacks=[saver])
    assert [event[1] for event in whole.events if event[0] == "train"] == [0] * 5 + [1] * 5 + [2] * 5
    for trained, path in saver.saved.items():
        rest = fit(Model(), loader(), checkpoint=path)
        check_rest(whole, rest, trained=trained, begins="train" if trained % 5 else "epoch end")


@pytest.mark.parametrize("trained", [3, 5])
def test_resumed_run_fails_before_training(trained: int, tmp_path: Path) -> None:
    """A resumed run that fails before it trains saves what it resumed from."""

    class Fails(pl.Callback):
        def on_train_start(self, *_: Any) -> None:
            raise PlannedError

    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    whole = fit(Model(), indexed(), callbacks=[SaveOnce(first, "on_train_batch_end", after(trained))])
    trainer = make_trainer([Fails(), ResumableCallback(), SaveOnce(second, "on_exception", always)])
    with warnings.catch_warnings(), pytest.raises(PlannedError):
        warnings.simplefilter("ignore")
        trainer.fit(Model(), indexed(), ckpt_path=first)
    rest = fit(Model(), indexed(), checkpoint=second)
    check_rest(whole, rest, trained=trained, begins="epoch end" if trained == 5 else "train")


def test_a_validation_that_fails_before_the_callback_hears_of_it(tmp_path: Path) -> None:
    """Its loader has drawn from torch's generator by then."""

    class Fails(pl.Callback):
        def on_validation_start(self, *_: Any) -> None:
            raise PlannedError

    path = tmp_path / "saved.ckpt"
    whole = fit(Model(), indexed(), validation())
    trainer = make_trainer([Fails(), ResumableCallback(), SaveOnce(path, "on_exception", always)])
    model = Model()
    torch.manual_seed(11)
    with warnings.catch_warnings(), pytest.raises(PlannedError):
        warnings.simplefilter("ignore")
        trainer.fit(model, indexed(), validation())
    rest = fit(Model(), indexed(), validation(), checkpoint=path)
    check_rest(whole, rest, trained=5, begins="validation")


def test_the_epoch_goes_on_with_another_number_of_ranks_share(tmp_path: Path) -> None:
    """The order of the samples is kept and the borders of the batches move, so the lengths of the epochs do."""

    def loader(batch_size: int) -> Any:
        return resumable.wrap(list(range(24)), batch_size=batch_size, shuffle=True, seed=0, on_change="continue",
                              transform=lambda value: torch.tensor([float(value)]), collate=torch.stack)  # fmt: skip

    path = tmp_path / "saved.ckpt"
    fit(Model(), loader(2), callbacks=[SaveOnce(path, "on_train_batch_end", after(4))], max_epochs=2)
    rest = fit(Model(), loader(4), checkpoint=path, max_epochs=2)
    batches = [event[1:5] for event in rest.events if event[0] == "train"]
    assert [batch[:2] for batch in batches] == [(0, number) for number in range(4, 8)] + [(1, n) for n in range(6)]
    first = [value for batch in batches[:4] for value in batch[3]]
    order = loader(2)
    assert first == [float(i) for step in range(4, 12) for i in order.sample_indices(epoch=0, step=step)]


@pytest.mark.slow
def test_a_tail_that_is_carried_into_the_next_epoch(tmp_path: Path) -> None:
    """The epochs have different lengths, which the Trainer asks for only once."""

    def loader() -> Any:
        values = [torch.tensor([float(value)]) for value in range(10)]
        return resumable.wrap(values, batch_size=4, shuffle=True, tail="carry", collate=torch.stack)

    saver = SaveAlways(tmp_path)
    whole = fit(Model(), loader(), callbacks=[saver], max_epochs=4)
    lengths = [sum(event[:2] == ("train", number) for event in whole.events) for number in range(4)]
    assert lengths == [3, 2, 3, 2]
    ends = {3, 5, 8, 10}
    for trained, path in saver.saved.items():
        rest = fit(Model(), loader(), checkpoint=path, max_epochs=4)
        check_rest(whole, rest, trained=trained, begins="epoch end" if trained in ends else "train")


# ---------------------------------------------------------------------- wrap=True


class Items:
    """Third-party iterable, as Lightning's documentation has it: anything that gives batches."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([[float(number)], [number + 0.5]]) for number in range(5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Samples(10, 0), batch_size=2, shuffle=True),
        lambda: {"a": DataLoader(Samples(10, 0), batch_size=2), "b": Again(3, 100)},
        lambda: [torch.rand(4, 1, generator=torch.Generator().manual_seed(number)) for number in range(5)],
        Items,
        lambda: Stateful(5, 0),
    ],
    ids=["DataLoader", "dictionary", "list of batches", "iterable", "reader"],
)
@pytest.mark.parametrize("source", ["fit", "module", "datamodule"])
def test_loaders_that_the_callback_wraps(make: Callable[[], Any], source: str, tmp_path: Path) -> None:
    class Module(Model):
        def train_dataloader(self) -> Any:
            return make()

    class Data(pl.LightningDataModule):
        def train_dataloader(self) -> Any:
            return make()

    def run(**options: Any) -> Any:
        data = Data() if source == "datamodule" else make() if source == "fit" else None
        callback = ResumableCallback(wrap={"seed": 4})
        return fit(Module() if source == "module" else Model(), data, resume=callback, **options)

    saver = SaveAlways(tmp_path)
    whole = run(callbacks=[saver])
    for trained in (3, 5, 7):
        rest = run(checkpoint=saver.saved[trained])
        check_rest(whole, rest, trained=trained, begins="train" if trained % 5 else "epoch end")


def test_the_example_of_the_documentation() -> None:
    """A list of batches of images and labels; the Trainer alone takes it for a collection of 200 loaders."""
    data = [(torch.rand(4, 3, 8, 8), torch.randint(0, 10, (4,))) for _ in range(6)]

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(192, 10)
            self.seen: list[torch.Tensor] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            images, labels = batch
            self.seen.append(images)
            return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    model = Classifier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer([ResumableCallback(wrap=True)], max_epochs=1).fit(model, data)
    assert len(model.seen) == 6
    assert all(any(torch.equal(images, seen) for seen in model.seen) for images, _ in data)


def test_the_seed_is_that_of_seed_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def order() -> Any:
        data = DataLoader(Samples(10, 0), batch_size=2, shuffle=True)
        return [event[4] for event in fit(Model(), data, resume=ResumableCallback(wrap=True)).events if len(event) > 4]

    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    first = order()
    assert first == order()
    monkeypatch.setenv("PL_GLOBAL_SEED", "2")
    assert first != order()


# ---------------------------------------------------------------------- optimization


@pytest.mark.slow
def test_a_scheduler_that_waits_for_a_metric(tmp_path: Path) -> None:
    class Plateau(Model):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=10.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "score"}}

    cases = [
        ("on_train_batch_end", 5, "validation"),
        ("on_validation_end", 5, "epoch end"),
        ("on_train_epoch_end", 5, "epoch start"),
        ("on_train_batch_end", 7, "train"),
    ]
    whole = fit(Plateau(), indexed(), validation(), max_epochs=4)
    for hook, trained, begins in cases:
        path = tmp_path / f"{hook}{trained}.ckpt"
        fit(Plateau(), indexed(), validation(), callbacks=[SaveOnce(path, hook, after(trained))], max_epochs=4)
        rest = fit(Plateau(), indexed(), validation(), checkpoint=path, max_epochs=4)
        check_rest(whole, rest, trained=trained, begins=begins)


def test_early_stopping_goes_on_counting(tmp_path: Path) -> None:
    def stopping() -> Any:
        return EarlyStopping("score", patience=1, min_delta=10.0)

    whole = fit(Model(), indexed(), validation(), callbacks=[stopping()], max_epochs=9)
    for hook, begins in (("on_train_batch_end", "validation"), ("on_validation_end", "epoch end")):
        path = tmp_path / f"{hook}.ckpt"
        callbacks = [stopping(), SaveOnce(path, hook, after(5))]
        fit(Model(), indexed(), validation(), callbacks=callbacks, max_epochs=9)
        rest = fit(Model(), indexed(), validation(), callbacks=[stopping()], checkpoint=path, max_epochs=9)
        check_rest(whole, rest, trained=5, begins=begins)


class Manual(Model):
    """Steps by itself, every second batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["indexed", "snapshot"])
def test_manual_optimization(kind: str, tmp_path: Path) -> None:
    saver = SaveAlways(tmp_path)
    whole = fit(Manual(), MAKERS[kind](6), callbacks=[saver])
    for trained, path in saver.saved.items():
        rest = fit(Manual(), MAKERS[kind](6), checkpoint=path)
        stepped = trained - trained % 2
        begins = "train" if stepped % 6 else "epoch end" if stepped == trained else "epoch start"
        check_rest(whole, rest, trained=stepped, begins=begins)


def test_a_checkpoint_in_the_middle_of_a_manual_step_is_refused(tmp_path: Path) -> None:
    class Breaks(Manual):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            super().training_step(batch, batch_idx)
            if self.trained == 4:
                raise PlannedError

    path = tmp_path / "saved.ckpt"
    with suppress(PlannedError):
        fit(Breaks(), indexed(6), callbacks=[SaveOnce(path, "on_exception", always)])
    with pytest.raises(StateMismatchError, match="during an optimizer step, after batch 2 of epoch 0"):
        fit(Manual(), indexed(6), checkpoint=path)


# ---------------------------------------------------------------------- signals


class Signalled(Model):
    """Sends itself a signal in the middle of a step, or of a validation."""

    def __init__(self, number: int, *, at: int, in_validation: bool = False) -> None:
        super().__init__()
        self.number, self.at, self.in_validation = number, at, in_validation

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.trained == self.at and not self.in_validation:
            os.kill(os.getpid(), self.number)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        if self.validated == self.at and self.in_validation:
            os.kill(os.getpid(), self.number)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The signal's handler ran long before; the weights change now."""


@pytest.mark.parametrize(
    ("at", "in_validation", "trained", "begins"),
    [(3, False, 3, "train"), (4, False, 4, "validation"), (5, False, 5, "epoch start"), (2, True, 2, "validation")],
)
def test_sigterm(at: int, in_validation: bool, trained: int, begins: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"val_check_interval": 2}
    whole = fit(Model(), indexed(), validation(), **options)
    model = Signalled(signal.SIGTERM, at=at, in_validation=in_validation)
    callback, saver = ResumableCallback(save_on_sigterm=True), ModelCheckpoint(tmp_path, save_last=True)
    with pytest.raises(SystemExit):
        fit(model, indexed(), validation(), resume=callback, callbacks=[saver], **options)
    assert (tmp_path / "last-sigterm.ckpt").exists()
    saver = ModelCheckpoint(tmp_path, save_last=True)
    rest = fit(Model(), indexed(), validation(), callbacks=[saver], checkpoint="last", **options)
    check_rest(whole, rest, trained=trained, begins=begins)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_preemption(number: int, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]
    whole = fit(Model(), indexed(), validation())
    saver = ModelCheckpoint(tmp_path, save_last=True)
    with pytest.raises(SystemExit, match="75"):
        fit(
            Signalled(number, at=3),
            indexed(),
            validation(),
            resume=ResumableCallback(preemption=True),
            callbacks=[saver],
        )
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)] == before
    saver = ModelCheckpoint(tmp_path, save_last=True)
    rest = fit(Model(), indexed(), validation(), callbacks=[saver], checkpoint="last")
    check_rest(whole, rest, trained=3, begins="train")


def test_preemption_and_a_save_on_sigterm_are_one_too_many() -> None:
    with pytest.raises(ConfigurationError, match="only preemption=True"):
        ResumableCallback(preemption=True, save_on_sigterm=True)


@pytest.mark.parametrize(("at", "in_validation", "trained"), [(3, False, 3), (2, True, 2)])
def test_slurm_requeue(
    at: int, in_validation: bool, trained: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM's own command is replaced, as no cluster is here; the signal, the handler and the checkpoint are real."""
    command = tmp_path / "scontrol"
    command.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/requeued\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    options: dict[str, Any] = {"val_check_interval": 2, "default_root_dir": tmp_path}
    whole = fit(Model(), indexed(), validation(), **options)
    model = Signalled(signal.SIGUSR1, at=at, in_validation=in_validation)
    environment = [SLURMEnvironment(auto_requeue=True)]
    before = signal.getsignal(signal.SIGUSR1)
    fit(model, indexed(), validation(), plugins=environment, **options)
    assert signal.getsignal(signal.SIGUSR1) == before
    assert (tmp_path / "requeued").read_text() == "requeue 17\n"
    rest = fit(Model(), indexed(), validation(), checkpoint="hpc", **options)
    check_rest(whole, rest, trained=trained, begins="validation" if in_validation else "train")


# ---------------------------------------------------------------------- refusals


def test_a_loader_that_is_not_wrapped_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)\['b'\].*DataLoader.*wrap=True"):
        fit(Model(), {"a": indexed(), "b": DataLoader(Samples(10, 0))})


def test_a_loader_that_cannot_be_wrapped_says_which_one() -> None:
    with pytest.raises(UnsupportedError) as caught:
        fit(Model(), {"a": indexed(), "b": object()}, resume=ResumableCallback(wrap=True))
    assert "['b']" in caught.value.__notes__[0]


def test_two_callbacks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="more than one ResumableCallback"):
        fit(Model(), indexed(), callbacks=[ResumableCallback()])


def test_other_loaders_than_the_checkpoint_s_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    fit(Model(), indexed(), callbacks=[SaveOnce(path, "on_train_batch_end", after(3))], max_epochs=1)
    with pytest.raises(StateMismatchError, match="states of 1 train loaders, and this run has 2"):
        fit(Model(), [indexed(), indexed()], checkpoint=path)
    with pytest.raises(StateMismatchError, match="length") as caught:
        fit(Model(), indexed(6), checkpoint=path)
    assert "the only one" in caught.value.__notes__[0]
    assert "use ResumableCallback(strict=False) for load_state_dict(" in caught.value.__notes__[1]


def saved_without(tmp_path: Path, hook: str, trained: int, **options: Any) -> Path:
    """A checkpoint of the Trainer alone."""
    path = tmp_path / "alone.ckpt"
    trainer = make_trainer([SaveOnce(path, hook, after(trained))], **options)
    torch.manual_seed(11)
    with warnings.catch_warnings(), suppress(PlannedError):
        warnings.simplefilter("ignore")
        trainer.fit(Model(fail_at=trained if hook == "on_exception" else None), indexed())
    return path


def test_a_checkpoint_saved_without_the_callback_is_refused(tmp_path: Path) -> None:
    path = saved_without(tmp_path, "on_train_batch_end", 3)
    with pytest.raises(StateMismatchError, match="saved without ResumableCallback"):
        fit(Model(), indexed(), checkpoint=path)


@pytest.mark.parametrize(
    ("hook", "trained", "options"),
    [
        ("on_train_batch_end", 3, {}),
        ("on_train_batch_end", 5, {}),
        ("on_train_batch_end", 7, {}),
        ("on_train_batch_start", 3, {}),
        ("on_train_epoch_start", 5, {}),
        ("on_train_epoch_end", 5, {}),
        ("on_train_epoch_end", 5, {"max_steps": 12}),
        ("on_train_epoch_end", 3, {"max_steps": 3}),
        ("on_train_end", 7, {"max_steps": 7}),
        ("on_exception", 3, {}),
    ],
)
def test_or_gone_on_with_at_lightning_s_counters(
    hook: str, trained: int, options: dict[str, Any], tmp_path: Path
) -> None:
    path, whole = saved_without(tmp_path, hook, trained, **options), fit(Model(), indexed())
    with pytest.warns(StateMismatchWarning, match="strict=False"):
        rest = fit(Model(), indexed(), resume=ResumableCallback(strict=False), checkpoint=path)
    batches = [event[1:5] for event in rest.events if event[0] == "train"]
    assert batches == [event[1:5] for event in whole.events if event[0] == "train"][trained:]


def test_no_making_times_in_checkpoints(tmp_path: Path) -> None:
    """No checkpoint of Lightning says when loaders were made."""
    path = saved_without(tmp_path, "on_train_batch_end", 7)
    options: dict[str, Any] = {"resume": ResumableCallback(strict=False), "checkpoint": path}
    with pytest.warns(StateMismatchWarning, match="made in epoch 1 and every 2 epochs from there"):
        fit(Model(), indexed(), reload_dataloaders_every_n_epochs=2, **options)
    with pytest.warns(StateMismatchWarning) as told:
        fit(Model(), indexed(), reload_dataloaders_every_n_epochs=1, **options)
    assert "made in epoch" not in str(told[0].message)


def test_a_checkpoint_of_format_1_is_resumed_from(tmp_path: Path) -> None:
    """It does not say when the loaders were made."""
    path = tmp_path / "saved.ckpt"
    whole = fit(Model(), indexed(), callbacks=[SaveOnce(path, "on_train_batch_end", after(3))], max_epochs=1)
    checkpoint = torch.load(path)
    part = checkpoint["callbacks"]["ResumableCallback"]
    part.update(format=1, reloaded_at=0)
    for rank in part["ranks"]:
        del rank["asked"]
    torch.save(checkpoint, path)
    check_rest(whole, fit(Model(), indexed(), checkpoint=path, max_epochs=1), trained=3, begins="train")


def test_a_stream_cannot_go_to_lightning_s_counters_and_says_so(tmp_path: Path) -> None:
    path = saved_without(tmp_path, "on_train_batch_end", 3)
    with pytest.warns(StateMismatchWarning), pytest.warns(PromiseWarning, match="cannot go to batch 3 of epoch 0"):
        fit(Model(), snapshot(), resume=ResumableCallback(strict=False), checkpoint=path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda part: part.pop("place"), "damaged"),
        (lambda part: part.update(format=99), "format 99"),
        (lambda part: part["place"].update(stage="nowhere"), "damaged"),
        (lambda part: part["place"].update(batch=-1), "damaged"),
        (lambda part: part["place"].pop("epoch"), "damaged"),
        (lambda part: part["ranks"][0].pop("loaders"), "damaged"),
        (lambda part: part["ranks"][0].update(asked=3), "damaged"),
        (lambda part: part["ranks"][0]["asked"]["train"].pop("epoch"), "damaged"),
        (lambda part: part["ranks"][0]["asked"]["train"].update(luck=3), "damaged"),
    ],
)
def test_damaged_checkpoints_are_refused(damage: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.ckpt"
    fit(Model(), indexed(), callbacks=[SaveOnce(path, "on_train_batch_end", after(3))], max_epochs=1)
    checkpoint = torch.load(path)
    damage(checkpoint["callbacks"]["ResumableCallback"])
    torch.save(checkpoint, path)
    with pytest.raises(StateFormatError, match=message):
        fit(Model(), indexed(), checkpoint=path)


class TakesIterator(Model):
    """Takes batches by itself; `ahead` of the one that it trains on."""

    ahead = 0

    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]  # Lightning looks at the name
        batches = [next(dataloader_iter)[0] for _ in range(1 + self.ahead)]
        return super().training_step(batches[0], self.trained)


def test_a_module_that_takes_one_batch_of_the_iterator(tmp_path: Path) -> None:
    saver = SaveAlways(tmp_path)
    whole = fit(TakesIterator(), replay(), callbacks=[saver], max_epochs=1)
    rest = fit(TakesIterator(), replay(), checkpoint=saver.saved[3], max_epochs=1)
    assert [event[4] for event in rest.events if event[0] == "train"] == [
        event[4] for event in whole.events if event[0] == "train"
    ][3:]


def test_a_module_that_reads_ahead_is_refused() -> None:
    model = TakesIterator()
    model.ahead = 1
    with pytest.raises(UnsupportedError, match="2 batches from dataloader_iter in one step"):
        fit(model, replay())
