"""A job in a process of its own, `adopted_run.py torchdata|adopted FOLDER LAST`: trains up to a step, and is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import resumable

SAMPLES: Any = range(23)
EPOCHS = 4


def make() -> StatefulDataLoader[Any]:
    return StatefulDataLoader(
        SAMPLES, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(7), num_workers=2
    )


def train(batches: Any, state: Any, folder: Path, last: int) -> None:
    """Write down each batch, save after it, and be killed after the last one."""
    log = (folder / "batches").open("a", encoding="utf-8")
    for batch in batches:
        log.write(json.dumps(batch.tolist()) + "\n")
        log.flush()
        torch.save(state(), folder / "state.tmp")
        (folder / "state.tmp").rename(folder / "state")
        if len((folder / "batches").read_text(encoding="utf-8").splitlines()) == last:
            os.kill(os.getpid(), signal.SIGKILL)


def main(program: str, folder: Path, last: int) -> None:
    if program == "torchdata":
        loader = make()
        train((batch for _ in range(EPOCHS) for batch in loader), loader.state_dict, folder, last)
        return
    ours = resumable.wrap(make(), order="torch")
    saved = torch.load(folder / "state", weights_only=True)
    if "_snapshot" in saved:
        sys.stdout.write(f"{resumable.adopt(ours, saved)}\n")
        sys.stdout.flush()
    else:
        ours.load_state_dict(saved)
    train((batch for epoch in ours.epochs(EPOCHS) for batch in epoch), ours.state_dict, folder, last)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
