"""A loop that counts steps instead of epochs, with a validation every few steps, made resumable.

python examples/loop_until_step.py [DIRECTORY]: kills itself twice, or trains in DIRECTORY, for you to kill it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from models.killed import compare
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import resumable

STEPS, WARMUP = 11, 4


def main(directory: str) -> None:
    """Train from the newest checkpoint, if there is one."""
    torch.manual_seed(0)
    data, held_out = (TensorDataset(torch.randn(n, 8), torch.randint(3, (n,))) for n in (32, 16))
    loader = resumable.wrap(DataLoader(data, batch_size=8, shuffle=True), seed=0)
    validation = resumable.wrap(DataLoader(held_out, batch_size=8), seed=0, evaluation=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "rng": resumable.rng}
    store = resumable.CheckpointStore(directory, keep=2)
    for name, state in (store.latest() or {}).items():
        parts[name].load_state_dict(state)

    for inputs, targets in loader.steps(STEPS):  # 2 epochs of 4 batches, plus 3 batches
        step = loader.global_step  # of this batch, from 1; it continues after a resume
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, step / WARMUP)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                loss = sum(float(cross_entropy(model(held), wanted)) for held, wanted in validation) / 2
            print(f"  step {step}: loss {loss:.4f}", flush=True)
            model.train()
        store.save(step, {name: part.state_dict() for name, part in parts.items()})  # after the validation


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else compare(main)
