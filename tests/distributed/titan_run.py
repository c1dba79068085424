"""Trains as torchtitan's trainer does, with its checkpoint manager, in several processes, one of which is killed.

Run in torchtitan's environment: titan_run.py FOLDER; prints what each start trained on as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from dcp_sources import Counted
from forked import ranks
from torch import nn
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader

import resumable
from resumable.errors import ConfigurationError
from resumable.integrations.torchtitan import LoaderConfig

SAMPLES, GLOBAL_BATCH, EPOCHS = 42, 6, 2


class Count:
    """A state of the trainer."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def collate(rows: list[int]) -> Any:
    return {"input": torch.tensor(rows)}, torch.tensor(rows)


def make(world: resumable.World, *, local_batch_size: int, **_: Any) -> resumable.Loader[Any]:
    return resumable.wrap(
        list(range(SAMPLES)), batch_size=local_batch_size, shuffle=True, seed=0, world=world, collate=collate
    )


def make_stream(world: resumable.World, *, local_batch_size: int, **_: Any) -> resumable.Loader[Any]:
    """Each rank has a separate stream, with a state."""
    source = Counted(100 * world.rank, SAMPLES // world.size)
    return resumable.wrap(source, batch_size=local_batch_size, seed=0, shard=False, world=world, collate=collate)


def train(rank: int, size: int, folder: Path, make: Any, how: tuple[str, int]) -> list[Any]:
    """Do what `Trainer.__init__` and `Trainer.train` do with dataloader and checkpointer.

    Args:
        rank: of this process.
        size: number of processes.
        folder: of the checkpoints.
        make: makes the Loader.
        how: the mode of the saves, and the step at which rank 0 is killed; 0 for a run that ends.
    """
    mode, die_at = how
    dataloader = LoaderConfig(make=make, epochs=EPOCHS).build(
        dp_world_size=size, dp_rank=rank, tokenizer=None, local_batch_size=GLOBAL_BATCH // size
    )
    assert isinstance(dataloader, BaseDataLoader)
    count, model = Count(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    config = CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0, async_mode=mode)
    manager = config.build(
        dataloader=dataloader,
        model_parts=[model],
        optimizers=optimizer,
        lr_schedulers=torch.optim.lr_scheduler.ConstantLR(optimizer),
        states={"train_state": count},
        sd_adapter=None,
        base_folder=str(folder),
    )
    manager.load(step=-1)
    trained = []
    for inputs, labels in dataloader:
        count.step += 1
        assert inputs["input"].tolist() == labels.tolist()
        trained.append([count.step, labels.tolist()])
        if count.step == die_at:
            if rank == 0:
                (folder / f"died{size}.json").write_text(json.dumps(trained), encoding="utf-8")
                os.kill(os.getpid(), signal.SIGKILL)
            break
        manager.save(count.step)
    else:
        manager.maybe_wait_for_saving()
    manager.close()
    dataloader.close()
    return trained


def refused(rank: int, size: int) -> list[str]:
    found = []
    for one in (None, lambda world, **_: resumable.wrap([1, 2, 3, 4])):
        try:
            LoaderConfig(make=one).build(dp_world_size=1, dp_rank=0)
        except ConfigurationError as error:
            found.append(str(error))
    return found


def start(size: int, folder: Path, make: Any, how: tuple[str, int]) -> list[Any]:
    """Return what each rank trained on, or how it ended."""
    ended = ranks(size, train, folder, make, how)
    if how[1]:
        assert ended[0] == "ended with -9", ended
        ended[0] = json.loads((folder / f"died{size}.json").read_text(encoding="utf-8"))
    return [one if isinstance(one, list) else str(one) for one in ended]


def main(folder: Path) -> None:
    lists = [(2, ("disabled", 4)), (3, ("async", 7)), (1, ("disabled", 10)), (2, ("async", 0))]
    starts = [start(size, folder / "list", make, how) for size, how in lists]
    streams = [
        start(2, folder / "stream", make_stream, how) for how in (("disabled", 4), ("async", 9), ("disabled", 0))
    ]
    sys.stdout.write(json.dumps({"starts": starts, "streams": streams, "refused": ranks(2, refused)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
