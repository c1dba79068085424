"""Copies of a module's buffers at optimizer steps. Buffers such as running means change in every forward pass.

A copy is made after every step and usually discarded, so it must be cheap. It contains only the buffers that a
checkpoint holds, reuses its storage, and needs few calls.
"""

from __future__ import annotations

import hashlib
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from resumable._torch_private import copy_all, persistent_buffers

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

__all__ = ["Buffers", "KeptBuffers", "put_back"]


class Buffers:
    """Copies the buffers that a checkpoint of a module holds.

    Args:
        module: the module.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._slots: list[_Slot | None] = [None, None]  # a signal handler may save one while the other is written
        self.find()

    def find(self) -> None:
        """Search for the buffers again. Modules may have been added or replaced."""
        self._owners = [
            (f"{prefix}.{name}" if prefix else name, buffers, name)
            for prefix, owner in self._module.named_modules(remove_duplicate=False)
            for buffers, name in persistent_buffers(owner)
        ]
        self._slots = [None, None]  # the old ones may have different names

    def keep(self) -> KeptBuffers:
        """Copy the current buffers."""
        if not self._owners:
            return KeptBuffers((), ())
        found, slot = [owner.get(key) for _, owner, key in self._owners], self._slots[0]
        with torch.no_grad():
            if slot is None or not slot.take(found):
                slot = _Slot([name for name, _, _ in self._owners], found)
                slot.take(found)
            others = slot.clone_others(found)
        self._slots = [self._slots[1], slot]
        if not others:
            return KeptBuffers(slot.names, slot.copies)
        return KeptBuffers(
            [*slot.names, *(name for name, _ in others)], [*slot.copies, *(buffer for _, buffer in others)]
        )


class KeptBuffers(NamedTuple):
    """The buffers at one optimizer step. They are valid until two later steps were copied."""

    names: Sequence[str]
    tensors: Sequence[Tensor]

    def put_into(self, weights: MutableMapping[str, Any]) -> None:
        """Replace the buffers among the weights of a checkpoint with copies, since it may be written later."""
        for name, tensor in zip(self.names, self.tensors, strict=True):
            found = next((known for known in (name, _without_wrappers(name)) if known in weights), None)
            if found is not None:
                weights[found] = tensor.clone()

    def copies(self) -> dict[str, Tensor]:
        """Return a dict from name to copy."""
        return {name: tensor.clone() for name, tensor in zip(self.names, self.tensors, strict=True)}

    def digest(self) -> str:
        """Return a digest of the values, to compare ranks."""
        found = hashlib.blake2b()
        for tensor in self.tensors:
            found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


# FSDP, torch.compile and activation checkpointing add these to names of modules, and sometimes not to names of weights.
_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def put_back(module: Any, copies: Mapping[str, Tensor]) -> None:
    """Restore the buffers of a module. Buffers that are missing in it or have a different shape are ignored."""
    own = dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in copies.items():
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)


class _Slot:
    """Storage for the buffers at one optimizer step.

    Args:
        names: of the buffers.
        found: the buffers. After the next step, most are still the same objects.

    Attributes:
        names: of the buffers that are copied into this storage.
        copies: of these buffers.
    """

    def __init__(self, names: Sequence[str], found: Sequence[Any]) -> None:
        self._names, self._types = names, list(map(type, found))
        self._plain = [number for number, kind in enumerate(self._types) if kind is Tensor]
        self._others = [number for number, kind in enumerate(self._types) if kind is not Tensor]
        self._copies = _Copies([found[number] for number in self._plain])
        self.names, self.copies = [names[number] for number in self._plain], self._copies.copies

    def take(self, found: Sequence[Any]) -> bool:
        """Copy buffers of the type `Tensor`. Return False if this storage does not fit the buffers."""
        if list(map(type, found)) != self._types:
            return False
        return self._copies.take(found if not self._others else [found[number] for number in self._plain])

    def clone_others(self, found: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """Return names and copies of the few buffers of other types, except None and uninitialized ones."""
        there = [number for number in self._others if found[number] is not None and not is_lazy(found[number])]
        return [(self._names[number], found[number].clone()) for number in there]


class _Copies:
    """Storage for a copy of each tensor in a list.

    Contiguous CPU tensors of one dtype are copied as bytes with one call of `torch.cat`, in half the time of PyTorch's
    fused copy. The fused copy does the rest. Each dtype has a separate storage, because `torch.save` rejects a storage
    with several. All tensors are copied each time: `Tensor._version` does not count changes through `.data`, NumPy or
    custom kernels.

    Args:
        tensors: of the type `Tensor`. The storage fits their shapes, dtypes and devices.

    Attributes:
        copies: as many tensors, of the same shapes; uninitialized before the first `take`.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        together: dict[torch.dtype | None, list[int]] = {}  # indices by dtype; None: not contiguous or not on the CPU
        for number, one in enumerate(tensors):
            together.setdefault(one.dtype if _is_flat(one) else None, []).append(number)
        self._groups: list[_Row | _Apart] = []
        self._where: dict[int, tuple[_Row | _Apart, int]] = {}
        for dtype, numbers in together.items():
            group = (_Apart if dtype is None else _Row)([tensors[number] for number in numbers])
            self._groups.append(group)
            self._where |= {number: (group, index) for index, number in enumerate(numbers)}
        where = [self._where[number] for number in range(len(tensors))]
        self.copies = [group.copies[index] for group, index in where]

    def take(self, tensors: Sequence[Tensor]) -> bool:
        """Copy tensors. Return False if this storage does not fit them, and its copies are invalid.

        Args:
            tensors: usually the same objects as before. Their values and even their shapes may have changed in place.
        """
        if len(tensors) != len(self._tensors):
            return False
        if not (all(map(is_, tensors, self._tensors)) or self._exchange(tensors)):
            return False
        return all(group.take() for group in self._groups)

    def _exchange(self, tensors: Sequence[Tensor]) -> bool:
        """Copy from these tensors from now on, and return whether they fit."""
        for number, (new, old) in enumerate(zip(tensors, self._tensors, strict=True)):
            if new is not old:
                group, index = self._where[number]
                if not _is_alike(new, group.copies[index]) or not group.exchange(index, new):
                    return False
                self._tensors[number] = new
        return True


