"""A loop with everything a plan looks for: two stores, an evaluation in the middle and one at each epoch's end.

--skip   a resume after an epoch's end leaves out its evaluation, as many a hand-written loop does
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import resumable

EPOCHS, EVERY = 3, 4
train = resumable.wrap(np.arange(24), batch_size=4, seed=1)
held_out = resumable.wrap(np.arange(100, 106), batch_size=3, evaluation=True)
last, best = resumable.CheckpointStore("last", keep=3), resumable.CheckpointStore("best", keep=3)
weights, step, scores, evaluated = 0.0, 0, [0.0], 0

if (saved := last.latest()) is not None:
    train.load_state_dict(saved["train"])
    weights, step, scores, evaluated = (saved[name] for name in ("weights", "step", "scores", "evaluated"))


def save() -> None:
    """Write a checkpoint to both stores."""
    content: dict[str, Any] = {"weights": weights, "step": step, "scores": scores, "evaluated": evaluated}
    best.save(step, {"weights": weights})
    last.save(step, {**content, "train": train.state_dict()})


def evaluate() -> None:
    """Add a score."""
    scores.append(weights + sum(float(np.mean(batch)) for batch in held_out))


for epoch in train.epochs(EPOCHS):
    for batch in epoch:
        weights += float(np.mean(batch)) / 7
        step += 1
        if step % EVERY == 0:
            save()
        if step % EVERY == 2:
            sum(float(np.mean(batch)) for batch in held_out)
    if "--skip" in sys.argv:
        save()
        evaluate()
    else:
        evaluate()
        save()
resumable.chaos.record_weights({"weights": np.asarray(weights), "scores": np.asarray(scores)})
