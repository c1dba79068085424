"""FSDP2 with model, optimizer and loader in one checkpoint of DCP: killed at every kind of moment, exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import ranks
from fsdp_run import STEPS, train

from resumable.checkpoint import newest_complete

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's, of what it does to itself

# Rank, step and moment of each kill, and where the next start goes on.
KILLS = [
    ((1, 2, "before"), None),
    ((1, 2, "data"), None),
    ((0, 2, "metadata"), None),
    ((0, 2, "saved"), None),
    ((1, 4, "saved"), "4"),  # rank 0 marks what is complete
    ((0, 6, "metadata"), "4"),
    ((0, 6, "marked"), "6"),
    ((1, 8, "data"), "6"),
    ((1, 10, "before"), "8"),
]


def killed_at(root: Path, size: int, kill: tuple[int, int, str]) -> None:
    ended = ranks(size, train, root, kill)
    assert ended[kill[0]] == "ended with -9"
    assert all(isinstance(one, Exception) for rank, one in enumerate(ended) if rank != kill[0])


def samples(root: Path, size: int) -> dict[int, list[int]]:
    """Return the global batch of each step, of which a redone one is the same."""
    batches: dict[int, list[list[int]]] = {}
    for rank in range(size):
        own: dict[int, list[int]] = {}
        for line in (root / f"rank{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            step, batch = json.loads(line)
            assert own.setdefault(step, batch) == batch
        for step, batch in own.items():
            batches.setdefault(step, []).append(batch)
    return {step: [sample for part in parts for sample in part] for step, parts in batches.items()}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, list[int]], Any]:
    root = tmp_path_factory.mktemp("baseline")
    weights = ranks(2, train, root)
    batches = samples(root, 2)
    assert sorted(batches) == list(range(1, STEPS + 1))
    return batches, weights[0]


def test_two_ranks_killed_at_each_moment(tmp_path: Path, baseline: tuple[dict[int, list[int]], Any]) -> None:
    """Two ranks are killed at each moment, and the weights are the same."""
    for kill, goes_on_from in KILLS:
        killed_at(tmp_path, 2, kill)
        found = newest_complete(tmp_path)
        assert (None if found is None else Path(found).name) == goes_on_from, kill
    weights = ranks(2, train, tmp_path)
    assert samples(tmp_path, 2) == baseline[0]
    for one in weights:
        assert all(torch.equal(one[name], tensor) for name, tensor in baseline[1].items())


def test_one_rank_goes_on_where_two_were(tmp_path: Path, baseline: tuple[dict[int, list[int]], Any]) -> None:
    killed_at(tmp_path, 2, (0, 6, "data"))
    before = samples(tmp_path, 2)
    (tmp_path / "rank0.jsonl").unlink()
    weights = ranks(1, train, tmp_path)[0]
    after = samples(tmp_path, 1)
    assert {**before, **after} == baseline[0]
    assert sorted(after) == [5, 6, 7, 8, 9, 10]
    assert all(torch.allclose(weights[name], tensor, atol=1e-6) for name, tensor in baseline[1].items())
