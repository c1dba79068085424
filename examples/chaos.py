"""Kill and restart a training script, first with a bug in it and then without: python examples/chaos.py.

The same on the command line: resumable chaos run --points 4 --jobs 2 -- python examples/chaos.py train
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import resumable

CHECKPOINT = Path("checkpoint.json")


def train(*, forgets: bool) -> None:
    """Train two epochs, from the checkpoint if there is one; `forgets` to load the loader's state."""
    loader = resumable.wrap(np.linspace(0.0, 1.0, 24), batch_size=4, shuffle=True, seed=1)
    weight = 0.0
    if CHECKPOINT.exists():
        saved = json.loads(CHECKPOINT.read_text())
        weight = saved["weight"]
        if not forgets:
            loader.load_state_dict(saved["loader"])
    for epoch in loader.epochs(2):
        for batch in epoch:
            weight += 0.1 * float(np.mean(batch) - weight)
            if loader.cursor.step % 2 == 0:
                new = CHECKPOINT.with_suffix(".new")
                new.write_text(json.dumps({"weight": weight, "loader": loader.state_dict()}))
                new.replace(CHECKPOINT)
    resumable.chaos.record_weights({"weight": weight})


def break_it(*options: str) -> resumable.chaos.Report:
    """Run this file as a training script, and kill it at four points."""
    command = [sys.executable, str(Path(__file__).absolute()), "train", *options]
    with tempfile.TemporaryDirectory() as directory:
        report = resumable.chaos.run(command, points=4, jobs=2, directory=directory)
        print(report if report.ok else report.timeline(), end="\n\n")
    return report


if "train" in sys.argv:
    train(forgets="--forgets" in sys.argv)
else:
    print("With a bug (it does not load the loader's state):")
    assert not break_it("--forgets").ok
    print("Without the bug:")
    assert break_it().ok
