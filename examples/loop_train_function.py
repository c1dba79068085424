"""Functions train() and test(), called for each epoch: the loop of most tutorials, made resumable.

python examples/loop_train_function.py [DIRECTORY]: kills itself twice, or trains in DIRECTORY, for you to kill it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from models.killed import compare
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import resumable

EPOCHS = 3


def train(parts: dict[str, Any], store: resumable.CheckpointStore, epoch: resumable.Epoch) -> None:
    """Train on the rest of an epoch, and save after every step."""
    model, optimizer, loader = parts["model"].train(), parts["optimizer"], parts["loader"]
    for i, (inputs, targets) in epoch.enumerate():  # `i` continues after a resume
        optimizer.param_groups[0]["lr"] = 0.2 * 0.5 ** (epoch + i / len(epoch))
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        store.save(loader.global_step, {name: part.state_dict() for name, part in parts.items()})


@torch.no_grad()
def test(model: torch.nn.Module, held_out: DataLoader[Any], epoch: int) -> None:
    """Print the accuracy."""
    model.eval()
    right = sum(int((model(inputs).argmax(1) == targets).sum()) for inputs, targets in held_out)
    print(f"  epoch {epoch}: {right} of 16 are right", flush=True)


def main(directory: str) -> None:
    """Train from the newest checkpoint, if there is one."""
    torch.manual_seed(0)
    data, held_out = (TensorDataset(torch.randn(n, 8), torch.randint(3, (n,))) for n in (32, 16))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loader = resumable.wrap(DataLoader(data, batch_size=8, shuffle=True), seed=0)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "rng": resumable.rng}
    store = resumable.CheckpointStore(directory, keep=2)
    for name, state in (store.latest() or {}).items():
        parts[name].load_state_dict(state)
    for epoch in loader.epochs(EPOCHS):
        train(parts, store, epoch)
        test(model, DataLoader(held_out, batch_size=8), epoch)


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else compare(main)
