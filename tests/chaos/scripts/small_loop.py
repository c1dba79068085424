"""A training loop without torch, whose checkpoints are JSON files; its options make it slow, or wrong."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import resumable

OPTIONS = set(sys.argv[1:])
CHECKPOINT = Path("checkpoint.json")

shift = 100 if CHECKPOINT.exists() and "--other-data" in OPTIONS else 0
loader = resumable.wrap(
    np.arange(24) + shift,
    batch_size=4,
    seed=1,
    canary="--other-data" not in OPTIONS,
    flight_recorder="flights" if "--record" in OPTIONS else None,
)
weights, step = 0.0, 0
if CHECKPOINT.exists():
    saved = json.loads(CHECKPOINT.read_text())
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
            content = {"loader": loader.state_dict(), "weights": weights, "step": step}
            CHECKPOINT.with_suffix(".tmp").write_text(json.dumps(content))
            CHECKPOINT.with_suffix(".tmp").replace(CHECKPOINT)
if "--show-weights" in OPTIONS:
    resumable.chaos.record_weights({"weights": weights})
