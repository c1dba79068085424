"""Each rank has its own files, and a different number of samples; all end together: python examples/uneven_ends.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = [26, 20, 31]  # of each rank


def train(rank: int, folder: str, until: int) -> None:
    """Train two epochs, up to a step, and save."""
    meet = f"file://{folder}/group-{until}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=len(SAMPLES))

    def read() -> Iterator[int]:
        yield from range(1000 * rank, 1000 * rank + SAMPLES[rank])

    loader = resumable.wrap(read, batch_size=4, shard=False, tail="drop", identity=f"the files of rank {rank}")
    store = resumable.CheckpointStore(f"{folder}/checkpoints", shared=True, keep=2)
    if (last := store.latest()) is not None:
        loader.load_state_dict(store.load_part(last["step"]))  # each rank has its own position
    for epoch in loader.epochs(2):
        for batch in epoch:
            dist.all_reduce(torch.tensor(sum(batch)))  # it would hang if one rank had no batch
            with Path(folder, f"rank{rank}.txt").open("a", encoding="utf-8") as lines:
                print(epoch.number, *batch, file=lines)
            step = loader.global_step
            store.save(step, {"step": step}, part=loader.state_dict())
            if step == until:
                return


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        for last_step in (3, 7, 99):  # three runs
            start_processes(train, (root, last_step), nprocs=len(SAMPLES), start_method="fork")  # type: ignore[no-untyped-call]  # torch's
        for number in range(len(SAMPLES)):
            lines = [line.split() for line in Path(root, f"rank{number}.txt").read_text().splitlines()]
            assert [int(epoch) for epoch, *_ in lines] == [0] * 5 + [1] * 5, "as many steps as the shortest has batches"
            samples = [int(sample) for _, *batch in lines for sample in batch]
            assert samples == [*range(1000 * number, 1000 * number + 20)] * 2, "none is lost or repeated"
    print("26, 20 and 31 samples, three runs: two epochs of 5 steps on each rank, and no rank waited for another.")
