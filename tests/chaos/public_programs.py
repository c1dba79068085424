"""Ten programs in the shape of public ones, each in its folder of `public/`: their commands, data and planted bugs."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PROGRAMS", "Program", "lay_out"]

PYTHON = sys.executable
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


class Program(NamedTuple):
    """A program.

    Args:
        words: its command.
        data: writes what it reads into its folder.
        bug: a file, a text in it, and what replaces that text.
        cause: the name of the cause that a chaos run reports of the bug.
        modules: what a chaos run may import once for all launches; nothing for a launcher.
    """

    words: tuple[str, ...]
    data: Callable[[Path, np.random.Generator], None]
    bug: tuple[str, str, str]
    cause: str
    modules: tuple[str, ...] = ("torch", "torch._dynamo")


def lay_out(name: str, folder: Path, *, bug: bool = False) -> Program:
    """Copy a program and its data into an empty folder."""
    program = PROGRAMS[name]
    shutil.copytree(Path(__file__).parent / "public" / name, folder, dirs_exist_ok=True, ignore=_CACHES)
    program.data(folder, np.random.default_rng(0))
    if bug:
        file, before, after = program.bug
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(before) == 1, (name, text.count(before))
        (folder / file).write_text(text.replace(before, after), encoding="utf-8")
    return program


_CACHES = shutil.ignore_patterns("__pycache__")


def _characters(folder: Path, dice: np.random.Generator) -> None:
    data = folder / "data" / "chars"
    data.mkdir(parents=True)
    for split, size in (("train", 200), ("val", 90)):
        dice.integers(0, 40, size, dtype=np.uint16).tofile(data / f"{split}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 40}))


def _classes(folder: Path, dice: np.random.Generator) -> None:
    from PIL import Image  # noqa: PLC0415  # for one program

    for split, number in (("train", 10), ("val", 3)):
        for name in ("cat", "dog", "fox", "owl"):
            place = folder / "images" / split / name
            place.mkdir(parents=True)
            for index in range(number):
                pixels = dice.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")


def _words(folder: Path, dice: np.random.Generator) -> None:
    data = folder / "data" / "wikitext-2"
    data.mkdir(parents=True)
    for split, lines in (("train", 50), ("valid", 8), ("test", 8)):
        words = dice.integers(0, 30, (lines, 8))
        (data / f"{split}.txt").write_text("\n".join(" ".join(f"w{word}" for word in line) for line in words))


def _images(folder: Path, dice: np.random.Generator) -> None:
    (folder / "data").mkdir()
    np.save(folder / "data" / "images.npy", dice.integers(0, 256, (64, 64), dtype=np.uint8))


def _series(folder: Path, dice: np.random.Generator) -> None:
    (folder / "data").mkdir()
    for split, size in (("train", 90), ("val", 40)):
        np.save(folder / "data" / f"{split}.npy", np.sin(np.arange(size) / 3) + 0.1 * dice.random(size))


def _sentences(folder: Path, dice: np.random.Generator) -> None:
    (folder / "glue").mkdir()
    for split, number in (("train", 36), ("valid", 12)):
        with (folder / "glue" / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for index in range(number):
                words = dice.integers(0, 20, 3 + index % 4)
                sample = {"sentence": " ".join(f"w{word}" for word in words), "label": int(words.sum() % 2)}
                file.write(json.dumps(sample) + "\n")


def _graphs(folder: Path, dice: np.random.Generator) -> None:
    for name in ("raw", "processed"):
        (folder / "data" / "TU" / "MUTAG" / name).mkdir(parents=True)
    sizes = dice.integers(3, 9, 30)
    nodes, labels = dice.random((sizes.sum(), 4), dtype=np.float32), dice.integers(0, 2, 30)
    np.savez(folder / "data" / "TU" / "MUTAG" / "raw" / "graphs.npz", sizes=sizes, nodes=nodes, labels=labels)


def _crops(folder: Path, dice: np.random.Generator) -> None:
    (folder / "imagenet").mkdir()
    np.save(folder / "imagenet" / "train.npy", dice.integers(0, 256, (52, 8, 8), dtype=np.uint8))


def _pictures(folder: Path, dice: np.random.Generator) -> None:
    (folder / "data").mkdir()
    np.save(folder / "data" / "pictures.npy", dice.integers(0, 256, (60, 16), dtype=np.uint8))


def _points(folder: Path, dice: np.random.Generator) -> None:
    (folder / "data").mkdir()
    x, y = dice.random((64, 20), dtype=np.float32), dice.integers(0, 4, 64)
    np.savez(folder / "data" / "points.npz", x=x, y=y)


PROGRAMS = {
    "nano_gpt": Program(
        (PYTHON, "train_gpt.py", "config/small.py", "--log_interval=2"),
        _characters,
        ("train_gpt.py", 'last.pop("best_val_loss", 1e9)', 'last.pop("best_val_loss", 1e9)\nlast.pop("optimizer", 0)'),
        "optimizer not restored",
    ),
    "imagenet": Program(
        (PYTHON, "main_imagenet.py", "-j", "2", "--epochs", "3", "-b", "6", "--seed", "1", "images"),
        _classes,
        ("main_imagenet.py", '("best_acc1")', '("best_acc1")\n        del checkpoint["optimizer"]'),
        "optimizer not restored",
    ),
    "word_language": Program(
        (PYTHON, "main_words.py", "--epochs", "3", "--batch_size", "4", "--bptt", "8", "--nhid", "16"),
        _words,
        ("main_words.py", ', last["hidden"]', ", model.init_hidden(args.batch_size)"),
        "a part not restored",
    ),
    "gan": Program(
        (PYTHON, "gan_lightning.py"),
        _images,
        (
            "gan_lightning.py",
            "latent_dim).type_as(imgs)",
            "latent_dim, generator=vars(self).setdefault('noise', torch.Generator())).type_as(imgs)",
        ),
        "in no checkpoint",
        ("torch", "torch._dynamo", "pytorch_lightning"),
    ),
    "fabric": Program(
        (PYTHON, "train_fabric.py", "--out", "out/run"),
        _series,
        ("train_fabric.py", "load(checkpoints[-1], state)", 'load(checkpoints[-1], {**state, "rng": {}})'),
        "generators not restored",
        ("torch", "torch._dynamo", "lightning_fabric"),
    ),
    "accelerate_nlp": Program(
        (PYTHON, "complete_nlp.py", "--cpu"),
        _sentences,
        (
            "complete_nlp.py",
            "lr_scheduler = accelerator.prepare(\n        model, optimizer, eval_dataloader, lr_scheduler\n",
            "_ = accelerator.prepare(\n        model, optimizer, eval_dataloader, None\n",
        ),
        "scheduler not restored",
        ("torch", "torch._dynamo", "accelerate"),
    ),
    "graphs": Program(
        (PYTHON, "train_graphs.py"),
        _graphs,
        ("train_graphs.py", '"loader": train_loader, "rng"', '"rng"'),
        "loader not saved",
    ),
    "dino": Program(
        (PYTHON, "main_dino.py", "--output_dir", "output/vit_tiny"),
        _crops,
        ("main_dino.py", '"optimizer": optimizer, "dino_loss": dino_loss}', '"optimizer": optimizer}'),
        "in no checkpoint",
    ),
    "package": Program(
        (PYTHON, "-m", "painter.train", "lr=0.02", "workers=0"),
        _pictures,
        ("painter/train.py", '"optimizer": optimizer, "scheduler": scheduler}', '"optimizer": optimizer}'),
        "scheduler not restored",
    ),
    "ddp": Program(
        (*TORCHRUN, "multigpu_torchrun.py", "3", "4"),
        _points,
        ("multigpu_torchrun.py", "part(self.store.latest_step())", "part(self.store.latest_step(), rank=0)"),
        "generators of other ranks",
        (),
    ),
}  # fmt: skip
