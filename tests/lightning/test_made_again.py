"""Loaders that depend on when the Trainer asks for them are made in a resumed run as in the uninterrupted one."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from killed_runs import KILLED, Bench, attempts, said
from made_again_run import EPOCHS, Curriculum, Level, train
from pytorch_lightning.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader
from trainer_runs import Outcome, PlannedError, SaveAlways, SaveOnce, check_rest

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def batches(outcome: Outcome) -> int:
    return sum(event[0] == "train" for event in outcome.events)


def made_in(outcome: Outcome) -> list[int]:
    """The epoch in which the loader of each epoch's batches was made."""
    found = {event[1]: int(event[4][0] // 10_000) for event in outcome.events if event[0] == "train"}
    return [found[epoch] for epoch in range(EPOCHS)]


def always(*_: Any) -> bool:
    return True


def in_epoch(epoch: int) -> Callable[[Any, Any], bool]:
    return lambda trainer, _: bool(trainer.current_epoch == epoch)


def at(trained: int) -> Callable[[Any, Any], bool]:
    return lambda _, model: model.trained == trained


# ---------------------------------------------------------------------- every hook


HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_epoch_start",
)
VALIDATIONS: dict[str, dict[str, Any]] = {
    "at each epoch's end": {},
    "at each batch": {"val_check_interval": 1},
    "at each second epoch's end": {"check_val_every_n_epoch": 2},
    "after a sanity check": {"num_sanity_val_steps": 2, "check_val_every_n_epoch": 2},
}
GRID = list(product(range(4), (False, True), (False, True), HOOKS, VALIDATIONS))


@cache
def uninterrupted(*, draws: bool, wraps: bool, **options: Any) -> Outcome:
    return train(Curriculum(draws=draws, wraps=wraps), **options)


def check_hook(make: Callable[[], Curriculum], hook: str, folder: Path, whole: Outcome, **options: Any) -> None:
    """Save at each call of a hook, and resume from each checkpoint."""
    saver = SaveAlways(folder, hook)
    assert train(make(), callbacks=[saver], **options).events == whole.events
    total = batches(whole)
    assert saver.saved
    for trained, path in saver.saved.items():
        rest = train(make(), path, **options)
        if rest.events or trained < total:
            check_rest(whole, rest, trained=trained, begins=rest.events[0][0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[pytest.mark.long] * bool(number % 17)) for number, row in enumerate(GRID)],
    ids=str,
)
def test_saved_in_every_hook(row: tuple[int, bool, bool, str, str], tmp_path: Path) -> None:
    every, wraps, draws, hook, validation = row
    options = {"reload_dataloaders_every_n_epochs": every, **VALIDATIONS[validation]}
    whole = uninterrupted(draws=draws, wraps=wraps, **options)
    assert made_in(whole) == [epoch // every * every if every else 0 for epoch in range(EPOCHS)]
    check_hook(lambda: Curriculum(draws=draws, wraps=wraps), hook, tmp_path, whole, **options)


def test_the_sample_of_the_grid_has_each_value_of_each_axis() -> None:
    for axis, values in enumerate(zip(*GRID, strict=True)):
        assert {row[axis] for row in GRID[::17]} == set(values)


# ---------------------------------------------------------------------- kinds of runs


class Late(SingleDeviceStrategy):
    """Reads the checkpoint after the optimizers were made, like strategies that shard the model."""

    restore_checkpoint_after_setup = True


class Estimates(Curriculum):
    """Asks for its loaders while it makes the optimizer, before the checkpoint's counters are known."""

    def configure_optimizers(self) -> Any:
        assert self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class Unsized(Curriculum):
    """The Trainer reads a batch ahead."""

    def train_dataloader(self) -> Any:
        level = self.level()
        numbers = torch.stack([level[number] for number in range(len(level))]).reshape(-1, 2, 1)
        return resumable.wrap(lambda: iter(numbers), identity=str(level.first))


class Several(Curriculum):
    """Cycles a short loader."""

    def train_dataloader(self) -> Any:
        short = DataLoader(Level(self.current_epoch, 0, 50, grows=False), batch_size=4)
        return {"long": DataLoader(self.level(), batch_size=2), "short": short}


class Manual(Curriculum):
    """Steps its optimizer itself; Lightning counts such steps elsewhere."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


KINDS: dict[str, tuple[type[Curriculum], dict[str, Any]]] = {
    "estimated steps": (Estimates, {}),
    "checkpoint read late": (Curriculum, {"strategy": Late}),
    "checkpoint read late, after estimated steps": (Estimates, {"strategy": Late}),
    "no length": (Unsized, {}),
    "several loaders": (Several, {}),
    "manual optimization": (Manual, {}),
    "accumulated gradients": (Curriculum, {"accumulate_grad_batches": 2}),
    "max_steps": (Curriculum, {"max_epochs": -1, "max_steps": 9}),
    "limit_train_batches": (Curriculum, {"limit_train_batches": 1}),
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_runs(kind: str, hook: str, every: int, tmp_path: Path) -> None:
    model, options = KINDS[kind]

    def run(checkpoint: Path | None = None, **more: Any) -> Outcome:
        strategy = {"strategy": Late(torch.device("cpu"))} if options.get("strategy") is Late else {}
        more |= {"reload_dataloaders_every_n_epochs": every, **options, **strategy}
        return train(model(draws=True), checkpoint, **more)

    saver, whole = SaveAlways(tmp_path, hook), run()
    assert run(callbacks=[saver]).events == whole.events
    for path in saver.saved.values():
        rest = run(path)
        if rest.events:
            check_rest(whole, rest, trained=batches(whole) - batches(rest), begins=rest.events[0][0])


@pytest.mark.parametrize("fails", [{"fail_at": 5}, {"fail_at": 6}, {"fail_in_validation": 4}], ids=str)
def test_saved_at_an_exception(fails: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 2, "val_check_interval": 1}
    whole, path = train(Curriculum(draws=True), **options), tmp_path / "saved.ckpt"
    with suppress(PlannedError):
        train(Curriculum(draws=True, **fails), callbacks=[SaveOnce(path, "on_exception", always)], **options)
    rest = train(Curriculum(draws=True), path, **options)
    check_rest(whole, rest, trained=batches(whole) - batches(rest), begins=rest.events[0][0])


@pytest.mark.parametrize("every", [0, 3])
def test_validation_loader_of_a_later_epoch(every: int, tmp_path: Path) -> None:
    """A resumed run may ask for a validation loader in a later epoch.

    It validates first in epoch 3, with the loader of epoch 1; the next one is made in epoch 5.
    """
    options: dict[str, Any] = {
        "reload_dataloaders_every_n_epochs": every,
        "check_val_every_n_epoch": 2,
        "max_epochs": 6,
    }
    whole, path = uninterrupted(draws=True, wraps=False, **options), tmp_path / "saved.ckpt"
    scores = {int(event[2][0] // 10_000) for event in whole.events if event[0] == "validation"}
    assert scores == ({1, 5} if every else {1})
    train(Curriculum(draws=True), callbacks=[SaveOnce(path, "on_train_epoch_start", in_epoch(2))], **options)
    rest = train(Curriculum(draws=True), path, **options)
    check_rest(whole, rest, trained=batches(whole) - batches(rest), begins="epoch start")
    assert rest.events[0][1] == 2


@pytest.mark.parametrize("loader", ["train_dataloader", "val_dataloader"])
def test_saved_while_a_loader_is_made(loader: str, tmp_path: Path) -> None:
    """The handler of a signal may save there: the checkpoint is of before, and the loader is made once more."""
    path = tmp_path / "saved.ckpt"

    class Saves(Curriculum):
        pass

    def save(self: Curriculum) -> Any:
        made = getattr(Curriculum, loader)(self)
        if self.current_epoch == 2:
            self.trainer.save_checkpoint(path)
        return made

    setattr(Saves, loader, save)
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1}
    whole = train(Saves(draws=True), **options)
    rest = train(Curriculum(draws=True), path, **options)
    check_rest(whole, rest, trained=batches(whole) - batches(rest), begins=rest.events[0][0])
    assert batches(rest) == (5 if loader == "train_dataloader" else 3)


def test_saved_while_the_loader_of_a_resumed_run_is_made(tmp_path: Path) -> None:
    """The checkpoint has the counters of the first one, not those that the code sees while it makes loaders."""
    first, second = tmp_path / "first.ckpt", tmp_path / "second.ckpt"

    class Saves(Curriculum):
        def train_dataloader(self) -> Any:
            self.trainer.save_checkpoint(second)
            return super().train_dataloader()

    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 2}
    whole = train(Curriculum(draws=True), callbacks=[SaveOnce(first, "on_train_batch_end", at(3))], **options)
    assert train(Saves(draws=True), first, max_epochs=2, **options).events
    rest = train(Curriculum(draws=True), second, **options)
    check_rest(whole, rest, trained=3, begins="validation" if rest.events[0][0] == "validation" else "train")


@pytest.mark.parametrize("loader", ["train_dataloader", "val_dataloader"])
def test_saved_when_a_loader_cannot_be_made(loader: str, tmp_path: Path) -> None:
    class Fails(Curriculum):
        pass

    def fail(self: Curriculum) -> Any:
        made = getattr(Curriculum, loader)(self)  # it draws before it fails
        if self.current_epoch == 2:
            raise PlannedError
        return made

    setattr(Fails, loader, fail)
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1}
    whole, path = train(Curriculum(draws=True), **options), tmp_path / "saved.ckpt"
    with suppress(PlannedError):
        train(Fails(draws=True), callbacks=[SaveOnce(path, "on_exception", always)], **options)
    rest = train(Curriculum(draws=True), path, **options)
    check_rest(whole, rest, trained=batches(whole) - batches(rest), begins=rest.events[0][0])


def test_a_run_that_is_resumed_twice(tmp_path: Path) -> None:
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 3}
    whole, first, second = train(Curriculum(draws=True), **options), tmp_path / "first.ckpt", tmp_path / "second.ckpt"
    train(Curriculum(draws=True), callbacks=[SaveOnce(first, "on_train_batch_end", at(3))], **options)
    train(Curriculum(draws=True), first, callbacks=[SaveOnce(second, "on_train_batch_end", at(1))], **options)
    rest = train(Curriculum(draws=True), second, **options)
    check_rest(whole, rest, trained=4, begins=rest.events[0][0])


def test_a_run_with_no_seed_has_the_same_random_part_of_its_data(tmp_path: Path) -> None:
    """The loaders are made before the callback has the checkpoint's generators in place."""
    path = tmp_path / "saved.ckpt"
    whole = train(Curriculum(draws=True), callbacks=[SaveOnce(path, "on_train_batch_end", at(3))])
    rest = train(Unseeded(draws=True), path)
    check_rest(whole, rest, trained=3, begins=rest.events[0][0])


class Unseeded(Curriculum):
    """Runs in a process with a different RNG state."""

    def configure_model(self) -> None:
        torch.rand(7)


def test_loaders_of_a_datamodule(tmp_path: Path) -> None:
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 2}
    whole, path = train(Curriculum(draws=True), **options), tmp_path / "saved.ckpt"
    saver = SaveOnce(path, "on_train_batch_end", at(3))
    for checkpoint, callbacks in ((None, [saver]), (path, [])):
        model = Curriculum(draws=True)
        data = pl.LightningDataModule()
        data.train_dataloader, data.val_dataloader = model.train_dataloader, model.val_dataloader  # type: ignore[method-assign]
        outcome = train(model, checkpoint, data=data, callbacks=callbacks, **options)
        check_rest(whole, outcome, trained=0 if checkpoint is None else 3, begins=outcome.events[0][0])


