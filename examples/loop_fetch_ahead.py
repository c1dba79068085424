"""A loop like nanoGPT's, which fetches the next batch while the model trains, made resumable.

python examples/loop_fetch_ahead.py [DIRECTORY]: kills itself twice, or trains in DIRECTORY, for you to kill it.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import torch
from models.killed import compare
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import resumable

STEPS, ACCUMULATE = 8, 2  # optimizer steps, and batches for each


def main(directory: str) -> None:
    """Train from the newest checkpoint, if there is one."""
    torch.manual_seed(0)
    tokens = TensorDataset(torch.randint(50, (40, 9)))
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 50))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = resumable.wrap(DataLoader(tokens, batch_size=8, shuffle=True), seed=0, ack="manual")
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "rng": resumable.rng}
    store = resumable.CheckpointStore(directory, keep=2)
    for name, state in (store.latest() or {}).items():
        parts[name].load_state_dict(state)

    def loss_of(text: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    batches, evaluation = loader.steps(STEPS * ACCUMULATE), loader.for_evaluation()
    batch: Any = next(batches, None)
    while (step := loader.global_step // ACCUMULATE) < STEPS:
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                losses = [float(loss_of(text)) for (text,) in islice(evaluation, 2)]
            print(f"  step {step}: loss {sum(losses) / 2:.4f}", flush=True)
            model.train()
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 4)
        for _ in range(ACCUMULATE):
            loss = loss_of(batch[0]) / ACCUMULATE
            batch = next(batches, None)  # fetched before the backward pass, as nanoGPT does
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        optimizer.zero_grad()
        loader.ack(ACCUMULATE)  # these batches are in the weights, but the prefetched one is not
        store.save(step + 1, {name: part.state_dict() for name, part in parts.items()})


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else compare(main)
