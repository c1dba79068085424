"""The program of the recording: trains a small model, and saves after every tenth step. `python train.py`."""

import hashlib
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(640, 16), torch.randint(4, (640,)))
model = torch.nn.Sequential(torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = resumable.wrap(DataLoader(dataset, batch_size=32, shuffle=True), seed=0)

parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "rng": resumable.rng}
store = resumable.CheckpointStore("checkpoints", keep=3)
for name, state in (store.latest() or {}).items():
    parts[name].load_state_dict(state)
if loader.global_step:
    print(f"resumed after step {loader.global_step}", flush=True)  # noqa: T201  # what the terminal shows

for inputs, targets in loader.steps(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    optimizer.step()
    print(f"step {loader.global_step:2}, epoch {loader.cursor.epoch}, loss {loss.item():.7f}", flush=True)  # noqa: T201  # what the terminal shows
    if loader.global_step % 10 == 0:
        store.save(loader.global_step, {name: part.state_dict() for name, part in parts.items()})
    time.sleep(0.1)  # a larger model takes longer

weights = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
print("weights:", hashlib.sha256(weights).hexdigest()[:16])  # noqa: T201  # what the terminal shows
