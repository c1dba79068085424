"""CheckpointStore: which steps there are, and which are kept."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from stores import CONTENT, data_file, make_store, new_root

from resumable.checkpoint import CheckpointStore
from resumable.checkpoint.marker import MARKER
from resumable.checkpoint.steps import TOKEN
from resumable.errors import CheckpointNotFoundError, StepOrderWarning


@pytest.fixture(params=["local", "file", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_root(request.param, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return make_store(tmp_path / "run")


@pytest.mark.filterwarnings("ignore::resumable.errors.StepOrderWarning")  # each run is a new one
def test_steps_are_ordered_by_number_not_by_time_or_spelling(root: str) -> None:
    steps = [10**13, 9, 10, 0, 10**12, 10**12 - 1]
    for step in steps:
        store = CheckpointStore(root)
        store.save(np.int64(step), {"step": step})
    assert store.steps() == sorted(steps)
    assert store.latest() == {"step": 10**13}


def test_file_times_do_not_matter(store: CheckpointStore) -> None:
    for age, path in enumerate(sorted(Path(store.root).rglob("*"), reverse=True)):
        os.utime(path, (age, age))
    assert store.latest_step() == 3


def test_foreign_names_are_no_steps(store: CheckpointStore) -> None:
    for name in ("step-5", "step-0000000000009", "step-00000000000x", "other"):
        (Path(store.root) / name).mkdir()
        (Path(store.root) / name / MARKER).write_text("{}")
    (Path(store.root) / "notes.txt").write_text("mine")
    store.save(4, {"step": 4})
    assert store.steps() == [1, 2, 3, 4]
    assert (Path(store.root) / "notes.txt").exists()


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_steps_are_kept(root: str, keep: int) -> None:
    store = CheckpointStore(root, keep=keep)
    for step in range(8):
        store.save(step, {"step": step})
        assert store.steps() == list(range(max(0, step + 1 - keep), step + 1))
        assert [store.load(kept)["step"] for kept in store.steps()] == store.steps()


def test_pruning_leaves_no_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    for step in range(3):
        store.save(step, CONTENT)
    assert {path.name for path in tmp_path.iterdir()} == {TOKEN, "step-000000000002"}


def test_the_step_just_saved_is_never_pruned(store: CheckpointStore) -> None:
    again = CheckpointStore(store.root, keep=2)
    with pytest.warns(StepOrderWarning):
        again.save(0, {"step": 0})
    assert again.steps() == [0, 2, 3]
    again.save(1, {"step": 1})
    assert again.steps() == [1, 2, 3]


def test_a_store_with_less_to_keep_prunes_at_the_next_save_only(store: CheckpointStore) -> None:
    small = CheckpointStore(store.root, keep=1)
    assert small.steps() == [1, 2, 3]
    small.save(4, {"step": 4})
    assert small.steps() == [4]


def test_saving_a_step_again_replaces_it(root: str) -> None:
    store = CheckpointStore(root, keep=2)
    for version in range(3):
        store.save(7, {"version": version})
        assert store.load(7) == {"version": version}
    assert store.steps() == [7]


def test_saving_a_step_again_leaves_one_data_file(store: CheckpointStore) -> None:
    old = data_file(store, 3)
    store.save(3, {"step": 3, "again": True})
    assert data_file(store, 3) != old
    assert store.load(3)["again"]


def test_delete_removes_one_step(root: str) -> None:
    store = CheckpointStore(root)
    for step in (1, 2):
        store.save(step, CONTENT)
    store.delete(2)
    assert (store.steps(), store.latest_step()) == ([1], 1)
    with pytest.raises(CheckpointNotFoundError, match=r"(?s)step 2 .* deleted.*requested: 2\n  committed: 1\nUse a"):
        store.delete(2)


def test_a_step_that_is_not_there_is_named_with_those_that_are(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"(?s)step 4 .*requested: 4\n  committed: 1, 2, 3\nUse .*latest"):
        store.load(4)
    for step in range(4, 15):
        store.save(step, {})
    with pytest.raises(CheckpointNotFoundError, match=r"committed: 5, 6, .*, 14 and 4 earlier ones"):
        store.load(99)
