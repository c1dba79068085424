"""Only the order: a plain DataLoader with a ResumableSampler, stopped in the middle of an epoch and resumed.

Run it with `python examples/sampler_alone.py`; it needs torch and takes a second or two.
"""

from __future__ import annotations

import json

import torch
from torch.utils.data import DataLoader, TensorDataset

from resumable import ResumableSampler

EPOCHS, BATCH_SIZE = 3, 8


def train(saved: str | None = None, stop_after: int | None = None) -> tuple[list[list[int]], str]:
    """Train from scratch or from a saved state; return the batches, and the state after the last of them."""
    dataset = TensorDataset(torch.arange(100))
    sampler = ResumableSampler(dataset, seed=7, batch_size=BATCH_SIZE, drop_last=True)
    if saved is not None:
        sampler.load_state_dict(json.loads(saved))
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler, num_workers=2)
    batches: list[list[int]] = []
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for done, (batch,) in enumerate(loader, start=1):
            batches.append(batch.tolist())  # the training step
            if len(batches) == stop_after:
                # The workers have already been asked for more batches; `done` says how many were trained on.
                return batches, json.dumps(sampler.state_dict(batches_done=done))
    return batches, json.dumps(sampler.state_dict())


def main() -> None:
    """Compare a stopped run with an uninterrupted one."""
    baseline, _ = train()
    before, state = train(stop_after=17)
    after, _ = train(saved=state)
    print(f"stopped after {len(before)} of {len(baseline)} batches, with the state {state}")
    print(f"resumed with the batch {after[0]}")
    if before + after != baseline:
        raise SystemExit("the resumed order differs from the baseline run")
    print("the resumed order is identical")


if __name__ == "__main__":
    main()
