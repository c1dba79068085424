"""Batches of every kind that workers send, and what can be seen of one; a module, for workers that are spawned."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGE = (1 << 19) // 4 + 1  # numbers of 4 bytes, one above what goes by value


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclass
class Told:
    what: Any
    name: str


class Slotted:
    __slots__ = ("what",)

    def __init__(self, what: Any) -> None:
        self.what = what


class Sub(torch.Tensor):
    """A subclass, as torchvision's `Image` is one."""


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = int(np.prod(shape))
    return (torch.arange(count) % 100).reshape(shape).to(dtype)


def of(tensor: torch.Tensor, make: Callable[[torch.Tensor], Any]) -> Any:
    return make(tensor)


def _nested() -> torch.Tensor:
    return torch.nested.nested_tensor([numbers(2), numbers(3)])


def _read_only() -> np.ndarray[Any, Any]:
    array = np.arange(5.0)
    array.flags.writeable = False
    return array


DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)

KINDS: dict[str, Callable[[], Any]] = {
    **{str(dtype).removeprefix("torch."): (lambda dtype=dtype: numbers(3, 4, dtype=dtype)) for dtype in DTYPES},  # type: ignore[misc]
    "0-dim": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 3),
    "view": lambda: numbers(4, 6)[1:3, 2:5],
    "transposed": lambda: numbers(4, 6).t(),
    "channels last": lambda: numbers(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": lambda: numbers(3, 1).expand(3, 4),
    "overlapping": lambda: numbers(6).unfold(0, 3, 1),
    "conj": lambda: numbers(3, dtype=torch.complex64).mul(1j).conj(),
    "neg": lambda: numbers(3, dtype=torch.complex64).mul(1j).conj().imag,
    "requires grad": lambda: numbers(3).requires_grad_(),
    "Parameter": lambda: torch.nn.Parameter(numbers(3)),
    "frozen Parameter": lambda: torch.nn.Parameter(numbers(3, dtype=torch.int64), requires_grad=False),
    "subclass": lambda: numbers(3).as_subclass(Sub),
    "sparse": lambda: numbers(3, 4).to_sparse(),
    "sparse csr": lambda: numbers(3, 4).to_sparse_csr(),
    "nested": _nested,
    "meta": lambda: torch.empty(3, device="meta"),
    "storage": lambda: numbers(3).untyped_storage(),
    "large": lambda: numbers(LARGE),
    "small view of a large one": lambda: numbers(LARGE)[5:8],
    "shared": lambda: numbers(3).share_memory_(),  # type: ignore[no-untyped-call]
    "of numpy": lambda: torch.from_numpy(np.arange(3)),
    "packed sequence": lambda: torch.nn.utils.rnn.pack_sequence([numbers(3), numbers(2)]),
    "array": lambda: np.arange(4.0),
    "read-only array": _read_only,
    "bytes": lambda: b"bytes",
    "text": lambda: "text",
    "None": lambda: None,
    "aliases": lambda: of(numbers(2, 2), lambda whole: [whole, whole[1:], whole.view(4), whole.untyped_storage()]),
    "alias that trains": lambda: of(numbers(4), lambda whole: [whole, torch.nn.Parameter(whole[1:])]),
    "large aliases": lambda: of(numbers(LARGE), lambda whole: [whole, whole[1:]]),
    "twice": lambda: of(numbers(3), lambda one: [one, {"again": one}]),
}


def batch_of(seed: int) -> Any:
    """Make a batch of kinds, views and repetitions, in containers, as the seed says."""
    draw = random.Random(seed)
    made: list[Any] = []

    def leaf() -> Any:
        if made and draw.random() < 0.3:
            old = draw.choice(made)
            sliced = type(old) is torch.Tensor and old.layout is torch.strided and old.dim() and not old.requires_grad
            return old[draw.randrange(len(old) + 1) :] if sliced and not old.is_nested else old
        made.append(KINDS[draw.choice(list(KINDS))]())
        return made[-1]

    def tree(depth: int) -> Any:
        if depth == 0 or draw.random() < 0.3:
            return leaf()
        parts = [tree(depth - 1) for _ in range(draw.randint(1, 3))]
        return draw.choice([  # type: ignore[no-untyped-call]
            lambda: parts,
            lambda: tuple(parts),
            lambda: OrderedDict(enumerate(parts)),
            lambda: {"parts": parts},
            lambda: Pair(parts[0], parts[-1]),
            lambda: Told(parts, "told"),
            lambda: Slotted(parts),
        ])()  # fmt: skip

    return tree(3)


class Batches(Dataset[Any]):
    """Sample `i` is what a function makes of `i`."""

    def __init__(self, make: Callable[[int], Any], length: int) -> None:
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._make(index)


def kind(index: int) -> Any:
    return list(KINDS.values())[index]()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([numbers(3), numbers(LARGE)])


def unchanged(sample: Any) -> Any:
    return sample


def seen(batch: Any) -> Any:
    """Return all that can be seen of a batch: types, values, strides, which objects are one, and which memory is."""
    return _Seen().walk(batch)


class _Seen:
    def __init__(self) -> None:
        self._objects: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id comes twice

    def walk(self, one: Any) -> Any:
        self._kept.append(one)
        told = type(one).__qualname__, self._objects.setdefault(id(one), len(self._objects))
        if isinstance(one, (torch.Tensor, torch.UntypedStorage, np.ndarray)):
            return *told, self._memory_of(one)
        if isinstance(one, dict):
            return *told, [(key, self.walk(value)) for key, value in one.items()]
        if isinstance(one, (list, tuple)):
            return *told, [self.walk(part) for part in one]
        if isinstance(one, (Told, Slotted)):
            return *told, self.walk(one.what)
        return told[0], one

    def _memory_of(self, one: Any) -> Any:
        if isinstance(one, np.ndarray):
            return one.dtype.str, one.shape, one.tobytes(), one.flags.writeable
        return self._storage(one) if isinstance(one, torch.UntypedStorage) else self._tensor(one)

    def _tensor(self, one: torch.Tensor) -> Any:
        facts = (str(one.dtype), str(one.layout), str(one.device), one.requires_grad, one.is_leaf, one.is_nested)
        if one.is_nested:
            return facts, [self._tensor(part) for part in one.unbind()]
        if one.layout is torch.sparse_coo:
            return facts, one.shape, one.is_coalesced(), self._tensor(one._indices()), self._tensor(one._values())
        if one.layout is torch.sparse_csr:
            return (
                facts,
                one.shape,
                [self._tensor(part) for part in (one.crow_indices(), one.col_indices(), one.values())],
            )
        where = one.size(), one.stride(), one.storage_offset(), one.is_conj(), one.is_neg(), one._is_view()
        return facts, where, self._storage(one.untyped_storage()) if one.device.type == "cpu" else None

    def _storage(self, one: torch.UntypedStorage) -> Any:
        self._kept.append(one)
        number = self._memory.setdefault(one._cdata, len(self._memory))
        return number, one.nbytes(), bytes(one.tolist()) if one.nbytes() < 1 << 12 else b""  # type: ignore[no-untyped-call]
