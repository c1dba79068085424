"""Batches are compared by all that is in them, whatever they are made of."""

from __future__ import annotations

import array
import copy
import datetime as dt
import logging
import random
import sys
import threading
from collections import Counter, OrderedDict, UserDict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from resumable._selfcheck.streams import first_difference, take_apart


class Plain:
    """As a graph of a graph library: its tensors are attributes, and its repr tells their shapes."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __repr__(self) -> str:
        return "Plain(x=[2])"


class Slotted:
    __slots__ = ("__hidden", "unset", "x")

    def __init__(self, x: Any) -> None:
        self.__hidden = x
        self.x = 0


class WithLock(Plain):
    def __init__(self, x: Any) -> None:
        super().__init__(x)
        self.lock = threading.Lock()


class Touchy(Plain):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        return 1


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Data:
    x: Any


@dataclass(slots=True)
class SlottedData:
    x: Any


def nested(value: int, levels: int) -> Any:
    for _ in range(levels):
        value = [value]  # type: ignore[assignment]
    return value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ring(value: int) -> Any:
    inner: list[Any] = [value]
    inner.append(inner)
    return inner


KINDS: dict[str, Any] = {
    "number": float,
    "large number": lambda one: 10**5000 + one,
    "text": lambda one: "a" * 100 + str(one),
    "bytes": lambda one: memoryview(bytes([one])),
    "tensor": lambda one: torch.full((2,), float(one)),
    "scalar": torch.tensor,
    "bfloat16": lambda one: torch.full((2,), one, dtype=torch.bfloat16),
    "float8": lambda one: torch.full((2,), float(one)).to(torch.float8_e4m3fn),
    "complex": lambda one: torch.tensor([1 + 1j * one]).conj(),
    "sparse": lambda one: torch.eye(3).to_sparse() * one,
    "quantized": lambda one: torch.quantize_per_tensor(torch.full((2,), float(one)), 0.5, 0, torch.qint8),
    "nested tensor": lambda one: torch.nested.nested_tensor([torch.full((2,), float(one)), torch.zeros(3)]),
    "packed": lambda one: pack_sequence([torch.full((2,), float(one))]),
    "generator": generator,
    "random.Random": random.Random,
    "numpy.random": np.random.default_rng,
    "RandomState": np.random.RandomState,
    "array": lambda one: np.full((2, 2), one),
    "object array": lambda one: np.array([Plain(one), None], dtype=object),
    "dates": lambda one: np.array(["2026-01-01", f"2026-01-0{one + 1}"], dtype="datetime64[D]"),
    "date": lambda one: dt.datetime(2026, 1, one + 1, tzinfo=dt.UTC),
    "object": Plain,
    "object of tensors": lambda one: Plain(torch.full((2,), float(one))),
    "slots": Slotted,
    "lock": WithLock,
    "touchy": Touchy,
    "named": lambda one: Pair(0, Plain(one)),
    "dataclass": lambda one: Data(torch.full((2,), float(one))),
    "dataclass with slots": lambda one: SlottedData([one]),
    "set": lambda one: {"a", "b", str(one)},
    "set of objects": lambda one: {Pair(1, one)},
    "deque": lambda one: deque([0, one]),
    "array.array": lambda one: array.array("i", [0, one]),
    "user's dict": lambda one: UserDict(a=Plain(one)),
    "ordered": lambda one: OrderedDict(a=[one]),
    "counter": lambda one: Counter("ab" * one),
    "ring": ring,
    "deep": lambda one: nested(one, 20),
    "empty": lambda one: [[], {}, ()][: one + 1],
}


def compared(one: Any, other: Any) -> Any:
    return first_difference([take_apart(one, 0, 0)], [take_apart(other, 0, 0)])


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning", "ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_the_same_is_and_what_differs_does(kind: str) -> None:
    make = KINDS[kind]
    for wrapped in (lambda value: value, lambda value: [value], lambda value: {"key": (0, value)}):
        assert compared(wrapped(make(1)), wrapped(make(1))) is None
        assert compared(wrapped(make(1)), wrapped(make(2))) is not None
    if kind not in {"bytes", "lock", "generator", "touchy", "quantized", "nested tensor"}:
        assert compared(make(1), copy.deepcopy(make(1))) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (threading.Lock(), "a value of _thread.lock has no attributes and cannot be pickled"),
        ((number for number in range(3)), "a value of builtins.generator is not data"),
        (torch.ones(2, device="meta"), "a tensor on the device meta has no values"),
        (nested(1, 3000), "it lies 200 levels deep"),
        (lambda: 1, "a value of builtins.function is not data"),
    ],
    ids=["lock", "generator", "meta", "deep", "function"],
)
def test_what_is_not_compared_is_told(value: Any, why: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "resumable"):
        assert compared({"a": value}, {"a": value}) is None
    assert {record.getMessage() for record in caplog.records} == {
        f"the part a{'.0' * 199 * ('deep' in why)} of a batch is not compared: {why}"
    }


def test_an_array_that_cannot_be_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise OSError("gone")

    with caplog.at_level(logging.WARNING, "resumable"):
        assert compared(Broken(), Broken()) is None
    assert "cannot be read (OSError: gone)" in caplog.text
    assert "torch" in sys.modules