# ---------------------------------------------------------------------- killed


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("made-again"), str(Path(__file__).with_name("made_again_run.py")))
    yield found
    found.close()


def check_killed(bench: Bench, events: list[int], **options: Any) -> None:
    """Kill a run at these events, one process after the other, and compare what the last one does up to its end."""
    (whole,), folder, saved = attempts(bench.whole(**options)), bench.new(), 0
    for event in events:
        assert bench.run(folder, **options, die_at=event) == [KILLED], said(folder)
        killed = attempts(folder)[-1]
        # A batch is logged before the optimizer steps, and saved behind it.
        saved += sum(line[0] == "train" for line in killed) - (killed[-1][0] == "train")
    assert bench.run(folder, **options) == [0], said(folder)
    for attempt in attempts(folder)[len(events) :]:  # the last one
        assert attempt[1:] == whole[1 - len(attempt) :]
        assert sum(event[0] == "train" for event in attempt) == sum(event[0] == "train" for event in whole) - saved


@pytest.mark.slow
@pytest.mark.parametrize("wraps", [False, True], ids=["wrap=True", "a Loader"])
@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("offset", [0, *(pytest.param(offset, marks=pytest.mark.long) for offset in range(1, 12))])
def test_killed_at_every_event(offset: int, every: int, wraps: bool, bench: Bench) -> None:
    options = {"every": every, "wraps": wraps, "draws": bool(offset % 2)}
    events = len(attempts(bench.whole(**options))[0]) - 2  # without its first and its last line
    for event in range(1 + (offset + 5 * every + 2 * wraps) % 12, events + 1, 12):
        check_killed(bench, [event], **options)


@pytest.mark.slow
def test_killed_again_and_again(bench: Bench) -> None:
    for every in (1, 2):
        check_killed(bench, [9, 3, 9, 4], every=every, wraps=False, draws=True)
