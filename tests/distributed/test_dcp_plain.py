"""A Loader passed to `torch.distributed.checkpoint` without `dcp()`: exact, or rejected when it is loaded.

DCP splits its state into leaves, writes each from some rank, and reads only those that the Loader has at that time.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_sources import LOADERS, OWN, Counted, rest, run_of
from forked import ranks
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException

import resumable
from resumable import World
from resumable.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # torch's, of groups that are not there

Loader = resumable.Loader[Any]
SAVED, ELSEWHERE = (1, 3, 5, 7), (0, 2, 6)  # steps; an epoch has 5, or more if ranks have separate streams
EXACT, REJECTED = "exact", "rejected"


def go_to(loader: Loader, step: int) -> Loader:
    for _ in loader.steps(step):
        pass
    return loader


def rejected(load: Callable[[], Any]) -> str:
    """Return what rejects a load: an error that says what to do, or DCP's of a leaf that is not there; else nothing."""
    try:
        load()
    except StateError as error:
        advised = "pass it loader.dcp() instead of the Loader" in str(error) or str(error).startswith(
            "world_size differs"
        )
        return REJECTED if advised else f"without advice: {error}"
    except CheckpointException as error:
        reasons = [str(failure) for failure, _ in error.failures.values()]
        known = (
            "Missing key in checkpoint state_dict: loader.",
            "Size mismatch",
            "Invalid checkpoint metadata for loader",
        )
        return REJECTED if all(reason.startswith(known) for reason in reasons) else f"by DCP: {reasons}"
    return ""


# ------------------------------------------------------------------ loaders of each kind, at other places, on two ranks


def save(rank: int, size: int, folder: Path) -> None:
    for name, make in LOADERS.items():
        loader = make(World(rank, size))
        for step in SAVED:
            dcp.save({"loader": go_to(loader, step)}, checkpoint_id=folder / name / str(step))


def load(rank: int, size: int, folder: Path, steps: tuple[int, ...]) -> dict[tuple[str, int, int], Any]:
    found: dict[tuple[str, int, int], Any] = {}
    for name, step, before in itertools.product(LOADERS, steps, ELSEWHERE):
        fresh, path = go_to(LOADERS[name](World(rank, size)), before), folder / name / str(step)
        why = rejected(lambda: dcp.load({"loader": fresh}, checkpoint_id=path))  # noqa: B023  # called here
        found[name, step, before] = why or rest(fresh)
    return found


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 2), (2, 1), (1, 2)])
def test_no_loader_is_loaded_as_a_mixture(tmp_path: Path, old: int, new: int) -> None:
    assert ranks(old, save, tmp_path) == [None] * old
    steps = SAVED if old == new else SAVED[1::2]
    found = ranks(new, load, tmp_path, steps, seconds=300)
    assert all(len(one) == len(LOADERS) * len(steps) * len(ELSEWHERE) for one in found)
    for name, step, before in found[0]:
        outcomes, where = [one[name, step, before] for one in found], (name, step, before)
        if name in OWN and old + new > 2:
            assert outcomes == [REJECTED] * new, where
        elif name != "growing" or outcomes != [REJECTED]:
            wanted = [one[step:] for one in run_of(name, old)]
            assert together(outcomes) == together(wanted), where


def together(per_rank: list[Any]) -> list[Any]:
    """Return the global batches, or the ranks' outcomes together."""
    return [[sample for part in parts for sample in part] for parts in zip(*per_rank, strict=True)]


