"""A run of the Lightning Trainer over a source of unknown length, from which the Trainer fetches ahead."""

from __future__ import annotations

import logging
import random
import warnings
from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

import planted
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

import resumable
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Iterator

parser = ArgumentParser()
parser.add_argument("--bug")
given = parser.parse_args()
planted.plant(given.bug)


def stream(epoch: int) -> Iterator[float]:
    """Read a shuffled stream of an epoch."""
    yield from (sample / 20 for sample in random.Random(epoch).sample(range(20), 20))


class Model(LightningModule):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch).pow(2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)


warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
seed_everything(0, verbose=False)
loader = resumable.wrap(
    stream, batch_size=4, seed=1, collate=lambda samples: torch.tensor(samples, dtype=torch.float32)[:, None]
)
saving = ModelCheckpoint("checkpoints", every_n_train_steps=1, save_top_k=0, save_last=True)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=2,
    callbacks=[ResumableCallback(), saving],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = Path("checkpoints/last.ckpt")
trainer.fit(Model(), loader, ckpt_path=str(last) if last.exists() else None)
