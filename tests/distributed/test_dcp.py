"""Loaders in `torch.distributed.checkpoint`: saved by 1 to 4 ranks, loaded by 1 to 4, and never a mixture of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed.checkpoint as dcp
from dcp_sources import GLOBAL_BATCH, LOADERS, OWN, rest, run_of
from forked import ranks

import resumable
from resumable import World
from resumable.errors import StateMismatchError

if TYPE_CHECKING:
    from pathlib import Path

SAVED = (1, 3, 5, 7)  # numbers of batches; an epoch has 5, those of streams of their own 5 per rank, or more
SAMPLE = {(1, 2), (2, 1), (2, 2), (2, 3), (4, 3)}


def go_to(loader: resumable.Loader[Any], step: int) -> None:
    batches = loader.steps(step)
    for _ in batches:
        pass


def save(rank: int, size: int, folder: Path) -> None:
    """Save each loader at each place; every second save is asynchronous, and the loop goes on meanwhile."""
    for name, make in LOADERS.items():
        loader = make(World(rank, size))
        saving: Any = None
        for number, step in enumerate(SAVED):
            go_to(loader, step)
            if saving is not None:
                saving.result()
            if number % 2:
                saving = dcp.async_save({"loader": loader.dcp()}, checkpoint_id=folder / name / str(step))
            else:
                dcp.save({"loader": loader.dcp()}, checkpoint_id=folder / name / str(step))
        if saving is not None:
            go_to(loader, step + 2)
            saving.result()


def load(rank: int, size: int, folder: Path) -> dict[tuple[str, int, bool], Any]:
    """Load each checkpoint into a fresh loader and into one that is elsewhere; return what follows, or the error."""
    found: dict[tuple[str, int, bool], Any] = {}
    for name, make in LOADERS.items():
        for step in SAVED:
            for used in (False, True):
                loader = make(World(rank, size))
                if used:
                    go_to(loader, 2)
                try:
                    dcp.load({"loader": loader.dcp()}, checkpoint_id=folder / name / str(step))
                except StateMismatchError as error:
                    found[name, step, used] = error
                else:
                    found[name, step, used] = rest(loader)
    return found


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("dcp")
    assert ranks(request.param, save, folder) == [None] * request.param
    return request.param, folder


def cells() -> list[Any]:
    return [
        pytest.param(old, new, marks=[] if (old, new) in SAMPLE else [pytest.mark.long])
        for old in range(1, 5)
        for new in range(1, 5)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's, of groups that are not there
@pytest.mark.parametrize(("saved", "size"), cells(), indirect=["saved"])
def test_ranks_go_on_from_what_others_saved(saved: tuple[int, Path], size: int) -> None:
    old, folder = saved
    found = ranks(size, load, folder)
    for name in LOADERS:
        before = run_of(name, old)
        for step in SAVED:
            for used in (False, True):
                got = [rank[name, step, used] for rank in found]
                where = name, step, used
                if name in OWN and old != size:
                    assert all(isinstance(one, StateMismatchError) for one in got), where
                elif name in OWN:
                    assert got == [one[step:] for one in before], where
                else:
                    assert together(got) == together(before)[step:], where


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's, of groups that are not there
@pytest.mark.parametrize("saved", [2], indirect=True)
def test_inspect_reads_the_states_in_the_leaf(saved: tuple[int, Path]) -> None:
    _, folder = saved
    (shared,) = resumable.inspect(folder / "list" / "3").states
    assert (shared.step, shared.world_size, shared.rank, shared.problem) == (3, 2, None, "")
    assert shared.where == "loader.states.states.0"
    for name in OWN:
        states = resumable.inspect(folder / name / "3").states
        assert [(one.rank, one.global_step, one.world_size) for one in states] == [(0, 3, 2), (1, 3, 2)], name


def together(per_rank: list[list[Any]]) -> list[Any]:
    """Return the global batches."""
    batches = [[sample for part in parts for sample in part] for parts in zip(*per_rank, strict=True)]
    assert all(len(batch) == GLOBAL_BATCH for batch in batches)
    return batches
