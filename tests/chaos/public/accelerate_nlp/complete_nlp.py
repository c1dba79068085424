"""In the shape of Accelerate's complete_nlp_example.py: a checkpoint every few steps, schedules, results in JSON.

Made resumable as docs/frameworks/accelerate.md says.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import resumable
from resumable.integrations.accelerate import last_whole_checkpoint, prepare

WORDS: dict[str, int] = {}


def read(path: str) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as f:
        samples = [json.loads(line) for line in f]
    for sample in samples:
        sample["ids"] = [WORDS.setdefault(word, len(WORDS) + 1) for word in sample.pop("sentence").split()]
    return samples


def collate_fn(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(example["ids"]) for example in examples)
    ids = [example["ids"] + [0] * (longest - len(example["ids"])) for example in examples]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([example["label"] for example in examples])}


class Classifier(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding, self.dropout, self.head = nn.EmbeddingBag(words, 16), nn.Dropout(0.1), nn.Linear(16, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.dropout(self.embedding(input_ids)))
        return nn.functional.cross_entropy(logits, labels), logits


def training_function(config: dict[str, Any], args: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=args.cpu, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(config["seed"])
    train, valid = (read(os.path.join(args.data_dir, f"{name}.jsonl")) for name in ("train", "valid"))
    train_dataloader = resumable.wrap(
        DataLoader(train, shuffle=True, collate_fn=collate_fn, batch_size=config["batch_size"]), seed=config["seed"]
    )
    eval_dataloader = DataLoader(valid, collate_fn=collate_fn, batch_size=16)
    model = Classifier(len(WORDS) + 1)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    total = len(train_dataloader) * config["num_epochs"] // args.gradient_accumulation_steps
    lr_scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))

    train_dataloader = prepare(accelerator, train_dataloader)
    model, optimizer, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, eval_dataloader, lr_scheduler
    )

    os.makedirs(args.output_dir, exist_ok=True)
    if checkpoint := last_whole_checkpoint(args.output_dir):
        accelerator.print(f"Resumed from checkpoint: {checkpoint}")
        accelerator.load_state(checkpoint)

    for epoch in train_dataloader.epochs(config["num_epochs"]):
        model.train()
        for step, batch in epoch.enumerate():
            with accelerator.accumulate(model):
                loss, _ = model(**batch)
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            overall_step = epoch * len(epoch) + step + 1
            if overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))

        model.eval()
        right = 0
        for batch in eval_dataloader:
            with torch.no_grad():
                _, logits = model(**batch)
            predictions, references = accelerator.gather_for_metrics((logits.argmax(dim=-1), batch["labels"]))
            right += int((predictions == references).sum())
        accelerator.print(f"epoch {epoch}: {right / len(valid)}")
        with open(os.path.join(args.output_dir, "all_results.json"), "w") as f:
            json.dump({"epoch": epoch.number, "eval_accuracy": right / len(valid)}, f)
    unwrapped = accelerator.unwrap_model(model)
    accelerator.save(unwrapped.state_dict(), os.path.join(args.output_dir, "pytorch_model.bin"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--cpu", action="store_true", help="If passed, will train on the CPU.")
    parser.add_argument("--checkpointing_steps", type=int, default=5)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--data_dir", type=str, default="glue")
    parser.add_argument("--output_dir", type=str, default="output")
    training_function({"lr": 2e-2, "num_epochs": 3, "seed": 42, "batch_size": 4}, parser.parse_args())


if __name__ == "__main__":
    main()
