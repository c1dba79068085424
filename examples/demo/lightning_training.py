"""A training program: the Lightning Trainer with `ResumableCallback` and a `ModelCheckpoint`, as its users write it.

Each run is a separate process, and nothing in it knows about the kills.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from resumable.integrations.lightning import ResumableCallback

from .digits import BATCH_SIZE
from .lightning_ledger import LedgerCallback, LedgerCheckpointIO
from .model import Classifier, digest, make_optimizer, score, training_loss
from .task import EPOCHS, SAVE_EVERY, read_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from .digits import Digits
    from .task import Task

__all__ = ["DigitsModule", "main", "train"]


class DigitsModule(LightningModule):
    """The same network as in the hand-written loop, with the same loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Classifier()

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """Compute the loss of a batch."""
        return training_loss(self.model, *batch)

    def validation_step(self, batch: list[Tensor]) -> None:
        """Log loss and accuracy; Lightning averages them over all batches."""
        images, labels = batch
        self.log_dict(score(self.model(images), labels), batch_size=len(labels))

    def configure_optimizers(self) -> Optimizer:
        """Create the optimizer."""
        return make_optimizer(self.model)


def train(task: Task) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    noted = LedgerCallback(task.ledger)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        callbacks=[
            noted,
            ResumableCallback(wrap=True),
            ModelCheckpoint(task.checkpoints, every_n_train_steps=SAVE_EVERY, save_last=True),
        ],
        plugins=[LedgerCheckpointIO(task.ledger)],
        default_root_dir=task.checkpoints,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = DigitsModule()
    trainer.fit(module, task.loader, _held_out(task.held_out), ckpt_path="last")
    weights = digest(module.model.state_dict().values())
    task.ledger.write("end", trainer.global_step, weights=weights, scores=noted.scores)


def _held_out(digits: Digits) -> DataLoader[tuple[Tensor, ...]]:
    images, labels = torch.from_numpy(digits.images)[:, None], torch.from_numpy(digits.labels)
    return DataLoader(TensorDataset(images, labels), batch_size=BATCH_SIZE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in this process, with the options of the command line."""
    train(read_task(arguments, __doc__))


if __name__ == "__main__":
    main()
