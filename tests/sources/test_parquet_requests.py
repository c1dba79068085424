"""How many requests Parquet files in an object store take: counted, for each order, with and without workers."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counted_files import ranges_of
from torch.utils.data import DataLoader

import resumable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::resumable.errors.ShuffleWarning")  # windows of few row groups

ROWS, GROUP = 400, 8
ROOM = 1_400  # bytes, of two windows of five row groups


def write(folder: Path) -> None:
    for part in (0, 200):
        ids = list(range(part, part + 200))
        rows = {"id": ids, "half": [number / 2 for number in ids], "far": [bytes(20_000)] * 200, "last": ids}
        pq.write_table(
            pa.table(rows),
            folder / f"part-{part}.parquet",
            row_group_size=GROUP,
            compression="none",
            use_dictionary=False,
        )


def source(folder: Path, *columns: str, **given: Any) -> Any:
    storage = {"log": str(folder / "log")}
    return resumable.Parquet(
        f"counted://{folder}/*.parquet", columns=columns or ["id"], cache_bytes=ROOM, storage_options=storage, **given
    )


def groups_of(folder: Path) -> Counter[str]:
    """Return how often each range was read since the last call; those of footers left out."""
    begins = {}
    for path in folder.glob("*.parquet"):
        content = path.read_bytes()
        begins[path.name] = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    lines = (line.split() for line in ranges_of(folder / "log"))
    return Counter(f"{name} {start}" for name, start, stop in lines if int(stop) <= begins[name])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def test_blocks_take_one_request_per_row_group(folder: Path) -> None:
    """In blocks, each row group is one request per epoch and comes before its window."""
    rows = source(folder, transform=itemgetter("id"))
    window = rows.resumable_blocks["window"]
    assert window == 5
    loader = resumable.wrap(rows, batch_size=GROUP, shuffle="blocks", seed=3)
    groups_of(folder)
    found, requests, steps = [], Counter[str](), ROWS // GROUP
    for number, batch in enumerate(loader.steps(2 * steps), start=1):
        found += batch
        requests += (now := groups_of(folder))
        assert number == 1 or sum(now.values()) <= 3, "a window was read at once, at its border"
        if number % window == 0:
            assert len(requests) == min(number + window, steps), "the next window was not there when it began"
    assert Counter(found) == dict.fromkeys(range(ROWS), 2)
    assert max(requests.values()) <= 2 + 1  # of the epoch that would follow
    assert 2 * steps - 2 * window <= sum(requests.values()) <= 2 * steps + window  # some are kept into the next epoch


def test_in_sequence_each_row_group_is_one_request(folder: Path) -> None:
    loader = resumable.wrap(source(folder, transform=itemgetter("id")), batch_size=12)
    groups_of(folder)
    assert [number for batch in loader for number in batch] == list(range(ROWS))
    assert set(groups_of(folder).values()) == {1}


@pytest.mark.slow
def test_each_worker_requests_a_row_group_once_per_epoch(folder: Path) -> None:
    data: Any = source(folder, transform=itemgetter("id"))
    loader = resumable.wrap(DataLoader(data, GROUP, num_workers=2, collate_fn=list), shuffle="blocks", seed=3)
    groups_of(folder)
    found = [number for batch in loader.steps(ROWS // GROUP) for number in batch]
    assert sorted(found) == list(range(ROWS))
    requests = groups_of(folder)
    assert max(requests.values()) <= 2 + 2  # by each of them; and ahead of the next epoch
    assert sum(requests.values()) <= 2 * (ROWS // GROUP + 2 * 5)


def test_a_full_shuffle_costs_a_request_for_nearly_every_row(folder: Path) -> None:
    """As the page on Parquet says; so it is what the order in blocks is measured by."""
    loader = resumable.wrap(source(folder, transform=itemgetter("id")), batch_size=GROUP, shuffle=True, seed=3)
    groups_of(folder)
    list(loader.steps(ROWS // GROUP))
    assert sum(groups_of(folder).values()) > ROWS / 2


def test_neighbouring_columns_are_one_request(folder: Path) -> None:
    """Neighbouring columns are one request, and other columns are not fetched."""
    for columns, count in ((("id", "half"), 1), (("id", "last"), 2)):
        rows = source(folder, *columns)
        groups_of(folder)
        assert set(rows[GROUP]) == set(columns)
        assert sum(groups_of(folder).values()) == count
    large = source(folder, "id", "far", "last")
    groups_of(folder)
    assert len(large[3]["far"]) == 20_000
    assert sum(groups_of(folder).values()) == 1
