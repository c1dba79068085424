"""Everything in main(args), with a validation and a best score after each epoch, made resumable.

python examples/loop_in_main.py [DIRECTORY]: kills itself twice, or trains in DIRECTORY, for you to kill it.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import torch
from models.killed import compare
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import resumable


def main(args: argparse.Namespace) -> None:
    """Train from the newest checkpoint, if there is one."""
    torch.manual_seed(0)
    data, held_out = (TensorDataset(torch.randn(n, 8), torch.randint(3, (n,))) for n in (32, 16))
    loader = resumable.wrap(DataLoader(data, batch_size=8, shuffle=True), seed=0)
    validation = resumable.wrap(DataLoader(held_out, batch_size=8), seed=0, evaluation=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "rng": resumable.rng}
    store = resumable.CheckpointStore(args.directory, keep=2)
    last = store.latest() or {}
    best = last.pop("best", math.inf)
    for name, state in last.items():
        parts[name].load_state_dict(state)

    for epoch in loader.epochs(args.epochs):
        model.train()
        for i, (inputs, targets) in epoch.enumerate():
            optimizer.param_groups[0]["lr"] = args.lr * (1 - (epoch + i / len(epoch)) / args.epochs)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            store.save(loader.global_step, {"best": best, **{name: part.state_dict() for name, part in parts.items()}})
        model.eval()
        with torch.no_grad():
            loss = sum(float(cross_entropy(model(inputs), targets)) for inputs, targets in validation) / 2
        best = min(best, loss)
        print(f"  epoch {epoch}: loss {loss:.4f}, best {best:.4f}", flush=True)
        # After the validation, so this state says that the epoch is done.
        store.save(loader.global_step, {"best": best, **{name: part.state_dict() for name, part in parts.items()}})


def run(directory: str) -> None:
    """Parse the arguments and train."""
    main(argparse.Namespace(directory=directory, epochs=3, lr=0.2))


if __name__ == "__main__":
    run(sys.argv[1]) if len(sys.argv) > 1 else compare(run)
