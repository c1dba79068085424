"""Compares two contents part by part, and shortens a list of dotted paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["Difference", "compare", "split", "topmost"]

_STEP = re.compile(r'[^."]*"(?:[^"\\]|\\.)*"|[^."]+')


class Difference(NamedTuple):
    """A part in which two contents differ.

    Args:
        path: of the part.
        a: the part in the first content, such as its text; None if only the second one has it.
        b: the part in the second content; None if only the first one has it.
    """

    path: str
    a: Any
    b: Any


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the parts in which two contents differ, in the order of the first one, then those only in the second.

    Args:
        a: the parts of the first content, from path to text, as `parts_of` returns them.
        b: the parts of the second one.
    """
    for path in {**a, **b}:
        if a.get(path) != b.get(path):
            yield Difference(path, a.get(path), b.get(path))


def split(path: str) -> list[str]:
    """Return the steps of a path; a dot inside quotes is part of a name.

    >>> split('model."0.weight"')
    ['model', '"0.weight"']
    """
    return _STEP.findall(path) if '"' in path else path.split(".")


def topmost(paths: Iterable[str], every: Iterable[str]) -> list[str]:
    """Shorten a list of paths: a path replaces all of `every` below it.

    Args:
        paths: of parts.
        every: the paths of all parts, including those.
    """
    chosen = set(paths)
    mixed = {above for path in set(every) - chosen for above in _above(path)}
    return list(dict.fromkeys(_highest(path, mixed) for path in sorted(chosen)))


def _highest(path: str, mixed: Collection[str]) -> str:
    return next((above for above in _above(path) if above not in mixed), path)


def _above(path: str) -> Iterator[str]:
    """Yield the prefixes of a path, the shortest first, and the path itself."""
    names = split(path)
    return (".".join(names[:number]) for number in range(1, len(names) + 1))
