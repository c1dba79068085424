"""Contents whose parts are compared in two processes: prints the parts of each as JSON."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import enum
import functools
import itertools
import json
import random
import sys
from fractions import Fraction
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch

from resumable._content import parts_of


class Color(enum.Enum):
    RED = object()


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Data:
    x: Any


@attrs.define
class Attrs:
    x: Any


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


class Number(int):
    def __repr__(self) -> str:
        return f"<Number at {id(self):#x}>"


class Zone(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(0)

    def dst(self, _: Any) -> dt.timedelta:
        return dt.timedelta(0)

    def tzname(self, _: Any) -> str:
        return "zone"


def many(one: float) -> dict[str, Any]:
    """Return contents of all kinds; each of them depends on one number."""
    words = {f"word {number}" for number in range(50)}
    linear = torch.nn.Linear(1, 1)
    with torch.no_grad():
        linear.weight.fill_(one)
        linear.bias.fill_(0)
    whole = int(one)
    return {
        "set": {*words, str(one)},
        "sets": [frozenset({Pair(one, "a")}), {frozenset(words)}],
        "by key": {(whole, "a"): 0},
        "object": Plain({"a": one}),
        "exception": ValueError("a", one),
        "partial": functools.partial(print, one),
        "count": itertools.count(whole),
        "enum and number": [Plain(Color.RED), Number(whole)],
        "zone": dt.datetime(2026, 1, whole, tzinfo=Zone()),
        "fraction": Fraction(whole, 7),
        "attrs": Attrs([one]),
        "dataclass": Data(one),
        "deque": collections.deque([None, one]),
        "bytes": bytes(100) + bytes([whole]),
        "array": array.array("d", [one]),
        "objects": np.array([Plain(one), None], dtype=object),
        "fields": np.array([(1, one)], dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        "long": np.array([one], np.longdouble),
        "masked": np.ma.MaskedArray([one, 2.0], [False, True]),
        "module": linear,
        "bf16": torch.full((2,), one, dtype=torch.bfloat16),
        "scalar": np.float64(one),
        "sparse": (torch.eye(3) * one).to_sparse(),
        "rows": (torch.eye(3) * one).to_sparse_csr(),
        "torch": torch.Generator().manual_seed(whole),
        "python": random.Random(whole),
        "numpy": [np.random.default_rng(whole), np.random.RandomState(whole)],
        "lists": [[1, one], [0.0, None, "a"]],
        "text": "x" * 50 + str(one),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: parts_of(value) for name, value in many(float(sys.argv[1])).items()}))
