"""Copies of a module's buffers at the boundaries: the running means of a normalisation change in each forward pass.

A copy is made after every step and mostly thrown away, so it has to be cheap: only what a checkpoint holds, by one
fused copy into storage that is kept.
"""

from __future__ import annotations

import hashlib
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

__all__ = ["Buffers", "KeptBuffers"]

# What FSDP, torch.compile and activation checkpointing put into the names of modules, and not always of weights.
_WRAPPERS = ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.")


class KeptBuffers(NamedTuple):
    """The buffers of one boundary, until there are two later ones."""

    names: Sequence[str]
    tensors: Sequence[Tensor]

    def put_into(self, weights: MutableMapping[str, Any]) -> None:
        """Take the place of the buffers among the weights of a checkpoint; by copies, as it may be written later."""
        for name, tensor in zip(self.names, self.tensors, strict=True):
            found = next((known for known in (name, _without_wrappers(name)) if known in weights), None)
            if found is not None:
                weights[found] = tensor.clone()

    def digest(self) -> str:
        """Return what tells them from those of another rank."""
        found = hashlib.blake2b()
        for tensor in self.tensors:
            found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


class Buffers:
    """Keeps the buffers that a checkpoint of a module holds.

    Args:
        module: whose modules and names are looked for now, and again at each `find`.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._slots = [_Slot.of((), ())] * 2  # a handler of a signal may save one while the other is written
        self.find()

    def find(self) -> None:
        """Look for the buffers again, as modules may have been added or replaced."""
        self._places = [
            (f"{prefix}.{name}" if prefix else name, owner._buffers, name)  # noqa: SLF001  # getattr() costs 20 times as much
            for prefix, owner in self._module.named_modules(remove_duplicate=False)
            for name in owner._buffers  # noqa: SLF001  # the same
            if name not in owner._non_persistent_buffers_set  # noqa: SLF001  # torch tells it nowhere else
        ]
        self._slots = [slot._replace(found=()) for slot in self._slots]  # whose names may be others now

    def keep(self) -> KeptBuffers:
        """Copy the buffers as they are now."""
        if not self._places:
            return KeptBuffers((), ())
        found, slot = [owner.get(key) for _, owner, key in self._places], self._slots[0]
        with torch.no_grad():
            if not slot.is_for(found):
                slot = _Slot.of([name for name, _, _ in self._places], found, slot.storage)
            if slot.plain:
                _copy_all(slot.storage, slot.plain)
            others = [(name, one.clone()) for name, one in slot.others if one is not None and not is_lazy(one)]
        self._slots = [self._slots[1], slot]
        if not others:
            return KeptBuffers(slot.names, slot.storage)
        return KeptBuffers(
            [*slot.names, *(name for name, _ in others)], [*slot.storage, *(buffer for _, buffer in others)]
        )


class _Slot(NamedTuple):
    """Storage for the buffers of one boundary.

    Args:
        found: the buffers for which it was made, of which each is mostly the same object after the next step.
        names: of the plain ones.
        plain: tensors of torch's own type.
        shapes: theirs, as one may be resized in place.
        dtypes: likewise.
        storage: what they are copied into.
        others: few, if any: of other types, or none at all.
    """

    found: Sequence[Any]
    names: Sequence[str]
    plain: Sequence[Tensor]
    shapes: Sequence[torch.Size]
    dtypes: Sequence[torch.dtype]
    storage: Sequence[Tensor]
    others: Sequence[tuple[str, Any]]

    @classmethod
    def of(cls, names: Sequence[str], found: Sequence[Any], storage: Sequence[Tensor] = ()) -> _Slot:
        """Make a slot for buffers, of storage that is there if it fits."""
        pairs = list(zip(names, found, strict=True))
        plain = [buffer for _, buffer in pairs if type(buffer) is Tensor]
        if not _fit(storage, plain):
            storage = [torch.empty_like(buffer) for buffer in plain]
        return cls(
            found,
            [name for name, buffer in pairs if type(buffer) is Tensor],
            plain,
            [buffer.shape for buffer in plain],
            [buffer.dtype for buffer in plain],
            storage,
            [(name, buffer) for name, buffer in pairs if type(buffer) is not Tensor],
        )

    def is_for(self, found: Sequence[Any]) -> bool:
        """Return whether it takes these buffers as they are now; in a quarter of the time that `_fit` needs."""
        return (
            len(found) == len(self.found)
            and all(map(is_, found, self.found))
            and [buffer.shape for buffer in self.plain] == self.shapes
            and [buffer.dtype for buffer in self.plain] == self.dtypes
        )


def _fit(slot: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    """Return whether storage is of the same shapes and types as what is to be copied into it."""
    return len(slot) == len(tensors) and all(
        one.shape == tensor.shape and one.dtype is tensor.dtype and one.device == tensor.device
        for one, tensor in zip(slot, tensors, strict=True)
    )


def _copy_each(into: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    for one, tensor in zip(into, tensors, strict=True):
        one.copy_(tensor)


# One kernel for many small tensors. torch has no public name for it; versions that lack it copy one after the other.
_copy_all: Any = getattr(torch, "_foreach_copy_", _copy_each)


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
