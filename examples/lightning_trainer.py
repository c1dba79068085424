"""Lightning's Trainer fails in the middle of an epoch, and resumes exactly: python examples/lightning_trainer.py."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer, callbacks
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.integrations.lightning import ResumableCallback

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")  # its hints, which are for larger runs


class Model(LightningModule):
    """A classifier with dropout, which may fail."""

    def __init__(self, fail_at: int | None) -> None:
        super().__init__()
        self.net, self.fail_at = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(16, 4)), fail_at

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Compute the loss of a batch."""
        if self.global_step == self.fail_at:
            raise FloatingPointError
        print(f" {self.current_epoch}.{batch_idx}", end="")
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(folder: str, fail_at: int | None = None) -> torch.Tensor:
    """Train three epochs of ten batches, from the last checkpoint if there is one; return the weights."""
    torch.manual_seed(0)
    model, data = Model(fail_at), TensorDataset(torch.randn(320, 16), torch.randint(4, (320,)))
    loader = resumable.wrap(DataLoader(data, batch_size=32, shuffle=True), seed=0)
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(), callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_last=True)],
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path="last")
    return torch.nn.utils.parameters_to_vector(model.parameters())


with tempfile.TemporaryDirectory() as folder:
    baseline = train(f"{folder}/baseline")
    print("\nThis was the baseline run, each batch as epoch.batch. Now a run that fails at step 15:")
    with contextlib.suppress(FloatingPointError):
        train(f"{folder}/failed", fail_at=15)
    print("\nThe last checkpoint is from step 12. From there:")
    print("\nThe same weights, bit for bit:", train(f"{folder}/failed").equal(baseline))
