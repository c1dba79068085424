"""Writes the ledger of a Lightning run: a callback for what it trains on, and a writer of files for what it saves."""

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
    """Writes down what the Trainer does, and keeps the evaluations, which each checkpoint carries.

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
        """Go on from the evaluations of a checkpoint."""
        self.scores = state_dict["scores"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that the Trainer is about to load a checkpoint, where there is one."""
        self.ledger.write("start", trainer.global_step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Note where it goes on."""
        step = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self.ledger.write("begin", trainer.global_step, epoch=trainer.current_epoch, step=step)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Note that a batch is there."""
        self.ledger.write("received", trainer.global_step)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002  # Lightning's signature
        outputs: Any,  # noqa: ARG002  # likewise
        batch: list[torch.Tensor],
        batch_idx: int,
    ) -> None:
        """Note which batch is in the weights now."""
        place = {"epoch": trainer.current_epoch, "step": batch_idx + 1}
        self.ledger.write("batch", trainer.global_step, **place, digest=digest(batch))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that the evaluation begins."""
        if not trainer.sanity_checking:
            self.ledger.write("epoch-end", trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Note what it gave."""
        if trainer.sanity_checking:
            return
        metrics = {name: trainer.callback_metrics[name].item() for name in ("loss", "accuracy")}
        self.scores.append({"epoch": trainer.current_epoch, **metrics})
        self.ledger.write("evaluation", trainer.global_step, score=self.scores[-1])


class LedgerCheckpointIO(CheckedCheckpointIO):
    """Writes the Trainer's checkpoints, and notes when the one to resume from is on the disk.

    Args:
        ledger: for the demo to compare.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write a checkpoint: all of it is there under its name, or nothing."""
        super().save_checkpoint(checkpoint, path, storage_options)
        if Path(path).stem == "last":
            (rank,) = checkpoint["callbacks"]["ResumableCallback"]["ranks"]
            size = len(json.dumps(rank["loaders"], default=bytes.hex))
            self.ledger.write("save", checkpoint["global_step"], state_bytes=size)
