"""What a batch is compared by: a digest of each of its parts, under the path at which Python would find it."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.testing.runs import digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Batch", "Difference", "first_difference", "order_differs", "take_apart"]

_MOST = 512  # parts that are kept by themselves; the others count together
_ROWS = 1024  # samples that are told apart
_SHOWN = 44
_DEEPEST = 32


class Batch(NamedTuple):
    """A batch, by content.

    Args:
        epoch: in which it is.
        step: its number there.
        parts: path and content of each part, in a short text that differs where the content does.
        samples: digest of each sample, as far as they can be told apart; in their order.
    """

    epoch: int
    step: int
    parts: tuple[tuple[str, str], ...]
    samples: tuple[str, ...]

    @property
    def place(self) -> str:
        """The place in words."""
        return f"epoch {self.epoch}, step {self.step}"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first batch in which two runs differ.

    Args:
        epoch: of the batch.
        step: its number in the epoch.
        part: path of the first part that differs, as Python finds it in the batch; empty for the batch itself.
        expected: what the uninterrupted run has there: values, or type, shape and digest.
        found: what the other run has there.
    """

    epoch: int
    step: int
    part: str
    expected: str
    found: str


def take_apart(batch: Any, epoch: int, step: int) -> Batch:
    """Return what a batch is compared by."""
    parts: list[tuple[str, str]] = []
    more = hashlib.blake2b(digest_size=8)
    arrays: list[Any] = []
    for path, leaf in _leaves(batch, "", 0):
        if _has_rows(leaf) and (not arrays or len(leaf) == len(arrays[0])):
            arrays.append(leaf[:_ROWS])
        text = _text(leaf)
        if len(parts) < _MOST:
            parts.append((path, text))
        else:
            more.update(f"{path} {text}\n".encode())
            parts[_MOST - 1 :] = [*parts[_MOST - 1 : _MOST], ("...", f"more parts with the digest {more.hexdigest()}")]
    rows = [digest([np.ascontiguousarray(row) for row in sample]) for sample in zip(*arrays, strict=True)]
    samples = tuple(rows or ([text for _, text in parts] if isinstance(batch, (list, tuple)) else []))
    return Batch(epoch, step, tuple(parts), samples)


def first_difference(expected: Sequence[Batch], found: Sequence[Batch]) -> Difference | None:
    """Return the first difference between two runs; None where each batch of the shorter one is the same."""
    for ours, theirs in zip(expected, found, strict=False):
        if ours != theirs:
            return _difference(ours, theirs)
    return None


def order_differs(expected: Sequence[Batch], found: Sequence[Batch]) -> bool:
    """Return whether two runs have the same samples, in another order."""
    counts = [Counter(sample for batch in run for sample in batch.samples) for run in (expected, found)]
    return bool(counts[0]) and counts[0] == counts[1]


def _difference(ours: Batch, theirs: Batch) -> Difference:
    if ours[:2] != theirs[:2]:
        return Difference(ours.epoch, ours.step, "", f"a batch of {ours.place}", f"a batch of {theirs.place}")
    for one, other in zip(ours.parts, theirs.parts, strict=False):
        if one != other:
            path = one[0] if one[0] == other[0] else ""
            first, second = (one[1], other[1]) if one[0] == other[0] else (f"a part {one[0]}", f"a part {other[0]}")
            return Difference(ours.epoch, ours.step, path, first, second)
    lengths = (f"{len(batch.parts)} parts" for batch in (ours, theirs))
    return Difference(ours.epoch, ours.step, "", *lengths)


def _leaves(value: Any, path: str, deep: int) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a batch that have none themselves."""
    if deep < _DEEPEST and isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{names[number]}" if names else f"{path}[{number}]", deep + 1)
        if not value:
            yield path, f"an empty {type(value).__name__}"
    elif deep < _DEEPEST and hasattr(value, "keys") and hasattr(value, "__getitem__"):
        for key in value.keys():  # noqa: SIM118  # it may be no dict
            yield from _leaves(value[key], f"{path}[{key!r}]", deep + 1)
    elif deep < _DEEPEST and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield from _leaves(getattr(value, one.name), f"{path}.{one.name}", deep + 1)
    else:
        yield path, _plain(value)


def _plain(value: Any) -> Any:
    """Return an array of what is one in some library; of an unknown object, what does not depend on its address."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        dense = plain.layout == torch.strided and not plain.is_quantized
        plain = plain if dense else plain.to_dense() if not plain.is_quantized else plain.dequantize()
        return (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if getattr(type(value), "__repr__", None) is object.__repr__:
        try:
            return pickle.dumps(value)
        except Exception:  # noqa: BLE001  # pickling runs code of any class
            return type(value).__qualname__
    return value


def _text(leaf: Any) -> str:
    if isinstance(leaf, np.ndarray):
        content = repr(leaf.tolist()) if leaf.dtype.hasobject else leaf
        shown = f"{leaf.dtype}{list(leaf.shape)}"
        if leaf.size == 1 and not leaf.dtype.hasobject:
            return f"{shown} {leaf.reshape(-1)[0]!s}"
        return f"{shown} with the digest {digest(content)}"
    text = repr(leaf)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}... with the digest {digest(leaf)}"


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0 and not leaf.dtype.hasobject
