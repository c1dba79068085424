"""The parts of checkpoints by their paths, and how two of them compare."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch

from resumable._parts import compare, parts_of, topmost


def content(**more: Any) -> dict[str, Any]:
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    return {"model": model.state_dict(), "rng": [1, [2, 3], None], "step": 3, **more}


def test_parts_are_named_by_dotted_paths_and_short_values_by_themselves() -> None:
    parts = parts_of(content(lr=0.1, words=list(range(600)), empty={}, deep=[{"a": np.float32(2)}], name="x" * 99))
    assert parts["step"] == "3"
    assert parts["lr"] == "0.1"
    assert parts["empty"] == "{}"
    assert parts["deep.0.a"] == "2.0 float32"
    assert parts["model.weight"].startswith("float32[1, 2]: ")
    assert parts["words"].startswith("list of 600: ")
    assert parts["rng.1"].startswith("list of 2: ")
    assert len(parts["name"]) < 40


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([1.0, 2.0, -0.0]),
        torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64),
        torch.tensor([[1.0, 2.0, 0.0]]),
        torch.tensor([1.0, 2.0, 0.0], dtype=torch.bfloat16),
        [1.0, 2.0, 0.0],
        "tensor([1., 2., 0.])",
        None,
    ],
)
def test_equal_is_bit_for_bit_with_dtype_and_shape(other: Any) -> None:
    one = torch.tensor([1.0, 2.0, 0.0])
    assert parts_of(one) == parts_of(one.clone()) != parts_of(other)
    nan = torch.tensor([float("nan"), float("-inf")])
    assert parts_of({"mask": nan}) == parts_of(collections.OrderedDict(mask=nan.clone()))


def test_zero_dimensional_tensors_of_any_type_have_parts() -> None:
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        assert parts_of(torch.ones((), dtype=kind))["content"].endswith(str(kind).removeprefix("torch."))


def test_two_checkpoints_are_compared_by_as_few_paths_as_possible() -> None:
    one, other = content(only="a"), content(added=[torch.ones(1)])
    other["model"] = {"weight": torch.zeros(1, 2), "bias": other["model"]["bias"]}
    other["rng"] = [1, [2, 4], 0]
    assert compare(parts_of(one), parts_of(other)) == (
        ["model.weight", "rng.1", "rng.2"],
        ["model.bias", "rng.0", "step"],
        ["only"],
        ["added"],
    )
    other["model"] = {"weight": torch.zeros(1, 2), "bias": torch.ones(1)}
    assert compare(parts_of(one), parts_of(other)).differing == ["model", "rng.1", "rng.2"]


def test_a_path_stands_for_all_below_it() -> None:
    every = ["a.b.c", "a.b.d", "a.e", "ab"]
    assert topmost(["a.b.c", "a.b.d"], every) == ["a.b"]
    assert topmost(["a.b.c", "a.b.d", "a.e"], every) == ["a"]
    assert topmost(["a.b.c", "ab"], every) == ["a.b.c", "ab"]
    assert topmost([], every) == []


def test_names_with_dots_that_meet_hide_nothing() -> None:
    assert parts_of({"a.b": 1, "a": {"b": 2}}) != parts_of({"a.b": 1, "a": {"b": 3}})
