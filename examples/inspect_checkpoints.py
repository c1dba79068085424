"""Show what a checkpoint contains, what changed in the next one, and which samples a batch has; no code in them runs.

python examples/inspect_checkpoints.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

torch.manual_seed(0)
data = TensorDataset(torch.rand(40, 3))
loader = resumable.wrap(DataLoader(data, batch_size=4, shuffle=True), seed=1, name="train")
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())

with tempfile.TemporaryDirectory() as directory:
    store = resumable.CheckpointStore(directory)
    for (inputs,) in loader.steps(6):
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()
        if loader.global_step % 3 == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
            store.save(loader.global_step, content)

    found = resumable.inspect(directory)  # resumable inspect DIRECTORY
    (state,) = found.states
    print(f"{found.kind} with the steps {[step.step for step in found.steps]}")
    print(f"at {state.where!r}: {state.percent:g} % of epoch {state.epoch}, {state.samples_seen} samples seen")

    steps = Path(directory) / "step-000000000003", Path(directory) / "step-000000000006"
    difference = resumable.diff(*steps)  # resumable diff A B
    for tensor in difference.tensors[:2]:
        print(
            f"{tensor.where}: {tensor.differing} of {tensor.elements} elements differ, by {tensor.largest:.2g} at most"
        )
    for field in difference.states[0].fields:
        print(f"{field.where}: {field.a} before, {field.b} now")

    batch = resumable.samples(directory, epoch=7, step=3)  # resumable samples DIRECTORY --epoch 7 --step 3
    assert list(batch.indices) == loader.sample_indices(epoch=7, step=3)
    print(f"batch 3 of epoch 7 will be the samples {list(batch.indices)}")
