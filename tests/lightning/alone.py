"""Runs of Lightning alone: its Trainer and loaders with a state of their own, and nothing of this package."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import groupby
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch.utils.data import Dataset, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

for _name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.ERROR)

Event = tuple[Any, ...]


class PlannedError(RuntimeError):
    """Thrown by the model inside of a run."""


# ---------------------------------------------------------------------- loaders; batch 2 of epoch 1 is 102


class Fixed:
    """Has no state, and gives the same in each pass."""

    def __init__(self, batches: int = 5, base: int = 0) -> None:
        self.batches, self.base = batches, base

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(self.base + number)]) for number in range(self.batches))


class SizedFixed(Fixed):
    def __len__(self) -> int:
        return self.batches


class Counting:
    """Counts its epochs. Nothing happens before the first batch is asked for."""

    def __init__(self, batches: int = 5, base: int = 0) -> None:
        self.batches, self.base = batches, base
        self.epoch, self.given = -1, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.begin()
        while self.given < self.batches:
            self.given += 1
            yield torch.tensor([float(self.base + 100 * self.epoch + self.given - 1)])

    def begin(self) -> None:
        self.epoch, self.given = self.epoch + 1, 0


class Stateful(Counting):
    """The same with a state, which describes the batch to be given next. Behind the last one, the next epoch begins."""

    rolls_over = True
    loaded = False

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.given = state["epoch"], state["given"]
        self.loaded = True

    def begin(self) -> None:
        goes_on = self.loaded and not (self.rolls_over and self.given >= self.batches)
        self.loaded = False
        if not goes_on:
            super().begin()


class SizedStateful(Stateful):
    def __len__(self) -> int:
        return self.batches


class StopsAtTheEnd(SizedStateful):
    """Brought back after its last batch, it gives the nothing that was left."""

    rolls_over = False


class Numbers(Dataset[float]):
    """The samples 0 to 4."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> float:
        return float(index)


class NumberStream(IterableDataset[float]):
    """The same, as a stream."""

    def __iter__(self) -> Iterator[float]:
        return iter(float(number) for number in range(5))


# ---------------------------------------------------------------------- runs


def numbers(batch: Any) -> Any:
    """What is in a batch: its number, or that of each loader by name."""
    if isinstance(batch, dict):
        return {name: numbers(part) for name, part in batch.items()}
    return None if batch is None else round(batch.flatten()[0].item())


class Model(pl.LightningModule):
    """Weights that depend on every batch, its order, and the learning rate of the epoch.

    Args:
        fail_at: batch of the run at which `training_step` raises.
        fail_in_validation: the same for `validation_step`.
        estimates: ask for `estimated_stepping_batches`, as schedulers with a warm-up do.
        drops: train with dropout.
        loader: makes the train loader, in `train_dataloader`.
    """

    def __init__(
        self,
        *,
        fail_at: int | None = None,
        fail_in_validation: int | None = None,
        estimates: bool = False,
        drops: bool = False,
        loader: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5]))
        self.dropout = torch.nn.Dropout(0.5 if drops else 0.0)
        self.events: list[Event] = []
        self.trained = self.validated = 0
        self.fail_at, self.fail_in_validation = fail_at, fail_in_validation
        self.estimates, self.loader = estimates, loader

    def train_dataloader(self) -> Any:
        return super().train_dataloader() if self.loader is None else self.loader()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.trained == self.fail_at:
            raise PlannedError
        self.trained += 1
        found, rate = numbers(batch), self.trainer.optimizers[0].param_groups[0]["lr"]
        self.events.append(("train", self.current_epoch, batch_idx, self.global_step, found, rate))
        values = [number for number in (found.values() if isinstance(found, dict) else [found]) if number is not None]
        loss: torch.Tensor = (self.dropout(self.weight) * (1 + 0.001 * sum(values)) - 1).pow(2).mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.validated == self.fail_in_validation:
            raise PlannedError
        if not self.trainer.sanity_checking:
            self.validated += 1
            self.events.append(("validation", self.current_epoch, numbers(batch)))
        self.log("score", batch.mean())

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            score = self.trainer.callback_metrics["score"].item()
            self.events.append(("validation end", self.current_epoch, score))

    def on_train_epoch_end(self) -> None:
        self.events.append(("epoch end", self.current_epoch))

    def configure_optimizers(self) -> Any:
        if self.estimates:
            assert self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


