"""Which sample was being read when a process died, in one process: what is noted, what is not, and damaged words."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import resumable
from resumable import flight
from resumable._fetch.reading import Reading, Spot, sample_of
from resumable._flight.layout import MOST_READERS, READERS, pack_tallies, parse_tallies
from resumable._flight.records import parse_record
from resumable.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resumable.flight import BeingRead

LENGTH, BATCH = 10, 3
PLACE = "rank-00000.flight"


class Watched:
    """Its own indices; looks at the record while each of them is read."""

    def __init__(self, folder: Path, bad: int | None = None) -> None:
        self.folder, self.bad = folder, bad
        self.seen: list[tuple[int, tuple[BeingRead, ...], str]] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        (record,) = flight.read(self.folder)
        self.seen.append((index, record.reading, record.where))
        if index == self.bad:
            raise ValueError(index)
        return index


class Batches(Watched):
    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        return [self[index] for index in indices]


def wrap(folder: Path, source: Any, **options: Any) -> resumable.Loader:
    return resumable.wrap(source, batch_size=BATCH, identity="it", flight_recorder=folder, **options)


def reading(folder: Path) -> tuple[BeingRead, ...]:
    (record,) = flight.read(folder)
    return record.reading


@pytest.mark.parametrize("randomness", ["sample", "batch", "off"])
def test_each_sample_is_noted_while_it_is_read_and_none_afterwards(randomness: Any, tmp_path: Path) -> None:
    data = Watched(tmp_path)
    loader = wrap(tmp_path, data, shuffle=True, randomness=randomness, collate=lambda _: reading(tmp_path))
    for epoch in loader.epochs(2):
        for at_collate in epoch:
            assert at_collate == reading(tmp_path) == ()
    assert len(data.seen) >= 2 * LENGTH
    for index, noted, where in data.seen:
        assert noted == ((None, index),)
        assert where.endswith(f"while reading sample {index}")


def test_a_sample_that_raises_is_no_longer_read(tmp_path: Path) -> None:
    data = Watched(tmp_path, bad=4)
    loader = wrap(tmp_path, data)
    with pytest.raises(ValueError, match="4"):
        list(loader)
    assert data.seen[-1][:2] == (4, ((None, 4),))
    assert reading(tmp_path) == ()


def test_what_is_read_in_whole_batches_has_no_sample(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds

    data: Any = Batches(tmp_path)
    list(resumable.wrap(DataLoader(data, batch_size=BATCH), randomness="batch", flight_recorder=tmp_path))
    assert [noted for _, noted, _ in data.seen] == [()] * LENGTH
    assert all(where.endswith("while reading") for *_, where in data.seen)
    one_by_one: Any = Batches(tmp_path / "one")
    list(
        resumable.wrap(DataLoader(one_by_one, batch_size=BATCH), randomness="sample", flight_recorder=tmp_path / "one")
    )
    assert [noted for _, noted, _ in one_by_one.seen] == [((None, index),) for index in range(LENGTH)]


def test_a_sampler_of_ones_own_is_noted_where_it_gives_indices(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds

    data: Any = Watched(tmp_path)
    order: Any = [7, "x", 2, -1, 1 << 60]
    loader: Any = DataLoader(data, batch_size=2, sampler=order, collate_fn=list)
    assert list(resumable.wrap(loader, shard=False, flight_recorder=tmp_path)) == [[7, "x"], [2, -1], [1 << 60]]
    assert [(index, [one.sample for one in noted]) for index, noted, _ in data.seen] == [
        *((7, [7]), ("x", []), (2, [2]), (-1, []), (1 << 60, []))
    ]


def test_sources_without_such_reads_have_no_sample(tmp_path: Path) -> None:
    list(wrap(tmp_path / "array", np.arange(LENGTH)))
    list(wrap(tmp_path / "stream", lambda: iter(range(LENGTH))))
    assert reading(tmp_path / "array") == reading(tmp_path / "stream") == ()


def test_without_a_recorder_nothing_is_on_the_way_of_a_sample() -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds

    for loader in (
        resumable.wrap(list(range(LENGTH)), batch_size=BATCH),
        resumable.wrap(DataLoader(range(LENGTH), batch_size=BATCH)),  # type: ignore[arg-type]  # it has all it takes
        resumable.wrap(DataLoader(range(LENGTH), sampler=[1, 2]), shard=False),  # type: ignore[arg-type]  # likewise
    ):
        fetcher = loader.progress._fetcher
        assert fetcher.inside.reading is None
        reader = getattr(fetcher.backend, "_reader", None) or fetcher.backend._engine._workers._dataset._reader
        assert reader.reading is None


def test_the_command_shows_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # in a pipe there are 60, and the table has more

    class Asking(Watched):
        def __getitem__(self, index: int) -> int:
            main(["flight", str(self.folder)])
            return index

    loader = wrap(tmp_path, Asking(tmp_path), shuffle=True)
    first = loader.sample_indices(epoch=0, step=0)
    next(iter(loader))
    head, row, *_ = capsys.readouterr().out.splitlines()
    at = head.index("reading")
    assert row[at : at + 7].split() == [str(first[0])]
    main(["flight", str(tmp_path)])
    assert capsys.readouterr().out.splitlines()[1][at : at + 7].split() == ["-"]


# ---------------------------------------------------------------------- what is damaged, or another one's


def held(folder: Path) -> bytes:
    """Return a record of a process that reads sample 7, with words of two workers."""
    content = b""

    class Holding(Watched):
        def __getitem__(self, index: int) -> int:
            nonlocal content
            content = (self.folder / PLACE).read_bytes()
            return index

    wrap(folder, Holding(folder), sampler=resumable.samplers.Subset([7] * 3, resumable.samplers.Sequential(3))).peek()
    return content


def test_a_damaged_word_is_no_sample(tmp_path: Path) -> None:
    content = held(tmp_path)
    assert parse_record(content).samples == (7,)
    assert parse_record(content).reading == ((None, 7),)
    at = READERS * 8
    for bit in range(64):
        damaged = bytearray(content)
        damaged[at + bit // 8] ^= 1 << bit % 8
        assert parse_record(bytes(damaged)).samples == ()
    rng = np.random.default_rng(0)
    told = sum(sample_of(int(word)) is not None for word in rng.integers(1, 1 << 63, 20_000))
    assert told <= 3, "of noise, one of 65521 is taken for a word"


def test_counts_that_are_damaged_are_none() -> None:
    many = {sample: sample % 5 for sample in range(200)}
    at, packed = pack_tallies(many)
    content = bytes(at) + packed
    assert parse_tallies(content) == dict(list(many.items())[:MOST_READERS])
    for byte in (0, 8, 100, len(packed) - 1):
        damaged = bytearray(content)
        damaged[at + byte] ^= 1
        assert parse_tallies(bytes(damaged)) == {}
    assert parse_tallies(b"") == {}


def test_a_record_of_the_first_size_is_named_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / PLACE).write_bytes((b"RSMFLT1\n" + bytes(range(256)) * 2)[:512])
    assert len(list(wrap(tmp_path, list(range(LENGTH))))) == 4
    assert f"{tmp_path / PLACE} is ignored, and replaced by a new one: it is of another version of resum" in caplog.text
    assert flight.read(tmp_path)[0].step == 4


@pytest.fixture
def words(tmp_path: Path) -> Any:
    (tmp_path / "file").write_bytes(b"mine....".ljust(256, b"\0"))
    return np.memmap(tmp_path / "file", np.uint64, "r+")


def copy_of(folder: Path) -> Reading:
    """Return what a worker gets that is not forked."""
    spot = Spot(str(folder / "file"), b"mine....", 256, first=4, readers=3)
    reading: Reading = pickle.loads(pickle.dumps(Reading(spot)))  # noqa: S301  # our own
    return reading


@pytest.mark.parametrize(("worker", "word"), [(None, None), (0, 5), (1, 6), (2, None)])
def test_a_worker_has_a_word_as_long_as_there_are_some(
    worker: int | None, word: int | None, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resumable._fetch.reading.worker_number", lambda: worker)
    with copy_of(tmp_path).noting(range(90)) as source:
        assert source[77] == 77
        assert {at: sample_of(int(words[at])) for at in words[1:].nonzero()[0] + 1} == ({word: 77} if word else {})
    assert not words[1:].any()


@pytest.mark.parametrize("change", ["another", "removed", "cut"])
def test_a_worker_of_before_leaves_the_record_of_a_later_process_alone(
    change: str, words: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del words
    copy, file = copy_of(tmp_path), tmp_path / "file"
    monkeypatch.setattr("resumable._fetch.reading.worker_number", lambda: 0)
    file.unlink()
    if change != "removed":
        file.write_bytes(b"another.".ljust(256, b"\0") if change == "another" else b"mine....")
    before = file.read_bytes() if file.exists() else None
    with copy.noting(range(9)) as source:
        assert source[5] == 5
        assert (file.read_bytes() if file.exists() else None) == before


def test_a_fork_that_reads_notes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = Watched(tmp_path)
    loader = wrap(tmp_path, data)
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        loader.seek(epoch=0, step=2)
        next(iter(loader))
        (tmp_path / "child").write_text(f"{[(index, noted) for index, noted, _ in data.seen[BATCH:]]}")
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "child").read_text() == "[(6, ()), (7, ()), (8, ())]"
    next(batches)
    assert data.seen[-1][:2] == (5, ((None, 5),))
    assert not caplog.text


class Telling(Watched):
    def __getitem__(self, _: int) -> tuple[int, ...]:  # type: ignore[override]  # what is seen while it is read
        return flight.read(self.folder)[0].samples


@pytest.mark.slow
def test_the_workers_of_a_fork_note_nothing(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds

    data: Any = Telling(tmp_path)
    loader: Any = DataLoader(data, batch_size=BATCH, num_workers=1, collate_fn=list, multiprocessing_context="fork")
    loader = resumable.wrap(loader, flight_recorder=tmp_path)
    assert [seen for batch in loader for seen in batch] == [(index,) for index in range(LENGTH)]
    child = os.fork()
    if not child:
        (tmp_path / "child").write_text(f"{ {seen for batch in loader for seen in batch} }")
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "child").read_text() == "{()}"
