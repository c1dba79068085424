"""A loop of torch that fetches a batch before it trains on the one before.

It resumes exactly if it saves the loader's state from before that fetch. `--bug` says whether that is "one batch early"
or "one batch late", whether the loader is the "drop-in", and if it saves "with torch.save" and "without scheduler".
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.torch import StatefulDataLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

bug = sys.argv[-1]
EPOCHS, EVERY = 3, 2
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(24, 4), torch.randint(3, (24,)))
loader: Any
if "drop-in" in bug:
    loader = StatefulDataLoader(data, 4, shuffle=True, seed=1)
else:
    loader = resumable.wrap(DataLoader(data, 4, shuffle=True), seed=1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
if "without scheduler" not in bug:
    parts["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
store = None if "with torch.save" in bug else resumable.CheckpointStore("checkpoints", keep=3)
step = number = 0


def save(state: Any) -> None:
    """Write a checkpoint with a state of the loader."""
    content = {name: part.state_dict() for name, part in parts.items() if part is not loader}
    content |= {"loader": state, "step": step, "epoch": number}
    if store is not None:
        store.save(step, content)
        return
    torch.save(content, "last.tmp")
    Path("last.tmp").replace("last.pt")


def train(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Do a step."""
    global step  # noqa: PLW0603  # as scripts do
    optimizer.zero_grad()
    loss: Any = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if "scheduler" in parts:
        parts["scheduler"].step()
    step += 1


def epochs() -> Iterator[tuple[int, Iterable[Any]]]:
    """Yield the rest of the epochs, with their numbers."""
    if isinstance(loader, StatefulDataLoader):
        yield from ((epoch, loader) for epoch in range(number, EPOCHS))
    else:
        yield from ((int(epoch), epoch) for epoch in loader.epochs(EPOCHS))


saved = store.latest() if store is not None else torch.load("last.pt") if Path("last.pt").exists() else None
if saved is not None:
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    step, number = saved["step"], saved["epoch"]

for number, epoch in epochs():  # noqa: B007  # save() reads the number
    batches = iter(epoch)
    early = loader.state_dict()
    batch = next(batches, None)
    while batch is not None:
        right = loader.state_dict()  # after the batch that is trained on next
        following = next(batches, None)
        train(*batch)
        if step % EVERY == 0:
            save(early if "early" in bug else loader.state_dict() if "late" in bug else right)
        early, batch = right, following
