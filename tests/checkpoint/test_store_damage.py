"""CheckpointStore: what it does about damaged files."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from stores import CONTENT, Custom, assert_same, data_file, make_store, marker_file

from resumable.checkpoint import CheckpointStore
from resumable.errors import CheckpointError, CheckpointNotFoundError, CorruptCheckpointError, CorruptCheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return make_store(tmp_path / "run")


def flip(path: Path, offset: int, bit: int = 0) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[offset] ^= 1 << bit
    path.write_bytes(damaged)


def assert_skipped(store: CheckpointStore, step: int, reason: str, used: int) -> None:
    with pytest.raises(CorruptCheckpointError, match=rf"(?s)step {step} is corrupt.*{reason}.*delete\({step}\)"):
        store.load(step)
    with pytest.warns(
        CorruptCheckpointWarning, match=rf"(?s)step {step} is corrupt.*{reason}.*Using step {used} instead"
    ) as seen:
        assert_same(store.latest(), store.load(used))
    assert [warning.filename for warning in seen] == [__file__] * len(seen)
    with pytest.warns(CorruptCheckpointWarning, match=reason):
        assert store.latest_step() == used


def test_a_flipped_bit_anywhere_in_the_data_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, CONTENT)
    path = data_file(store, 1)
    whole = path.read_bytes()
    for offset in range(0, len(whole), 7):
        flip(path, offset, offset % 8)
        with pytest.raises(CorruptCheckpointError, match="checksum"):
            store.load(1)
        path.write_bytes(whole)
    assert_same(store.load(1), CONTENT)


def test_truncated_and_grown_data_are_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, CONTENT)
    path = data_file(store, 1)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 9), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError, match=f"has {length} bytes, but {len(whole)} were written"):
            store.load(1)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptCheckpointError, match=f"has {len(whole) + 1} bytes"):
        store.load(1)


def test_nothing_is_unpickled_before_the_checksum_is_compared(store: CheckpointStore) -> None:
    path = data_file(store, 3)
    torch.save({"custom": Custom()}, path)
    path.write_bytes(path.read_bytes().ljust(json.loads(marker_file(store, 3).read_bytes())["size"], b"\0"))
    with pytest.raises(CorruptCheckpointError, match=r"checksum|has \d+ bytes"):
        store.load(3)


def test_a_marker_cut_anywhere_is_found(store: CheckpointStore) -> None:
    path = marker_file(store, 3)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpointError, match=r"marker cannot be read"):
            store.load(3)


def test_a_flipped_bit_in_a_marker_is_found(store: CheckpointStore) -> None:
    path = marker_file(store, 3)
    whole = path.read_bytes()
    for offset, bit in itertools.product(range(len(whole)), (0, 5)):  # 5 turns letters into capitals
        flip(path, offset, bit)
        with pytest.raises(CheckpointError, match=r"corrupt|newer"):
            store.load(3)
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[1]",
        b"{}",
        b"[" * 10**5,
        b'{"format": "1"}',
        b'{"format": 0}',
        b'{"format": 1}',
        b'{"format": 1, "step": 3, "file": 4, "size": 1, "algorithm": "sha256", "digest": ""}',
        b'{"format": 1, "step": 3, "file": "../../secret.pt", "size": 1, "algorithm": "sha256", "digest": ""}',
        b'{"format": 1, "step": 2, "file": "0123456789abcdef.pt", "size": 1, "algorithm": "sha256", "digest": ""}',
        b'{"format": 1, "step": 3, "file": "0123456789abcdef.pt", "size": 1, "algorithm": "md5", "digest": ""}',
    ],
)
def test_a_marker_of_garbage_is_skipped(store: CheckpointStore, raw: bytes) -> None:
    marker_file(store, 3).write_bytes(raw)
    assert_skipped(store, 3, "marker (cannot be read|is invalid)", used=2)
    store.delete(3)
    assert store.latest_step() == 2


def test_a_missing_data_file_is_skipped(store: CheckpointStore) -> None:
    data_file(store, 3).unlink()
    assert_skipped(store, 3, "is missing", used=2)


def test_several_corrupt_checkpoints_are_each_warned_of(store: CheckpointStore) -> None:
    flip(data_file(store, 3), 50)
    data_file(store, 2).unlink()
    with pytest.warns(CorruptCheckpointWarning) as seen:
        assert store.latest_step() == 1
    assert [re.search(r"step \d", str(warning.message))[0] for warning in seen] == ["step 3", "step 2"]  # type: ignore[index]


def test_all_corrupt_is_an_error_and_not_a_first_start(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        flip(data_file(store, step), 50)
    for method in (store.latest, store.latest_step):
        with pytest.raises(
            CorruptCheckpointError, match=r"(?s)lose the training.*step 3.*step 2.*step 1.*from scratch on purpose"
        ):
            method()


def test_a_corrupt_step_can_be_saved_again_and_pruned(store: CheckpointStore) -> None:
    marker_file(store, 3).write_bytes(b"garbage")
    marker_file(store, 2).write_bytes(b"garbage")
    small = CheckpointStore(store.root, keep=1)
    small.save(3, {"step": 3})
    assert (small.steps(), small.latest()) == ([3], {"step": 3})


def test_a_newer_format_is_refused_by_name_and_not_skipped(store: CheckpointStore) -> None:
    path = marker_file(store, 3)
    path.write_text(json.dumps({"format": 3, "parts": ["of", "tomorrow"]}))
    for call in (store.latest, store.latest_step, lambda: store.load(3)):
        with pytest.raises(
            CheckpointError, match=r"(?s)newer.* step 3.*marker: +3\n.*format: +2\n.*--upgrade"
        ) as caught:
            call()
        assert not isinstance(caught.value, CorruptCheckpointError)
    store.save(4, {"step": 4})
    assert path.exists()
    assert store.latest_step() == 4


def test_leftovers_alone_are_a_first_start(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    torn = marker_file(store, 5).with_name("0123456789abcdef.pt")
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"torn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (store.latest(), store.latest_step(), store.steps()) == (None, None, [])
    with pytest.raises(CheckpointNotFoundError):
        store.load(5)