def save_apart(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Save while the ranks are at different steps, each leaf from some rank, and from rank 0 alone."""
    found: dict[str, Any] = {}
    for name, lowest in itertools.product(LOADERS, (False, True)):
        loader = go_to(LOADERS[name](World(rank, size)), 3 + rank)
        path, fresh = folder / f"{name}{lowest}", LOADERS[name](World(rank, size))
        planner = DefaultSavePlanner(dedup_save_to_lowest_rank=lowest)
        dcp.save({"loader": loader}, checkpoint_id=path, planner=planner)
        why = rejected(lambda: dcp.load({"loader": fresh}, checkpoint_id=path))  # noqa: B023  # called here
        found[f"{name}, {'rank 0' if lowest else 'both ranks'}"] = why or fresh.global_step
    return found


def test_ranks_at_different_steps_are_not_mixed(tmp_path: Path) -> None:
    """If rank 0 writes all leaves, both ranks get its state, or the one with a separate stream rejects it."""
    found = ranks(2, save_apart, tmp_path)
    for rank, one in enumerate(found):
        for name in LOADERS:
            assert one[f"{name}, both ranks"] == REJECTED, name
            allowed = {REJECTED} if rank and name in OWN else {3, REJECTED} if name == "growing" else {3}
            assert one[f"{name}, rank 0"] in allowed, name


# ------------------------------------------------------------------ snapshots of each shape


class Opaque:
    """A value that only pickle knows."""

    def __init__(self, value: Any) -> None:
        self.value = value


SHAPES: dict[str, Callable[[int], Any]] = {
    "nothing": lambda _: None,
    "a number": lambda n: n,
    "a fraction": lambda n: n + 0.5,
    "a truth": lambda n: n % 2 == 0,
    "a text": lambda n: f"at {n}",
    "bytes": lambda n: bytes([n]),
    "no list": lambda _: [],
    "a list": lambda n: [n, 2, 3],
    "a longer list": lambda n: [n, 2, 3, 4],
    "a list of lists": lambda n: [[n], [2, [3]]],
    "a list of a dict": lambda n: [{"value": n}],
    "a list of two dicts": lambda n: [{"value": n}, {"value": n + 1}],
    "a list of three dicts": lambda n: [{"value": n}, {"value": n + 1}, {"value": n + 2}],
    "a list of dicts of different keys": lambda n: [{"value": n}, {"other": n}],
    "a tuple": lambda n: (n, 2),
    "a tuple of dicts": lambda n: ({"value": n}, {"value": n + 1}),
    "a set": lambda n: {n, 100},
    "no dict": lambda _: {},
    "a dict": lambda n: {"value": n},
    "a larger dict": lambda n: {"value": n, "more": n},
    "a dict of no dict": lambda n: {"value": n, "inside": {}},
    "a dict of a dict": lambda n: {"value": n, "inside": {"value": n}},
    "numbers as keys": lambda n: {1: n, 2: n},
    "more numbers as keys": lambda n: {1: n, 2: n, 3: n},
    "other numbers as keys": lambda n: {n: 1},
    "truths as keys": lambda n: {True: n},
    "tuples as keys": lambda n: {("a", 1): n},
    "a tensor": lambda n: torch.tensor([n, 2]),
    "a tensor of fractions": lambda n: torch.tensor([n, 2.0]),
    "a larger tensor": lambda n: torch.tensor([n, 2, 3]),
    "a tensor without axes": torch.tensor,
    "a list of tensors": lambda n: [torch.tensor([n]), torch.tensor([2])],
    "a longer list of tensors": lambda n: [torch.tensor([n]), torch.tensor([2]), torch.tensor([3])],
    "an array": lambda n: np.array([n, 2]),
    "a number of NumPy": np.int64,
    "an object": lambda n: Opaque([n]),
    "a list of objects": lambda n: [Opaque(n), Opaque(2)],
}


class Shaped(Counted):
    """A stream with a state of any shape."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "own": self.own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.own = state["at"], state["own"]


def shaped(own: Any, world: World | None = None) -> Loader:
    return resumable.wrap(Shaped(own), batch_size=4, tail="drop", seed=0, shard=False, world=world or World())


def same(one: Any, other: Any) -> bool:
    """Return whether two states are the same, keys and types included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Opaque):
        return same(one.value, other.value)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def unordered(state: Any) -> Any:
    """Return a state with the keys of its dicts in one order: DCP writes keys anew, after those that were there."""
    if isinstance(state, dict):
        return {key: unordered(state[key]) for key in sorted(state, key=repr)}
    if isinstance(state, (list, tuple)):
        return type(state)(map(unordered, state))
    return state


@pytest.mark.parametrize("partial", [False, True])
def test_a_snapshot_whose_shape_changed_is_exact_or_rejected(tmp_path: Path, partial: bool) -> None:
    """Each shape is saved, and loaded into a Loader that has any shape then; DCP may also skip missing leaves."""
    exact = set()
    for name, make in SHAPES.items():
        saved = go_to(shaped(make(3)), 2)
        state = saved.state_dict()
        dcp.save({"loader": saved}, checkpoint_id=tmp_path / name, no_dist=True)
        for other, elsewhere in SHAPES.items():
            fresh = go_to(shaped(elsewhere(4)), 1)
            planner = DefaultLoadPlanner(allow_partial_load=partial)
            why = rejected(
                lambda: dcp.load({"loader": fresh}, checkpoint_id=tmp_path / name, planner=planner, no_dist=True)  # noqa: B023  # called here
            )
            if not why:
                assert same(unordered(fresh.state_dict()), unordered(state)), (name, other, fresh.state_dict())
                exact.add((name, other))
            else:
                assert why == REJECTED, (name, other, why)
    of_equal_shape = {name for name, other in exact if name == other}
    assert set(SHAPES) - of_equal_shape <= {name for name in SHAPES if "as keys" in name}  # which DCP makes texts


def mix(rank: int, size: int, folder: Path) -> dict[str, str]:
    """Save snapshots of one shape that differ between the ranks."""
    found: dict[str, str] = {}
    for name, make in SHAPES.items():
        saved = go_to(shaped(make(3 + rank), World(rank, size)), 2)
        dcp.save({"loader": saved}, checkpoint_id=folder / name)
        fresh = go_to(shaped(make(7), World(rank, size)), 1)
        why = rejected(lambda: dcp.load({"loader": fresh}, checkpoint_id=folder / name))  # noqa: B023  # called here
        found[name] = why or (EXACT if same(unordered(fresh.state_dict()), unordered(saved.state_dict())) else "mixed")
    return found


def test_snapshots_of_two_ranks_are_not_mixed(tmp_path: Path) -> None:
    found = ranks(2, mix, tmp_path)
    for name in SHAPES:
        outcomes = [one[name] for one in found]
        assert REJECTED in outcomes, name
        assert set(outcomes) <= {EXACT, REJECTED}, (name, outcomes)


# ------------------------------------------------------------------ other parts of a state that come and go


def resized(batch_size: int, *then: int) -> Loader:
    """Return a loader whose global batch was changed in the middle of the run, as its journal says."""
    loader = go_to(_list(batch_size), 2)
    for size in then:
        state, loader = loader.state_dict(), _list(size)
        loader.load_state_dict(state)
        go_to(loader, loader.global_step + 1)
    return loader


def _list(batch_size: int, **options: Any) -> Loader:
    return resumable.wrap(list(range(48)), batch_size=batch_size, shuffle=True, seed=0, on_change="continue", **options)


def left(*steps: int) -> Loader:
    """Return a loader of a source with a state, of which some epochs were left after so many steps."""
    loader = shaped(3)
    for epoch, step in zip(loader.epochs(len(steps) + 1), steps, strict=False):
        for _ in epoch:
            if loader.cursor.step == step:
                break
    return loader


PLACES: dict[str, Callable[[], Loader]] = {
    "list": lambda: _list(4),
    "list, later": lambda: go_to(_list(4), 13),
    "list, not looked at": lambda: go_to(_list(4, checks="ranks"), 3),
    "resized": lambda: resized(4, 6),
    "resized twice": lambda: resized(4, 6, 8),
    "stream": lambda: shaped(3),
    "stream, later": lambda: go_to(shaped(3), 2),
    "stream, at an epoch's end": lambda: go_to(shaped(3), 15),
    "stream, left": lambda: left(2),
    "stream, left twice": lambda: left(2, 1),
}


def test_parts_that_come_and_go_are_exact_or_rejected(tmp_path: Path) -> None:
    exact = set()
    for name, elsewhere in itertools.product(PLACES, PLACES):
        saved, fresh = PLACES[name](), PLACES[elsewhere]()
        if name.partition(",")[0].removesuffix(" twice") != elsewhere.partition(",")[0].removesuffix(" twice") and (
            "stream" in name or "stream" in elsewhere
        ):
            continue
        dcp.save({"loader": saved}, checkpoint_id=tmp_path / name, no_dist=True)
        why = rejected(lambda: dcp.load({"loader": fresh}, checkpoint_id=tmp_path / name, no_dist=True))  # noqa: B023  # called here
        if why:
            assert why == REJECTED, (name, elsewhere, why)
            continue
        assert fresh.state_dict() == saved.state_dict(), (name, elsewhere)
        assert rest_of(fresh) == rest_of(saved), (name, elsewhere)
        exact.add((name, elsewhere))
    assert {(name, name) for name in PLACES} <= exact


def rest_of(loader: Loader) -> list[Any]:
    return [batch for epoch in loader.epochs(4) for batch in epoch]
