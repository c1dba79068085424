"""Digests of what was trained on: of each sample, so that they do not depend on the borders of batches or on ranks."""

from __future__ import annotations

import pickle
import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["digest_content", "digest_samples", "is_finite"]

_BYTES = 8


def digest_samples(batch: Any) -> list[str]:
    """Digest a batch: one digest per sample where every part of it has a row per sample, else one of the whole.

    Args:
        batch: tensors, arrays, numbers and texts in dictionaries, lists and tuples.
    """
    parts = [_as_array(leaf) for leaf in _leaves(batch)]
    lengths = {len(part) if isinstance(part, np.ndarray) and part.ndim else None for part in parts}
    if len(lengths) == 1 and (length := lengths.pop()):
        return [_digest(part[row] for part in parts) for row in range(length)]
    return [_digest(parts)]


def digest_content(content: Any) -> str:
    """Digest nested plain values and tensors."""
    return _digest(_as_array(leaf) for leaf in _leaves(content, names=True))


def is_finite(content: Any) -> bool:
    """Return whether all numbers in nested plain values and tensors are finite."""
    return all(_all_finite(leaf) for leaf in _leaves(content))


def _all_finite(leaf: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        return bool(torch.isfinite(leaf).all())
    numbers = isinstance(leaf, (float, complex)) or (
        isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fc"
    )
    return not numbers or bool(np.isfinite(leaf).all())


def _leaves(node: Any, *, names: bool = False) -> Iterator[Any]:
    if isinstance(node, dict):
        for name, value in node.items():
            if names:
                yield str(name)
            yield from _leaves(value, names=names)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _leaves(value, names=names)
    else:
        yield node


def _as_array(leaf: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu().contiguous()
        return leaf.view(torch.uint8).numpy() if leaf.dtype == torch.bfloat16 and leaf.dim() else leaf.numpy()
    return leaf


def _digest(values: Any) -> str:
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
    if value is None or isinstance(value, (str, int, float, complex)):
        return repr(value).encode()
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001  # whatever cannot be pickled is known by its type
        return type(value).__qualname__.encode()
