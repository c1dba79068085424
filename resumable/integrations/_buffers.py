"""Copies of a module's buffers at the boundaries: the running means of a normalisation change in each forward pass.

A copy is made after every step and mostly thrown away, so it has to be cheap: only of what a checkpoint holds, and into
storage that is kept.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from resumable.integrations._copies import Copies

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
        self._slots: list[_Slot | None] = [None, None]  # a handler of a signal may save one while the other is written
        self.find()

    def find(self) -> None:
        """Look for the buffers again, as modules may have been added or replaced."""
        self._places = [
            (f"{prefix}.{name}" if prefix else name, owner._buffers, name)  # noqa: SLF001  # getattr() costs 20 times as much
            for prefix, owner in self._module.named_modules(remove_duplicate=False)
            for name in owner._buffers  # noqa: SLF001  # the same
            if name not in owner._non_persistent_buffers_set  # noqa: SLF001  # torch tells it nowhere else
        ]
        self._slots = [None, None]  # whose names may be others now

    def keep(self) -> KeptBuffers:
        """Copy the buffers as they are now."""
        if not self._places:
            return KeptBuffers((), ())
        found, slot = [owner.get(key) for _, owner, key in self._places], self._slots[0]
        with torch.no_grad():
            if slot is None or not slot.take(found):
                slot = _Slot([name for name, _, _ in self._places], found)
                slot.take(found)
            others = slot.clone_others(found)
        self._slots = [self._slots[1], slot]
        if not others:
            return KeptBuffers(slot.names, slot.copies)
        return KeptBuffers(
            [*slot.names, *(name for name, _ in others)], [*slot.copies, *(buffer for _, buffer in others)]
        )


class _Slot:
    """Storage for the buffers of one boundary.

    Args:
        names: of the buffers.
        found: those for which it is made, each of which is mostly the same object after the next step.

    Attributes:
        names: of those that are copied into it.
        copies: of these.
    """

    def __init__(self, names: Sequence[str], found: Sequence[Any]) -> None:
        self._names, self._types = names, list(map(type, found))
        self._plain = [number for number, kind in enumerate(self._types) if kind is Tensor]
        self._others = [number for number, kind in enumerate(self._types) if kind is not Tensor]
        self._copies = Copies([found[number] for number in self._plain])
        self.names, self.copies = [names[number] for number in self._plain], self._copies.copies

    def take(self, found: Sequence[Any]) -> bool:
        """Copy buffers of torch's own type, and return True; or False where it was made for others."""
        if list(map(type, found)) != self._types:
            return False
        return self._copies.take(found if not self._others else [found[number] for number in self._plain])

    def clone_others(self, found: Sequence[Any]) -> list[tuple[str, Tensor]]:
        """Return names and copies of those of other types, which are few, if any; without those that are none."""
        there = [number for number in self._others if found[number] is not None and not is_lazy(found[number])]
        return [(self._names[number], found[number].clone()) for number in there]


def _without_wrappers(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
