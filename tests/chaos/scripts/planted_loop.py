"""A loop of torch with all that a resume may forget; `--bug NAME` plants what scripts get wrong, one at a time.

It saves to a store; with `--torch`, by `torch.save` to `last.pt`, and now and then to files of other names; with
`--memory` to memory first, and with `--thread` in another thread.
"""

from __future__ import annotations

import random
from argparse import ArgumentParser
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator

parser = ArgumentParser()
parser.add_argument("--bug", default="")
for way in ("--torch", "--memory", "--thread"):
    parser.add_argument(way, action="store_true")
given = parser.parse_args()
bug: str = given.bug

COUNTED = "with global_step" in bug  # as scripts without a step counter do
PLAIN = "without scheduler" in bug
SAMPLES, BATCH, EPOCHS, EVERY = 24, 4, 3, 2
TOGETHER = 3 if bug == "saved amid gradients" else 1  # batches whose gradients are added up
OWN = random.Random(0)
FILES = [f"{number:02}.txt" for number in range(SAMPLES)]
if bug == "unsorted files":  # as os.listdir gives them in another order on another machine
    random.SystemRandom().shuffle(FILES)
elif bug == "unsorted after a crash" and resumable.CheckpointStore("checkpoints").steps():
    FILES.reverse()


class Files(Dataset[torch.Tensor]):
    """A number per file; with a bug, and the number of samples that were read before it."""

    reads = 0

    def __len__(self) -> int:
        return len(FILES)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads += bug == "counted reads"
        return torch.tensor([int(FILES[index][:2]) / SAMPLES]) + 0.1 * (self.reads % 5)


def stream() -> Iterator[torch.Tensor]:
    """Yield batches of the samples in an order of this call alone."""
    files, order = Files(), random.SystemRandom().sample(range(SAMPLES), SAMPLES)
    for first in range(0, SAMPLES, BATCH):
        yield torch.stack([files[number] for number in order[first : first + BATCH]])


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
if bug == "unseeded replay":
    loader = resumable.wrap(stream)
else:
    loader = resumable.wrap(DataLoader(Files(), BATCH, shuffle=True), seed=1, checks="ranks")
model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
average = deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
store = resumable.CheckpointStore("checkpoints", keep=3)
step, scores = 0, [0.0]
parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
if PLAIN:
    del parts["scheduler"], parts["scaler"]
if bug != "average not saved":
    parts["average"] = average
early = loader.state_dict()
saving: list[Thread] = []
old = deepcopy(model.state_dict())


def load() -> Any:
    """Read the last checkpoint, if there is one."""
    if given.memory and Path("last.pt").exists():
        return torch.load(BytesIO(Path("last.pt").read_bytes()))
    if not (given.torch or given.thread or given.memory):
        return store.latest()
    for last in ("last.pt", *(("last.old.pt",) if bug == "falls back" else ())):
        try:
            return torch.load(last)
        except FileNotFoundError:
            continue
        except (OSError, RuntimeError):  # by which torch refuses a file that is cut
            if bug != "falls back":
                raise
    return None


def write(number: int, content: dict[str, Any]) -> None:
    """Write a checkpoint."""
    if given.memory:
        whole = BytesIO()
        torch.save(content, whole)
        Path("last.tmp").write_bytes(whole.getvalue())
        Path("last.tmp").replace("last.pt")
        return
    if given.thread:
        for before in saving:
            before.join()
        saving[:] = [Thread(target=replace, args=(deepcopy(content), "last.pt"))]
        saving[0].start()
        return
    if not given.torch:
        store.save(number, content)
        return
    if bug == "falls back" and Path("last.pt").exists():
        Path("last.pt").replace("last.old.pt")
    if step == 16:  # at no place, and to no file: neither is compared, unless it says itself where the loop was
        for what in (content, content["model"]):
            aside = Thread(target=torch.save, args=(what, "aside.pt" if what is content else "model.pt"))
            aside.start()
            aside.join()
            torch.save(what, BytesIO())
    names = ["last.pt", *(["best.pt"] if step % 4 == 0 else []), *([f"step_{step}.pt"] if step % 6 == 0 else [])]
    for name in names:
        if bug in {"written in place", "falls back"}:
            torch.save(content, name)
        else:
            replace(content, name)


