"""A training program: transformers' Trainer, prepared with one line, as its users write it.

Each run is a separate process, and nothing in it knows about the kills.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from resumable.integrations.transformers import prepare

from .digits import BATCH_SIZE
from .model import Classifier, digest, make_optimizer, training_loss
from .sealed import last_sealed, seal
from .task import EPOCHS, read_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .digits import Digits
    from .ledger import Ledger
    from .task import Task

__all__ = ["ACCUMULATION", "main", "train"]

ACCUMULATION = 5  # batches per optimizer step; the last step of an epoch has fewer


class DigitsModel(nn.Module):
    """The same network as in the hand-written loop, with the loss inside, as the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Classifier()

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Compute the loss of a batch, and also the logits in an evaluation."""
        if self.training:
            return {"loss": training_loss(self.network, images, labels)}
        logits = self.network(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class LedgerTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped here
    """A Trainer that records its training and its evaluations.

    Args:
        ledger: for the demo to compare.
        model: the model.
        args: of the Trainer.
        **options: other options of the Trainer.
    """

    def __init__(self, ledger: Ledger, model: nn.Module, args: TrainingArguments, **options: Any) -> None:
        super().__init__(model, args, **options)
        self.ledger = ledger
        self.length = math.ceil(len(self.train_dataset) / BATCH_SIZE)
        self.within = 0  # batches since the last optimizer step

    @property
    def place(self) -> dict[str, int]:
        """The epoch, and how many of its batches were trained on."""
        epoch, steps = divmod(self.state.global_step, math.ceil(self.length / ACCUMULATION))
        return {"epoch": epoch, "step": steps * ACCUMULATION + self.within}

    @property
    def count(self) -> int:
        """How many batches were trained on in the whole run."""
        return self.place["epoch"] * self.length + self.place["step"]

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], *rest: Any) -> Tensor:
        """Train on a batch, between two lines of the ledger."""
        self.ledger.write("received", self.count)
        loss: Tensor = super().training_step(model, inputs, *rest)
        self.within += 1
        self.ledger.write("batch", self.count, **self.place, digest=digest(inputs.values()))
        return loss

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """Evaluate at the end of an epoch, between two lines of the ledger."""
        self.ledger.write("epoch-end", self.count)
        metrics: dict[str, float] = super().evaluate(*arguments, **options)
        self.ledger.write("evaluation", self.count, score=_score(self.place["epoch"] - 1, metrics))
        return metrics

    def scores(self) -> list[dict[str, Any]]:
        """Return the evaluations, as saved in the checkpoints."""
        logs = [log for log in self.state.log_history if "eval_loss" in log]
        return [_score(round(log["epoch"]) - 1, log) for log in logs]


class LedgerCallback(TrainerCallback):  # type: ignore[misc]  # the same
    """Records where the Trainer continues, and seals its checkpoints.

    Attributes:
        trainer: the Trainer.
    """

    trainer: LedgerTrainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Record where it continues."""
        self.trainer.ledger.write("begin", self.trainer.count, **self.trainer.place)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count the batches of the next optimizer step."""
        self.trainer.within = 0

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Seal the checkpoint that was just written."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        seal(folder)
        values = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        ours = json.dumps(values["stateful_callbacks"]["ResumableState"])
        self.trainer.ledger.write("save", self.trainer.count, state_bytes=len(ours))


def train(task: Task) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    model, noted = DigitsModel(), LedgerCallback()
    trainer = LedgerTrainer(
        task.ledger,
        model,
        _arguments(task.checkpoints),
        train_dataset=task.loader.dataset,
        eval_dataset=_held_out(task.held_out),
        data_collator=_collate,
        compute_metrics=_accuracy,
        callbacks=[noted],
        optimizers=(make_optimizer(model.network), None),
    )
    noted.trainer = prepare(trainer)
    last = last_sealed(task.checkpoints)
    task.ledger.write("start", 0)
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    weights = digest(model.state_dict().values())
    task.ledger.write("end", trainer.count, weights=weights, scores=trainer.scores())


def _arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=ACCUMULATION,
        eval_strategy="epoch",
        save_steps=1,
        save_total_limit=3,
        label_names=["labels"],
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )


def _collate(samples: Sequence[tuple[Tensor, int]]) -> dict[str, Tensor]:
    images, labels = zip(*samples, strict=True)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


def _held_out(digits: Digits) -> list[tuple[Tensor, int]]:
    return list(zip(torch.from_numpy(digits.images)[:, None], digits.labels.tolist(), strict=True))


def _accuracy(predicted: Any) -> dict[str, float]:
    return {"accuracy": float((predicted.predictions.argmax(axis=1) == predicted.label_ids).mean())}


def _score(epoch: int, metrics: dict[str, float]) -> dict[str, Any]:
    return {"epoch": epoch, "loss": metrics["eval_loss"], "accuracy": metrics["eval_accuracy"]}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in this process, with the options of the command line."""
    train(read_task(arguments, __doc__))


if __name__ == "__main__":
    main()
