"""In the shape of a package with a configuration: python -m painter.train lr=0.02.

Made resumable as docs/frameworks/pytorch.md says.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import resumable
from painter.config import enter, to_absolute_path
from painter.events import SummaryWriter
from painter.network import build

log = logging.getLogger(__name__)


class Pictures(Dataset[torch.Tensor]):
    def __init__(self, path: Path) -> None:
        self.pictures = np.load(path)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> torch.Tensor:
        picture = torch.from_numpy(self.pictures[index]).float() / 255
        return picture * (np.random.rand() < 0.9) + 0.05 * torch.randn(16)


def main() -> None:
    config = enter()
    torch.manual_seed(config["seed"])
    data = Pictures(to_absolute_path(config["data"]))
    train, valid = torch.utils.data.random_split(data, [0.8, 0.2])
    loader = resumable.wrap(
        DataLoader(train, config["batch_size"], shuffle=True, num_workers=config["workers"]), seed=config["seed"]
    )
    validation = resumable.wrap(DataLoader(valid, config["batch_size"]), seed=0, evaluation=True)
    model = build(**config["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, config["lr"], total_steps=len(loader) * config["epochs"])
    writer = SummaryWriter(Path("tensorboard"))

    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    parts |= {"loader": loader, "rng": resumable.rng}
    folder = to_absolute_path(config["checkpoints"])
    store = resumable.CheckpointStore(folder / "last", keep=2)
    best_store = resumable.CheckpointStore(folder / "best", keep=1)
    last = store.latest() or {}
    best = last.pop("best", float("inf"))
    for name, state in last.items():
        parts[name].load_state_dict(state)
    log.info("starting at step %d with %s", loader.global_step, config)

    def save() -> None:
        states = {name: part.state_dict() for name, part in parts.items()}
        store.save(loader.global_step, {**states, "best": best})

    for epoch in loader.epochs(config["epochs"]):
        model.train()
        for batch in epoch:
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            writer.add_scalar("train/loss", loss.item(), loader.global_step)
            if loader.global_step % config["save_every"] == 0:
                save()
        model.eval()
        with torch.no_grad():
            losses = [(model(batch) - batch).square().mean().item() for batch in validation]
        score = sum(losses) / len(losses)
        log.info("epoch %d: validation %.5f after %.1f s", epoch, score, time.process_time())
        if score < best:
            best = score
            best_store.save(loader.global_step, {"model": model.state_dict(), "score": score})
        save()
    Path("metrics.json").write_text(json.dumps({"best": best, "finished": time.time()}))
    (folder / "final.json").write_text(json.dumps({"best": best}))


if __name__ == "__main__":
    main()
