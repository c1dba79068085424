"""Which ranks divide the data: found, given, fixed at first use, and refused where they are others later."""

from __future__ import annotations

import pickle
from itertools import chain
from typing import Any

import pytest
import torch
from forked import ranks, step_together
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

import resumable
from resumable import World
from resumable.errors import ConfigurationError

SAMPLES = list(range(48))
VARIABLES = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "4"},
    "OpenMPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "3"},
    "PMI": {"PMI_RANK": "3", "PMI_SIZE": "4"},
    "mpirun under SLURM": {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    "MVAPICH2": {"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4"},
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8", "PMIX_RANK": "3"},
    "a step without its size": {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"},
}
ALONE = {
    "a batch script": {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},
    "an interactive step": {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967290"},
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for launcher in (*VARIABLES.values(), *ALONE.values()):
        for name in launcher:
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("launcher", VARIABLES)
def test_a_launcher_tells_by_its_variables(monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    for name, value in VARIABLES[launcher].items():
        monkeypatch.setenv(name, value)
    assert World.detect() == World(3, 4)


@pytest.mark.parametrize("where", ALONE)
def test_a_job_is_no_step(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    for name, value in ALONE[where].items():
        monkeypatch.setenv(name, value)
    assert World.detect() == World(0, 1)


def test_a_rank_of_an_unknown_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "0")
    with pytest.raises(ConfigurationError, match=r"is rank 0: PMIX_RANK='0', but no variable says how"):
        next(iter(resumable.wrap(SAMPLES, batch_size=2)))


def first_batches(loader: resumable.Loader[Any], steps: int = 2) -> list[list[int]]:
    batches = iter(loader)
    return [list(next(batches)) for _ in range(steps)]


def copied(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))  # noqa: S301  # as it goes to a worker


def mesh_run(_rank: int, _size: int) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with pytest.raises(ConfigurationError, match=r"the dimensions 'dp', 'tp'.*\n.*world=mesh\[\"dp\"\]"):
        resumable.wrap(SAMPLES, batch_size=2, world=mesh)
    by_mesh = resumable.wrap(SAMPLES, batch_size=2, shuffle=True, seed=1, world=mesh["dp"])
    by_group = resumable.wrap(SAMPLES, batch_size=2, shuffle=True, seed=1, world=mesh.get_group("dp"))
    batches = first_batches(by_mesh)
    assert batches == first_batches(by_group)
    copy = copied(by_mesh._options.world)
    assert copy.world() == by_mesh.progress.world
    step_together()
    return batches, by_mesh.state_dict()["world_size"], by_mesh.global_batch_size


def test_ranks_of_one_model_read_the_same() -> None:
    alone = first_batches(resumable.wrap(SAMPLES, batch_size=4, shuffle=True, seed=1, world=World(0, 1)))
    results = ranks(4, mesh_run, variables=False)
    assert all(isinstance(result, tuple) for result in results), results
    batches = [result[0] for result in results]
    assert batches[0] == batches[1]
    assert batches[2] == batches[3]
    assert [first + second for first, second in zip(batches[0], batches[2], strict=True)] == alone
    assert {result[1:] for result in results} == {(2, 4)}


def outside_run(rank: int, _size: int) -> Any:
    group = distributed.new_group([0])
    loader = resumable.wrap(SAMPLES, batch_size=2, world=group)
    if rank:
        with pytest.raises(ConfigurationError, match="rank 1 is not a member of the process group"):
            next(iter(loader))
    else:
        assert next(iter(loader)) == [0, 1]
    step_together()
    return "right"


def test_a_rank_outside_of_the_group_is_refused() -> None:
    assert ranks(2, outside_run, variables=False) == ["right", "right"]


@pytest.mark.parametrize("world", [3, "gloo", [[0, 1]], 0, distributed.ProcessGroup])
def test_what_is_no_group_is_refused(world: Any) -> None:
    with pytest.raises(ConfigurationError, match="world must be a World, a DeviceMesh or a ProcessGroup, but it is"):
        resumable.wrap(SAMPLES, batch_size=2, world=world)


def begin(rank: int, size: int) -> None:
    distributed.init_process_group("gloo", rank=rank, world_size=size)


def early_run(rank: int, size: int, how: str) -> Any:
    """Use a loader before the process group is made, by a launcher without variables."""
    loader = resumable.wrap(SAMPLES, batch_size=2, name="train")
    state = resumable.wrap(SAMPLES, batch_size=2, name="train", world=World(0, 1)).state_dict()
    if how == "length":
        assert (len(loader), loader.global_batch_size) == (24, 2)
    elif how == "load":
        loader.load_state_dict(state)
    elif how == "peek":
        loader.peek()
    else:
        next(iter(loader))
    begin(rank, size)
    if how == "length":
        return first_batches(loader, 1), len(loader)
    for use in (lambda: next(iter(loader)), loader.state_dict, lambda: next(loader.steps(9))):
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert f"then: rank 0 of 1 (no process group, no launcher)\n  now:  rank {rank} of 2" in str(caught.value)
        assert "init_process_group" in str(caught.value)
    loader.load_state_dict(state, strict=False)
    step_together()
    return first_batches(loader, 1)


@pytest.mark.parametrize("how", ["next", "peek", "load", "length"])
def test_a_loader_that_was_used_before_the_ranks_met_is_refused(how: str) -> None:
    results = ranks(2, early_run, how, variables=False, group=False)
    right = [[[0, 1]], [[2, 3]]] if how == "length" else [[[0]], [[1]]]
    assert [result[0] if how == "length" else result for result in results] == right


def after_run(_rank: int, _size: int) -> Any:
    loader = resumable.wrap(SAMPLES, batch_size=2)
    next(iter(loader))
    step_together()
    distributed.destroy_process_group()
    return loader.state_dict()["world_size"], loader.cursor.step


def test_a_state_can_be_taken_when_the_process_group_is_gone() -> None:
    assert ranks(2, after_run, variables=False) == [(2, 1), (2, 1)]


def resized_run(rank: int, size: int, state: Any, steps: int) -> Any:
    loader = resumable.wrap(SAMPLES, batch_size=12 // size, shuffle=True, seed=3, name="train")
    if state is not None:
        loader.load_state_dict(state)
    batches, given = [], loader.steps(loader.global_step + steps)
    for batch in given:
        batches.append(list(batch))
        total = step_together(sum(batch))
        assert total == total // 1
    return batches, loader.state_dict(), World.detect() == World(rank, size)


@pytest.mark.slow
def test_ranks_come_and_go_in_the_middle_of_an_epoch() -> None:
    alone = resumable.wrap(SAMPLES, batch_size=12, shuffle=True, seed=3, name="train", world=World(0, 1))
    expected = [list(batch) for batch in alone.steps(8)]
    state, got = None, []
    for size, steps in ((4, 1), (3, 2), (1, 1), (2, 4)):
        results = ranks(size, resized_run, state, steps, variables=False)
        assert all(isinstance(result, tuple) for result in results), results
        got += [[*chain(*parts)] for parts in zip(*(result[0] for result in results), strict=True)]
        assert all(result[1] == results[0][1] for result in results)
        state = results[0][1]
    assert got == expected


def test_a_world_is_kept_by_copies_of_the_options() -> None:
    loader = resumable.wrap(torch.arange(8), batch_size=2)
    next(iter(loader))
    copy = copied(loader._options.ranks)
    assert copy.find(None).world == World(0, 1)
