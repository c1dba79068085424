"""Copies of a module's buffers at the boundaries: the running means of a normalisation change in each forward pass.

A copy is made after every step and mostly thrown away, so it has to be cheap: only of what a checkpoint holds, into
storage that is kept, and by as few calls as can be.
"""

from __future__ import annotations

import hashlib
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

__all__ = ["Buffers", "KeptBuffers", "put_back"]

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

    def copies(self) -> dict[str, Tensor]:
        """Return copies by their names."""
        return {name: tensor.clone() for name, tensor in zip(self.names, self.tensors, strict=True)}

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


def put_back(module: Any, copies: Mapping[str, Tensor]) -> None:
    """Give a module its buffers again; a different one, as the trainer itself says on load, keeps those that it has."""
    own = dict(module.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in copies.items():
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)


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
        self._copies = _Copies([found[number] for number in self._plain])
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


class _Copies:
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
