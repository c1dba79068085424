"""Notices what a training loop changes on its own sampler after `wrap`, and brings that to the copy that is read."""

from __future__ import annotations

import copy
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from resumable._content.canary import Canary
from resumable._introspection import ask, attributes_of, has, is_exactly, package_of, qualname_of, shorten, survive
from resumable._torch_private import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OF_THE_RUN", "UNSET", "Changes", "Path", "described", "shows_values"]

Path = tuple[str, ...]  # the names that lead to an attribute
OF_THE_RUN = {  # names of what describes the progress or the rank
    "epoch",
    "start_epoch",
    "epochs",
    "num_epochs",
    "start",
    "start_index",
    "rank",
    "num_replicas",
    "world_size",
}
_PLAIN = (int, float, bool, str, bytes, type(None), complex)
_LISTS = (list, tuple, set, frozenset, deque, dict)
_DEEPEST = 4  # objects inside objects
_ATTRIBUTES = 256
_PARTS = 64  # of a list with values that have no hash
_OFTEN = 1 << 20, 1 << 12  # bytes of an array, and values of a list, that are compared in full before each batch
_RARELY = 1 << 30, 1 << 24  # the same before each epoch
_MISSING = "no such attribute"
UNSET = (_MISSING, repr(None))  # contents of an attribute that may be computed when it is needed


class Changes:
    """The plain attributes of a user's object, compared with what they were at the last look.

    Only numbers, texts, arrays and lists are compared, including the attributes of inner objects. Data, models and RNGs
    are not.

    Args:
        own: the user's object.
        apart: an object to leave out, such as the dataset.
    """

    def __init__(self, own: Any, apart: Any) -> None:
        self._own, self._apart = own, apart
        self.note()

    def found(self, *, whole: bool) -> dict[Path, tuple[Any, Any]]:
        """Return what has changed since the last look: the contents before and now, by path.

        Args:
            whole: also compare large values.
        """
        before, now = self._known[whole], self._look(whole=whole)
        return {path: (before.get(path, _MISSING), value) for path, value in now.items() if value != before.get(path)}

    def note(self) -> None:
        """Take the present contents as known."""
        self._known = {whole: self._look(whole=whole) for whole in (False, True)}

    def bring(self, other: Any, path: Path) -> None:
        """Give a copy of the object what the object has at a path."""
        known = {id(self._apart): self._apart}
        value = _parent(self._own, path)[path[-1]]
        _parent(other, path)[path[-1]] = survive(None, lambda: copy.deepcopy(value, known), value)

    def content(self, path: Path) -> Any:
        """Return the present content at a path."""
        return _content(_parent(self._own, path).get(path[-1], _MISSING), _RARELY)

    def _look(self, *, whole: bool) -> dict[Path, Any]:
        limits, seen = _RARELY if whole else _OFTEN, {id(self._apart)}
        found = islice(_walk(self._own, (), seen, limits), _ATTRIBUTES)
        return survive(None, lambda: dict(found), dict[Path, Any]())


def _walk(thing: Any, path: Path, seen: set[int], limits: tuple[int, int]) -> Iterator[tuple[Path, Any]]:
    seen.add(id(thing))
    for name, value in list(attributes_of(thing).items()):
        if id(value) in seen or type(name) is not str or name.startswith("__"):  # frameworks keep records under these
            continue
        if is_exactly(value, _PLAIN) or not _is_inside(value):
            yield (*path, name), _content(value, limits)
        elif len(path) < _DEEPEST:
            yield from _walk(value, (*path, name), seen, limits)


def _is_inside(value: Any) -> bool:
    """Return whether a value is an object of a user that has attributes, but not data."""
    kind = type(value)
    own = package_of(kind) not in {"builtins", "random", "numpy", "types", "threading", "logging", "collections"}
    plain = not issubclass(kind, (type, torch.nn.Module, torch.Tensor, torch.Generator)) and not (
        has(kind, "__next__") or has(kind, "__getitem__")
    )
    return own and plain and bool(attributes_of(value))


def _content(value: Any, limits: tuple[int, int]) -> Any:
    """Return something that differs if a value is changed: the text of a plain value, else a tuple with its type.

    If a value shows no content, this is its identity.
    """
    kind, name, (most_bytes, most_values) = type(value), qualname_of(type(value)), limits
    if is_exactly(value, _PLAIN):
        return repr(value)
    if issubclass(kind, torch.Tensor):
        return name, id(value), version_of(value), tuple(value.shape), Canary(value).digest
    if issubclass(kind, np.ndarray):
        return name, value.shape, value.dtype.str, _digest(value, most_bytes)
    if is_exactly(value, _LISTS):
        items = list(value.items()) if kind is dict else value
        if len(items) > most_values:
            return name, len(items), id(value)
        hashed = survive(
            None, lambda: hash(tuple(items) if is_exactly(value, (list, tuple)) else frozenset(items)), None
        )
        parts = [_content(one, limits) for one, _ in zip(items, range(_PARTS), strict=False)] if hashed is None else []
        return name, len(items), hashed, tuple(parts)
    return _Identity((name, id(value)))


class _Identity(tuple[str, int]):
    """The content of a value that shows none."""

    __slots__ = ()


def shows_values(content: Any) -> bool:
    """Return whether a content is more than the identity of a value."""
    return type(content) is not _Identity


def _digest(array: np.ndarray[Any, Any], most_bytes: int) -> Any:
    if array.nbytes <= most_bytes and not array.dtype.hasobject:
        return hash(array.tobytes())
    numbers = array.flags.c_contiguous and not array.dtype.hasobject and array.itemsize in {1, 2, 4, 8}
    # A sum takes a tenth of the time of a hash, and shows a value that was written; the canary shows a different order.
    total = int(array.view(f"u{array.itemsize}").sum(dtype=np.uint64)) if numbers else None
    return total, Canary(array).digest


def described(content: Any) -> str:
    """Describe the content of an attribute for a message."""
    return shorten(content, show=str) if type(content) is str else f"a {content[0]} with other values"


def _parent(thing: Any, path: Path) -> dict[Any, Any]:
    """Return the attributes of the object that has the last name of a path."""
    for name in path[:-1]:
        thing = ask(thing, name)
    return attributes_of(thing)
