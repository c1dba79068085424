"""Copies of tensors that are taken again and again into storage that is kept, by as few calls as can be."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Copies"]


class Copies:
    """Storage for a copy of each of some tensors.

    What lies in the processor's memory in one piece is copied as bytes, all of one type by one call of `torch.cat`: in
    half the time of torch's fused copy, which takes the rest. Each type has a storage of its own, as `torch.save`
    refuses one with several. All are copied each time, as torch's counts of changes (`Tensor._version`) leave out those
    through `.data`, by NumPy, or by a kernel of the user's.

    Args:
        tensors: of torch's own type, for whose forms it is made.

    Attributes:
        copies: as many tensors, of the same forms; empty before the first `take`.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        together: dict[torch.dtype | None, list[int]] = {}  # numbers of those of one type; of those that lie apart
        for number, one in enumerate(tensors):
            together.setdefault(one.dtype if _is_flat(one) else None, []).append(number)
        self._groups: list[_Row | _Apart] = []
        self._where: dict[int, tuple[_Row | _Apart, int]] = {}
        for dtype, numbers in together.items():
            group = (_Apart if dtype is None else _Row)([tensors[number] for number in numbers])
            self._groups.append(group)
            self._where |= {number: (group, place) for place, number in enumerate(numbers)}
        places = [self._where[number] for number in range(len(tensors))]
        self.copies = [group.copies[place] for group, place in places]

    def take(self, tensors: Sequence[Tensor]) -> bool:
        """Copy tensors, and return True; or False where it was made for other forms, and the copies are of no use.

        Args:
            tensors: mostly the same objects as before, which may have been changed in place, also in their form.
        """
        if len(tensors) != len(self._tensors):
            return False
        if not (all(map(is_, tensors, self._tensors)) or self._exchange(tensors)):
            return False
        return all(group.take() for group in self._groups)

    def _exchange(self, tensors: Sequence[Tensor]) -> bool:
        """Take other tensors from now on, and return whether they have the forms of those before."""
        for number, (new, old) in enumerate(zip(tensors, self._tensors, strict=True)):
            if new is not old:
                group, place = self._where[number]
                if not _is_alike(new, group.copies[place]) or not group.exchange(place, new):
                    return False
                self._tensors[number] = new
        return True


class _Row:
    """Tensors of one type that are copied as the bytes that they lie in.

    An alias of each shows whether its storage, shape or strides have been changed in place: then its bytes are others.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._aliases = list(tensors), [one.detach() for one in tensors]
        self._bytes, self._dtypes = [_bytes_of(one) for one in self._aliases], [one.dtype for one in tensors]
        storage = torch.empty(sum(map(Tensor.numel, tensors)), dtype=tensors[0].dtype)
        self._into = storage.view(torch.uint8)
        parts = torch.split(storage, [one.numel() for one in tensors])
        self.copies = [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]

    def exchange(self, place: int, new: Tensor) -> bool:
        if not _is_flat(new):
            return False
        alias = new.detach()
        self._tensors[place], self._aliases[place], self._bytes[place] = new, alias, _bytes_of(alias)
        return True

    def take(self) -> bool:
        if not all(map(Tensor.is_set_to, self._tensors, self._aliases)):
            return False
        if [one.dtype for one in self._tensors] != self._dtypes:
            return False
        torch.cat(self._bytes, out=self._into)
        return True


class _Apart:
    """Tensors on other devices, and those with gaps between their numbers."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._forms = [(one.shape, one.dtype) for one in tensors]
        self.copies = [torch.empty_like(one) for one in tensors]

    def exchange(self, place: int, new: Tensor) -> bool:
        self._tensors[place] = new
        return True

    def take(self) -> bool:
        if [(one.shape, one.dtype) for one in self._tensors] != self._forms:
            return False
        _copy_all(self.copies, self._tensors)
        return True


def _is_flat(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers are bytes in the processor's memory, one after the other."""
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return is_plain and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _is_alike(tensor: Tensor, copy: Tensor) -> bool:
    return tensor.shape == copy.shape and tensor.dtype is copy.dtype and tensor.device == copy.device


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _copy_each(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for one, tensor in zip(into, tensors, strict=True):
        one.copy_(tensor)


# One kernel for many small tensors. torch has no public name for it; versions that lack it copy one after the other.
_copy_all: Any = getattr(torch, "_foreach_copy_", _copy_each)
