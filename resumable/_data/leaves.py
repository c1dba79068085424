"""Takes stored samples apart into plain leaves, and names files by what moves along with their folder."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._introspection import ask, qualname_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["File", "Leaf", "Part", "leaves_of", "names_a_file", "spread"]

Leaf = tuple[str, Any]  # where it is in the sample, and what

_MOST = 64  # entries of a list that are looked at
_FEW = 8  # entries that stand for something each, as those of a pair
_DEEPEST = 6
_LONGEST = 1024
_SEPARATOR = re.compile(r"[/\\]")
_FILE = re.compile(r"[^\s/\\]+\.[A-Za-z0-9]{1,5}")


class File(NamedTuple):
    """A file by its name below the folder that it shares with the others, and by its path."""

    name: str
    path: str

    @property
    def size(self) -> int | None:
        """Its size; None where there is no such file, or nothing in it yet."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  # of any string
        except (OSError, ValueError):
            return None
        return found.st_size or None if stat.S_ISREG(found.st_mode) else None


class Part(NamedTuple):
    """A sample of one of several datasets, whose files are in a folder of their own."""

    number: int
    value: Any


def leaves_of(samples: Sequence[Any]) -> list[list[Leaf]]:
    """Return the leaves of each sample, with files instead of their paths.

    Lists, tuples, dicts and dataclasses of the same entries have the same leaves: a list of samples that a script makes
    at its first start, and reads from a file at the next one, comes back as others of these.

    Paths at the same place of several samples are cut by the folder that they share, so that a folder may be moved.
    """
    taken = [list(_leaves(sample, "", 0)) for sample in samples]
    paths: dict[str, list[str]] = {}
    for where, leaf in (one for leaves in taken for one in leaves):
        if _has_folder(leaf):
            paths.setdefault(where, []).append(_path_of(leaf))
    shared = {where: _shared(some) for where, some in paths.items()}
    return [[(where, _as_file(leaf, shared.get(where, 0))) for where, leaf in leaves] for leaves in taken]


def names_a_file(leaf: Any) -> bool:
    """Return whether a leaf looks like the name of a file."""
    if issubclass(type(leaf), (File, PurePath)):
        return True
    return (
        issubclass(type(leaf), str)
        and len(leaf) <= _LONGEST
        and (_has_folder(leaf) or _FILE.fullmatch(leaf) is not None)
    )


def spread(length: int, most: int) -> list[int]:
    """Return at most so many positions of a sequence, spread over it with both ends."""
    return (
        list(range(length)) if length <= most else [number * (length - 1) // max(most - 1, 1) for number in range(most)]
    )


def _leaves(value: Any, where: str, deep: int) -> Iterator[Leaf]:
    kind = type(value)
    if kind is Part:
        yield from _leaves(value.value, f"{where}#{value.number}", deep + 1)
    elif deep >= _DEEPEST:
        yield where, qualname_of(kind)
    elif issubclass(kind, dict):
        yield where, len(value)
        for key in sorted(value, key=str)[:_MOST]:
            yield from _leaves(value[key], f"{where}.{key}", deep + 1)
    elif issubclass(kind, (list, tuple)):
        yield where, len(value)
        for number in spread(len(value), _MOST):
            yield from _leaves(value[number], f"{where}.{number if len(value) <= _FEW else ''}", deep + 1)
    elif ask(kind, "__dataclass_fields__") is not None:
        names = sorted(one.name for one in fields(kind))
        yield where, len(names)
        for name in names:
            yield from _leaves(ask(value, name), f"{where}.{name}", deep + 1)
    else:
        yield where, value


def _has_folder(leaf: Any) -> bool:
    if issubclass(type(leaf), PurePath):
        return True
    return issubclass(type(leaf), str) and len(leaf) <= _LONGEST and _SEPARATOR.search(leaf) is not None


def _path_of(leaf: str | os.PathLike[str]) -> str:
    """Return a path; of an address, what comes before a question mark: a signature is another one at each start."""
    path = os.fspath(leaf)
    return path.partition("?")[0] if "://" in path else path


def _shared(paths: list[str]) -> int:
    """Return how many folders at the beginning all of the paths share."""
    folders = [_SEPARATOR.split(path)[:-1] for path in paths]
    first, last = min(folders), max(folders)
    return next(
        (number for number, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )


def _as_file(leaf: Any, shared: int) -> Any:
    if not names_a_file(leaf):
        return leaf
    path = _path_of(leaf)
    return File("/".join(_SEPARATOR.split(path)[shared:]), path)
