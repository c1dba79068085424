"""A Loader in torch.distributed.checkpoint: two ranks save it, three resume, then one: python examples/dcp.py.

The ranks are forked here; torchrun would launch each one separately.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.multiprocessing import start_processes

import resumable
from resumable.checkpoint import mark_complete, newest_complete

GLOBAL_BATCH = 12


def train(rank: int, size: int, root: str, until: int) -> None:
    """Resume from the newest checkpoint, train up to a step, and save after each."""
    dist.init_process_group("gloo", init_method=f"file://{root}/ranks-{size}", rank=rank, world_size=size)
    loader = resumable.wrap(list(range(48)), batch_size=GLOBAL_BATCH // size, shuffle=True, seed=0)
    content = {"loader": loader.dcp()}  # and {"model": model, "optimizer": optimizer}
    newest = newest_complete(f"{root}/checkpoints")
    if newest is not None:
        dcp.load(content, checkpoint_id=newest)
    for batch in loader.steps(until):
        step = loader.global_step
        with Path(root, f"step-{step}-rank-{rank}").open("w", encoding="utf-8") as file:
            file.write(" ".join(map(str, batch)))
        dcp.save(content, checkpoint_id=f"{root}/checkpoints/{step}")
        mark_complete(f"{root}/checkpoints/{step}", step)
    dist.destroy_process_group()


def global_batch(root: str, step: int) -> list[int]:
    """Return the samples of a step, over all ranks."""
    parts = sorted(Path(root).glob(f"step-{step}-rank-*"))
    return [int(sample) for part in parts for sample in part.read_text(encoding="utf-8").split()]


if __name__ == "__main__":
    logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
    alone = list(resumable.wrap(list(range(48)), batch_size=GLOBAL_BATCH, shuffle=True, seed=0).steps(8))
    with tempfile.TemporaryDirectory() as folder:
        for ranks, last in ((2, 3), (3, 5), (1, 8)):
            start_processes(train, (ranks, folder, last), nprocs=ranks, start_method="fork")  # type: ignore[no-untyped-call]  # torch's
            print(f"{ranks} ranks continued to step {last}")
        assert [global_batch(folder, step) for step in range(1, 9)] == alone
    print("The same global batches as on a single rank.")
