"""In the shape of DINO: a student, a teacher that is its average, a center, schedules as arrays, several crops.

Made resumable as docs/frameworks/pytorch.md says.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import resumable


class Crops(Dataset[list[torch.Tensor]]):
    """Two large crops and two small ones of each image, as torchvision's transforms would cut them."""

    def __init__(self, path: Path) -> None:
        self.images = np.load(path)

    def __len__(self) -> int:
        return len(self.images)

    def crop(self, image: torch.Tensor, size: int) -> torch.Tensor:
        top, left = (int(torch.randint(8 - size + 1, (1,))) for _ in range(2))
        crop = image[top : top + size, left : left + size]
        return nn.functional.interpolate(crop[None, None], (6, 6))[0, 0] * (0.8 + 0.4 * np.random.rand())

    def __getitem__(self, index: int) -> list[torch.Tensor]:
        image = torch.from_numpy(self.images[index]).float() / 255
        return [self.crop(image, size) for size in (6, 6, 4, 4)]


class DINOLoss(nn.Module):
    center: torch.Tensor

    def __init__(self, out_dim: int, center_momentum: float = 0.9) -> None:
        super().__init__()
        self.center_momentum = center_momentum
        self.register_buffer("center", torch.zeros(1, out_dim))

    def forward(self, student_output: torch.Tensor, teacher_output: torch.Tensor) -> torch.Tensor:
        student_out = (student_output / 0.1).chunk(4)
        teacher_out = ((teacher_output - self.center) / 0.04).softmax(dim=-1).detach().chunk(2)
        losses = [
            (-q * v.log_softmax(dim=-1)).sum(dim=-1).mean()
            for iq, q in enumerate(teacher_out)
            for iv, v in enumerate(student_out)
            if iv != iq
        ]
        batch_center = teacher_output.mean(dim=0, keepdim=True).detach()
        self.center = self.center * self.center_momentum + batch_center * (1 - self.center_momentum)
        return torch.stack(losses).mean()


def cosine_scheduler(base: float, final: float, epochs: int, niter_per_ep: int, warmup: int = 0) -> Any:
    warm = np.linspace(0, base, warmup)
    iters = np.arange(epochs * niter_per_ep - warmup)
    return np.concatenate((warm, final + 0.5 * (base - final) * (1 + np.cos(np.pi * iters / len(iters)))))


def backbone() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))


class MetricLogger:
    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def update(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def averages(self) -> dict[str, float]:
        return {name: sum(values) / len(values) for name, values in self.values.items()}


def train_dino(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    data_loader = resumable.wrap(
        DataLoader(Crops(args.data_path / "train.npy"), args.batch_size, shuffle=True, drop_last=True), seed=args.seed
    )
    student = backbone()
    teacher = deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad = False
    dino_loss = DINOLoss(8)
    optimizer = torch.optim.AdamW(student.parameters())
    niter = len(data_loader)
    lr_schedule = cosine_scheduler(0.005, 1e-6, args.epochs, niter, warmup=niter)
    wd_schedule = cosine_scheduler(0.04, 0.4, args.epochs, niter)
    momentum_schedule = cosine_scheduler(0.9, 1, args.epochs, niter)

    parts: dict[str, Any] = {"student": student, "teacher": teacher, "optimizer": optimizer, "dino_loss": dino_loss}
    parts |= {"loader": data_loader, "rng": resumable.rng}
    store = resumable.CheckpointStore(args.output_dir / "checkpoints", keep=2)
    for name, state in (store.latest() or {}).items():
        parts[name].load_state_dict(state)

    def save() -> None:
        store.save(data_loader.global_step, {name: part.state_dict() for name, part in parts.items()})

    start_time = time.time()
    print("Starting DINO training !")
    for epoch in data_loader.epochs(args.epochs):
        logger = MetricLogger()
        for it, images in epoch.enumerate(start=epoch * niter):
            for i, group in enumerate(optimizer.param_groups):
                group["lr"] = float(lr_schedule[it])
                if i == 0:
                    group["weight_decay"] = float(wd_schedule[it])
            teacher_output = teacher(torch.cat(images[:2]))
            student_output = student(torch.cat(images))
            loss = dino_loss(student_output, teacher_output)
            if not math.isfinite(loss.item()):
                print(f"Loss is {loss.item()}, stopping training")
                sys.exit(1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                m = momentum_schedule[it]
                for q, k in zip(student.parameters(), teacher.parameters(), strict=True):
                    k.mul_(m).add_((1 - m) * q.detach())
            logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
            if data_loader.global_step % 4 == 0:
                save()
        if epoch % args.saveckp_freq == 0:
            torch.save({"teacher": teacher.state_dict()}, args.output_dir / f"checkpoint{epoch:04}.pth")
        stats = {f"train_{name}": value for name, value in logger.averages().items()}
        with (args.output_dir / "log.txt").open("a") as f:
            f.write(json.dumps({**stats, "epoch": epoch.number}) + "\n")
        save()
    print(f"Training time {time.time() - start_time:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("DINO")
    parser.add_argument("--data_path", default="imagenet", type=Path)
    parser.add_argument("--output_dir", default="output", type=Path)
    parser.add_argument("--batch_size", default=8, type=int)
    parser.add_argument("--epochs", default=3, type=int)
    parser.add_argument("--saveckp_freq", default=1, type=int)
    parser.add_argument("--seed", default=0, type=int)
    given = parser.parse_args()
    given.output_dir.mkdir(parents=True, exist_ok=True)
    train_dino(given)
