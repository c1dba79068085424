"""A hand-written training loop crashes, resumes, and is compared with a baseline run.

python examples/hand_written_loop.py [DIRECTORY to keep the checkpoints]
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable


def train(directory: str, crash_at: int = -1) -> torch.Tensor:
    """Train three epochs, from the last checkpoint if there is one; return the weights."""
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(320, 16), torch.randint(4, (320,)))
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = resumable.wrap(DataLoader(dataset, batch_size=32, shuffle=True), seed=0)
    store = resumable.CheckpointStore(directory, keep=3)

    if (last := store.latest()) is not None:
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        loader.load_state_dict(last["loader"])
        resumable.rng.load_state_dict(last["generators"])  # for the dropout
        print(f"  resumed after step {loader.global_step}: {loader.cursor}")

    for epoch in loader.epochs(3):
        for inputs, targets in epoch:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            if loader.global_step == crash_at:
                raise RuntimeError
            if loader.global_step % 4 == 0:
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                states |= {"loader": loader.state_dict(), "generators": resumable.rng.state_dict()}
                store.save(loader.global_step, states)
        print(f"  epoch {epoch.number} ended after step {loader.global_step}")
    return torch.nn.utils.parameters_to_vector(model.parameters())


logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
with tempfile.TemporaryDirectory() as temporary:
    kept = sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/crashed"
    print("Run 1, which crashes at step 15:")
    with contextlib.suppress(RuntimeError):
        train(kept, crash_at=15)
    print("Run 2, the same again:")
    resumed = train(kept)
    print("Run 3, elsewhere, without a crash:")
    print("The same weights, bit for bit:", resumed.equal(train(f"{temporary}/baseline")))
