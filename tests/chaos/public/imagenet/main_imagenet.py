"""In the shape of PyTorch's imagenet example: everything in main, one function per epoch, meters, the best model aside.

Made resumable as docs/frameworks/pytorch.md says.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
import warnings
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

import resumable

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("data", metavar="DIR", nargs="?", default="imagenet", help="path to dataset (default: imagenet)")
parser.add_argument("-j", "--workers", default=4, type=int, metavar="N", help="number of data loading workers")
parser.add_argument("--epochs", default=90, type=int, metavar="N", help="number of total epochs to run")
parser.add_argument("-b", "--batch-size", default=256, type=int, metavar="N")
parser.add_argument("--lr", "--learning-rate", default=0.1, type=float, metavar="LR", dest="lr")
parser.add_argument("--momentum", default=0.9, type=float, metavar="M", help="momentum")
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, metavar="W", dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=10, type=int, metavar="N", help="print frequency (default: 10)")
parser.add_argument("--resume", default="checkpoints", type=str, metavar="PATH", help="folder of checkpoints")
parser.add_argument("--seed", default=None, type=int, help="seed for initializing training.")
best_acc1 = 0.0


class ImageFolder(Dataset[tuple[torch.Tensor, int]]):
    """A folder per class, as torchvision has it; images are cropped and flipped at random."""

    def __init__(self, root: str, *, train: bool) -> None:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.train = train
        self.samples = [
            (os.path.join(root, name, file), index)
            for index, name in enumerate(classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, target = self.samples[index]
        with open(path, "rb") as f:
            image = Image.open(f).convert("RGB")
        if self.train:
            left, top = random.randint(0, 2), random.randint(0, 2)
            image = image.crop((left, top, left + 6, top + 6)).resize((8, 8))
            if torch.rand(1) < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1) / np.float32(255)), target


def main() -> None:
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        torch.use_deterministic_algorithms(mode=True)
        warnings.warn("You have chosen to seed training.", stacklevel=2)
    main_worker(args)


def main_worker(args: argparse.Namespace) -> None:
    global best_acc1
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(288, 4)
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)

    train_dataset = ImageFolder(os.path.join(args.data, "train"), train=True)
    val_dataset = ImageFolder(os.path.join(args.data, "val"), train=False)
    train_loader = resumable.wrap(
        DataLoader(train_dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    )
    val_loader = DataLoader(val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=0)

    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    parts |= {"loader": train_loader, "rng": resumable.rng}
    store = resumable.CheckpointStore(args.resume, keep=2)
    if (checkpoint := store.latest()) is not None:
        print(f"=> loaded checkpoint {args.resume!r} (step {store.latest_step()})")
        best_acc1 = checkpoint.pop("best_acc1")
        for name, state in checkpoint.items():
            parts[name].load_state_dict(state)
    else:
        print(f"=> no checkpoint found at {args.resume!r}")

    def save() -> None:
        store.save(
            train_loader.global_step,
            {"best_acc1": best_acc1, **{name: part.state_dict() for name, part in parts.items()}},
        )

    for epoch in train_loader.epochs(args.epochs):
        train(epoch, model, criterion, optimizer, args, save)
        acc1 = validate(val_loader, model, criterion, args)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save()
        save_checkpoint({"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}, is_best)


def train(epoch: Any, model: Any, criterion: Any, optimizer: Any, args: argparse.Namespace, save: Any) -> None:
    batch_time, data_time = AverageMeter("Time", ":6.3f"), AverageMeter("Data", ":6.3f")
    losses, top1 = AverageMeter("Loss", ":.4e"), AverageMeter("Acc@1", ":6.2f")
    progress = ProgressMeter(len(epoch), [batch_time, data_time, losses, top1], prefix=f"Epoch: [{epoch}]")
    model.train()
    end = time.time()
    for i, (images, target) in epoch.enumerate():
        data_time.update(time.time() - end)
        output = model(images)
        loss = criterion(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(accuracy(output, target), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)
        if i % 4 == 3:
            save()


@torch.no_grad()
def validate(val_loader: Any, model: Any, criterion: Any, args: argparse.Namespace) -> float:
    batch_time, losses = AverageMeter("Time", ":6.3f"), AverageMeter("Loss", ":.4e")
    top1 = AverageMeter("Acc@1", ":6.2f")
    progress = ProgressMeter(len(val_loader), [batch_time, losses, top1], prefix="Test: ")
    model.eval()
    end = time.time()
    for i, (images, target) in enumerate(val_loader):
        output = model(images)
        losses.update(criterion(output, target).item(), images.size(0))
        top1.update(accuracy(output, target), images.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0:
            progress.display(i + 1)
    print(f" * Acc@1 {top1.avg:.3f}")
    return top1.avg


def save_checkpoint(state: dict[str, Any], is_best: bool, filename: str = "checkpoint.pth.tar") -> None:
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


class AverageMeter:
    """Computes and stores the average and current value."""

    def __init__(self, name: str, fmt: str = ":f") -> None:
        self.name, self.fmt = name, fmt
        self.val = self.avg = self.sum = 0.0
        self.count = 0

    def update(self, val: float, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self) -> str:
        return f"{{name}} {{val{self.fmt}}} ({{avg{self.fmt}}})".format(**self.__dict__)


class ProgressMeter:
    def __init__(self, num_batches: int, meters: list[AverageMeter], prefix: str = "") -> None:
        self.num_batches, self.meters, self.prefix = num_batches, meters, prefix

    def display(self, batch: int) -> None:
        print("\t".join([f"{self.prefix}[{batch}/{self.num_batches}]", *map(str, self.meters)]))


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return (output.argmax(1) == target).float().mean().item() * 100


if __name__ == "__main__":
    main()
