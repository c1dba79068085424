"""Lightning with a plain DataLoader, which the callback wraps: python examples/lightning_wrap.py."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import OnExceptionCheckpoint
from torch.utils.data import DataLoader

from resumable.integrations.lightning import ResumableCallback

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")  # its hints, which are for larger runs


def noisy(samples: list[torch.Tensor]) -> torch.Tensor:
    """Create a batch, with noise from a global RNG."""
    return torch.stack(samples) + torch.rand(len(samples)) / 2


class Model(LightningModule):
    """Does not depend on this package."""

    def __init__(self, fail_at: int | None) -> None:
        super().__init__()
        self.weight, self.fail_at = torch.nn.Parameter(torch.ones(1)), fail_at

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Compute the loss of a batch."""
        assert self.global_step != self.fail_at
        print(f"  epoch {self.current_epoch} batch {batch_idx}: {batch}")
        return (self.weight * batch).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.001)


def train(title: str, folder: str, fail_at: int | None = None) -> None:
    """Train two epochs of three batches, from the last checkpoint if there is one."""
    print(title)
    data = DataLoader(torch.arange(12), batch_size=4, shuffle=True, collate_fn=noisy)  # type: ignore[arg-type,var-annotated]  # torch's
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(wrap=True), OnExceptionCheckpoint(folder)],
    )  # fmt: skip
    with contextlib.suppress(AssertionError):
        trainer.fit(Model(fail_at), data, ckpt_path="last")


with tempfile.TemporaryDirectory() as root:
    train("Baseline:", f"{root}/baseline")
    train("Fails at step 4, and then saves:", f"{root}/failed", fail_at=4)
    train("Resumes from there, with the same samples and the same noise:", f"{root}/failed")
