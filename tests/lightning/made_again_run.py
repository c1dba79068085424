"""Trainings whose loaders depend on when the Trainer asks for them; killed at a chosen event, or run to their end.

Run as a script it is a server, as `run_server.py` says.
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from run_server import Log, serve
from torch.utils.data import DataLoader, Dataset
from trainer_runs import Model, fit

import resumable
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from trainer_runs import Outcome

EPOCHS = 4


class Level(Dataset[torch.Tensor]):
    """Samples that tell in which epoch, after which step and with which luck their loader was made.

    Args:
        epoch: `current_epoch`.
        step: `global_step`.
        luck: a random number.
        grows: the levels of odd epochs are longer. The state of one level does not fit the others.
    """

    def __init__(self, epoch: int, step: int, luck: int, *, grows: bool) -> None:
        self.first, self.length = 10_000.0 * epoch + 100 * step + luck, 4 + 2 * (epoch % 2) * grows

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.first + 0.01 * index])


class Curriculum(Model):
    """Makes its loaders from `current_epoch` and `global_step`, and from each of the global generators.

    Args:
        draws: choose a random number for each loader.
        wraps: the train loaders are resumable Loaders.
        grows: as in a level.
    """

    def __init__(self, *, draws: bool = False, wraps: bool = False, grows: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.draws, self.wraps, self.grows = draws, wraps, grows

    def level(self) -> Level:
        luck = 0
        if self.draws:
            luck = random.randrange(30) + int(np.random.randint(30)) + int(torch.randint(30, ()).item())
        return Level(self.current_epoch, self.trainer.global_step, luck, grows=self.grows)

    def train_dataloader(self) -> Any:
        loader = DataLoader(self.level(), batch_size=2, shuffle=True)
        return resumable.wrap(loader, seed=3) if self.wraps else loader

    def val_dataloader(self) -> Any:
        return DataLoader(self.level(), batch_size=2)


def train(model: Curriculum, checkpoint: Path | str | None = None, data: Any = None, **options: Any) -> Outcome:
    """Train with the loaders that the model or a datamodule makes, from the same seeds each time."""
    random.seed(1)
    np.random.seed(1)
    resume = ResumableCallback(wrap=False if model.wraps else {"seed": 3})
    return fit(model, data, resume=resume, checkpoint=checkpoint, **{"max_epochs": EPOCHS, **options})


# ---------------------------------------------------------------------- killed


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training.

    Args:
        folder: of the checkpoints and the log.
        every: `reload_dataloaders_every_n_epochs`.
        wraps: as in the model.
        draws: as in the model.
        die_at: number of the event of this process at which it kills itself.
        port: of no use with one rank.
    """

    folder: str
    every: int
    wraps: bool
    draws: bool
    die_at: int | None = None
    port: int = 0


class Events(list[Any]):
    """Events that are in the log when the process is killed."""

    def __init__(self, log: Log, die_at: int | None) -> None:
        self._log, self._die_at = log, die_at

    def append(self, event: Any) -> None:
        super().append(event)
        self._log.write(*event)
        if len(self) == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def start(run: Run, _: int) -> None:
    """Run a training in this process, from the newest checkpoint if there is one."""
    log = Log(Path(run.folder, "log-0"))
    log.write("start")
    model = Curriculum(draws=run.draws, wraps=run.wraps)
    model.events = Events(log, run.die_at)
    saver = ModelCheckpoint(run.folder, every_n_train_steps=1, save_last=True)
    outcome = train(model, "last", callbacks=[saver], reload_dataloaders_every_n_epochs=run.every)
    log.write("end", {name: tensor.tolist() for name, tensor in outcome.weights.items()}, outcome.draw)


if __name__ == "__main__":
    serve(Run, start, lambda _: 1)
