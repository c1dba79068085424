"""Plain numbers are collated in a shorter way, which nothing tells from torch's own."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import resumable
from resumable.backends.torch.collate import collating

Pair = namedtuple("Pair", ["image", "label"])  # noqa: PYI024  # as users write it

BATCHES: dict[str, list[Any]] = {
    "integers": [3, -(2**63), 2**63 - 1, 0],
    "one": [5],
    "booleans": [True, False],
    "booleans among integers": [1, True, 0],
    "integers before booleans": [True, 1],
    "floats": [0.1, -0.0, float("inf"), 1e-320],
    "floats among integers": [1, 2.5],
    "integers among floats": [2.5, 1],
    "NumPy's": [np.int32(3), np.int32(4)],
    "NumPy's among integers": [3, np.int64(4)],
    "NumPy's floats": [np.float64(0.5), np.float64(1)],
    "texts": ["a", "b"],
    "nested": [{"a": 1, "b": (2.5, [3, "x"])}, {"a": 4, "b": (5.5, [6, "y"])}],
    "pairs": [(torch.ones(2), 1), (torch.zeros(2), 0)],
    "named": [Pair(1, 2.0), Pair(3, 4.0)],
}


def seen(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.shape, batch.stride(), batch.device, batch.numpy().tobytes()
    if isinstance(batch, dict):
        return {name: seen(value) for name, value in batch.items()}
    return (type(batch), [seen(one) for one in batch]) if isinstance(batch, (list, tuple)) else batch


@pytest.mark.parametrize("name", BATCHES)
def test_what_comes_out_is_torchs(name: str) -> None:
    assert seen(collating(default_collate)(BATCHES[name])) == seen(default_collate(BATCHES[name]))


@pytest.mark.parametrize("batch", [[2**63], [1, None], [1.5, "a"], [], [1, [2]], [2**70, 1]])
def test_what_torch_refuses_is_refused_as_there(batch: list[Any]) -> None:
    with pytest.raises(Exception, match=".*") as theirs:
        default_collate(batch)
    with pytest.raises(theirs.type):
        collating(default_collate)(batch)


def test_its_memory_is_torchs_own() -> None:
    numbers = collating(default_collate)([1, 2, 3])
    assert numbers.resize_(50).shape == (50,)
    assert numbers.data_ptr() % 64 == 0


def test_a_default_device_and_default_dtype_are_respected() -> None:
    with torch.device("meta"):
        assert collating(default_collate)([1, 2]).device.type == "meta"
        assert collating(default_collate)([(1, 0.5), (2, 1.5)])[1].device.type == "meta"
    torch.set_default_dtype(torch.float16)
    try:
        assert collating(default_collate)([0.5]).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_a_user_registered_for_numbers_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(batch: Any, *, collate_fn_map: Any = None) -> str:
        assert collate_fn_map
        return f"{len(batch)} numbers"

    monkeypatch.setitem(default_collate_fn_map, int, own)
    assert collating(default_collate)([1, 2]) == "2 numbers"
    assert collating(default_collate)([(1, "a"), (2, "b")])[0] == "2 numbers"


def test_another_function_stays_itself() -> None:
    assert collating(list) is list
    numbers: Any = range(6)  # map-style by what it can
    loader: Any = resumable.wrap(DataLoader(numbers, batch_size=2))
    assert loader.collate_fn is default_collate
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
