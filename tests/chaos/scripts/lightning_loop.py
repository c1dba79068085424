"""A small run of the Lightning Trainer with `ResumableCallback`, which resumes from its last checkpoint.

With `--average` it has a callback with a state, which `--forgetful` saves and does not load.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from resumable.integrations.lightning import CheckedCheckpointIO, ResumableCallback


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, 512), torch.nn.Dropout(0.5), torch.nn.Linear(512, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch[0]).pow(2).mean()
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("loss", self.layers(batch[0]).pow(2).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.5)


class Average(Callback):
    """An average of a weight."""

    def __init__(self) -> None:
        self.average = torch.zeros(1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any
    ) -> None:  # Lightning's signature
        self.average = self.average.lerp(list(pl_module.parameters())[-1].detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "--forgetful" not in sys.argv:
            self.average = state_dict["average"]


seed_everything(0, verbose=False)
torch.set_num_threads(1)
data = TensorDataset(torch.arange(16.0)[:, None] / 16)
trainer = Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    callbacks=[
        ResumableCallback(wrap=True),
        ModelCheckpoint("checkpoints", every_n_train_steps=3, save_last=True),
        *([Average()] if "--average" in sys.argv else []),
    ],
    plugins=[CheckedCheckpointIO()] if "--checked" in sys.argv else [],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(data, 4, shuffle=True), DataLoader(data, 8), ckpt_path="last")
