"""Writes the ledger of a Lightning run: a callback for the training, and a checkpoint writer for the saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytorch_lightning.callbacks import Callback

from resumable.integrations.lightning import CheckedCheckpointIO

from .model import digest

if TYPE_CHECKING:
    import torch
    from pytorch_lightning import LightningModule, Trainer

    from .ledger import Ledger

__all__ = ["LedgerCallback", "LedgerCheckpointIO"]


class LedgerCallback(Callback):
    """Records the Trainer's actions, and keeps the evaluations, which are saved in each checkpoint.

    Args:
        ledger: for the demo to compare.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.scores: list[dict[str, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluations, for a checkpoint."""
        return {"scores": self.scores}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the evaluations of a checkpoint."""
        self.scores = state_dict["scores"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Record that the Trainer is about to load a checkpoint, if there is one."""
        self.ledger.write("start", trainer.global_step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Record where it continues."""
        step = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self.ledger.write("begin", trainer.global_step, epoch=trainer.current_epoch, step=step)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Record that a batch has arrived."""
        self.ledger.write("received", trainer.global_step)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002  # Lightning's signature
        outputs: Any,  # noqa: ARG002  # the same
        batch: list[torch.Tensor],
        batch_idx: int,
    ) -> None:
        """Record which batch is in the weights now."""
        place = {"epoch": trainer.current_epoch, "step": batch_idx + 1}
        self.ledger.write("batch", trainer.global_step, **place, digest=digest(batch))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Record that the evaluation starts."""
        if not trainer.sanity_checking:
            self.ledger.write("epoch-end", trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Record its result."""
        if trainer.sanity_checking:
            return
        metrics = {name: trainer.callback_metrics[name].item() for name in ("loss", "accuracy")}
        self.scores.append({"epoch": trainer.current_epoch, **metrics})
        self.ledger.write("evaluation", trainer.global_step, score=self.scores[-1])


class LedgerCheckpointIO(CheckedCheckpointIO):
    """Writes the Trainer's checkpoints, and records when the one to resume from is on disk.

    Args:
        ledger: for the demo to compare.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint atomically."""
        super().save_checkpoint(checkpoint, path, storage_options)
        if Path(path).stem == "last":
            (rank,) = checkpoint["callbacks"]["ResumableCallback"]["ranks"]
            size = len(json.dumps(rank["loaders"], default=bytes.hex))
            self.ledger.write("save", checkpoint["global_step"], state_bytes=size)
