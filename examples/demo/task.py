"""The inputs of every training program in the demo, and what makes two runs comparable."""

from __future__ import annotations

import random
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .digits import Digits, read_digits
from .ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EPOCHS", "SAVE_EVERY", "Task", "read_task"]

EPOCHS = 3
SAVE_EVERY = 6  # steps
_SEED = 0


class Task(NamedTuple):
    """What to train from, and where to write.

    Args:
        loader: from the source's function; yields batches of images and labels.
        held_out: for the evaluation at the end of each epoch.
        checkpoints: directory for checkpoints.
        ledger: for the demo to compare.
    """

    loader: Any
    held_out: Digits
    checkpoints: Path
    ledger: Ledger


def read_task(arguments: Sequence[str] | None, description: str | None) -> Task:
    """Parse a training program's command line, seed the process, and create the loader."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--make", required=True, type=_find, help="module:function that creates the loader")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--checkpoints", required=True, type=Path)
    parser.add_argument("--ledger", required=True, type=Path)
    options = parser.parse_args(arguments)
    _seed_everything()
    digits, held_out = read_digits(options.data)
    return Task(options.make(digits), held_out, options.checkpoints, Ledger(options.ledger))


def _seed_everything() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002  # the programs draw from the global generators
    torch.manual_seed(_SEED)


def _find(path: str) -> Callable[[Digits], Any]:
    module, _, function = path.partition(":")
    make: Callable[[Digits], Any] = getattr(import_module(module), function)
    return make
