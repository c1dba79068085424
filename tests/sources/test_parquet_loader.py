"""Parquet files in a Loader: each order, with workers, killed at every step, in mixtures, and refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_files import ROWS, plain, table, write
from torch.utils.data import DataLoader, Subset

import resumable
from resumable import World
from resumable.errors import StateMismatchError
from resumable.testing import BackendTests

pytestmark = pytest.mark.filterwarnings("ignore::resumable.errors.ShuffleWarning")  # windows of few row groups

FOLDER = tempfile.TemporaryDirectory(prefix="parquet-")  # a fresh process makes the same files
NAMES = ["id", "tokens", "point"]


@cache
def paths() -> tuple[Path, ...]:
    return tuple(write(Path(FOLDER.name)))


def source(**options: Any) -> Any:
    return resumable.Parquet(paths(), **{"columns": NAMES, "cache_bytes": 4000, **options})


def alone(**options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(source(), **{"batch_size": 12, "shuffle": "blocks", "seed": 3, "tail": "carry", **options})


def drawn(sample: dict[str, Any]) -> Any:
    """Return a sample with an augmentation."""
    return plain(sample), float(np.random.random())


def in_torch(workers: int = 0, order: str = "blocks", data: Any = None, size: int = 12) -> resumable.Loader[Any]:
    """Return a DataLoader wrapped, with its samples in turn, in the order of a shuffle or in one of blocks."""
    loader: DataLoader[Any] = DataLoader(
        data or source(transform=drawn), size, shuffle=order == "shuffle", num_workers=workers, collate_fn=list
    )
    return resumable.wrap(loader, shuffle="blocks" if order == "blocks" else None, seed=3)


# ---------------------------------------------------------------------- the conformance suite, for each order


class _Parquet(BackendTests):
    shared = True
    stride = 4
    options: Any = {}

    others = {
        "files": lambda: resumable.wrap(resumable.Parquet(paths()[:2], columns=NAMES), batch_size=12),
        "kind": lambda: resumable.wrap(lambda: iter(range(88)), batch_size=12),
    }


class TestShuffled(_Parquet):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(source(transform=drawn), **{"batch_size": 12, "shuffle": True, **options})

    others = {**_Parquet.others, "batch": lambda: TestShuffled.make(batch_size=6)}


class TestInBlocks(_Parquet):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(source(transform=drawn), **{"batch_size": 12, "shuffle": "blocks", **options})

    others = {**_Parquet.others, "sampler": lambda: TestInBlocks.make(shuffle=False)}


class TestSequential(_Parquet):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(source(transform=plain), **{"batch_size": 12, **options})

    others = {**_Parquet.others, "sampler": TestInBlocks.make}


_IN_TORCH = {
    "files": lambda: in_torch(data=resumable.Parquet(paths()[:2], columns=NAMES)),
    "kind": TestInBlocks.make,
}


class TestDataLoader(_Parquet):
    others = _IN_TORCH

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        loader: DataLoader[Any] = DataLoader(source(transform=drawn), batch_size=12, collate_fn=list)
        return resumable.wrap(loader, **{"shuffle": "blocks", **options})


@pytest.mark.slow
@pytest.mark.long  # as the other class here
class TestWorkers(_Parquet):
    epochs = 2
    others = _IN_TORCH

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        loader: DataLoader[Any] = DataLoader(
            source(transform=drawn), batch_size=30, collate_fn=list, num_workers=2, persistent_workers=True
        )
        return resumable.wrap(loader, **{"shuffle": "blocks", "tail": "drop", **options})


# ---------------------------------------------------------------------- the order, and what is in it


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_values_in_a_loader_are_those_of_pyarrow(shuffle: Any) -> None:
    expected = pa.concat_tables(pq.read_table(path, columns=NAMES) for path in paths()).to_pylist()
    loader = alone(shuffle=shuffle, tail="partial")
    for epoch in range(2):
        steps = [loader.sample_indices(epoch=epoch, step=step) for step in range(8)]
        found = [[plain(sample) for sample in batch] for batch in loader]
        assert found == [[expected[index] for index in step] for step in steps]
        assert sorted(index for step in steps for index in step) == list(range(sum(ROWS)))


@pytest.mark.slow
def test_workers_read_the_same_with_the_same_augmentations() -> None:
    expected = list(in_torch().steps(20))
    assert list(in_torch(2).steps(20)) == expected
    whole = [sample for sample, _ in (one for batch in expected for one in batch)]
    sequence = resumable.wrap(source(transform=drawn), batch_size=12, shuffle="blocks", seed=3, tail="partial")
    assert [one[0] for batch in sequence.steps(20) for one in batch] == whole


@pytest.mark.parametrize("shuffle", [False, True, "blocks"])
def test_ranks_come_and_go_in_the_middle(shuffle: Any) -> None:
    """4 -> 3 -> 1 -> 2 ranks, by JSON, over several epochs."""
    expected = [list(map(plain, batch)) for batch in alone(shuffle=shuffle).steps(20)]
    state, found = None, []
    for ranks, until in ((4, 3), (3, 9), (1, 13), (2, 20)):
        parts, after = [], []
        for rank in range(ranks):
            loader = alone(shuffle=shuffle, batch_size=12 // ranks, world=World(rank, ranks))
            if state is not None:
                loader.load_state_dict(json.loads(state))
            parts.append([list(map(plain, batch)) for batch in loader.steps(until)])
            after.append(json.dumps(loader.state_dict()))
        found += [[sample for part in step for sample in part] for step in zip(*parts, strict=True)]
        state = after[-1]
        assert len(state) < 1024
    assert found == expected


def test_a_subset_and_a_plain_data_loader_read_it() -> None:
    ids = [sample["id"] for sample in map(Subset(source(), [80, 3, 41]).__getitem__, range(3))]
    assert ids == [80, 3, 41]
    loader: DataLoader[Any] = DataLoader(source(), batch_size=8, shuffle=True, collate_fn=list)
    assert sorted(sample["id"] for batch in loader for sample in batch) == list(range(88))
    wrapped = resumable.wrap(DataLoader(Subset(source(), range(20)), batch_size=4, shuffle=True, collate_fn=list))
    assert sorted(sample["id"] for batch in wrapped for sample in batch) == list(range(20))


def test_a_window_that_was_chosen_stays_with_the_state() -> None:
    """Another size of the cache is no other order."""
    loader = alone()
    expected = [list(map(plain, batch)) for batch in loader.steps(20)]
    first = alone()
    list(first.steps(3))
    state = first.state_dict()
    assert state["sampler"]["window"] < 13
    other = resumable.wrap(source(cache_bytes=1 << 20), batch_size=12, shuffle="blocks", seed=3, tail="carry")
    other.load_state_dict(state)
    assert [list(map(plain, batch)) for batch in other.steps(20)] == expected[3:]


# ---------------------------------------------------------------------- killed

KILLED = """
import json, os, signal, sys
from pathlib import Path
from test_parquet_loader import NAMES, drawn, in_torch
import resumable, warnings
warnings.simplefilter("ignore", resumable.errors.ShuffleWarning)
folder = Path(sys.argv[1])

