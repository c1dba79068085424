"""The bytes of digests that saved states hold: canaries, element digests of stored samples, digests of objects.

States of earlier runs hold them, so a digest that changes rejects states of the same data.
"""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict, namedtuple
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch

from resumable._content import Canary, digest_of
from resumable._content.elements import element_digests

Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as many datasets have them
PINNED = Path(__file__).with_name("digests.json")
FILES = ["5399", "c410"]


@dataclasses.dataclass
class Row:
    name: str
    values: Any


class Plain:
    def __init__(self) -> None:
        self.number = 3


def nested(levels: int) -> Any:
    inner: Any = ["leaf"]
    for _ in range(levels):
        inner = [inner, {"level": 1.5}]
    return inner


def endless() -> Any:
    loop: list[Any] = [1]
    loop.append(loop)
    return loop


CONTENTS: dict[str, Any] = {
    "none": None,
    "bool": True,
    "int": -7,
    "large int": 1 << 300,
    "float": 0.1,
    "complex": 1 + 2j,
    "text": "a\udc80b",
    "long text": "x" * 3000 + "y" * 3000,
    "bytes": b"\x00\xff",
    "long bytes": bytes(range(256)) * 20,
    "bytearray": bytearray(b"abc"),
    "number of numpy": np.int32(5),
    "float of numpy": np.float64(0.5),
    "array": np.arange(12, dtype=np.int16).reshape(3, 4),
    "floats": np.linspace(0, 1, 50, dtype=np.float32),
    "large array": np.arange(40_000).reshape(200, 200),
    "by columns": np.asfortranarray(np.arange(40_000.0).reshape(200, 200)),
    "empty array": np.zeros((0, 3)),
    "complex array": np.array([1 + 2j, 3j]),
    "objects": np.array(["a", 1, None], dtype=object),
    "dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "tensor": torch.arange(6).reshape(2, 3),
    "bfloat16": torch.linspace(0, 1, 100).bfloat16(),
    "half": torch.ones(3, dtype=torch.float16),
    "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "dict": {"image": np.arange(5.0), "label": 3, "__url__": "/scratch/1/a.tar", 0: None, (1, "a"): [1]},
    "order of keys": OrderedDict(b=1, a=2),
    "list": [1, "two", 3.0, [b"4"]],
    "pair": Pair("a.jpg", 1),
    "long list": list(range(500)),
    "long dict": {f"key {number}": number for number in range(100)},
    "many leaves": [[number, str(number)] for number in range(300)],
    "dataclass": Row("a", [1.5, 2.5]),
    "object": Plain(),
    "set": {1, 2, 3},
    "range": range(7),
    "dots": ...,
    "deep": nested(9),
    "endless": endless(),
    "path": PurePosixPath("/data/train/a.jpg"),
    "name of a file": "train/cats/a.jpg",
    "address": "https://host/a.jpg?signature=1",
}


def digests_of(content: Any) -> list[str | None]:
    return [Canary(content).digest, " ".join(one.text for one in element_digests([content])), digest_of(content)]


@pytest.mark.parametrize("name", CONTENTS)
def test_digests_are_those_of_earlier_states(name: str) -> None:
    """A fourth digest is the canary of this version, if it covers a type that earlier versions did not read."""
    first, *others = json.loads(PINNED.read_text(encoding="utf-8"))[name]
    assert digests_of(CONTENTS[name]) == [*(others[2:] or [first]), *others[:2]]
    assert Canary.known(first).fits(CONTENTS[name])
    assert not Canary.known(first).fits("other")
    if others[2:]:
        assert Canary.known(others[2]).fits(CONTENTS[name])


def test_every_pinned_digest_is_compared() -> None:
    """Every pinned digest is compared, and they tell contents apart."""
    pinned = json.loads(PINNED.read_text(encoding="utf-8"))
    assert pinned.keys() == CONTENTS.keys()
    assert len({digest for _, _, digest, *_ in pinned.values()}) == len(pinned)


def test_files_are_named_below_the_folder_that_they_share() -> None:
    assert [one.text for one in element_digests(["/data/a/1.jpg", "/data/b/2.jpg"])] == FILES
    assert [one.text for one in element_digests(["/mnt/x/a/1.jpg", "/mnt/x/b/2.jpg"])] == FILES
