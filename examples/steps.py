"""Pre-training counts steps: a loop over a number of steps, killed and resumed from its checkpoints.

python examples/steps.py
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
TOTAL, WARMUP = 100, 10


def train(folder: str, crash_at: int = -1) -> torch.Tensor:
    """Train 100 steps, including those before a crash; return the weights."""
    torch.manual_seed(0)
    tokens = TensorDataset(torch.randint(50, (72, 9)))  # 9 batches are an epoch, so 100 steps are 11 and a bit
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARMUP))
    loader = resumable.wrap(DataLoader(tokens, batch_size=8, shuffle=True), seed=0)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    store = resumable.CheckpointStore(folder, keep=2)

    for name, state in (store.latest() or {}).items():
        parts[name].load_state_dict(state)
    print(f"  starts at step {loader.global_step}: {loader.cursor}")

    for (text,) in loader.steps(TOTAL):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        schedule.step()
        if loader.global_step == crash_at:
            raise RuntimeError
        if loader.global_step % 20 == 0:
            store.save(loader.global_step, {name: part.state_dict() for name, part in parts.items()})
    print(f"  ends at step {loader.global_step}, after {loader.samples_seen} samples: {loader.cursor}")
    return torch.nn.utils.parameters_to_vector(model.parameters())


with tempfile.TemporaryDirectory() as temporary:
    print("Run 1, which crashes at step 50:")
    with contextlib.suppress(RuntimeError):
        train(f"{temporary}/crashed", crash_at=50)
    print("Run 2, the same again:")
    resumed = train(f"{temporary}/crashed")
    print("Run 3, elsewhere, without a crash:")
    print("The same weights, bit for bit:", resumed.equal(train(f"{temporary}/baseline")))
