"""Two ranks save by DCP after every step, one is killed with SIGKILL, new processes load: the rest is exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_sources import EPOCHS, LOADERS, OWN, run_of
from forked import ranks, step_together
from fsdp_run import DiesWithin, die, note

from resumable import World
from resumable.checkpoint import mark_complete, newest_complete

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's, of folders that a kill left

SIZE = 2


def kills(epoch: int) -> list[tuple[tuple[int, int, str], str | None]]:
    """Return rank, step and failpoint of each kill, and the checkpoint from which the next start continues.

    Args:
        epoch: the number of steps in one.
    """
    return [
        ((1, 1, "trained"), None),
        ((0, 2, "data"), "1"),
        ((0, 3, "saved"), "2"),
        ((0, epoch - 1, "metadata"), f"{epoch - 2}"),
        ((1, epoch, "trained"), f"{epoch - 1}"),
        ((0, epoch, "marked"), f"{epoch}"),  # the epoch's last batch is in it, and its end is not
        ((1, epoch, "over"), f"{epoch}"),
        ((0, epoch, "closed"), f"{epoch}-over"),
        ((1, epoch + 1, "data"), f"{epoch}-over"),
        ((0, epoch + 2, "marked"), f"{epoch + 2}"),
        ((1, 2 * epoch, "saved"), f"{2 * epoch}"),  # rank 0 marks what is complete
    ]


def train(rank: int, size: int, root: Path, name: str, kill: tuple[int, int, str] | None = None) -> torch.Tensor:
    """Train from the newest complete checkpoint to the end; return the weights."""
    loader, weights = LOADERS[name](World(rank, size)), torch.zeros(3, dtype=torch.float64)
    content: dict[str, Any] = {"loader": loader.dcp(), "weights": weights}
    if (folder := newest_complete(root)) is not None:
        dcp.load(content, checkpoint_id=folder)

    def save(step: int, suffix: str = "") -> None:
        folder = root / f"{step}{suffix}"
        with DiesWithin(kill, rank, step):
            dcp.save(content, checkpoint_id=folder)
        die(kill, rank, step, "saved")
        mark_complete(folder, 2 * step + bool(suffix))

    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            step = loader.global_step
            weights.mul_(0.5).add_(step_together(float(torch.as_tensor(batch).double().sum())))
            note(root, rank, step, torch.as_tensor(batch).tolist())
            die(kill, rank, step, "trained")
            save(step)
            die(kill, rank, step, "marked")
        die(kill, rank, loader.global_step, "over")
        save(loader.global_step, "-over")
        die(kill, rank, loader.global_step, "closed")
    return weights


def trained_on(root: Path, rank: int) -> list[Any]:
    """Return the batch of each step; one that was done again must be the same."""
    batches: dict[int, Any] = {}
    for line in (root / f"rank{rank}.jsonl").read_text(encoding="utf-8").splitlines():
        step, batch = json.loads(line)
        assert batches.setdefault(step, batch) == batch, step
    assert sorted(batches) == [*range(1, len(batches) + 1)]
    return [batches[step] for step in sorted(batches)]


@pytest.mark.parametrize("name", LOADERS)
def test_each_start_continues_to_the_end(tmp_path: Path, name: str) -> None:
    """Each start continues exactly to the end of the last epoch."""
    whole = run_of(name, SIZE)
    for kill, continues_from in kills(len(whole[0]) // EPOCHS):
        ended = ranks(SIZE, train, tmp_path, name, kill)
        assert ended[kill[0]] == "ended with -9", (kill, ended)
        assert isinstance(ended[1 - kill[0]], Exception), (kill, ended)
        found = newest_complete(tmp_path)
        assert (None if found is None else Path(found).name) == continues_from, kill
    killed = ranks(SIZE, train, tmp_path, name)
    assert [trained_on(tmp_path, rank) for rank in range(SIZE)] == whole
    weights = torch.zeros(3, dtype=torch.float64)
    for parts in zip(*whole, strict=True):
        weights.mul_(0.5).add_(sum(float(torch.tensor(part).double().sum()) for part in parts))
    assert all(torch.equal(one, weights) for one in killed)
    assert len(whole[0]) % EPOCHS == 0
    assert (whole[0] != whole[1]) or name not in OWN
