"""Real Lightning runs on small data: what they trained on, in which order, and what came out."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import nn

from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

for _name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.ERROR)

Event = tuple[Any, ...]


class PlannedError(RuntimeError):
    """Thrown by a test inside of a run."""


def ids(batch: Any) -> Any:
    """The samples of a batch; None for a loader that gave none."""
    if isinstance(batch, dict):
        return {name: ids(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [ids(part) for part in batch]
    return None if batch is None else [round(value, 6) for value in batch.flatten().tolist()]


def tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [tensor for part in batch for tensor in tensors(part)]
    return [] if batch is None else [batch]


class Model(pl.LightningModule):
    """Weights that depend on every batch, its order, dropout, and the running means of a normalisation."""

    def __init__(self, *, fail_at: int | None = None, fail_in_validation: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
        self.events: list[Event] = []
        self.trained = self.validated = 0
        self.fail_at, self.fail_in_validation = fail_at, fail_in_validation

    def on_train_epoch_start(self) -> None:
        self.events.append(("epoch start", self.current_epoch))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = torch.stack([self.net(part.reshape(-1, 1) * 0.01).pow(2).mean() for part in tensors(batch)]).sum()
        if self.trained == self.fail_at:
            self.fail_at = None
            raise PlannedError
        self.trained += 1
        self.events.append(("train", self.current_epoch, batch_idx, self.global_step, ids(batch), loss.item()))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.validated == self.fail_in_validation:
            self.fail_in_validation = None
            raise PlannedError
        if not self.trainer.sanity_checking:
            self.validated += 1
            self.events.append(("validation", batch_idx, ids(batch)))
        self.log("score", self.net(batch.reshape(-1, 1) * 0.01).mean() + torch.rand(()))

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.events.append(("validation end", self.trainer.callback_metrics["score"].item()))

    def on_train_epoch_end(self) -> None:
        self.events.append(("epoch end", self.current_epoch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


class SaveOnce(Callback):
    """Saves a checkpoint in one of the Trainer's hooks, the first time a condition holds."""

    def __init__(self, path: Path, hook: str, when: Callable[[Any, Any], bool]) -> None:
        self.path, self.when, self.done = path, when, False
        setattr(self, hook, self._save)

    def _save(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        if not self.done and not trainer.sanity_checking and self.when(trainer, module):
            self.done = True
            trainer.save_checkpoint(self.path)


class SaveAlways(Callback):
    """Saves a checkpoint in each call of a hook of the Trainer."""

    def __init__(self, folder: Path, hook: str = "on_train_batch_end") -> None:
        self.folder = folder
        self.saved: dict[int, Path] = {}
        setattr(self, hook, self._save)

    def _save(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        path = self.folder / f"{module.trained}.ckpt"
        trainer.save_checkpoint(path)
        self.saved[module.trained] = path


@dataclass
class Outcome:
    """What a run trained on, and what came out."""

    events: list[Event]
    weights: dict[str, torch.Tensor]
    momenta: list[torch.Tensor]
    draw: float
    counters: dict[str, Any] = field(default_factory=dict)


def make_trainer(callbacks: list[Any], **options: Any) -> Any:
    checkpointing = any(isinstance(callback, pl.callbacks.Checkpoint) for callback in callbacks)
    defaults: dict[str, Any] = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": checkpointing,
        "num_sanity_val_steps": 0,
        "callbacks": callbacks,
    }
    return pl.Trainer(**{**defaults, **options})


def fit(  # noqa: PLR0913  # everything that a run depends on
    model: Model,
    loader: Any,
    validation: Any = None,
    *,
    callbacks: list[Any] | None = None,
    resume: ResumableCallback | None = None,
    checkpoint: Path | str | None = None,
    **options: Any,
) -> Outcome:
    """Run `Trainer.fit` with the callback."""
    trainer = make_trainer([resume or ResumableCallback(), *(callbacks or [])], **options)
    torch.manual_seed(11)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning|torch")
        trainer.fit(model, loader, validation, ckpt_path=checkpoint)
    momenta = [state["momentum_buffer"] for state in trainer.optimizers[0].state.values()]
    return Outcome(model.events, model.state_dict(), momenta, torch.rand(()).item())


def check_rest(whole: Outcome, rest: Outcome, *, trained: int, begins: str) -> None:
    """The resumed run did what the uninterrupted run did after the checkpoint, and nothing else.

    Args:
        whole: the uninterrupted run.
        rest: the resumed run.
        trained: batches that are in the checkpoint's weights.
        begins: kind of the resumed run's first event.
    """
    count = len(rest.events)
    assert rest.events, "the resumed run did nothing"
    assert rest.events == whole.events[-count:]
    left = sum(event[0] == "train" for event in rest.events)
    assert left == sum(event[0] == "train" for event in whole.events) - trained
    assert rest.events[0][0] == begins
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, rest.weights[name]), name
    assert all(torch.equal(one, other) for one, other in zip(whole.momenta, rest.momenta, strict=True))
    assert whole.draw == rest.draw
