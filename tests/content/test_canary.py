"""Canaries: a source that goes on with other elements than the run that saved its state is refused."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import os
import random
import subprocess
import sys
import types
import warnings
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable._content import Canary
from resumable._content import canary as canary_module
from resumable.errors import PromiseWarning, StateFormatError, StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable import Loader

Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as many datasets have them


def digest(element: Any) -> str | None:
    return Canary(element).digest


# ---------------------------------------------------------------------- what a digest tells apart

DIFFERENT = [
    None,
    0,
    1,
    1.0,
    True,
    "1",
    b"",
    [],
    {},
    [1],
    [[1]],
    (1, 2),
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 2},
    np.int32(1),
    np.arange(3),
    np.arange(3, dtype=np.float32),
    np.arange(4).reshape(2, 2),
    torch.arange(3),
    torch.arange(3.0),
    torch.arange(3.0).bfloat16(),
    torch.arange(3.0).bfloat16() + 1,
    "x" * 5000,
    "x" * 4999 + "y",
    np.zeros((200, 200)),
    np.arange(40000.0).reshape(200, 200),
]


def test_what_differs_has_another_digest() -> None:
    digests = [digest(element) for element in DIFFERENT]
    assert None not in digests
    assert len(set(digests)) == len(DIFFERENT)


def test_what_is_the_same_has_the_same() -> None:
    values = np.arange(40000).reshape(200, 200)
    assert digest(values) == digest(values.copy()) == digest(np.asfortranarray(values)) == digest(values.T.copy().T)
    assert digest(torch.from_numpy(values)) == digest(torch.from_numpy(values.T.copy()).T)
    assert digest(Pair(values, 3)) == digest(Pair(values.copy(), 3))
    assert digest({"__url__": "/scratch/1/a.tar", "x": 1}) == digest({"__url__": "/scratch/2/a.tar", "x": 1})


@pytest.mark.parametrize("unknown", [object(), {1, 2}, lambda: 0, np.array([object()]), torch.empty(2, device="meta")])
def test_unknown_objects_count_by_their_type(unknown: Any) -> None:
    assert digest(unknown) is not None
    assert digest([unknown, 1]) != digest([unknown, 2])


def test_what_cannot_be_digested_fits_anything() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert digest(endless) is not None or Canary(endless).fits(1)

    class Torn(dict[str, int]):
        def items(self) -> Any:
            raise OSError("torn")

    assert digest(Torn(a=1)) is None
    assert Canary(Torn(a=1)).fits(3)
    assert Canary(3).fits(Torn(a=1))


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_a_digest_belongs_to_the_value(element: Any) -> None:
    assert digest(element) == digest(element)
    assert Canary(element).fits(element)


def test_changing_elements_are_digested_at_once() -> None:
    """An element that can change is digested at once, any other one on request."""
    element = [1, 2]
    canary = Canary(element)
    element.append(3)
    assert canary.digest == digest([1, 2])
    assert Canary("text")._pending


# ---------------------------------------------------------------------- a source that is not repeatable


def shuffled() -> Iterator[int]:
    yield from random.SystemRandom().sample(range(1000), 12)


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return shuffled()


LOADERS: dict[str, Callable[..., Loader[Any]]] = {
    "function": lambda **options: resumable.wrap(shuffled, batch_size=2, **options),
    "stream": lambda **options: resumable.wrap(DataLoader(Shuffled(), batch_size=2), **options),
}
WORKERS: dict[str, Callable[..., Loader[Any]]] = {
    "2 workers": lambda **options: resumable.wrap(DataLoader(Shuffled(), batch_size=2, num_workers=2), **options)
}


def state_after(loader: Loader[Any], steps: int) -> dict[str, Any]:
    return [loader.state_dict() for _ in zip(range(steps), loader, strict=False)][-1]


@pytest.mark.parametrize("how", [*LOADERS, pytest.param("2 workers", marks=pytest.mark.slow)])
def test_a_replay_of_other_elements_is_refused(how: str) -> None:
    make = {**LOADERS, **WORKERS}[how]
    state = state_after(make(), 3)
    loader = make()
    loader.load_state_dict(state)
    with pytest.raises(StateMismatchError) as caught:
        list(loader)
    for part in (
        "was read again up to the saved position",
        "in the checkpoint: element",
        "in this run:       an element with the digest",
        "lost or repeated",
        "seed=0",
        'checks="ranks"',
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("how", [*LOADERS, pytest.param("2 workers", marks=pytest.mark.slow)])
def test_without_strictness_it_is_warned_about_and_goes_on(how: str) -> None:
    make = {**LOADERS, **WORKERS}[how]
    state = state_after(make(), 3)
    loader = make()
    loader.load_state_dict(state, strict=False)
    with pytest.warns(StateMismatchWarning, match=r"(?s)read again.*because of strict=False"):
        rest = list(loader)
    assert len(rest) == (9 if "workers" in how else 3)


@pytest.mark.parametrize("how", LOADERS)
def test_it_can_be_turned_off(how: str) -> None:
    state = state_after(LOADERS[how](checks="ranks"), 3)
    assert "canary': '" not in str(state)
    for one in (state, state_after(LOADERS[how](), 3)):
        loader = LOADERS[how](checks="ranks")
        loader.load_state_dict(one)
        assert len(list(loader)) == 3
    loader = LOADERS[how]()
    loader.load_state_dict(state)  # without a canary there is nothing to compare
    assert len(list(loader)) == 3


def test_elements_changed_in_place_by_a_loop() -> None:
    """Elements that a loop changes in place are known as they were drawn."""

    def arrays() -> Iterator[Any]:
        for number in range(6):
            yield np.full(3, number)

    def in_place(array: Any) -> Any:
        array += 7
        return array

    loader = resumable.wrap(arrays, transform=in_place)
    states = []
    for batch in loader:
        states.append(loader.state_dict())
        batch.fill(100)
        states.append(loader.state_dict())
    assert states[::2] == states[1::2]
    for step, state in enumerate(states[:-2:2], start=1):
        resumed = resumable.wrap(arrays, transform=lambda array: array + 7)
        resumed.load_state_dict(state)
        assert [batch[0] for batch in resumed] == list(range(7 + step, 13))


def test_own_skip_leaves_one_element_to_compare() -> None:
    """A source with a skip has only one element left to compare."""
    drawn = []

    class Skips:
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if self.place == 9:
                raise StopIteration
            self.place += 1
            drawn.append(self.place)
            return self.place

        def skip(self, count: int) -> None:
            self.place += count

    state = state_after(resumable.wrap(Skips), 5)
    loader = resumable.wrap(Skips)
    loader.load_state_dict(state)
    drawn.clear()
    assert list(loader) == [6, 7, 8, 9]
    assert drawn == [5, 6, 7, 8, 9]


# ---------------------------------------------------------------------- in the state


def test_ranks_have_the_same_canary() -> None:
    def numbers() -> Iterator[int]:
        yield from range(12)

    loaders = [resumable.wrap(numbers, batch_size=2, tail="drop", world=resumable.World(rank, 2)) for rank in range(2)]
    states = [state_after(loader, 2) for loader in loaders]
    assert states[0] == states[1]
    alone = resumable.wrap(numbers, batch_size=4, tail="drop")
    alone.load_state_dict(states[0])
    assert list(alone) == [[8, 9, 10, 11]]


def test_a_canary_of_no_text_is_damage() -> None:
    state = state_after(resumable.wrap(lambda: iter(range(5))), 2)
    with pytest.raises(StateFormatError, match="canary must be a string"):
        resumable.wrap(lambda: iter(range(5))).load_state_dict({**state, "canary": 7, "digest": None})


def test_states_without_canaries_are_kept_and_load() -> None:
    """`test_state.py` goes on from each of them."""
    folder = Path(__file__).parents[1] / "state/states"
    before, now = (json.loads((folder / f"{name}.json").read_text()) for name in ("format2", "format2_canaries"))
    assert len(before) == len(now)
    assert {case["state"]["canary"] for case in before} == {None}
    with_source = [case["state"] for case in now if case["name"] == "reader"]
    assert sum(state["canary"] is not None for state in with_source) > len(with_source) // 2
    replayed = [case["state"] for case in now if case["name"] == "function"]
    assert all(state["canary"] is not None for state in replayed if state["cursor"]["position"])


# ---------------------------------------------------------------------- what elements can be


class Obj:
    def __init__(self, values: Any) -> None:
        self.values = values


class Slots:
    __slots__ = ("other", "values")

    def __init__(self, values: Any) -> None:
        self.values = values


class Cached:
    """Computes an attribute when it is read, and keeps a hash, which differs between processes."""

    def __init__(self, values: Any) -> None:
        self._values, self._cached_hash = values, random.SystemRandom().random()

    @functools.cached_property
    def total(self) -> float:
        return float(self._values.sum())


@dataclasses.dataclass
class Row:
    values: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: tuple[float, ...]


class ByArray:
    __slots__ = ("_of",)

    def __init__(self, values: Any) -> None:
        self._of: Callable[[], Any] = lambda: values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._of()


class ByDlpack:
    __slots__ = ("_of",)

    def __init__(self, values: Any) -> None:
        self._of: Callable[[], Any] = lambda: torch.from_numpy(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self._of().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._of().__dlpack_device__()


class Color(enum.Enum):
    RED = 0
    BLUE = 1


def number(values: Any) -> int:
    return int(values[-1])


def image(values: Any, mode: str = "L") -> Any:
    return Image.fromarray(np.full((9, 7), number(values), np.uint8)).convert(mode)


def frame(values: Any) -> Any:
    return pd.DataFrame({"x": values, "text": [str(one) for one in values]}, index=list("abc"))


def arrow(values: Any) -> Any:
    lists = [[one, 2.0] for one in values.tolist()]
    return pa.table({"x": [1] * 3, "lists": lists, "structs": [{"a": one} for one in lists]})


ORDINARY: dict[str, Callable[[Any], Any]] = {
    "image": image,
    "image in colors": lambda values: {"image": image(values, "RGB"), "label": 0},
    "image with a palette": lambda values: [image(values, "P")],
    "frame": frame,
    "frame of texts": lambda values: frame(values)[["text"]],
    "frame with other names": lambda values: pd.DataFrame({f"x{number(values)}": [1]}),
    "frame of categories": lambda values: frame(values).astype({"text": "category"}),
    "long frame": lambda values: pd.DataFrame({"x": np.repeat(values, 1000)}),
    "series": pd.Series,
    "index": lambda values: pd.Index([str(one) for one in values]),
    "dates": lambda values: pd.date_range("2026-01-01", periods=number(values)),
    "table": lambda values: pa.table({"x": values}),
    "table of lists": arrow,
    "record batch": lambda values: pa.record_batch({"x": [str(one) for one in values]}),
    "arrow array": pa.array,
    "arrow chunks": lambda values: pa.chunked_array([[1.0], values]),
    "arrow number": lambda values: pa.scalar(values[-1]),
    "arrow list": lambda values: pa.scalar(values.tolist()),
    "arrow bytes": lambda values: pa.py_buffer(values.tobytes()),
    "dataclass": Row,
    "frozen dataclass": lambda values: Frozen(tuple(values.tolist())),
    "object": Obj,
    "slots": Slots,
    "cached": Cached,
    "namespace": lambda values: types.SimpleNamespace(values=values),
    "user dict": lambda values: collections.UserDict(values=values),
    "chain of dicts": lambda values: collections.ChainMap({}, {"values": values}),
    "view of a dict": lambda values: types.MappingProxyType({"values": values}),
    "objects inside": lambda values: [Obj([Slots(Row(values))])],
    "set": lambda values: {number(values), -1, -2},
    "set of texts": lambda values: {str(one) for one in values},
    "set of objects": lambda values: {Frozen(tuple(values.tolist())), Frozen((1.0,))},
    "frozensets": lambda values: frozenset([frozenset(values.tolist()), frozenset([1, 2])]),
    "deque": lambda values: collections.deque([1, values]),
    "values": lambda values: {1: values}.values(),
    "sparse": lambda values: torch.from_numpy(values).to_sparse(),
    "sparse rows": lambda values: torch.from_numpy(np.stack([values, values])).to_sparse_csr(),
    "nested": lambda values: torch.nested.nested_tensor([torch.from_numpy(values), torch.ones(2)]),
    "jagged": lambda values: torch.nested.nested_tensor([torch.from_numpy(values)], layout=torch.jagged),
    "quantized": lambda values: torch.quantize_per_tensor(torch.from_numpy(values), 1.0, 0, torch.quint8),
    "conjugate": lambda values: torch.from_numpy(values * 1j).conj(),
    "array": ByArray,
    "dlpack": ByDlpack,
    "array of objects": lambda values: np.array([1, {"x": values}, None], dtype=object),
    "fields with objects": lambda values: np.array([(1, str(values))], dtype=[("a", int), ("b", object)]),
    "memory": lambda values: memoryview(values.tobytes()),
    "date": lambda values: dt.datetime(2026, 1, number(values), tzinfo=dt.UTC),
    "decimal": lambda values: decimal.Decimal(number(values)),
    "enum": lambda values: Color(number(values) % 2),
    "path": lambda values: Path(f"/data/{number(values)}.jpg"),
    "range": lambda values: range(number(values)),
}


def values_at(place: int) -> Any:
    return np.arange(3, dtype=np.float32) + place


@pytest.mark.parametrize("name", ORDINARY)
def test_elements_of_ordinary_types_are_compared_by_content(name: str) -> None:
    make = ORDINARY[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, about layouts that are new
        same, other = (make(values_at(place)) for place in (1, 2))
        assert Canary(same).unseen is None
        assert digest(same) == digest(make(values_at(1)))
        assert digest(same) != digest(other)
        assert None not in (digest(same), digest(other))
        assert not Canary(same).fits(other)
        old = canary_module._digest(same, old=True)[0]
        assert old is None or (Canary.known(old).fits(same) and Canary.known(old).fits(other))


OPAQUE: dict[str, Callable[[], Any]] = {
    "object": object,
    "lambda": lambda: lambda: 0,
    "no attributes": type("Empty", (), {"__slots__": ()}),
    "in a dict": lambda: {"a": [object()]},
    "in an object": lambda: Obj(object()),
    "in a set": lambda: {object(), object()},
    "iterator": lambda: iter([1, 2]),
    "meta": lambda: torch.empty(2, device="meta"),
}


@pytest.mark.parametrize("name", OPAQUE)
@pytest.mark.parametrize("how", ["function", "state", "stream"])
def test_elements_without_content_are_told_at_the_first_batch(name: str, how: str) -> None:
    class Opaque(IterableDataset[Any]):
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Any:
            return (OPAQUE[name]() for _ in range(4))

    class Reads(Opaque):
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            self.place += 1
            return OPAQUE[name]()

        def state_dict(self) -> dict[str, int]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.place = state["place"]

    stream = DataLoader(Opaque(), batch_size=None)
    source: Any = {"function": Opaque().__iter__, "state": Reads(), "stream": stream}[how]
    loader = resumable.wrap(source, identity="x")
    with pytest.warns(PromiseWarning, match=r"cannot be compared after a resume: an object of type \w+") as told:
        state_after(loader, 3)
    assert len(told) == 1


def lazily(values: Any) -> Any:
    found = Cached(values)
    found.total  # noqa: B018  # a loop has read it
    return found


class Node:
    """A node of a graph, whose neighbours are a set."""

    def __init__(self, label: int) -> None:
        self.label, self.near = label, set[Node]()


def graph() -> Node:
    nodes = [Node(label) for label in range(12)]
    for node in nodes:
        node.near |= set(nodes)
    return nodes[0]


RIGHT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "order of a set": (lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}),
    "cached property": (lambda: Cached(values_at(1)), lambda: lazily(values_at(1))),
    "order of attributes": (
        lambda: types.SimpleNamespace(a=1, b=2),
        lambda: types.SimpleNamespace(b=2, a=1),
    ),
    "folder that moved": (lambda: Path("/data/1/a.jpg"), lambda: Path("/data/2/a.jpg")),
    "path that was hashed": (lambda: Path("a.jpg"), lambda: (hash(path := Path("a.jpg")), path)[1]),
    "functions inside": (lambda: {"x": 1, "of": lambda: 0}, lambda: {"x": 1, "of": lambda: 1}),
    "generator inside": (lambda: Obj((1, random.Random(1))), lambda: Obj((1, random.Random(2)))),
    "graph": (graph, graph),
    "large set": (lambda: set(range(50_000)), lambda: set(range(50_000))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_elements_are_the_same_in_both_runs(name: str) -> None:
    first, second = (make() for make in RIGHT[name])
    assert digest(first) == digest(second)
    assert None not in (digest(first), digest(second))
    assert Canary(first).fits(second)


@pytest.mark.slow
def test_sets_are_the_same_in_processes_with_other_hashes() -> None:
    code = "from resumable._content import Canary; print(Canary([{'a', 'b', 'c', ('d', 1)}, frozenset('xyz')]).digest)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1


@pytest.mark.parametrize("name", ["image", "frame", "table", "object", "set", "sparse"])
def test_a_state_of_an_earlier_version_goes_on(name: str) -> None:
    """Its digest covers only the type, so any element of that type fits."""

    def elements() -> Iterator[Any]:
        for place in range(1, 7):
            yield ORDINARY[name](values_at(place))

    state = state_after(resumable.wrap(elements), 3)
    assert state["canary"].startswith("2:")
    element = ORDINARY[name](values_at(3))
    state = {**state, "canary": canary_module._digest(element, old=True)[0], "digest": None}
    loader = resumable.wrap(elements)
    loader.load_state_dict(state)
    assert len(list(loader)) == 3
