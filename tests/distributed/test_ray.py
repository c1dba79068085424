"""Ray Train with a worker that is killed twice, and Ray Data, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

ROOT = Path(__file__).parents[2]
PYTHON = Path(sys.executable).parents[1] / "ray/bin/python"
LINE = re.compile(r"step (\d+): samples \[([\d, ]+)\], weight (\S+)")

pytestmark = pytest.mark.slow


def run(script: str, folder: Path) -> str:
    own = {"RAY_memory_monitor_refresh_ms": "0", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [PYTHON, ROOT / script],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


@pytest.mark.long  # Ray takes minutes to notice
def test_workers_killed_twice(tmp_path: Path) -> None:
    """Workers are killed twice, and each step is that of the baseline run.

    A step that is done again with other samples, or to another weight, would be a line more.
    """
    told = set(LINE.findall(run("examples/ray_train.py", tmp_path)))
    lines = sorted((int(step), samples, float(weight)) for step, samples, weight in told)
    assert [step for step, _, _ in lines] == sorted([*range(1, 13)] * 2)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.arange(24.0)[:, None] / 24, torch.arange(24))
    loader = resumable.wrap(DataLoader(data, batch_size=4, shuffle=True), seed=0)
    for step, (inputs, samples) in enumerate(loader.steps(12), 1):
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        parts = [[int(one) for one in text.split(",")] for number, text, _ in lines if number == step]
        assert samples.tolist() in (parts[0] + parts[1], parts[1] + parts[0])
        weights = {weight for number, _, weight in lines if number == step}
        assert len(weights) == 1
        assert weights.pop() == pytest.approx(model.weight.item(), abs=1e-6)


def test_ray_data_is_not_trusted_on_ranks(tmp_path: Path) -> None:
    """A dataset of Ray Data has a name and is not trusted on several ranks."""
    found = json.loads(run("tests/distributed/ray_data_run.py", tmp_path).splitlines()[-1])
    assert found["rest"] == [[[6, 7, 8], [9, 10, 11]]] * 2
    assert found["alone"] == {"name": "Ray Data", "warned": []}
    assert found["named"] == {"name": "numbers", "warned": []}
    assert found["ranks"]["refused"].startswith("this is a Ray Data iterable, and there are 2 ranks.")
    assert "its order may differ then" in found["shards"]["warned"][0]
    for name in ("dataset", "iterator"):
        assert "wrap(dataset.iter_torch_batches(batch_size=...))" in found[name]["refused"]
