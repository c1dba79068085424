"""A small GPT, trained on packed documents, stopped and resumed: python examples/packed_tokens.py."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch.nn import Embedding, Linear, ModuleDict
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
RNG = np.random.default_rng(0)
LENGTHS = RNG.integers(3, 80, 200)
TOKENS = (RNG.zipf(1.5, LENGTHS.sum()) % 64).astype(np.uint16)  # or a file: "train.bin"


def loss_of(gpt: ModuleDict, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a one-block GPT in which a token sees only earlier tokens of its own document."""
    x, document = gpt["tokens"](batch["input"]) + gpt["places"](batch["position"]), batch["document"]
    seen = (document[:, :, None] == document[:, None, :]).tril()
    query, key, value = gpt["attention"](x).chunk(3, dim=-1)
    x = x + scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return cross_entropy(gpt["out"](x).flatten(0, 1), batch["target"].flatten())  # ignores targets of -100


def train(saved: dict[str, Any], steps: int = 60) -> ModuleDict:
    """Train up to a number of steps, from the checkpoint if there is one, and save after each."""
    torch.manual_seed(0)
    parts = Embedding(64, 32), Embedding(48, 32), Linear(32, 96), Linear(32, 64)
    gpt = ModuleDict(dict(zip(("tokens", "places", "attention", "out"), parts, strict=True)))
    packed: Any = resumable.Packed(TOKENS, 48, documents=LENGTHS, how="fit")
    loader = resumable.wrap(DataLoader(packed, batch_size=8, shuffle=True), seed=0)
    if saved:
        gpt.load_state_dict(saved["gpt"])
        loader.load_state_dict(saved["loader"])
    optimizer = torch.optim.SGD(gpt.parameters(), lr=0.3)
    for batch in loader.steps(steps):
        optimizer.zero_grad()
        loss_of(gpt, batch).backward()  # type: ignore[no-untyped-call]  # as torch has it
        optimizer.step()
        saved.update(gpt=deepcopy(gpt.state_dict()), loader=loader.state_dict())
    return gpt


if __name__ == "__main__":
    whole, checkpoint = train({}), dict[str, Any]()
    train(checkpoint, steps=37)
    resumed = train(checkpoint).state_dict()
    if not all(torch.equal(value, resumed[name]) for name, value in whole.state_dict().items()):
        raise SystemExit("the weights differ")
    print("stopped at step 37 and resumed: the weights are equal, bit for bit")
