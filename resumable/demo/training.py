"""The training process: a hand-written loop that saves its checkpoint every few steps, and goes on from the last one.

Each run of it is a process of its own, and nothing in it knows about the kills.
"""

from __future__ import annotations

import json
import random
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import resumable
from resumable.demo.digits import Digits, read_digits
from resumable.demo.ledger import Ledger
from resumable.demo.model import Classifier, digest, evaluate, training_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.loader import Loader

__all__ = ["EPOCHS", "SAVE_EVERY", "Training"]

EPOCHS = 3
SAVE_EVERY = 6  # steps
_SEED = 0


class Training:
    """Model, optimizer, loader, and what the loop counts.

    Args:
        loader: gives batches of images and labels.
        held_out: for the evaluation at the end of each epoch.
        store: of the checkpoints.
        ledger: for the demo to compare.
    """

    def __init__(self, loader: Loader, held_out: Digits, store: resumable.CheckpointStore, ledger: Ledger) -> None:
        _seed_everything()
        self.loader, self.held_out, self.store, self.ledger = loader, held_out, store, ledger
        self.model = Classifier()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.steps = 0
        self.scores: list[dict[str, Any]] = []

    def run(self) -> None:
        """Train up to the end, from the last checkpoint where there is one."""
        self.resume()
        for epoch in self.loader.epochs(EPOCHS):
            for images, labels in epoch:
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

    def train_on(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take one step of the optimizer."""
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
        self.ledger.write("save", self.steps, state_bytes=len(json.dumps(state)))

    def resume(self) -> None:
        """Load the last checkpoint, where there is one."""
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

    def note(self, epoch: int, *tensors: torch.Tensor) -> None:
        """Write down which batch is in the weights now."""
        self.ledger.write("batch", self.steps, epoch=epoch, step=self.loader.cursor.step, digest=digest(tensors))


def _seed_everything() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002  # the loop draws from the global generators
    torch.manual_seed(_SEED)


def _find(path: str) -> Callable[[Digits], Loader]:
    module, _, function = path.partition(":")
    make: Callable[[Digits], Loader] = getattr(import_module(module), function)
    return make


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in this process, as the command line says."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--make", required=True, help="module:function that makes the loader")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--checkpoints", required=True, type=Path)
    parser.add_argument("--ledger", required=True, type=Path)
    options = parser.parse_args(arguments)
    digits, held_out = read_digits(options.data)
    store = resumable.CheckpointStore(options.checkpoints, keep=3)
    Training(_find(options.make)(digits), held_out, store, Ledger(options.ledger)).run()


if __name__ == "__main__":
    main()
