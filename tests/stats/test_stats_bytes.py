"""`estimated_bytes` of `loader.stats()`: batches of all kinds, counted by hand, and what stands for what."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import resumable
from resumable._stats import size_of

Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as users have it


@dataclass
class Sample:
    image: Any
    name: str
    other: Any = None


class Raises:
    @property
    def nbytes(self) -> int:
        raise OSError("torn")


class Lazy:
    def nbytes(self) -> int:
        raise AssertionError


LOOP: list[Any] = []
LOOP.append(LOOP)

SIZES: dict[str, tuple[Any, int]] = {
    "array": (np.zeros((3, 5), np.float32), 60),
    "scalar": (np.float32(1), 4),
    "tensor": (torch.zeros(3, 5, dtype=torch.int16), 30),
    "bytes": (b"four", 4),
    "text": ("three", 5),
    "number": (7, 8),
    "numbers": ([1, 2.5, True], 24),
    "dict": ({"image": np.zeros(7, np.uint8), "name": "ab"}, 9),
    "mapping": (UserDict({"a": b"abc"}), 3),
    "ordered": (OrderedDict(a="a", b=["bb", b"ccc"]), 6),
    "named tuple": (Pair(torch.zeros(2), 3), 16),
    "dataclass": (Sample(np.zeros(2), "abc", {"deep": [b"1", (b"22",)]}), 22),
    "class": (Sample, 0),
    "nested": ([{"x": (torch.zeros(4), "y")}, [np.zeros(1)] * 3, None], 41),
    "long list": ([b"12"] * 1000, 2000),
    "long list of pairs": ([(np.zeros(2), 1)] * 1000, 24000),
    "list of long lists": ([[1] * 100] * 100, 80000),
    "nothing": (None, 0),
    "empty": ([], 0),
    "other objects": ([object(), Lazy(), {1}], 0),
    "an object that raises": ([np.zeros(2), Raises()], 16),
    "itself": (LOOP, 0),
}


@pytest.mark.parametrize("kind", SIZES)
def test_sizes_by_hand(kind: str) -> None:
    batch, size = SIZES[kind]
    assert size_of(batch) == size
    loader = resumable.wrap([batch], checks="ranks")
    assert next(iter(loader)) is batch
    assert loader.stats().estimated_bytes == size


@pytest.mark.parametrize("length", [1, 7, 10, 997, 1001])
def test_samples_of_one_size_are_counted_exactly(length: int) -> None:
    loader = resumable.wrap(np.zeros((length, 3), np.float32), batch_size=2)
    for epoch in loader.epochs(2):
        for done, _ in enumerate(epoch, 1):
            assert loader.stats(epoch).estimated_bytes == min(2 * done, length) * 12
    assert loader.stats().estimated_bytes == 2 * length * 12


def test_each_rank_counts_its_own_part() -> None:
    loader = resumable.wrap(np.zeros((12, 3)), batch_size=2, world=resumable.World(1, 2))
    list(loader)
    assert loader.stats().samples == 12
    assert loader.stats().estimated_bytes == 6 * 24


def test_which_batches_are_measured_and_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def size(batch: Any) -> int:
        measured.append(batch)
        return int(batch)

    monkeypatch.setattr("resumable._stats.size_of", size)
    loader, before, expected = resumable.wrap(range(300)), 0, 0
    last = 0
    for batch in loader:
        last = batch if batch in {0, 1, 3, 7, 15, 31, 63, 127, 191, 255} else last
        expected += last
        assert loader.stats().estimated_bytes == expected >= before
        before = expected
    assert measured == [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]


def test_text_in_numbers_for_a_logger() -> None:
    loader = resumable.wrap(np.zeros((8, 2)), batch_size=2)
    list(loader)
    stats = loader.stats()
    assert stats.samples_per_second == 8 / (stats.wait_seconds + stats.loop_seconds)
    values = stats.as_dict()
    assert values["estimated_bytes"] == 8 * 16
    assert values["samples_per_second"] == stats.samples_per_second
    assert values["read_seconds"] == stats.wait_seconds - stats.opening_seconds


def test_what_reads_in_the_background_has_no_reading_time() -> None:
    class Ahead:
        kind, identity, length = "ahead", {"source": "ahead"}, 4
        traits = resumable.Traits(reads_ahead=True)

        def read(self, requests: Any) -> Any:
            for request in requests:
                yield request.indices.tolist()

    loader: Any = resumable.wrap(Ahead(), batch_size=2)
    assert loader.stats().read_seconds is None
    assert list(loader) == [[0, 1], [2, 3]]
    assert loader.stats().read_seconds is None
    assert "read_seconds" not in loader.stats().as_dict()
