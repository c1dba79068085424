"""A training program: a hand-written loop that saves a checkpoint every few steps, and resumes from the last one.

Each run is a separate process, and nothing in it knows about the kills.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import resumable

from .model import Classifier, digest, evaluate, images_and_labels, make_optimizer, training_loss
from .task import EPOCHS, SAVE_EVERY, Task, read_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["Training", "main"]


class Training:
    """Model, optimizer, loader, and the loop's counters.

    Args:
        task: the loader, and the other inputs from the demo.
    """

    def __init__(self, task: Task) -> None:
        self.loader, self.held_out, self.ledger = task.loader, task.held_out, task.ledger
        self.store = resumable.CheckpointStore(task.checkpoints, keep=3)
        self.model = Classifier()
        self.optimizer = make_optimizer(self.model)
        self.steps = 0
        self.scores: list[dict[str, Any]] = []

    def run(self) -> None:
        """Train to the end, from the last checkpoint if there is one."""
        self.resume()
        for epoch in self.loader.epochs(EPOCHS):
            for images, labels in map(images_and_labels, epoch):
                self.ledger.write("received", self.steps)
                self.train_on(images, labels)
                self.note(epoch.number, images, labels)
                if self.steps % SAVE_EVERY == 0:
                    self.save()
            self.ledger.write("epoch-end", self.steps)
            self.scores.append({"epoch": epoch.number, **evaluate(self.model, self.held_out)})
            self.ledger.write("evaluation", self.steps, score=self.scores[-1])
            self.save()
        weights = digest(self.model.state_dict().values())
        self.ledger.write("end", self.steps, weights=weights, scores=self.scores)

    def train_on(self, images: Tensor, labels: Tensor) -> None:
        """Take one optimizer step."""
        self.optimizer.zero_grad()
        training_loss(self.model, images, labels).backward()  # type: ignore[no-untyped-call]  # torch's
        self.optimizer.step()
        self.steps += 1

    def save(self) -> None:
        """Save everything that the next step depends on."""
        state = self.loader.state_dict()
        content = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": state,
            "generators": resumable.rng.state_dict(),
            "steps": self.steps,
            "scores": self.scores,
        }
        self.store.save(self.steps, content)
        self.ledger.write("save", self.steps, state_bytes=len(json.dumps(state, default=bytes.hex)))

    def resume(self) -> None:
        """Load the last checkpoint, if there is one."""
        last = self.store.latest()
        self.ledger.write("start", self.steps)
        if last is not None:
            self.loader.load_state_dict(last["loader"])
            self.model.load_state_dict(last["model"])
            self.optimizer.load_state_dict(last["optimizer"])
            resumable.rng.load_state_dict(last["generators"])
            self.steps, self.scores = last["steps"], last["scores"]
        cursor = self.loader.cursor
        self.ledger.write("begin", self.steps, epoch=cursor.epoch, step=cursor.step)

    def note(self, epoch: int, *tensors: Tensor) -> None:
        """Record which batch is in the weights now."""
        self.ledger.write("batch", self.steps, epoch=epoch, step=self.loader.cursor.step, digest=digest(tensors))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in this process, with the options of the command line."""
    Training(read_task(arguments, __doc__)).run()


if __name__ == "__main__":
    main()