def replace(content: dict[str, Any], name: str) -> None:
    """Write a file beside another one, and put it in its place."""
    torch.save(content, f"{name}.tmp")
    Path(f"{name}.tmp").replace(name)


if (saved := load()) is not None:
    for name, part in parts.items():
        if f"{name} not restored" not in bug:
            part.load_state_dict(saved[name])
    if bug == "average not saved":
        average.load_state_dict(saved["model"])
    if bug not in {"loader not loaded", "loader not saved"}:
        loader.load_state_dict(saved["loader"])
    generators = resumable.rng.state_dict()
    kept = {name for name in ("torch", "numpy", "python") if bug == f"{name} not restored"}
    resumable.rng.load_state_dict({**saved["rng"], **{name: generators[name] for name in kept}})
    step = 0 if bug in {"step not restored", "counts backwards"} else saved.get("step", loader.global_step)
    scores = saved.get("scores", scores)
    if bug == "evaluates on a resume":
        scores.append(float(average(torch.ones(1, 1)).detach()))


def save() -> None:
    """Write a checkpoint of everything."""
    content = {name: part.state_dict() for name, part in parts.items()}
    content |= {"rng": resumable.rng.state_dict(), "step": step, "scores": scores}
    if bug != "loader not saved":
        content["loader"] = early if bug.startswith("one batch early") else loader.state_dict()
    if COUNTED:
        del content["step"], content["scores"]
    if bug == "old copy":
        content["model"] = old
    write(loader.global_step if bug == "step not restored" or COUNTED else step, content)


def update() -> None:
    """Do a step of the optimizer, and all that follows it."""
    scaler.step(optimizer)
    scaler.update()
    if not PLAIN:
        if bug == "saved before the scheduler" and step % EVERY == 0:
            save()
        scheduler.step()
    if bug == "saved before the average" and step % EVERY == 0:
        save()
    with torch.no_grad():
        for one, other in zip(average.parameters(), model.parameters(), strict=True):
            one.lerp_(other, 0.1)


def train(batch: torch.Tensor, index: int = 0) -> None:
    """Do a step, and save when it is time."""
    global early, old, step  # noqa: PLW0603  # as scripts do
    noise = (random.random() + np.random.rand()) * (1 + index % 3)
    if bug == "own generator":
        noise = OWN.random()
    if step % TOGETHER == 0:
        optimizer.zero_grad()
    scaler.scale((model(batch) - 0.1 * noise).pow(2).mean()).backward()
    step += bug != "counted after the save"
    if bug == "saved before the step" and step % EVERY == 0:
        save()
    old = deepcopy(model.state_dict())
    if step % TOGETHER == 0:
        update()
    if not bug.startswith(("saved before the", "one batch late, fetched")) and step % EVERY == 0:
        save()
    step += bug == "counted after the save"
    early = loader.state_dict()


def evaluate() -> None:
    """Add the score of an epoch."""
    scores.append(float(average(torch.ones(1, 1)).detach()))


batch: Any
while bug == "second loop" and loader.epoch < 2 * EPOCHS:
    for batch in loader:
        train(batch)
    with torch.no_grad():
        for batch in loader:
            if step % EVERY == 0:
                save()
            step += 1
            scores.append(float(model(batch).mean()))

for epoch in loader.epochs(EPOCHS if bug != "second loop" else 0):
    if bug.startswith("one batch late, fetched"):
        iterator = iter(epoch)
        batch = next(iterator, None)
        while batch is not None:
            train(batch)
            batch = next(iterator, None)
            if step % EVERY == 0:
                save()
    elif bug.startswith("one batch late"):
        iterator = iter(epoch)
        batch = next(iterator, None)
        while batch is not None:
            following = next(iterator, None)
            train(batch)
            batch = following
    elif bug.startswith("enumerate"):
        for index, batch in enumerate(epoch):
            train(batch, index)
    else:
        for batch in epoch:
            train(batch)
    if bug == "evaluation skipped":
        save()
    average.eval()
    evaluate()
resumable.chaos.record_weights(average)
