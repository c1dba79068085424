"""A training that stops when it is asked to: for one process, for torchrun, or for ranks by fork.

python preempted.py DIRECTORY [WORKERS [START_METHOD]]
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

import resumable
from resumable.checkpoint import CheckpointStore

STEPS = 40
PAUSE = 0.01  # seconds of a step


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are drawn with the generators that the loader keys."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def train(root: Path, workers: int = 0, context: str | None = None) -> str:
    """Train to the end, or stop and exit; each step is written down before the next one."""
    rank = distributed.get_rank() if distributed.is_initialized() else 0
    source = DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=workers, multiprocessing_context=context)
    loader = resumable.wrap(source, seed=0)
    weight = torch.zeros(())
    store = CheckpointStore(root / "run", shared=True, keep=2, timeout=30)
    if (last := store.latest()) is not None:
        loader.load_state_dict(last["data"])
        weight = store.load_part(last["step"])["weight"]
    with resumable.preemption() as stop, (root / f"seen-{rank}").open("a") as log:
        for number, batch in enumerate(loader.steps(STEPS)):
            if number == 1:
                (root / f"pid-{rank}").write_text(str(os.getpid()))
            time.sleep(PAUSE)
            weight = weight * 0.5 + _mean(batch.sum())
            log.write(json.dumps([loader.global_step, batch.tolist(), weight.item()]) + "\n")
            log.flush()
            if stop.reached(loader.global_step):
                step = loader.global_step
                (root / f"stops-{rank}").open("a").write(f"{step}\n")
                store.save(step, {"step": step, "data": loader.state_dict()}, part={"weight": weight})
                stop.exit()
    return "done"


def _mean(value: torch.Tensor) -> torch.Tensor:
    if distributed.is_initialized():
        distributed.all_reduce(value)
        value = value / distributed.get_world_size()
    return value


def forked(rank: int, size: int, root: Path) -> Any:
    """Train as a rank by fork, and return "done" or the exit status."""
    try:
        return train(root)
    except SystemExit as end:
        return end.code


def seen(root: Path, rank: int = 0) -> list[Any]:
    """Return the steps, batches and weights that a rank has written down."""
    return [json.loads(line) for line in (root / f"seen-{rank}").read_text().splitlines()]


def stops(root: Path, rank: int = 0) -> list[int]:
    """Return the steps after which a rank has stopped."""
    with contextlib.suppress(FileNotFoundError):
        return [int(line) for line in (root / f"stops-{rank}").read_text().splitlines()]
    return []


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
    train(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0, sys.argv[3] if sys.argv[3:] else None)
