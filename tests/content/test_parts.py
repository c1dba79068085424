"""The parts of checkpoints by their paths, and how two of them compare."""

from __future__ import annotations

import collections
import copy
import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable._content import compare, digest_of, leaves, parts_of, split, topmost


def content(**more: Any) -> dict[str, Any]:
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(0.0)
    return {"model": model.state_dict(), "rng": [1, [2, 3], None], "step": 3, **more}


def test_parts_have_dotted_paths() -> None:
    """Parts are named by dotted paths, and short values by themselves."""
    parts = parts_of(content(lr=0.1, words=list(range(600)), empty={}, deep=[{"a": np.float32(2)}], name="x" * 99))
    assert parts["step"] == "3"
    assert parts["lr"] == "0.1"
    assert parts["empty"] == "{}"
    assert parts["deep.0.a"] == "2.0 float32"
    assert parts["model.weight"].startswith("float32[1, 2]: ")
    assert parts["words"].startswith("list of 600: ")
    assert parts["rng.1"].startswith("list of 2: ")
    assert len(parts["name"]) < 60


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


def test_two_contents_are_compared_part_by_part() -> None:
    one, other = content(only="a"), content(added=[torch.ones(1)])
    other["model"] = {"weight": torch.zeros(1, 2), "bias": other["model"]["bias"]}
    other["rng"] = [1, [2, 4], 0]
    a, b = parts_of(one), parts_of(other)
    assert list(compare(a, a)) == []
    assert {path: (a.get(path), b.get(path)) for path in ("model.weight", "rng.1", "rng.2", "only", "added.0")} == {
        path: (first, second) for path, first, second in compare(a, b)
    }
    assert next(compare({"only": "1"}, {"added": "2"})) == ("only", "1", None)


def test_a_path_stands_for_all_below_it() -> None:
    every = ["a.b.c", "a.b.d", "a.e", "ab"]
    assert topmost(["a.b.c", "a.b.d"], every) == ["a.b"]
    assert topmost(["a.b.c", "a.b.d", "a.e"], every) == ["a"]
    assert topmost(["a.b.c", "ab"], every) == ["a.b.c", "ab"]
    assert topmost([], every) == []


def test_names_with_dots_that_meet_hide_nothing() -> None:
    assert parts_of({"a.b": 1, "a": {"b": 2}}) != parts_of({"a.b": 1, "a": {"b": 3}})


def of_process(one: float, seed: str) -> Any:
    """The parts in a fresh process whose sets have another order."""
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONWARNINGS": "ignore"}
    script = Path(__file__).with_name("part_contents.py")
    command = [sys.executable, str(script), str(one)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


@pytest.mark.slow
def test_two_processes_have_the_same_parts() -> None:
    """Two processes have the same parts, and each kind differs with its value."""
    one, same, other = of_process(2.0, "1"), of_process(2.0, "2"), of_process(3.0, "1")
    assert one == same
    assert [name for name in one if one[name] == other[name]] == []
    assert not any("not compared" in text for parts in one.values() for text in parts.values())


KEYS = st.one_of(st.text(max_size=3), st.sampled_from(["a.b", "0", '"', 'x"y', "-1", "\\"]), st.integers(), st.floats())
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=50), st.binary(max_size=50))
TREES = st.dictionaries(
    KEYS,
    st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3)),
    max_size=4,
)


@pytest.mark.slow
@settings(derandomize=True, max_examples=100, deadline=None)
@given(TREES)
def test_copies_have_the_same_parts(tree: Any) -> None:
    """Copies have the same parts in any order, and shared parts count as copied."""
    parts = parts_of(tree)
    assert parts == parts_of(copy.deepcopy(tree)) == parts_of(dict(reversed(tree.items())))
    assert parts_of([tree, tree]) == parts_of([tree, copy.deepcopy(tree)])
    assert all(".".join(split(path)) == path for path in parts)


@pytest.mark.slow
@settings(derandomize=True, max_examples=100, deadline=None)
@given(TREES, st.randoms(use_true_random=False))
def test_a_changed_leaf_changes_its_own_path_alone(tree: Any, chance: Any) -> None:
    places = list(places_of(tree))
    if places:
        inside, key = chance.choice(places)
        inside[key] = "one value"
        one = parts_of(tree)
        inside[key] = "another value"
        other = parts_of(tree)
        assert len([path for path in one if one[path] != other[path]]) == 1
        assert one.keys() == other.keys()


