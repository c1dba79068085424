"""Correct loops of torch that a harness may take for wrong ones; each argument is a way to be so.

--two-stores   the newest checkpoint goes to a store of its own, after the best one: a kill may come between
--infinite     a scheduler whose best loss is infinite at first, and a mask of minus infinity in the model
--clock        checkpoints by the time, so that each run saves other steps; some are saved by their number, too
--fewer        a run that is broken comes by fewer points than the baseline runs, as one on a busy machine may
--validation   a second loader, gone through after each epoch, whose state and score are saved, too
--thread       batches are fetched by a thread in the background, and acknowledged when they were trained on
--workers      they come from worker processes, which read ahead
--logs         files of any name that only record, with times that may be equal in two runs; a folder for each launch
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OPTIONS = set(sys.argv[1:])
SAMPLES, BATCH, EPOCHS = 24, 4, 2

torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.arange(24.0)[:, None] / 24)
ahead: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 3} if "--workers" in OPTIONS else {}
loader = resumable.wrap(
    DataLoader(data, BATCH, shuffle=True, **ahead),
    seed=1,
    name="train",
    ack="manual" if "--thread" in OPTIONS else "auto",
)
validation = resumable.wrap(DataLoader(data, 8, **ahead), seed=1, name="validation")
model = torch.nn.Linear(1, 1)
if "--infinite" in OPTIONS:
    model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
last, best = resumable.CheckpointStore("last", keep=3), resumable.CheckpointStore("best", keep=3)
step, scores = 0, [0.0]

if (saved := last.latest()) is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    loader.load_state_dict(saved["loader"])
    validation.load_state_dict(saved["validation"])
    step, scores = saved["step"], saved["scores"]


def save() -> None:
    """Write a checkpoint of everything, the best one first."""
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    if "--two-stores" in OPTIONS:
        best.save(step, {"model": model.state_dict()})
    data = {"loader": loader.state_dict(), "validation": validation.state_dict(), "scores": scores}
    last.save(step, {**content, **data, "step": step})


def fetch(batches: Iterable[Any]) -> Iterator[Any]:
    """Give batches that a thread in the background has fetched."""
    waiting: Queue[Any] = Queue(2)

    def fill() -> None:
        for batch in batches:
            waiting.put(batch)
        waiting.put(None)

    Thread(target=fill, daemon=True).start()
    return iter(waiting.get, None)


def record(loss: float) -> None:
    """Write a line to each log."""
    seconds = int(time.time()) % 2  # equal in two runs by chance
    for name in ("train_log", "rank.log.0", f"{run}/debug.log"):
        with Path(name).open("a") as log:
            print(f"[{time.time():.3f}] step {step} loss {loss:.4f} took {seconds}s", file=log)
    with Path("log.txt").open("a") as log:
        print(json.dumps({"loss": loss, "epoch_time": seconds, "eta": f"0:00:0{seconds}"}), file=log)
    with Path("metrics.csv").open("a") as table:
        print(f"{step},{loss}" if table.tell() else f"step,loss\n{step},{loss}", file=table)
    Path("progress.json").write_text(json.dumps({"loss": loss, "elapsed_seconds": seconds}))


run = f"wandb/run-{time.time_ns()}-{os.getpid()}"
if "--logs" in OPTIONS:
    Path(run).mkdir(parents=True)
    Path(run, "config.yaml").write_text("lr: 0.1\n")
is_due, saved_at = step % 3 == 0, time.monotonic()
for epoch in loader.epochs(EPOCHS):
    for (inputs,) in fetch(epoch) if "--thread" in OPTIONS else epoch:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if "--logs" in OPTIONS:
            record(loss.item())
        if "--thread" in OPTIONS:
            loader.ack()
        is_due = step % 3 == 0
        if "--clock" in OPTIONS:
            time.sleep(random.SystemRandom().uniform(0.0, 0.04))
            is_due = step % 6 == 0 or time.monotonic() - saved_at > 0.05
        if is_due and ("--fewer" not in OPTIONS or "baseline" in Path.cwd().parts or step < 9):
            save()
            saved_at = time.monotonic()
    if "--validation" in OPTIONS:
        with torch.no_grad():
            scores.append(sum(float(model(inputs).square().mean()) for (inputs,) in validation))
resumable.chaos.record_weights(model)