def one_step(order, workers, steps):
    source = resumable.Parquet(folder / "*.parquet", columns=NAMES, cache_bytes=4000, transform=drawn)
    loader = in_torch(workers, order, source, 24)
    place = folder / "state.json"
    if place.exists():
        loader.load_state_dict(json.loads(place.read_text()))
    for batch in loader.steps(steps):
        with (folder / "read").open("a") as log:
            log.write(json.dumps(batch) + "\\n")
        (folder / "new").write_text(json.dumps(loader.state_dict()))
        (folder / "new").replace(place)
        os.kill(os.getpid(), signal.SIGKILL)

for order, workers in (("turn", 0), ("shuffle", 0), ("blocks", 0), ("blocks", 2)):
    for step in range(10):
        child = os.fork()
        if not child:
            one_step(order, workers, 10)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (folder / "read").rename(folder / f"read-{order}-{workers}")
    (folder / "state.json").unlink()
"""


@pytest.mark.slow
@pytest.mark.long
def test_killed_after_each_step(tmp_path: Path) -> None:
    """A run that is killed after each step reads the same as one without kills.

    A process for each step, ended by SIGKILL with its workers; over three epochs.
    """
    write(tmp_path)
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        KILLED,
        str(tmp_path),
    ]
    subprocess.run(command, check=True)
    for order, workers in (("turn", 0), ("shuffle", 0), ("blocks", 0), ("blocks", 2)):
        read = [json.loads(line) for line in (tmp_path / f"read-{order}-{workers}").read_text().splitlines()]
        expected = json.loads(json.dumps(list(in_torch(order=order, size=24).steps(10))))
        assert read == expected


# ---------------------------------------------------------------------- in a mixture


def mixture() -> Any:
    listed = [{"id": 1000 + number} for number in range(30)]
    return resumable.mix({"rows": source(), "list": listed}, weights={"rows": 0.75, "list": 0.25}, named=True)


def mixed(batch_size: int = 12, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(mixture(), batch_size=batch_size, seed=3, **options)


def named(steps: Any) -> list[list[tuple[str, int]]]:
    return [[(name, sample["id"]) for name, sample in step] for step in steps]


def test_a_mixture_has_its_rows_and_resumes_at_every_step() -> None:
    loader, states = mixed(), []
    found = []
    for batch in loader.steps(16):
        found += named([batch])
        states.append(json.dumps(loader.state_dict()))
    assert {sum(name == "rows" for name, _ in step) for step in found} <= {8, 9, 10}
    rows = [index for step in found for name, index in step if name == "rows"]
    assert sorted(rows[:88]) == list(range(88))
    for step, state in enumerate(states):
        resumed = mixed()
        resumed.load_state_dict(json.loads(state))
        assert named(resumed.steps(16)) == found[step + 1 :]


def test_a_mixture_of_other_files_is_refused(tmp_path: Path) -> None:
    state = mixed().state_dict()
    changed = write(tmp_path, ROWS)
    pq.write_table(table(1, 50), changed[1], row_group_size=8)
    other = resumable.mix({"rows": resumable.Parquet(changed), "list": [{"id": 1000 + number} for number in range(30)]})
    del other._plan["weights"]  # the same mixture
    other._plan["weights"] = {"rows": 0.75, "list": 0.25}  # likewise
    with pytest.raises(StateMismatchError, match="has changed since the checkpoint"):
        resumable.wrap(other, batch_size=12, seed=3).load_state_dict(state)


# ---------------------------------------------------------------------- refused by name


def changed(folder: Path, change: str) -> dict[str, Any]:
    files = write(folder)
    if change == "backend.files":
        files[2] = files[2].rename(folder / "other.parquet")
    elif change == "backend.footers":
        pq.write_table(table(1, 50), files[1], row_group_size=8)
    elif change == "backend.rows":
        pq.write_table(table(37, 50), files[1], row_group_size=9)
    elif change == "backend.columns":
        for number, path in enumerate(files):
            rows = table(sum(ROWS[:number]), ROWS[number])
            pq.write_table(rows.set_column(0, "id", rows["id"].cast(pa.int32())), path, row_group_size=8)
    elif change == "backend.length":
        return {"files": files, "filters": [("id", ">", 7)]}
    elif change == "order":
        return {"files": files[::-1]}
    return {"files": files}


@pytest.mark.parametrize("workers", [None, 0])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("backend.files", "backend.files"),
        ("backend.footers", "backend.footers"),
        ("backend.rows", "backend.rows"),
        ("backend.columns", "backend.columns"),
        ("backend.length", "backend.rows"),
        ("order", "backend.files"),
    ],
)
def test_a_state_of_other_files_is_refused_by_name(
    change: str, field: str, workers: int | None, tmp_path: Path
) -> None:
    def make(**given: Any) -> resumable.Loader[Any]:
        data: Any = resumable.Parquet(**{"files": paths(), "columns": NAMES, **given})
        if workers is None:
            return resumable.wrap(data, batch_size=12, shuffle=True)
        return resumable.wrap(DataLoader(data, batch_size=12, shuffle=True, collate_fn=list))

    state = json.loads(json.dumps(make().state_dict()))
    make(files=write(tmp_path)).load_state_dict(state)
    other = make(**changed(tmp_path, change))
    with pytest.raises(StateMismatchError, match=rf"{field} differs"):
        other.load_state_dict(state)


def test_other_columns_and_filters_are_refused_by_name() -> None:
    state = resumable.wrap(source(), batch_size=12).state_dict()
    for given, field in (({"columns": ["id"]}, "columns"), ({"filters": [("id", "<", 80)]}, "rows")):
        with pytest.raises(StateMismatchError, match=rf"backend.{field} differs"):
            resumable.wrap(source(**given), batch_size=12).load_state_dict(state)
