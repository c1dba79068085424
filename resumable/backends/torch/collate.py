"""PyTorch's default collate function, with a faster path for plain numbers, such as labels.

`torch.tensor(list)` takes twice as long as making a NumPy array and copying it. The results are the same: dtype, memory
and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate

from resumable._torch_private import torchs_collate as theirs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["collating"]


def collating(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an equivalent collate function: a faster one for PyTorch's default, otherwise the same function."""
    return _collate if collate is default_collate and theirs is not None else collate


def _collate(batch: Any) -> Any:
    known = theirs.default_collate_fn_map  # read each time, as users may add to it
    function, replaced = _OWN.get(type(batch[0]), (None, None)) if type(batch) is list and batch else (None, None)
    if function is not None and known.get(type(batch[0])) is replaced:
        return function(batch)
    own: dict[Any, Any] = {kind: function for kind, (function, replaced) in _OWN.items() if known.get(kind) is replaced}
    return theirs.collate(batch, collate_fn_map={**known, **own})


def _integers(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    numbers = _filled(batch, int, torch.int64)
    return theirs.collate_int_fn(batch, collate_fn_map=collate_fn_map) if numbers is None else numbers


def _floats(batch: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:
    numbers = _filled(batch, float, torch.float64)
    return theirs.collate_float_fn(batch, collate_fn_map=collate_fn_map) if numbers is None else numbers


def _filled(batch: Sequence[Any], kind: type, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor of plain numbers; None if PyTorch must handle them: booleans, for example, are integers too."""
    if set(map(type, batch)) != {kind}:
        return None
    tensor = torch.empty(len(batch), dtype=dtype)
    if type(tensor) is not torch.Tensor:  # inside a mode of PyTorch
        return None
    try:
        numbers = np.array(batch, "int64" if kind is int else "float64")  # `int` is shorter on Windows
    except OverflowError:
        return None
    return tensor.copy_(torch.from_numpy(numbers))  # a tensor that NumPy has seen could not be resized


_OWN: dict[type, tuple[Any, Any]] = (
    {} if theirs is None else {int: (_integers, theirs.collate_int_fn), float: (_floats, theirs.collate_float_fn)}
)
