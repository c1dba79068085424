"""World: detected, given, refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import resumable
from resumable import World
from resumable.errors import ConfigurationError

VARIABLES = ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_single_process_is_rank_0_of_1() -> None:
    assert World.detect() == World(0, 1)


@pytest.mark.parametrize(("rank", "size"), [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")])
def test_launchers_tell_by_variables(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    monkeypatch.setenv(rank, "3")
    monkeypatch.setenv(size, "4")
    assert World.detect() == World(3, 4)


@pytest.mark.parametrize(
    "launcher",
    [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ],
)
def test_mpis_launchers_too(monkeypatch: pytest.MonkeyPatch, launcher: tuple[str, str]) -> None:
    for name, value in zip(launcher, "37", strict=True):
        monkeypatch.setenv(name, value)
    assert World.detect() == World(3, 7)


def test_variables_count_in_an_environment_that_was_put_in_the_place_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "environ", {"RANK": "1", "WORLD_SIZE": "2"})
        assert World.detect() == World(1, 2)
        patched.setattr(os, "environ", {})
        assert World.detect() == World()


def test_a_rank_without_the_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "1")
    with pytest.raises(ConfigurationError, match="PMIX_RANK"):
        World.detect()


def test_a_batch_job_without_srun_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert World.detect() == World(0, 1)


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "zero")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigurationError, match=r"RANK must be an integer, but it is 'zero'.\n.*world=World"):
        World.detect()


@pytest.mark.parametrize(
    ("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0.5, 2), ("0", 1), (True, 2), (0, True), (False, 1)]
)
def test_a_rank_outside_of_the_world_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"rank={rank!r} and size={size!r}"):
        World(rank, size)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_any_kind_of_integer_is_kept_as_pythons(kind: Any) -> None:
    world = World(kind(1), kind(2))
    assert (type(world.rank), type(world.size)) == (int, int)
    assert world == World(1, 2)
    loader = resumable.wrap(range(8), batch_size=2, world=world)
    assert next(iter(loader)) == [2, 3]
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert next(iter(loader)) == [6, 7]


@pytest.mark.slow
def test_an_initialised_process_group_counts_before_the_variables() -> None:
    script = """
import os, torch.distributed as dist
from resumable import World
store = dist.HashStore()
os.environ |= {"RANK": "1", "WORLD_SIZE": "4"}
assert World.detect() == World(1, 4)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
assert World.detect() == World(0, 1)
dist.destroy_process_group()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