class _Row:
    """Contiguous CPU tensors of one dtype, which are copied as bytes.

    An alias of each tensor shows whether its storage, shape or strides were changed in place.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._aliases = list(tensors), [one.detach() for one in tensors]
        self._bytes, self._dtypes = [_bytes_of(one) for one in self._aliases], [one.dtype for one in tensors]
        storage = torch.empty(sum(map(Tensor.numel, tensors)), dtype=tensors[0].dtype)
        self._into = storage.view(torch.uint8)
        parts = torch.split(storage, [one.numel() for one in tensors])
        self.copies = [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]

    def exchange(self, index: int, new: Tensor) -> bool:
        if not _is_flat(new):
            return False
        alias = new.detach()
        self._tensors[index], self._aliases[index], self._bytes[index] = new, alias, _bytes_of(alias)
        return True

    def take(self) -> bool:
        if not all(map(Tensor.is_set_to, self._tensors, self._aliases)):
            return False
        if [one.dtype for one in self._tensors] != self._dtypes:
            return False
        torch.cat(self._bytes, out=self._into)
        return True


class _Apart:
    """Tensors that are on other devices or not contiguous."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._forms = [(one.shape, one.dtype) for one in tensors]
        self.copies = [torch.empty_like(one) for one in tensors]

    def exchange(self, index: int, new: Tensor) -> bool:
        self._tensors[index] = new
        return True

    def take(self) -> bool:
        if [(one.shape, one.dtype) for one in self._tensors] != self._forms:
            return False
        copy_all(self.copies, self._tensors)
        return True


def _is_flat(tensor: Tensor) -> bool:
    """Return whether a tensor is contiguous in CPU memory."""
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return is_plain and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _is_alike(tensor: Tensor, copy: Tensor) -> bool:
    return tensor.shape == copy.shape and tensor.dtype is copy.dtype and tensor.device == copy.device


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
