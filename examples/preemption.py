"""Preemption: one of three ranks gets a signal, and all stop after the same step; the next run resumes from there.

Run it with `python examples/preemption.py`; it needs torch, launches its ranks itself, and takes a few seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile

import torch
from torch import distributed

import resumable
from resumable import CheckpointStore

RANKS, STEPS = 3, 12


def train(rank: int, folder: str, asked_at: int) -> None:
    """Train on one rank, until everything is done or all ranks stop."""
    distributed.init_process_group("gloo", f"file://{folder}/ranks-{asked_at}", rank=rank, world_size=RANKS)
    loader, weight = resumable.wrap(list(range(90)), batch_size=2, shuffle=True, seed=0), torch.zeros(())
    store = CheckpointStore(f"{folder}/run", keep=2, shared=True)
    if (last := store.latest()) is not None:
        loader.load_state_dict(last["data"])
        weight = last["weight"]
    with resumable.preemption() as stop:
        for batch in loader.steps(STEPS):
            total = torch.tensor(float(sum(batch)))
            distributed.all_reduce(total)
            weight, step = weight + total, loader.global_step
            if rank == 1 and step == asked_at:
                os.kill(os.getpid(), signal.SIGTERM)  # as a cluster sends it; here to one rank only
            if stop.reached(step):
                print(f"rank {rank} stops after step {step}\n", end="", flush=True)
                store.save(step, {"data": loader.state_dict(), "weight": weight}, part={"rank": rank})
                stop.exit()
    if rank == 0:
        print(f"done: {STEPS} steps, weight {weight:.0f}", flush=True)


def main() -> None:
    """Launch the ranks with a signal at step 4, then again."""
    with tempfile.TemporaryDirectory() as folder:
        for asked_at in (4, STEPS + 1):
            start = multiprocessing.get_context("fork").Process
            ranks = [start(target=train, args=(rank, folder, asked_at)) for rank in range(RANKS)]
            for act in ("start", "join"):
                for rank in ranks:
                    getattr(rank, act)()
            steps = CheckpointStore(f"{folder}/run").steps()
            print(f"exit statuses {[rank.exitcode for rank in ranks]}, checkpoints {steps}", flush=True)


if __name__ == "__main__":
    main()
