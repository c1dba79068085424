"""Dotted paths: how two checkpoints compare by them, and as few of them as possible for many parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["Difference", "compare", "split", "topmost"]

_STEP = re.compile(r'[^."]*"(?:[^"\\]|\\.)*"|[^."]+')


class Difference(NamedTuple):
    """What two checkpoints have in common; each path stands for all that is below it.

    Args:
        differing: paths whose content differs.
        equal: paths whose content is the same, bit for bit.
        missing: paths that only the first one has.
        added: paths that only the second one has.
    """

    differing: list[str]
    equal: list[str]
    missing: list[str]
    added: list[str]


def compare(one: Mapping[str, str], other: Mapping[str, str]) -> Difference:
    """Compare two checkpoints by what `parts_of` returned for them."""
    every = {**one, **other}
    both = one.keys() & other.keys()
    kinds = (
        {path for path in both if one[path] != other[path]},
        {path for path in both if one[path] == other[path]},
        one.keys() - other.keys(),
        other.keys() - one.keys(),
    )
    return Difference(*(topmost(paths, every) for paths in kinds))


def split(path: str) -> list[str]:
    """Return the steps of a path; a dot inside of quotes is part of a name.

    >>> split('model."0.weight"')
    ['model', '"0.weight"']
    """
    return _STEP.findall(path) if '"' in path else path.split(".")


def topmost(paths: Iterable[str], every: Iterable[str]) -> list[str]:
    """Name paths by as few as possible: a path stands for all of `every` that is below it.

    Args:
        paths: of parts.
        every: the paths of all parts, those among them.
    """
    chosen = set(paths)
    mixed = {above for path in set(every) - chosen for above in _above(path)}
    return list(dict.fromkeys(_highest(path, mixed) for path in sorted(chosen)))


def _highest(path: str, mixed: Collection[str]) -> str:
    return next((above for above in _above(path) if above not in mixed), path)


def _above(path: str) -> Iterator[str]:
    """Yield the beginnings of a path, the shortest first, and itself."""
    names = split(path)
    return (".".join(names[:number]) for number in range(1, len(names) + 1))
