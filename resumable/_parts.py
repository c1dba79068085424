"""The parts of a checkpoint by their dotted paths, and which of them differ between two.

>>> one, other = parts_of({"model": {"bias": 1.0, "weight": 2.0}}), parts_of({"model": {"bias": 1.0, "weight": 3.0}})
>>> compare(one, other).differing
['model.weight']
"""

from __future__ import annotations

import pickle
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["Difference", "as_array", "compare", "digest_values", "parts_of", "topmost"]

_BYTES = 8
_SHOWN = 40  # characters of a plain value that stands for itself
_PLAIN = (type(None), bool, int, float, complex, str)


class Difference(NamedTuple):
    """What two checkpoints have in common; each path stands for all that is below it.

    Args:
        differing: paths whose content differs.
        equal: paths whose content is the same, bit for bit.
        missing: paths that only the first one has.
        added: paths that only the second one has.
    """

    differing: list[str]
    equal: list[str]
    missing: list[str]
    added: list[str]


def compare(one: Mapping[str, str], other: Mapping[str, str]) -> Difference:
    """Compare two checkpoints by what `parts_of` returned for them."""
    every = {**one, **other}
    both = one.keys() & other.keys()
    kinds = (
        {path for path in both if one[path] != other[path]},
        {path for path in both if one[path] == other[path]},
        one.keys() - other.keys(),
        other.keys() - one.keys(),
    )
    return Difference(*(topmost(paths, every) for paths in kinds))


def topmost(paths: Iterable[str], every: Iterable[str]) -> list[str]:
    """Name paths by as few as possible: a path stands for all of `every` that is below it.

    Args:
        paths: of parts.
        every: the paths of all parts, those among them.
    """
    chosen = set(paths)
    mixed = {above for path in set(every) - chosen for above in _above(path)}
    return list(dict.fromkeys(_highest(path, mixed) for path in sorted(chosen)))


def _highest(path: str, mixed: Collection[str]) -> str:
    return next((above for above in _above(path) if above not in mixed), path)


def _above(path: str) -> Iterator[str]:
    """Yield the beginnings of a path, the shortest first, and itself."""
    names = path.split(".")
    return (".".join(names[:number]) for number in range(1, len(names) + 1))


def parts_of(content: Any) -> dict[str, str]:
    """Return a text for each part of nested dictionaries, lists and tuples, by its dotted path.

    Parts are the same, bit for bit, where their texts are. A short plain value is its own text; a tensor or an array
    has dtype, shape and digest; a list of plain values is one part, with its length and a digest.

    Args:
        content: of a checkpoint: tensors, arrays and plain values.
    """
    found: dict[str, str] = {}
    for path, leaf in _leaves(content, ()):
        name, text = ".".join(path) or "content", _describe(leaf)
        found[name] = digest_values([found[name], text]) if name in found else text  # keys with dots in them
    return found


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        inner = node.items()
    elif isinstance(node, (list, tuple)) and not all(isinstance(value, _PLAIN) for value in node):
        inner = enumerate(node)
    if not inner:
        yield path, node
    for name, value in inner:
        yield from _leaves(value, (*path, str(name)))


def _describe(leaf: Any) -> str:
    if isinstance(leaf, (list, tuple)):
        return f"list of {len(leaf)}: {digest_values(leaf)}"
    if isinstance(leaf, _PLAIN) or (isinstance(leaf, dict) and not leaf):
        text = repr(leaf)
        return text if len(text) <= _SHOWN else digest_values([leaf])
    array = as_array(leaf)
    if not isinstance(array, (np.ndarray, np.generic)):
        return f"{type(leaf).__qualname__}: {digest_values([array])}"
    kind = str(getattr(leaf, "dtype", array.dtype)).removeprefix("torch.")
    if not array.shape and array.dtype.kind in "biuf":
        return f"{array.item()!r} {kind}"
    return f"{kind}{list(array.shape)}: {digest_values([array])}"


def as_array(leaf: Any) -> Any:
    """Return a tensor as an array of its bytes or numbers, and anything else as it is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu().contiguous()
        return leaf.view(torch.uint8).numpy() if leaf.dtype == torch.bfloat16 and leaf.dim() else _numpy(leaf)
    return leaf


def _numpy(tensor: Any) -> Any:
    return tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()


def digest_values(values: Iterable[Any]) -> str:
    """Digest arrays and plain values, one after the other."""
    digest = blake2b(digest_size=_BYTES)
    for value in values:
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(np.ascontiguousarray(value).data)
        else:
            digest.update(_as_bytes(value))
    return digest.hexdigest()


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, _PLAIN):
        return repr(value).encode()
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # whatever cannot be pickled is known by its type
        return type(value).__qualname__.encode()
