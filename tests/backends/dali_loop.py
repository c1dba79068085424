"""A hand-written loop over a DALI iterator: dali_loop.py FOLDER_OF_IMAGES. It saves to ./checkpoints."""

from __future__ import annotations

import sys

import dali_pipelines
import torch

import resumable
from resumable.chaos import record_weights

torch.set_num_threads(1)
torch.manual_seed(0)
sys.setswitchinterval(0.001)

iterator = dali_pipelines.iterator(reader={"file_root": sys.argv[1]})
loader = resumable.wrap(iterator)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(300, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
store, step = resumable.CheckpointStore("checkpoints", keep=2), 0

if (saved := store.latest()) is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    resumable.rng.load_state_dict(saved["rng"])
    step = saved["step"]

for epoch in loader.epochs(3):
    for (batch,) in epoch:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["data"]), batch["label"].squeeze(-1).long()).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        step += 1
        if step % 2 == 0:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            store.save(step, {**states, "rng": resumable.rng.state_dict(), "step": step})
record_weights(model)
