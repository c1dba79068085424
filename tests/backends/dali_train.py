"""Lightning runs over DALI iterators, on one rank or more: dali_train.py FOLDER WORLD RUN...

A RUN is `name` or `name:step`: the run's folder, and the step before which each rank kills itself. Runs of one name
share their checkpoints. The ranks are forked from this process, which has imported everything; each writes what it
trains on.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import dali_pipelines
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy

import resumable
from resumable.integrations.lightning import ResumableCallback


class Model(pl.LightningModule):
    def __init__(self, log: Path, die_at: int | None) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(300, 2))
        self.lines, self.die_at = log.open("a", encoding="utf-8"), die_at

    def training_step(self, batch: list[dict[str, torch.Tensor]], batch_idx: int) -> torch.Tensor:
        if self.global_step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        (part,) = batch
        loss = torch.nn.functional.cross_entropy(self.net(part["data"]), part["label"].squeeze(-1).long())
        what = hashlib.blake2b(part["data"].numpy().tobytes() + part["label"].numpy().tobytes(), digest_size=8)
        line = [self.current_epoch, batch_idx, self.global_step, what.hexdigest(), loss.item()]
        self.lines.write(json.dumps(line) + "\n")
        self.lines.flush()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def train(folder: Path, rank: int, world: int, die_at: int | None) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    reader: dict[str, Any] = {"file_root": str(folder.parent / "images")}
    if world > 1:
        reader |= {"num_shards": world, "shard_id": rank}
    save = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=2, save_top_k=-1, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=DDPStrategy(process_group_backend="gloo") if world > 1 else "auto",
        max_epochs=3,
        callbacks=[ResumableCallback(), save],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = resumable.wrap(dali_pipelines.iterator(reader=reader))
    trainer.fit(Model(folder / f"rank-{rank}.jsonl", die_at), loader, ckpt_path="last")


def run(folder: Path, world: int, die_at: int | None) -> None:
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if world > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    children = []
    for rank in range(world):
        if (child := os.fork()) == 0:
            if world > 1:
                os.environ["LOCAL_RANK"] = str(rank)
            code = 1
            try:
                train(folder, rank, world, die_at)
                code = 0
            finally:
                if code:
                    sys.excepthook(*sys.exc_info())
                os._exit(code)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    died = [os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL for status in statuses]
    assert all(died) if die_at is not None else not any(statuses), statuses


if __name__ == "__main__":
    root, ranks = Path(sys.argv[1]), int(sys.argv[2])
    for word in sys.argv[3:]:
        name, _, step = word.partition(":")
        run(root / name, ranks, int(step) if step else None)
