"""In the shape of nanoGPT's train.py: settings are globals, a batch is fetched ahead, tokens are memory-mapped.

Made resumable as docs/frameworks/pytorch.md says.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from typing import Any

import numpy as np
import torch
from configurator import override
from gpt_model import GPT
from torch.utils.data import DataLoader, Dataset

import resumable

# -----------------------------------------------------------------------------
out_dir = "out"
eval_interval = 2000
log_interval = 1
eval_iters = 200
wandb_log = True
wandb_run_name = "gpt2"
dataset = "openwebtext"
gradient_accumulation_steps = 40
batch_size = 12
block_size = 1024
n_head = 2
n_embd = 768
dropout = 0.2
learning_rate = 6e-4
max_iters = 600000
weight_decay = 1e-1
grad_clip = 1.0
warmup_iters = 2000
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
override(globals())
config = {k: globals()[k] for k in config_keys}
# -----------------------------------------------------------------------------

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
data_dir = os.path.join("data", dataset)


class Tokens(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, split: str) -> None:
        self.path = os.path.join(data_dir, f"{split}.bin")

    def __len__(self) -> int:
        return os.path.getsize(self.path) // 2 - block_size

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        data = np.memmap(self.path, dtype=np.uint16, mode="r")
        text = torch.from_numpy(data[i : i + block_size + 1].astype(np.int64))
        return text[:-1], text[1:]


loader = resumable.wrap(DataLoader(Tokens("train"), batch_size, shuffle=True), seed=1337, ack="manual")
evaluations = {
    "train": loader.for_evaluation(),
    "val": resumable.wrap(DataLoader(Tokens("val"), batch_size, shuffle=True), seed=1, evaluation=True),
}
batches = loader.steps(max_iters * gradient_accumulation_steps)


def get_batch() -> Any:
    return next(batches, (None, None))


with open(os.path.join(data_dir, "meta.pkl"), "rb") as f:
    meta = pickle.load(f)
print(f"found vocab_size = {meta['vocab_size']}")
model = GPT(meta["vocab_size"], block_size, n_embd, n_head, dropout)
optimizer = model.configure_optimizers(weight_decay, learning_rate)

parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "rng": resumable.rng}
store = resumable.CheckpointStore(os.path.join(out_dir, "checkpoints"), keep=2)
last = store.latest() or {}
best_val_loss = last.pop("best_val_loss", 1e9)
for name, state in last.items():
    parts[name].load_state_dict(state)


@torch.no_grad()
def estimate_loss() -> dict[str, float]:
    out = {}
    model.eval()
    for split, evaluation in evaluations.items():
        losses = torch.zeros(eval_iters)
        for k, (X, Y) in zip(range(eval_iters), evaluation, strict=False):
            losses[k] = model(X, Y)[1].item()
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(it: int) -> float:
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return 0.1 * learning_rate + 0.5 * (1.0 + math.cos(math.pi * ratio)) * 0.9 * learning_rate


class Run:
    """Files in the shape of wandb's: a folder per launch, and a link to the latest."""

    def __init__(self) -> None:
        name = f"run-{time.strftime('%Y%m%d_%H%M%S')}-{os.urandom(4).hex()}"
        self.path = os.path.join("wandb", name)
        os.makedirs(os.path.join(self.path, "files"))
        os.makedirs(os.path.join(self.path, "logs"))
        if os.path.lexists("wandb/latest-run"):
            os.unlink("wandb/latest-run")
        os.symlink(name, "wandb/latest-run")
        with open(os.path.join(self.path, "files", "config.yaml"), "w") as f:
            f.writelines(f"{key}:\n  value: {value}\n" for key, value in config.items())
        with open(os.path.join(self.path, "logs", "debug.log"), "w") as f:
            f.write(f"{time.asctime()} INFO MainThread:{os.getpid()} [wandb_init.py:init()] starting\n")

    def log(self, values: dict[str, float]) -> None:
        with open(os.path.join(self.path, f"{os.path.basename(self.path)}.wandb"), "ab") as f:
            f.write(pickle.dumps({**values, "_runtime": time.perf_counter()}))
        with open(os.path.join(self.path, "files", "wandb-summary.json"), "w") as f:
            f.write(str({**values, "_timestamp": time.time()}).replace("'", '"'))


run = Run() if wandb_log else None
X, Y = get_batch()  # fetch the very first batch
t0 = time.time()
while (iter_num := loader.global_step // gradient_accumulation_steps) < max_iters:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if run:
            run.log({"iter": iter_num, "train/loss": losses["train"], "val/loss": losses["val"], "lr": lr})
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            best = {"model": model.state_dict(), "iter_num": iter_num, "best_val_loss": best_val_loss, "config": config}
            torch.save(best, os.path.join(out_dir, "ckpt.pt"))
    for _ in range(gradient_accumulation_steps):
        _, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch()  # prefetch the next batch while the model trains
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loader.ack(gradient_accumulation_steps)
    t1 = time.time()
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {(t1 - t0) * 1000:.2f}ms")
    t0 = t1
    if (iter_num + 1) % 4 == 0:
        states = {name: part.state_dict() for name, part in parts.items()}
        store.save(iter_num + 1, {**states, "best_val_loss": best_val_loss})
