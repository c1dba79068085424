"""Memory of the operations. It is used again only where nothing refers to it any more, so that a batch stays as it is.

FFCV gives out views of a ring of buffers, in which a batch is overwritten as soon as the next one but a few is asked
for. Here each buffer is lent with an object of its own, through which every array and tensor over it goes. When that
object is gone, the memory is out of reach. A loop that drops each batch costs no more memory and no copies.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ffcv.pipeline.allocation_query import AllocationQuery

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Memory", "make_memory"]

_ALIGNMENT = 64


class Memory:
    """Buffers of one shape, lent one after the other.

    Args:
        query: what an operation asked for, per sample.
        samples: largest number of samples.
        keep: how many buffers to keep at most; more are made where more are held at once.
        pinned: whether to pin them, for copies to a GPU.
    """

    def __init__(self, query: AllocationQuery, samples: int, keep: int, *, pinned: bool) -> None:
        self._shape, self._samples, self._keep, self._pinned = tuple(map(int, query.shape)), samples, keep, pinned
        self._dtype = query.dtype if isinstance(query.dtype, torch.dtype) else np.dtype(query.dtype)
        self._device = torch.device(query.device or "cpu") if isinstance(self._dtype, torch.dtype) else None
        self._bytes = samples * int(np.prod(self._shape, dtype=np.int64)) * self._dtype.itemsize
        self._buffers: list[tuple[Any, Callable[[], Any]]] = []

    def lend(self, count: int) -> Any:
        """Return an array or tensor of the shape `(count, *shape)`, with anything in it."""
        if self._device is not None and self._device.type != "cpu":
            return torch.empty((count, *self._shape), dtype=self._dtype, device=self._device)
        lent = np.frombuffer(memoryview(self._free()), np.uint8)
        self._buffers[-1] = self._buffers[-1][0], weakref.ref(lent)
        if isinstance(self._dtype, torch.dtype):
            return torch.from_numpy(lent).view(self._dtype).view(self._samples, *self._shape)[:count]
        return lent.view(self._dtype).reshape(self._samples, *self._shape)[:count]

    def _free(self) -> Any:
        """Return a buffer that nothing refers to, put to the end of the list."""
        number = next((number for number, (_, lent) in enumerate(self._buffers) if lent() is None), None)
        if number is None:
            buffer = self._make()
            del self._buffers[: max(0, len(self._buffers) + 1 - self._keep)]  # who holds them keeps them alive
        else:
            buffer = self._buffers.pop(number)[0]
        self._buffers.append((buffer, _no_lender))
        return buffer

    def _make(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if self._pinned:
            pinned: np.ndarray[Any, np.dtype[np.uint8]] = (
                torch.empty(self._bytes, dtype=torch.uint8).pin_memory().numpy()
            )
            return pinned
        whole = np.empty(self._bytes + _ALIGNMENT, np.uint8)
        offset = -whole.ctypes.data % _ALIGNMENT
        return whole[offset : offset + self._bytes]


def _no_lender() -> None:
    return None


def make_memory(
    query: AllocationQuery | Sequence[AllocationQuery] | None, **options: Any
) -> list[Memory] | Memory | None:
    """Make the memory that an operation asks for: one, several, or none."""
    if query is None:
        return None
    if isinstance(query, AllocationQuery):
        return Memory(query, **options)
    return [Memory(part, **options) for part in query]
