"""A loop without torch that leaves files of many kinds at its end; `--bug NAME` plants what only they show."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np

import resumable

parser = ArgumentParser()
parser.add_argument("--bug", default="")
bug: str = parser.parse_args().bug

CHECKPOINT = Path("checkpoint.json")
loader = resumable.wrap(np.linspace(0.0, 1.0, 24), batch_size=4, shuffle=True, seed=1)
weights, average, total, step = np.zeros(3), np.zeros(3), 0.0, 0
if resumed := CHECKPOINT.exists():
    saved = json.loads(CHECKPOINT.read_text())
    loader.load_state_dict(saved["loader"])
    weights, total, step = np.array(saved["weights"]), saved["total"], saved["step"]
    average = weights.copy() if bug == "average" else np.array(saved["average"])
METRICS = Path(f"logs/version_{int(resumed)}/metrics.csv")  # a folder for each start, as of Lightning
METRICS.parent.mkdir(parents=True, exist_ok=True)
metrics = METRICS.open("a")
metrics.write("step,total,time\n")
before = total if resumed and bug == "metrics" else 0.0

for epoch in loader.epochs(2):
    means = []  # of this launch, as of most loggers
    for batch in epoch:
        means.append(float(np.mean(batch)))
        weights = weights + 0.1 * (np.mean(batch) - weights)
        average = 0.9 * average + 0.1 * weights
        total, step = total + float(np.mean(batch)), step + 1
        metrics.write(f"{step},{total - before},{time.time()}\n")
        metrics.flush()
        if step % 2 == 0:
            content = {"loader": loader.state_dict(), "step": step, "total": total}
            content |= {"weights": weights.tolist(), "average": average.tolist()}
            CHECKPOINT.with_suffix(".tmp").write_text(json.dumps(content))
            CHECKPOINT.with_suffix(".tmp").replace(CHECKPOINT)
    with Path("epochs.jsonl").open("a") as lines:
        if means:
            lines.write(json.dumps({"epoch": epoch.number, "mean": sum(means) / len(means)}) + "\n")
np.savez("export.npz", weights=weights + (resumed and bug == "export"), average=average)
Path("run.json").write_text(json.dumps({"steps": step, "ended": time.time_ns()}))
if not resumed or bug != "missing":
    Path("DONE").write_bytes(b"done")
Path(f"events.{time.time_ns()}").write_bytes(b"of the time")
