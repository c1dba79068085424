"""A training program: a loop of Hugging Face Accelerate with gradient accumulation, as its users write it.

It often saves in the middle of an accumulation. Each run is a separate process, and nothing in it knows about the
kills.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator

from resumable.integrations.accelerate import prepare

from .model import Classifier, digest, evaluate, images_and_labels, make_optimizer, training_loss
from .sealed import is_sealed, last_sealed, seal
from .task import EPOCHS, SAVE_EVERY, Task, read_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

__all__ = ["ACCUMULATION", "Training", "main"]

ACCUMULATION = 5  # divides neither the batches between two saves, nor those of an epoch
_KEPT = 3


class Scores:
    """The evaluations by epoch, which are saved in each checkpoint."""

    def __init__(self) -> None:
        self.by_epoch: dict[int, dict[str, Any]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return them, for a checkpoint."""
        return {"by_epoch": self.by_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the evaluations of a checkpoint."""
        self.by_epoch = state["by_epoch"]


class Training:
    """Model, optimizer, and the loader prepared for them.

    Args:
        task: the loader, and the other inputs from the demo.
    """

    def __init__(self, task: Task) -> None:
        self.held_out, self.ledger, self.folder = task.held_out, task.ledger, task.checkpoints
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
        self.loader = prepare(self.accelerator, task.loader)
        model = Classifier()
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model))
        self.scores = Scores()
        self.accelerator.register_for_checkpointing(self.scores)
        self.count = 0

    def run(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        self.resume()
        for epoch in self.loader.epochs(EPOCHS):
            for images, labels in map(images_and_labels, epoch):
                self.ledger.write("received", self.count)
                self.train_on(images, labels)
                self.note(epoch.number, images, labels)
                if self.count % SAVE_EVERY == 0 and not self.loader.end_of_dataloader:
                    self.save()
            self.ledger.write("epoch-end", self.count)
            self.scores.by_epoch[epoch.number] = evaluate(self.model, self.held_out)
            self.ledger.write("evaluation", self.count, score=self.evaluations()[-1])
            self.save()
        weights = digest(self.model.state_dict().values())
        self.ledger.write("end", self.count, weights=weights, scores=self.evaluations())

    def evaluations(self) -> list[dict[str, Any]]:
        """List the evaluations, each with its epoch."""
        return [{"epoch": epoch, **score} for epoch, score in sorted(self.scores.by_epoch.items())]

    def train_on(self, images: Tensor, labels: Tensor) -> None:
        """Accumulate the gradients of a batch, and take an optimizer step every five batches."""
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(training_loss(self.model, images, labels))
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.count += 1

    def save(self) -> None:
        """Save everything that Accelerate knows; the loader's position is that of the last optimizer step."""
        folder = self.folder / f"checkpoint_{self.count}"
        if is_sealed(folder):  # the checkpoint from which this process resumed
            return
        shutil.rmtree(folder, ignore_errors=True)  # half of a checkpoint, from a killed run
        self.accelerator.save_state(str(folder))
        seal(folder)
        for old in sorted(self.folder.iterdir(), key=_number)[:-_KEPT]:
            shutil.rmtree(old)
        state = json.dumps(self.loader.loader.state_dict(), default=bytes.hex)
        self.ledger.write("save", self.loader.global_step, state_bytes=len(state))

    def resume(self) -> None:
        """Load the last checkpoint, if there is one."""
        last = last_sealed(self.folder)
        self.ledger.write("start", 0)
        if last is not None:
            self.accelerator.load_state(str(last))
        self.count = self.loader.global_step
        cursor = self.loader.cursor
        self.ledger.write("begin", self.count, epoch=cursor.epoch, step=cursor.step)

    def note(self, epoch: int, *tensors: Tensor) -> None:
        """Record which batch was trained on."""
        self.ledger.write("batch", self.count, epoch=epoch, step=self.loader.cursor.step, digest=digest(tensors))


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("_")[2])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in this process, with the options of the command line."""
    Training(read_task(arguments, __doc__)).run()


if __name__ == "__main__":
    main()
