"""A training loop without torch, whose checkpoints are JSON files; its options make it slow, or wrong."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import resumable

OPTIONS = set(sys.argv[1:])
CHECKPOINT = Path("checkpoint.json")

shift = 100 if CHECKPOINT.exists() and "--other-data" in OPTIONS else 0
loader = resumable.wrap(
    np.arange(24) + shift,
    batch_size=4,
    seed=1,
    checks="ranks" if "--other-data" in OPTIONS else "all",
)
weights, step = 0.0, 0


def load() -> Any:
    """Read the newest checkpoint; of files with names of their own, the newest that is whole."""
    for path in sorted(Path().glob("step_*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(ValueError):
            return json.loads(path.read_text())
    return json.loads(CHECKPOINT.read_text()) if CHECKPOINT.exists() else None


def save(text: str) -> None:
    """Write a checkpoint beside the one that it replaces; with an option, in its place, or under a name of its own."""
    if "--in-place" in OPTIONS or "--own-names" in OPTIONS:
        (CHECKPOINT if "--in-place" in OPTIONS else Path(f"step_{step}.json")).write_text(text)
        return
    CHECKPOINT.with_suffix(".tmp").write_text(text)
    CHECKPOINT.with_suffix(".tmp").replace(CHECKPOINT)


if (saved := load()) is not None:
    loader.load_state_dict(saved["loader"])
    weights, step = 0.0 if "--lose-weights" in OPTIONS else saved["weights"], saved["step"]
if "--fail" in OPTIONS:
    sys.exit("it fails by itself")
for epoch in loader.epochs(2):
    for batch in epoch:
        weights += float(np.mean(batch))
        step += 1
        if "--slow" in OPTIONS:
            time.sleep(0.25)
        if step % 2 == 0:
            save(json.dumps({"loader": loader.state_dict(), "weights": weights, "step": step}))
if "--show-weights" in OPTIONS:
    resumable.chaos.record_weights({"weights": weights})
