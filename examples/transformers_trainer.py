"""A Trainer of transformers crashes during an accumulation and resumes: python examples/transformers_trainer.py."""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from resumable.integrations.transformers import last_whole_checkpoint, prepare


class Words(Dataset[dict[str, Any]]):
    """Sentences of eight made-up words; each time, one of them is masked at random."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = torch.randint(2, 40, (8,), generator=torch.Generator().manual_seed(index))
        words[torch.randint(8, (1,))] = 1
        return {"input_ids": words, "labels": index % 2}


def train(folder: str, crash_at: int | None = None) -> torch.Tensor:
    """Train two epochs of 15 micro-batches, from the last complete checkpoint if there is one; return the weights."""
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=8, **small))
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    steps = {"gradient_accumulation_steps": 3, "save_steps": 2, "num_train_epochs": 2}
    args = TrainingArguments(folder, per_device_train_batch_size=4, **steps, **quiet)
    trainer = prepare(Trainer(model, args, train_dataset=Words()))
    step, count = trainer.training_step, 0

    def training_step(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == crash_at:
            print(f"crashes at its micro-batch {count}, after {trainer.state.global_step} optimizer steps")
            raise RuntimeError
        return step(*arguments)

    trainer.training_step = training_step
    there = last_whole_checkpoint(folder)
    trainer.train(resume_from_checkpoint=there)
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters())


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    baseline = train(one)
    with contextlib.suppress(RuntimeError):
        train(other, crash_at=20)
    print("resumes from", str(last_whole_checkpoint(other)).rpartition("/")[2])
    print("The same weights, bit for bit:", train(other).equal(baseline))
