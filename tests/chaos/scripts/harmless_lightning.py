"""A run of Lightning with a checkpoint callback of each kind: by steps, the best ones by a score, and by the time."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from resumable.integrations.lightning import CheckedCheckpointIO, ResumableCallback

WORKERS = 2 if "--workers" in sys.argv else 0


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch[0]).pow(2).mean()
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("score", self.layers(batch[0]).pow(2).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


seed_everything(0, verbose=False)
torch.set_num_threads(1)
data = TensorDataset(torch.arange(24.0)[:, None] / 24)
trainer = Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    callbacks=[
        ResumableCallback(wrap=True),
        ModelCheckpoint("steps", every_n_train_steps=3, save_last=True),
        ModelCheckpoint("best", monitor="score", save_top_k=2),
        ModelCheckpoint("timed", train_time_interval=timedelta(milliseconds=20), save_top_k=-1),
    ],
    plugins=[CheckedCheckpointIO()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
train, validation = (DataLoader(data, size, shuffle=size == 4, num_workers=WORKERS) for size in (4, 8))
trainer.fit(Model(), train, validation, ckpt_path="last")
