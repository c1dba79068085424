"""A right loop, as people write them: weights saved before there is a loader, a plain loader to validate, pickles."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

import resumable


def write(name: str, content: object) -> None:
    Path(f"{name}.tmp").write_bytes(pickle.dumps(content))
    Path(f"{name}.tmp").replace(name)


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
if not Path("first.pt").exists():
    torch.save(model.state_dict(), "first.pt.tmp")
    Path("first.pt.tmp").replace("first.pt")
training = resumable.wrap(torch.randn(32, 4), batch_size=8, shuffle=True, seed=0)
validation = resumable.wrap(torch.randn(8, 4), batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
losses: list[float] = []
if Path("last.pkl").exists():
    saved = pickle.loads(Path("last.pkl").read_bytes())  # noqa: S301  # its own file
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    training.load_state_dict(saved["loader"])
    losses = saved["losses"]
for epoch in training.epochs(3):
    for batch in epoch:
        optimizer.zero_grad()
        mse_loss(model(batch), batch.flip(1)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        losses.append(sum(mse_loss(model(batch), batch.flip(1)).item() for batch in validation))
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": training.state_dict()}
    write("last.pkl", {**parts, "losses": losses})
write("final.pkl", model)
