"""In the shape of the templates for Fabric: a custom loop, a checkpoint every few steps.

Made resumable as examples/fabric.py is.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, Dataset

import resumable


class Series(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, file: Path) -> None:
        self.values = np.load(file, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.values) - 9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.from_numpy(self.values[index : index + 9].astype(np.float32))
        return window[:8] + 0.01 * torch.randn(8), window[8:]


def main(args: argparse.Namespace) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    seed_everything(args.seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.max_steps)
    model, optimizer = fabric.setup(model, optimizer)
    train, val = Series(args.data / "train.npy"), Series(args.data / "val.npy")
    loader = resumable.wrap(DataLoader(train, batch_size=8, shuffle=True), seed=args.seed)
    val_loader = fabric.setup_dataloaders(DataLoader(val, batch_size=8))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "best": torch.tensor(9.0)}
    state |= {"loader": loader, "rng": resumable.rng}

    args.out.mkdir(parents=True, exist_ok=True)
    checkpoints = sorted(args.out.glob("step-*.ckpt"))
    if checkpoints:
        fabric.print(f"Resuming from {checkpoints[-1]}")
        fabric.load(checkpoints[-1], state)

    for batch in loader.steps(args.max_steps):
        step = loader.global_step
        inputs, targets = fabric.to_device(batch)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        scheduler.step()
        with (args.out / "metrics.csv").open("a", newline="") as file:
            csv.writer(file).writerow([step, loss.item(), scheduler.get_last_lr()[0]])
        if step % args.eval_interval == 0:
            val_loss = validate(fabric, model, val_loader)
            fabric.print(f"step {step}: val loss {val_loss:.4f}")
            if val_loss < state["best"]:
                state["best"] = val_loss
                fabric.save(args.out / "best.ckpt", {"model": model})
        if step % args.save_interval == 0:
            fabric.save(args.out / f"step-{step:06d}.ckpt", state)


@torch.no_grad()
def validate(fabric: Fabric, model: Any, loader: Any) -> torch.Tensor:
    model.eval()
    losses = [nn.functional.mse_loss(model(inputs), targets) for inputs, targets in loader]
    model.train()
    return fabric.all_reduce(torch.stack(losses).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("out/fabric"))
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--eval-interval", type=int, default=5)
    parser.add_argument("--save-interval", type=int, default=5)
    main(parser.parse_args())