def places_of(node: Any) -> Any:
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from places_of(value)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"optimizer": {"state": {0: {"exp_avg": 1}}}}, "optimizer.state.0.exp_avg"),
        ({"model": {"0.weight": 1}}, 'model."0.weight"'),
        ({"a": {"0": 1}}, 'a."0"'),
        ({0.5: {None: 1}}, 'float"0.5".NoneType"None"'),
        ({"": {" ": 1}}, '""." "'),
        ({(1, "a"): 1}, "tuple\"(1, 'a')\""),
    ],
)
def test_each_key_is_written_in_one_way(content: Any, path: str) -> None:
    assert list(parts_of(content)) == [path]
    assert len(split(path)) == len(str(content).split("{")) - 1


def test_nans_are_equal_and_zeros_signed() -> None:
    """All NaNs are the same, and zeros have signs."""
    for kind, bits in ((torch.float32, torch.int32), (torch.float16, torch.int16), (torch.bfloat16, torch.int16)):
        nan = torch.tensor([float("nan"), 1.0], dtype=kind)
        other = nan.clone()
        other.view(bits)[0] = -1
        assert parts_of(nan) == parts_of(other) != parts_of(torch.ones(2, dtype=kind))
        assert parts_of(torch.zeros(2, dtype=kind)) != parts_of(-torch.zeros(2, dtype=kind))
    assert parts_of(0.0) != parts_of(-0.0)


def shared(make: Any, leaf: Any, times: int = 60) -> Any:
    """Return what holds a leaf two to the power of `times` times, in so many containers."""
    for _ in range(times):
        leaf = make(leaf)
    return leaf


@pytest.mark.parametrize(
    "make",
    [
        lambda one: [one, one],
        lambda one: {"a": one, "b": one},
        lambda one: collections.UserList([one, one]),
        lambda one: functools.partial(print, one, one),
        lambda one: frozenset([one, (one, 1)]),
    ],
    ids=["list", "dict", "object", "given to pickle", "set"],
)
def test_parts_that_are_shared_are_looked_at_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told one by one, they would not come to their end: 2 to the power of 60 are a billion billions."""
    monkeypatch.setattr(leaves, "_MOST", 1000)
    one, same, other = (parts_of({"lr": 0.1, "x": shared(make, (leaf, 2))}) for leaf in ("u", "u", "v"))
    assert one == same
    assert one["lr"] == "0.1"
    assert len(one) < 9
    assert {split(found.path)[0] for found in compare(one, other)} == {"x"}
    assert digest_of(shared(make, (1, 2))) != digest_of(shared(make, (2, 1)))


def test_whether_parts_are_shared_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay buffer with the same entry many times over is read from a file with many entries."""
    monkeypatch.setattr(leaves, "_MOST", 1000)
    entry = (0.5, {"reward": 1})
    rest = {"lr": 1, "words": ["a"] * 2000}
    one, other = parts_of({"buffer": [entry] * 900, **rest}), [copy.deepcopy(entry) for _ in range(900)]
    assert one == parts_of({"buffer": other, **rest})
    assert one["words"] == parts_of(rest)["words"]
    assert one["buffer.7"].startswith("2 parts: ")
    other[777] = (0.5, {"reward": 2})
    assert [found.path for found in compare(one, parts_of({"buffer": other, **rest}))] == ["buffer.777"]


def test_what_holds_itself_and_is_shared_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "_MOST", 1000)
    endless: list[Any] = [0]
    endless.append(endless)
    one, other = (parts_of(shared(lambda one: [one, one], [endless, leaf])) for leaf in (1, 2))
    assert one != other


def test_lists_whose_digits_are_the_same_differ() -> None:
    assert parts_of([1, 23]) != parts_of([12, 3])


def test_what_cannot_be_read_says_so() -> None:
    parts = parts_of({"lock": threading.Lock(), "meta": torch.ones(2, device="meta"), "a": 1})
    assert parts["lock"] == "not compared: a value of _thread.lock has no attributes and cannot be pickled"
    assert parts["meta"].startswith("not compared: ")
    assert parts["a"] == "1"