class SaveOnce(Callback):
    """Saves a checkpoint in one of the Trainer's hooks, the first time that so many batches have been trained on."""

    def __init__(self, path: Path, hook: str, trained: int) -> None:
        self.path, self.trained = path, trained
        self.done = False
        setattr(self, hook, self._save)

    def _save(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        if not self.done and not trainer.sanity_checking and self.trained == module.trained:
            self.done = True
            trainer.save_checkpoint(self.path)


@dataclass
class Outcome:
    """What a run trained on, and what came out."""

    events: list[Event]
    weight: float
    warned: bool


def fit(
    model: Model,
    loader: Any,
    validation: Any = None,
    *,
    callbacks: list[Any] | None = None,
    checkpoint: Path | None = None,
    **options: Any,
) -> Outcome:
    """Run `Trainer.fit`, without any callback but those given."""
    defaults: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        "callbacks": callbacks or [],
    }
    trainer = pl.Trainer(**{**defaults, **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", module="pytorch_lightning|lightning|torch")
        with suppress(PlannedError):
            trainer.fit(model, loader, validation, ckpt_path=checkpoint)
    warned = any("resum" in str(warning.message) for warning in caught)
    return Outcome(model.events, model.weight.item(), warned)


# ---------------------------------------------------------------------- rows of the table


@dataclass(frozen=True)
class Row:
    """A case, and what has been found for it.

    Args:
        name: where the checkpoint is saved, and what is special.
        loader: makes the train loader.
        hook: of the Trainer, in which the checkpoint is saved.
        trained: batches that have been trained on then.
        begins: first event of the uninterrupted run after the checkpoint.
        rest: what the uninterrupted run does from there.
        resumed: what the resumed run does.
        verdict: how they differ.
        options: of the Trainer.
        before: those of the interrupted run that differ.
        model: options of the model.
        interrupted: those of the interrupted run's model.
        validation: makes the validation loader.
        in_module: the train loader comes from the module's `train_dataloader`.
        slow: starts worker processes.
    """

    name: str
    loader: Callable[[], Any]
    hook: str
    trained: int
    begins: str = "train"
    _: KW_ONLY
    rest: str
    resumed: str
    verdict: str
    options: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    interrupted: dict[str, Any] = field(default_factory=dict)
    validation: Callable[[], Any] | None = None
    in_module: bool = False
    slow: bool = False

    def fit(self, model: dict[str, Any], options: dict[str, Any], **more: Any) -> Outcome:
        """Run `Trainer.fit` with a model and loaders of its own."""
        torch.manual_seed(11)  # as seed_everything would, at the top of a script
        made = Model(**self.model, **model, loader=self.loader if self.in_module else None)
        loader = None if self.in_module else self.loader()
        validation = None if self.validation is None else self.validation()
        return fit(made, loader, validation, **{**self.options, **options}, **more)

    def run(self, folder: Path) -> tuple[str, str, str]:
        """Run it in whole, interrupted and resumed; return what the row should say in `rest`, `resumed`, `verdict`."""
        path = folder / "saved.ckpt"
        whole = self.fit({}, {})
        interrupted = self.fit(self.interrupted, self.before, callbacks=[SaveOnce(path, self.hook, self.trained)])
        assert all(map(eq, _trained(interrupted.events), _trained(whole.events))), "saving changed the run"
        resumed = self.fit({}, {}, checkpoint=path)
        cut = _cut(whole.events, self.trained, self.begins)
        past, rest = whole.events[:cut], whole.events[cut:]
        said = verdict(past, rest, resumed.events)
        if not said and whole.weight != resumed.weight:
            said = ["different weights"]
        text = ", ".join(said) or "exact"
        return show(rest), show(resumed.events, first_indices(rest)), f"{text} (warns)" if resumed.warned else text


def table(rows: list[Row]) -> str:
    """Write rows as the page does."""
    lines = [["case", "Lightning alone"], ["---", "---"]]
    lines += [[row.name, row.verdict] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _trained(events: list[Event]) -> Iterator[Event]:
    return (event for event in events if event[0] == "train")


def _cut(events: list[Event], trained: int, begins: str) -> int:
    """Where the rest of a run begins: the event of that kind after so many batches."""
    seen = 0
    for position, event in enumerate(events):
        if seen == trained and event[0] == begins:
            return position
        seen += event[0] == "train"
    assert seen == trained, "nothing is left of the uninterrupted run"
    return len(events)


def _loaders(events: list[Event]) -> dict[str, list[Any]]:
    """The numbers of each loader, in order; an only loader has no name."""
    streams: dict[str, list[Any]] = {}
    for event in _trained(events):
        found = event[4] if isinstance(event[4], dict) else {"": event[4]}
        for name, number in found.items():
            streams.setdefault(name, []).append(number)
    return streams


def verdict(past: list[Event], rest: list[Event], resumed: list[Event]) -> list[str]:
    """Say how a resumed run differs from the rest of the uninterrupted one, given what was before that."""
    said = [text for name in sorted(_loaders(rest)) for text in _misfed(name, past, rest, resumed)]
    wanted, got = ([event[1:3] for event in _trained(events)] for events in (rest, resumed))
    if not said and wanted != got:
        epochs, counted = ([epoch for epoch, _ in places] for places in (wanted, got))
        said += ["wrong `batch_idx`" if epochs == counted else "wrong epoch"]
    scores, found = ([event[2] for event in events if event[0] == "validation end"] for events in (rest, resumed))
    if len(scores) > len(found):
        said += ["validation skipped"]
    if set(found) - set(scores):
        said += ["wrong metric"]
    ends, reached = (sum(event[0] == "epoch end" for event in events) for events in (rest, resumed))
    if ends != reached:
        said += [f"`on_train_epoch_end` {'skipped' if ends > reached else 'twice'}"]
    rates, used = ({event[1]: event[5] for event in _trained(events)} for events in (rest, resumed))
    if any(used.get(epoch, rate) != rate for epoch, rate in rates.items()):
        said += ["wrong learning rate"]
    if not said and rest != resumed:
        said += ["different sequence"]
    return said


def _misfed(name: str, past: list[Event], rest: list[Event], resumed: list[Event]) -> Iterator[str]:
    """Say what is wrong with the batches of a loader."""
    had, wanted, got = (
        [number for number in _loaders(events).get(name, []) if number is not None] for events in (past, rest, resumed)
    )
    lost, more = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    again = sum(count for number, count in more.items() if number in had)
    prefix = f"{name}: " if name else ""
    if lost:
        yield f"{prefix}lost {lost.total()}"
    if again:
        yield f"{prefix}repeated {again}"
    if more.total() > again:
        yield f"{prefix}{more.total() - again} extra"
    if not lost and not more and wanted != got:
        yield f"{prefix}different order"


def first_indices(events: list[Event]) -> dict[int, int]:
    """The first `batch_idx` of each epoch."""
    firsts: dict[int, int] = {}
    for _, epoch, batch_idx, *_ in _trained(events):
        firsts.setdefault(epoch, batch_idx)
    return firsts


def show(events: list[Event], firsts: dict[int, int] | None = None) -> str:
    """Write a run as `epoch 0: 3-4; epoch 1: 100-104`.

    Args:
        events: of the run.
        firsts: first `batch_idx` of each epoch, as they should be; others are written out.
    """
    shown: list[str] = []
    batches = [event for event in events if event[0] in {"train", "validation"}]
    for epoch, members in groupby(batches, itemgetter(1)):
        parts: list[str] = []
        found = list(members)
        for kind, run in groupby(found, itemgetter(0)):
            part = list(run)
            if kind == "validation":
                parts.append(f"[{_ranges([event[2] for event in part])}]")
            else:
                parts.append(", ".join(f"{name} {_ranges(given)}".strip() for name, given in _loaders(part).items()))
        first = first_indices(found).get(epoch, 0)
        expected = firsts is None or first == firsts.get(epoch, 0)
        shown.append(f"epoch {epoch}: {' '.join(parts)}" + ("" if expected else f" (`batch_idx` from {first})"))
    return "; ".join(shown) or "nothing"


def _ranges(found: list[Any]) -> str:
    """Write `[3, 4, 100]` as `3-4 100`."""
    runs: list[list[int | None]] = []
    for number in found:
        last = runs[-1][-1] if runs else None
        if number is not None and last is not None and number == last + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join("none" if run[0] is None else str(run[0]) + f"-{run[-1]}" * (len(run) > 1) for run in runs)
