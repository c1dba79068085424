"""A small GPT, pre-trained on three token sources, killed with SIGKILL and resumed: python examples/small_gpt.py."""

from __future__ import annotations

import os
import signal
import tempfile
from multiprocessing import get_context
from typing import Any

import torch
from models import corpus
from models.gpt import GPT, Shape, collate
from torch.utils.data import DataLoader

import resumable

STEPS, LENGTH = 30, 64


def train(data: str, root: str, kill: int = 0) -> None:
    """Train to the last step, from the newest checkpoint if there is one; if asked to, die at a step."""
    torch.manual_seed(0)
    web = resumable.Packed(f"{data}/web.bin", LENGTH, documents=f"{data}/lengths.npy", how="fit")
    code, book = (resumable.Tokens(f"{data}/{name}.bin", LENGTH) for name in ("code", "book"))
    mixture: Any = resumable.mix({"web": web, "code": code, "book": book}, weights={"web": 5, "code": 3, "book": 2})
    loader = resumable.wrap(DataLoader(mixture, batch_size=8, collate_fn=collate), seed=0)
    gpt, store = GPT(Shape(corpus.VOCABULARY, LENGTH)), resumable.CheckpointStore(root, keep=2)
    adam = torch.optim.AdamW(gpt.parameters(), lr=3e-3)
    parts: dict[str, Any] = {"gpt": gpt, "adam": adam, "loader": loader, "generators": resumable.rng}  # for the dropout
    for name, state in (store.latest() or {}).items():
        parts[name].load_state_dict(state)
    print(f"from step {loader.global_step}", flush=True)
    for batch in loader.steps(STEPS):
        adam.zero_grad()
        (loss := gpt.loss(batch)).backward()  # type: ignore[no-untyped-call]  # as torch has it
        adam.step()
        if loader.global_step == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if loader.global_step % 5 == 0:
            store.save(loader.global_step, {name: part.state_dict() for name, part in parts.items()})
    print(f"to step {STEPS}: loss {loss:.3f}, samples {loader.consumed()}", flush=True)


def weights(root: str) -> torch.Tensor:
    """Return the weights of the last step."""
    return torch.cat([value.flatten() for value in resumable.CheckpointStore(root).load(STEPS)["gpt"].values()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        corpus.write(folder)
        for run, kill in (("baseline", 0), ("killed", 8), ("killed", 23), ("killed", 0)):
            process = get_context("fork").Process(target=train, args=(folder, f"{folder}/{run}", kill))
            process.start()
            process.join()
            print(f"{run}: exit status {process.exitcode}")
        assert torch.equal(weights(f"{folder}/killed"), weights(f"{folder}/baseline")), "the weights differ"
        print("killed twice and resumed: the weights are equal, bit for bit")
