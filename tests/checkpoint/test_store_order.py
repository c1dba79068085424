"""CheckpointStore: a step below the newest one is not what `latest()` gives, so it is refused or told."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from stores import data_file, make_store, marker_file, new_root, unchanged

import resumable
from resumable.checkpoint import CheckpointStore
from resumable.errors import ConfigurationError, StepOrderWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REFUSED = (
    r"(?s)step {0} was not saved .*step to save: +{0}\n.*loaded already: +{1}\n.*in the store: +{2}\n.*global_step"
)
TOLD = r"(?s)step {0} was saved .*saved now: +{0}\n.*in the store: +{1}\n.*separate folder"


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made = new_root(request.param, tmp_path)
    store = CheckpointStore(made)
    for step in (10, 20, 30):
        store.save(step, {"step": step})
    return made


def save(store: CheckpointStore, *steps: int) -> None:
    """Save steps, none of which is warned about."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in steps:
            store.save(step, {"step": step})


# ---------------------------------------------------------------------- one run


@pytest.mark.parametrize("come_to", ["latest", "load", "save"])
@pytest.mark.parametrize("step", [0, 15, 29])
def test_a_run_that_counts_backwards_is_refused(root: str, come_to: str, step: int) -> None:
    store = CheckpointStore(root, keep=1)
    if come_to == "save":
        store.save(30, {"step": 30})
    else:
        assert (store.latest() if come_to == "latest" else store.load(30)) == {"step": 30}
    kept = store.steps()
    with pytest.raises(ConfigurationError, match=REFUSED.format(step, 30, 30)):
        store.save(step, {"step": step})
    assert (store.steps(), store.latest_step()) == (kept, 30)
    save(store, 30, 31)
    with pytest.raises(ConfigurationError, match=REFUSED.format(30, 31, 31)):
        store.save(30, {})


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with unchanged(tmp_path), pytest.raises(ConfigurationError, match="already saved or loaded"):
        store.save(2, {"step": 2})


def test_growing_batch_size(tmp_path: Path) -> None:
    """A batch size that grows is found, and `global_step` continues.

    The number of many scripts, `epoch * len(epoch) + step`, counts backwards; `global_step` does not.
    """

    def train(name: str, size: int, epochs: int, number: Callable[[Any, Any], int]) -> list[int]:
        loader = resumable.wrap(list(range(24)), batch_size=size, seed=0, on_change="continue")
        store = CheckpointStore(tmp_path / name)
        if (last := store.latest()) is not None:
            loader.load_state_dict(last)
        for epoch in loader.epochs(epochs):
            for _ in epoch:
                store.save(number(loader, epoch), loader.state_dict())
        return store.steps()

    def naive(loader: Any, epoch: Any) -> int:
        return int(epoch.number * len(epoch) + loader.cursor.step)

    train("naive", 2, 2, naive)
    with pytest.raises(ConfigurationError, match=REFUSED.format(7, 24, 24)):
        train("naive", 8, 4, naive)
    assert train("right", 2, 2, lambda loader, _: int(loader.global_step))[-1] == 24
    assert train("right", 8, 4, lambda loader, _: int(loader.global_step)) == list(range(1, 31))


# ---------------------------------------------------------------------- another run


@pytest.mark.parametrize("step", [0, 15, 29])
def test_a_new_run_in_an_old_folder_is_told_once(root: str, step: int) -> None:
    store = CheckpointStore(root)
    with pytest.warns(StepOrderWarning, match=TOLD.format(step, 30)) as told:
        store.save(step, {"new": True})
    assert [warning.filename for warning in told] == [__file__]
    assert store.load(step) == {"new": True}
    save(store, step, step + 1, 40)
    with pytest.raises(ConfigurationError, match=REFUSED.format(35, 40, 40)):
        store.save(35, {})


def test_a_run_that_looks_first_and_one_above_are_not_told(root: str) -> None:
    save(CheckpointStore(root), 30)
    save(CheckpointStore(root), 31)
    save(CheckpointStore(f"{root}-other"), 1)


@pytest.mark.parametrize("damage", ["data", "marker", "missing", "all"])
def test_a_later_step_that_is_corrupt_is_none(tmp_path: Path, damage: str) -> None:
    """As `latest()` skips it: the run goes on from the step before, and its next save may be below."""
    store = make_store(tmp_path)
    for step in (3, 2) if damage == "all" else (3,):
        path = marker_file(store, step) if damage == "marker" else data_file(store, step)
        path.unlink() if damage == "missing" else path.write_bytes(b"garbage")
    again = CheckpointStore(tmp_path)
    if damage == "all":
        save(again, 1)
        return
    with pytest.warns(resumable.errors.CorruptCheckpointWarning):
        assert again.latest()["step"] == 2  # type: ignore[index]  # there is one
    save(again, 2)


def test_a_later_step_of_a_newer_version_is_one(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    marker_file(store, 3).write_text('{"format": 3}')
    with pytest.warns(StepOrderWarning, match=TOLD.format(2, 3)):
        CheckpointStore(tmp_path).save(2, {"step": 2})


# ---------------------------------------------------------------------- going back on purpose


def test_run_that_loads_an_earlier_step(root: str) -> None:
    """A run that loads an earlier step may continue from it and is told."""
    store = CheckpointStore(root)
    store.latest()
    store.load(10)
    with pytest.warns(StepOrderWarning, match=TOLD.format(12, 30)):
        store.save(12, {"step": 12})
    save(store, 13, 14)
    with pytest.raises(ConfigurationError, match=REFUSED.format(11, 14, 30)):
        store.save(11, {})
    store.load(10)
    with pytest.warns(StepOrderWarning, match=TOLD.format(11, 30)):
        store.save(11, {"step": 11})


@pytest.mark.parametrize("loads", [True, False])
def test_a_run_that_deletes_what_it_left_is_not_told(root: str, loads: bool) -> None:
    store = CheckpointStore(root)
    store.latest()
    if loads:
        store.load(10)
    for step in (20, 30):
        store.delete(step)
    save(store, 15, 20, 30)
    assert store.latest() == {"step": 30}


def test_a_run_that_deleted_counts_from_where_it_went_back_to(root: str) -> None:
    store = CheckpointStore(root)
    store.latest()
    for step in (20, 30):
        store.delete(step)
    store.save(15, {})
    with pytest.raises(ConfigurationError, match=REFUSED.format(14, 15, 15)):
        store.save(14, {})


def test_looking_does_not_count_as_going_on(root: str) -> None:
    store = CheckpointStore(root)
    assert (store.latest_step(), store.steps()) == (30, [10, 20, 30])
    with pytest.warns(StepOrderWarning):
        store.save(5, {})


def test_an_empty_store_is_the_beginning_of_a_run(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.latest() is None
    save(store, 0, 0, 3)
    for step in range(3):
        with pytest.raises(ConfigurationError):
            store.save(step, {})


def test_looked_at_step_does_not_hold_the_run(tmp_path: Path) -> None:
    """A step that is only looked at does not hold the run that went back."""
    store = CheckpointStore(tmp_path)
    for step in (0, 1, 2):
        store.save(step, {"step": step})
    store.load(1)
    store.load(2)  # to compare, or to evaluate
    with pytest.warns(StepOrderWarning):
        store.save(1, {"step": 1})
    store.load(2)
    with pytest.raises(ConfigurationError, match="has already saved or loaded a later step"):
        store.save(1, {"step": 1})
