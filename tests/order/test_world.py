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
from resumable.loader import startup_checks as _opening

PAIRS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec": ("PMI_RANK", "PMI_SIZE"),
    "mpirun_rsh": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
VARIABLES = (*(name for pair in PAIRS.values() for name in pair), "SLURM_NTASKS", "SLURM_STEP_ID", "PMIX_RANK")


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


def test_variables_in_a_replaced_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variables count in an environment that replaced the first one."""
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


IMPOSSIBLE = [
    ("3", "2"),
    ("2", "2"),
    ("-1", "2"),
    ("0", "0"),
    ("0", "-4"),
    ("zero", "4"),
    ("0", "four"),
    ("", ""),
    ("1.0", "2"),
]


@pytest.mark.parametrize("launcher", PAIRS)
@pytest.mark.parametrize(("rank", "size"), IMPOSSIBLE)
def test_a_rank_that_cannot_be_says_which_variables_say_so(
    monkeypatch: pytest.MonkeyPatch, launcher: str, rank: str, size: str
) -> None:
    for name, value in zip(PAIRS[launcher], (rank, size), strict=True):
        monkeypatch.setenv(name, value)
    loader = resumable.wrap(range(8), batch_size=2)
    for look in (World.detect, lambda: next(iter(loader)), lambda: resumable.ResumableSampler(8)):
        with pytest.raises(ConfigurationError) as caught:
            look()
        text = str(caught.value)
        names = PAIRS[launcher]
        assert f"the environment says that this process is rank {rank} of {size}: {names[0]}={rank!r}, " in text
        assert f"{names[1]}={size!r}." in text
        assert f"{launcher} sets both on each rank" in text
        assert "unset both" in text
        assert "wrap(..., world=World(rank, size))" in text
        assert "World(rank=0, size=1)" not in text
    assert next(iter(resumable.wrap(range(8), batch_size=2, world=World(1, 2)))) == [2, 3]


def test_variables_of_another_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variables of another launcher are named if the first ones are wrong."""
    for name, value in zip((*PAIRS["torchrun"], *PAIRS["srun"]), "3234", strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"RANK='3', WORLD_SIZE='2'\.\n") as caught:
        World.detect()
    assert "also has SLURM_PROCID='3', SLURM_STEP_NUM_TASKS='4': they are used once the others are unset" in str(
        caught.value
    )
    monkeypatch.delenv("WORLD_SIZE")
    assert World.detect() == World(3, 4)


@pytest.mark.parametrize("launcher", PAIRS)
@pytest.mark.parametrize("rank", ["1", "-1", "x"])
def test_a_rank_without_its_size_is_refused(monkeypatch: pytest.MonkeyPatch, launcher: str, rank: str) -> None:
    name, missing = PAIRS[launcher]
    monkeypatch.setenv(name, rank)
    with pytest.raises(
        ConfigurationError, match=f"rank {rank}: {name}='{rank}', but {missing}, which says how many"
    ) as caught:
        World.detect()
    for word in ("Each rank would read all the data", launcher, f"unset {name}", "world=World(rank, size)"):
        assert word in str(caught.value)
    monkeypatch.setenv(name, "0")
    assert World.detect() == World()


@pytest.mark.parametrize("launcher", PAIRS)
def test_a_size_without_its_rank_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launcher: str
) -> None:
    """It is not an error: Lightning sets WORLD_SIZE and no RANK in its processes, and makes a group later."""
    monkeypatch.setattr(_opening, "_said", set())
    monkeypatch.setenv(PAIRS[launcher][1], "4")
    for _ in range(2):
        assert next(iter(resumable.wrap(range(8), batch_size=2))) == [0, 1]
    (told,) = [record.getMessage() for record in caplog.records if "several ranks" in record.getMessage()]
    assert f"({PAIRS[launcher][1]}=4), but no variable says which one this is: it reads all the data" in told


def test_given_world_counts_before_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A given world counts before wrong variables, also for the seed."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch.manual_seed(5)  # on which ranks would have to agree
    loader = resumable.wrap(range(8), batch_size=2, shuffle=True, world=World(1, 2))
    assert loader.seed == 5
    assert len(next(iter(resumable.wrap(range(8), batch_size=2, shuffle=True, seed=5, world=World(1, 2))))) == 2


@pytest.mark.parametrize(
    ("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0.5, 2), ("0", 1), (True, 2), (0, True), (False, 1)]
)
def test_a_rank_outside_of_the_world_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"rank={rank!r} and size={size!r}") as caught:
        World(rank, size)
    assert "Each process needs a different rank" in str(caught.value)
    assert "World(rank=0, size=1)" not in str(caught.value)


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
def test_process_group_counts_before_variables() -> None:
    """An initialised process group counts before the variables."""
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
