"""The flight recorder in one process: phases, samples, ranks, damaged files, and what it is not allowed to break."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

import resumable
from resumable import World, flight
from resumable._flight.record import READING, SIZE, _started, read_record, write_slot
from resumable.cli import main
from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.flight import FlightRecord

BATCH, LENGTH = 3, 10
PLACE = "rank-00000.flight"


class Watched:
    """Its own indices; looks at the record while each of them is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[tuple[str, int, int, int]] = []
        self.samples: list[int | None] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        self.seen.append(place(self.folder))
        self.samples.append(record_of(self.folder).sample)
        return index


def record_of(folder: Path) -> FlightRecord:
    (record,) = flight.read(folder)
    return record


def place(folder: Path) -> tuple[str, int, int, int]:
    record = record_of(folder)
    return record.phase, record.epoch, record.step, record.global_step


def wrap(folder: Path, source: Any = None, **options: Any) -> resumable.Loader:
    source = list(range(LENGTH)) if source is None else source
    return resumable.wrap(source, batch_size=BATCH, identity="it", flight_recorder=folder, **options)


@contextlib.contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Let the operating system refuse every byte of a file beyond `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---------------------------------------------------------------------- where it is


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_every_moment_has_its_phase(ack: str, tmp_path: Path) -> None:
    data = Watched(tmp_path)
    loader = wrap(tmp_path, data, ack=ack)
    for epoch in loader.epochs(2):
        for step, _ in enumerate(epoch):
            assert place(tmp_path) == ("training", epoch, step, 4 * epoch + step)
            assert record_of(tmp_path).delivered == 4 * epoch + step + 1
            if ack == "manual":
                loader.ack()
            assert loader.state_dict()["global_step"] == record_of(tmp_path).saved
            assert place(tmp_path) == ("state", epoch, step, 4 * epoch + step)
            assert record_of(tmp_path).delivered == 4 * epoch + step + 1
        assert place(tmp_path) == ("between", epoch, 4, 4 * epoch + 4)
        loader.state_dict()
        assert place(tmp_path)[0] == "between"
    assert data.seen == [("reading", epoch, n // 3, 4 * epoch + n // 3) for epoch in range(2) for n in range(LENGTH)]


def test_what_is_read_again_after_a_state_is_where_it_is(tmp_path: Path) -> None:
    uninterrupted = list(wrap(tmp_path / "whole", shuffle=True))
    loader = wrap(tmp_path, shuffle=True)
    states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    for step, state in enumerate(states):
        resumed = wrap(tmp_path / f"{step}", shuffle=True)
        resumed.load_state_dict(state)
        resumed.peek()
        assert place(tmp_path / f"{step}") == ("opened", 0, step, step)
        rest: list[Any] = []
        for batch in resumed.epochs(1).__next__():
            assert place(tmp_path / f"{step}") == ("training", 0, step + len(rest), step + len(rest))
            rest.append(batch)
        assert rest == uninterrupted[step:]


def test_an_epoch_that_is_left_is_over(tmp_path: Path) -> None:
    loader = wrap(tmp_path)
    next(iter(loader))
    loader.end_epoch()
    assert place(tmp_path) == ("between", 0, 1, 1)
    next(iter(loader))
    assert place(tmp_path) == ("training", 1, 0, 1)


def test_a_look_at_the_next_batch_moves_nothing(tmp_path: Path) -> None:
    data = Watched(tmp_path)
    loader = wrap(tmp_path, data)
    loader.peek()
    assert data.seen == [("opened", 0, 0, 0)] * 3
    batches = iter(loader)
    for step in range(4):
        next(batches)
        loader.peek()
        assert place(tmp_path) == ("training", 0, step, step)


@pytest.mark.parametrize("randomness", ["sample", "batch", "off"])
def test_sample_is_noted_while_it_is_read(randomness: Any, tmp_path: Path) -> None:
    """Each sample is noted while it is read, and none afterwards."""
    data = Watched(tmp_path)
    loader = wrap(tmp_path, data, shuffle=True, randomness=randomness, collate=lambda _: record_of(tmp_path).sample)
    assert [sample for epoch in loader.epochs(2) for sample in epoch] == [None] * 8
    order = [loader.sample_indices(epoch=epoch, step=step) for epoch in range(2) for step in range(4)]
    assert data.samples == [sample for batch in order for sample in batch]


def test_a_sample_that_raises_is_no_longer_read(tmp_path: Path) -> None:
    class Bad(Watched):
        def __getitem__(self, index: int) -> int:
            return super().__getitem__(index) if index != 4 else 1 // 0

    with pytest.raises(ZeroDivisionError):
        list(wrap(tmp_path, Bad(tmp_path)))
    assert record_of(tmp_path).sample is None


def test_a_sampler_of_ones_own_is_noted_if_it_gives_indices(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds

    data: Any = Watched(tmp_path)
    order: Any = [7, "x", 2, -1, 1 << 70]
    loader: Any = DataLoader(data, batch_size=2, sampler=order, collate_fn=list)
    assert list(resumable.wrap(loader, shard=False, flight_recorder=tmp_path)) == [[7, "x"], [2, -1], [1 << 70]]
    assert data.samples == [7, None, 2, None, None]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_write_no_sample(context: str, tmp_path: Path) -> None:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds

    data: Any = Telling(tmp_path)
    loader: Any = DataLoader(data, batch_size=BATCH, num_workers=1, collate_fn=list, multiprocessing_context=context)
    seen = [one for batch in resumable.wrap(loader, flight_recorder=tmp_path) for one in batch]
    assert seen == [None] * LENGTH


class Telling(Watched):
    def __getitem__(self, _: int) -> int | None:  # type: ignore[override]  # the sample that is recorded meanwhile
        return record_of(self.folder).sample


def test_a_source_without_indices_is_recorded_by_its_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for count, _ in enumerate(wrap(tmp_path, lambda: iter(range(LENGTH)))):
        assert place(tmp_path) == ("training", 0, count, count)
    assert place(tmp_path) == ("between", 0, 4, 4)
    wrap(tmp_path, lambda: iter(range(LENGTH))).peek()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_state_that_is_loaded_after_a_look_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crash(tmp_path, steps=3)
    loader, other = wrap(tmp_path), wrap(tmp_path / "other")
    loader.peek()
    next(iter(other))
    loader.load_state_dict(other.state_dict())
    assert not caplog.text
    for _ in loader:
        assert caplog.text.count("starts at global step 1 (the last state was saved at 2): 2 steps are trained ag") == 1


def test_nothing_is_written_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loader = resumable.wrap(list(range(LENGTH)), batch_size=BATCH)
    list(loader)
    loader.state_dict()
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- what was before


def crash(folder: Path, steps: int = 1, **options: Any) -> bytes:
    """Leave the record of a process that was killed; it is that of one that was ended, in another place."""
    child = os.fork()
    if not child:
        loader = wrap(folder, **options)
        batches = iter(loader)
        for step in range(steps):
            next(batches)
            if step == 1:
                loader.state_dict()
        os._exit(0)
    os.waitpid(child, 0)
    return (folder / f"rank-{options.get('world', World()).rank:05}.flight").read_bytes()


def test_another_run_in_the_folder_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crash(tmp_path, seed=1)
    assert list(wrap(tmp_path, seed=2))
    assert "it belongs to a run with different data, order" in caplog.text
    assert "trained again" not in caplog.text
    assert record_of(tmp_path).step == 4


def test_two_loaders_in_one_folder_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = wrap(tmp_path), wrap(tmp_path)
    next(iter(first))
    assert len(list(second)) == 4
    assert "a second loader of this process records there" in caplog.text
    assert place(tmp_path) == ("training", 0, 0, 0)
    del first
    caplog.clear()
    assert len(list(wrap(tmp_path))) == 4
    assert "nothing is recorded" not in caplog.text


def damaged(content: bytes) -> dict[str, tuple[bytes, str]]:
    """Return contents that are no record, and what is said of them."""
    flipped = {f"a bit of byte {at}": content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in (9, 40, 60)}
    slots = content[:256] + bytes(byte ^ 1 for byte in content[256:])
    header = "its header does not match its checksum"
    return {
        "older": (b"RSMFLT2\n" + bytes(4088), "a different version of resumable wrote it"),
        "truncated": (content[:300], header),
        "longer": (content + b"x", header),
        "slots": (slots, "no batch in it matches its checksum"),
        **{name: (text, header) for name, text in flipped.items()},
    }


def test_a_damaged_record_is_ignored_by_name_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for content, reason in damaged(crash(tmp_path)).values():
        (tmp_path / PLACE).write_bytes(content)
        with pytest.raises(ConfigurationError, match="contains no record of a flight recorder"):
            flight.read(tmp_path)
        assert f"{PLACE} is left out: " in caplog.text
        caplog.clear()
        assert len(list(wrap(tmp_path))) == 4
        assert PLACE in caplog.text
        assert reason in caplog.text
        assert place(tmp_path) == ("between", 0, 4, 4)
        caplog.clear()


@pytest.mark.parametrize("content", [b"my own notes", b"", bytes(range(256)) * 2], ids=["text", "empty", "bytes"])
def test_what_is_not_ours_is_left_alone(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / PLACE).write_bytes(content)
    assert len(list(wrap(tmp_path))) == 4
    assert f"nothing is recorded in {tmp_path / PLACE}: it is not a record of a flight recorder" in caplog.text
    assert (tmp_path / PLACE).read_bytes() == content


def test_a_write_that_is_cut_leaves_what_stood_before(tmp_path: Path) -> None:
    content = bytearray(crash(tmp_path))
    for count in (10, 11, 12, 13):
        after, old = bytearray(content), step_of(tmp_path, content)
        write_slot(after, count, 3, 1840 + count, 9200 + count, READING)
        for cut in range(256, SIZE + 1):
            assert step_of(tmp_path, after[:cut] + content[cut:]) in {1840 + count, old}
        assert step_of(tmp_path, after) == 1840 + count != old
        content = after


def step_of(folder: Path, content: bytearray) -> int:
    (folder / PLACE).write_bytes(content)
    return read_record(folder / PLACE).step


# ---------------------------------------------------------------------- what it must not break


@pytest.mark.parametrize("folder", [7, "", b"runs", ["runs"]], ids=str)
def test_what_is_no_folder_is_refused(folder: Any) -> None:
    with pytest.raises(ConfigurationError, match="flight_recorder must be the path of a folder, but it is"):
        resumable.wrap([1], flight_recorder=folder)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "in", Path("/proc/flight")):
        with pytest.raises(
            ConfigurationError, match=r"(?s)cannot be written to: .*Pass a folder on a disk with free space"
        ):
            wrap(folder)


def test_full_disk_is_refused_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk is rejected at once and harmless later."""
    with files_at_most(100), pytest.raises(ConfigurationError, match="cannot be written to"):
        wrap(tmp_path)
    content = crash(tmp_path)
    loader = wrap(tmp_path)
    with files_at_most(100):
        assert len(list(loader)) == 4
    assert "nothing is recorded in" in caplog.text
    assert (tmp_path / PLACE).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [PLACE], "and nothing is left of the attempt"
    loader = wrap(tmp_path)
    next(iter(loader))
    with files_at_most(0):
        assert len(list(loader)) == 3, "the file has all its blocks"
    assert place(tmp_path) == ("between", 0, 4, 4)


def test_a_folder_that_is_removed_in_the_middle_is_harmless(tmp_path: Path) -> None:
    loader = wrap(tmp_path / "in")
    next(iter(loader))
    (tmp_path / "in" / PLACE).unlink()
    (tmp_path / "in").rmdir()
    assert len(list(loader)) == 3
    assert loader.state_dict()["global_step"] == 4


def test_an_evaluation_has_nothing_to_record(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="evaluation=True and flight_recorder cannot be combined"):
        wrap(tmp_path, evaluation=True)


def test_states_are_the_same_with_it_and_without(tmp_path: Path) -> None:
    with_it, without = wrap(tmp_path), resumable.wrap(list(range(LENGTH)), batch_size=BATCH, identity="it")
    for batch, other in zip(with_it, without, strict=True):
        assert batch == other
        assert with_it.state_dict() == without.state_dict()


# ---------------------------------------------------------------------- processes


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    content = crash(tmp_path)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert _started(child) == 0, "it is dead, though its parent has not asked for it"
    os.waitpid(child, 0)
    assert _started(child) == 0
    assert record_of(tmp_path).alive is False
    loader = wrap(tmp_path)
    next(iter(loader))
    assert record_of(tmp_path).alive is True
    for word, alive in ((4, False), (5, None)):  # its start: the number was given to a later process; its machine
        words = [int.from_bytes(content[at : at + 8], sys.byteorder) for at in range(0, 64, 8)]
        words[3], words[4], words[5] = os.getpid(), _started(os.getpid()), words[5]
        words[word] += 1
        head = b"".join(one.to_bytes(8, sys.byteorder) for one in words[:7])
        (tmp_path / PLACE).write_bytes(head + crc32(head).to_bytes(8, sys.byteorder) + content[64:])
        assert record_of(tmp_path).alive is alive


# ---------------------------------------------------------------------- ranks


def ranks(folder: Path, steps: list[int]) -> list[resumable.Loader]:
    """Return a loader for each rank, which has delivered so many batches."""
    loaders = []
    for rank, count in enumerate(steps):
        data = list(range(64))
        loader = resumable.wrap(data, batch_size=2, world=World(rank, len(steps)), flight_recorder=folder)
        batches = iter(loader)
        for _ in range(count):
            next(batches)
        loaders.append(loader)
    return loaders


def odd(folder: Path) -> list[int]:
    return [record.rank for record in flight.odd_ones(flight.read(folder))]


def test_the_rank_for_which_the_others_wait_is_found(tmp_path: Path) -> None:
    loaders = ranks(tmp_path / "a", [5, 5, 4, 5])
    assert odd(tmp_path / "a") == [2]
    next(iter(loaders[2]))
    assert odd(tmp_path / "a") == []
    loaders[3].state_dict()
    assert odd(tmp_path / "a") == [3]
    two = ranks(tmp_path / "b", [5, 6])
    assert odd(tmp_path / "b") == [0], "of two, the one that is further back"
    assert [record.world_size for record in flight.read(tmp_path / "b")] == [2, 2]
    assert flight.odd_ones([]) == []
    del two


def test_ranks_of_before_are_shown_and_not_compared(tmp_path: Path) -> None:
    old = ranks(tmp_path, [2, 2, 2, 2])
    del old
    new = ranks(tmp_path, [7, 7])
    assert [(record.rank, record.step) for record in flight.read(tmp_path)] == [(0, 6), (1, 6), (2, 1), (3, 1)]
    assert odd(tmp_path) == []
    del new


def test_the_command_shows_each_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    loaders = ranks(tmp_path, [5, 5, 4])
    loaders[0].state_dict()
    loaders[1].state_dict()
    assert main(["flight", str(tmp_path)]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.partition(", since ")[0] for line in lines] == [
        "rank 0: running in epoch 0, step 4, after a state was saved (global step 4, last state 5",
        "rank 1: running in epoch 0, step 4, after a state was saved (global step 4, last state 5",
        "rank 2: running in epoch 0, step 3, while training (global step 3, no state yet",
    ]
    assert all(line.endswith(f" UTC, pid {os.getpid()})") for line in lines)
    assert last == "Different from most: rank 2."
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["flight", str(tmp_path)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
    assert main(["flight", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["odd"] == [2]
    assert [(one["rank"], one["step"], one["saved"], one["status"]) for one in found["ranks"]] == [
        (0, 4, 5, "running"), (1, 4, 5, "running"), (2, 3, None, "running"),
    ]  # fmt: skip
    assert main(["flight", str(tmp_path / "none")]) == 2
    assert "contains no record of a flight recorder" in capsys.readouterr().err
