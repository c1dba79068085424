"""A run of Lightning whose checkpoints are inspected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytorch_lightning as lightning
import torch
from kept import wrapped

from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["fit_and_save"]


class _Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        return self.layer(batch[0].float().reshape(-1, 1)).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


def fit_and_save(path: Path, **options: Any) -> None:
    """Train for nine steps, and save."""
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    callbacks: list[Any] = [ResumableCallback()]
    trainer = lightning.Trainer(
        max_steps=9, accelerator="cpu", enable_checkpointing=False, callbacks=callbacks, **quiet, **options
    )
    trainer.fit(_Model(), wrapped())
    trainer.save_checkpoint(path)
