"""A loop of torch that saves where its data stand and what its generators are, and nothing of its model."""

from __future__ import annotations

from pathlib import Path

import torch

import resumable

torch.manual_seed(0)
torch.set_num_threads(1)
loader = resumable.wrap(torch.arange(24.0)[:, None] / 24, batch_size=4, shuffle=True, seed=1)
model = torch.nn.Linear(1, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
state = Path("state.pt")
if state.exists():
    loader.load_state_dict(torch.load(state)["loader"])
for epoch in loader.epochs(2):
    for batch in epoch:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    torch.save({"loader": loader.state_dict(), "generator": torch.get_rng_state()}, "state.tmp")
    Path("state.tmp").replace(state)
