"""Copies of a module's buffers at the boundaries: the running means of a normalisation change in each forward pass.

A copy is made after every step and mostly thrown away, so it has to be cheap: only what a checkpoint holds, by one
fused copy into storage that is kept.
"""

from __future__ import annotations

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


class Buffers:
    """Keeps the buffers that a checkpoint of a module holds.

    Args:
        module: whose modules and names are looked for now, and again at each `find`.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._slots: list[list[Tensor]] = [[], []]  # a handler of a signal may save one while the other is written
        self.find()

    def find(self) -> None:
        """Look for the buffers again, as modules may have been added or replaced."""
        self._places = [
            (f"{prefix}.{name}" if prefix else name, owner._buffers, name)  # noqa: SLF001  # getattr() costs 20 times as much
            for prefix, owner in self._module.named_modules(remove_duplicate=False)
            for name in owner._buffers  # noqa: SLF001  # the same
            if name not in owner._non_persistent_buffers_set  # noqa: SLF001  # torch tells it nowhere else
        ]

    def keep(self) -> KeptBuffers:
        """Copy the buffers as they are now."""
        if not self._places:
            return KeptBuffers((), ())
        found = [(name, owner.get(key)) for name, owner, key in self._places]
        special = [(name, buffer) for name, buffer in found if type(buffer) is not Tensor]  # few, if any
        plain = [(name, buffer) for name, buffer in found if type(buffer) is Tensor] if special else found
        tensors = [buffer for _, buffer in plain]
        slot = self._slots[0]
        with torch.no_grad():
            if not _fit(slot, tensors):
                slot = [torch.empty_like(buffer) for buffer in tensors]
            if tensors:
                _copy_all(slot, tensors)
            others = [(name, buffer.clone()) for name, buffer in special if buffer is not None and not is_lazy(buffer)]
        self._slots = [self._slots[1], slot]
        return KeptBuffers([name for name, _ in (*plain, *others)], [*slot, *(buffer for _, buffer in others)])


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
