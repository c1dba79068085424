"""A Trainer whose `default_root_dir`, logs and best checkpoints are in a folder outside, with a real run in it.

It resumes from its own directory; with `--load`, from the folder, which is to be refused.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from resumable.integrations.lightning import CheckedCheckpointIO, ResumableCallback

parser = ArgumentParser()
parser.add_argument("--into", type=Path, required=True)
parser.add_argument("--load", action="store_true")
parser.add_argument("--logs", type=Path)
given = parser.parse_args()


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


seed_everything(0, verbose=False)
torch.set_num_threads(1)
data = TensorDataset(torch.arange(16.0)[:, None] / 16)
folder = given.into if given.load else Path("checkpoints").absolute()
best = ModelCheckpoint(given.into / "best", monitor="loss", save_top_k=1, every_n_train_steps=2, filename="{step}")
trainer = Trainer(
    default_root_dir=given.logs or given.into,
    accelerator="cpu",
    devices=1,
    max_epochs=2,
    callbacks=[
        ResumableCallback(wrap=True),
        best,
        ModelCheckpoint(folder, every_n_train_steps=3, save_last=True, filename="{step}"),
    ],
    logger=CSVLogger(given.logs or given.into, name="logs", version=0, flush_logs_every_n_steps=1),
    log_every_n_steps=1,
    plugins=[CheckedCheckpointIO()],
    enable_progress_bar=False,
    enable_model_summary=False,
)
newest = folder / "last.ckpt"
trainer.fit(Model(), DataLoader(data, 4, shuffle=True), ckpt_path=newest if newest.exists() else None)
