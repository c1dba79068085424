"""A checkpoint store: save, damage the newest checkpoint, and show what the next run of the training finds.

Run it with `python examples/checkpoint_store.py`; it needs torch and takes a second.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch

from resumable.checkpoint import CheckpointStore
from resumable.errors import CheckpointError


def train(store: CheckpointStore, steps: int) -> None:
    """Continue from the newest checkpoint, or start at zero, and save every 10 steps."""
    weight, done = torch.zeros(3), 0
    if (last := store.latest()) is not None:
        weight, done = last["weight"], last["step"]
    print(f"starting at step {done}")
    for step in range(done + 1, done + steps + 1):
        weight = weight + 1
        if step % 10 == 0:
            store.save(step, {"step": step, "weight": weight})
    print(f"saved {store.steps()}")


def damage_newest(root: Path) -> None:
    """Flip one bit of the newest data file, as a bad disk would."""
    path = max(root.glob("step-*/*.pt"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    print(f"one bit of {path.parent.name} is flipped")


def main() -> None:
    """Show a first run, a resumed one, a corrupt checkpoint and a rejected save."""
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        store = CheckpointStore(root, keep=3)
        train(store, 45)
        train(store, 10)
        damage_newest(Path(root))
        train(store, 10)
        print(*(f"warning: {warning.message}" for warning in seen), sep="\n")
        try:
            store.save(60, {"step": 60, "loss": torch.nn.MSELoss()})
        except CheckpointError as error:
            print(f"rejected: {error}")


if __name__ == "__main__":
    main()
