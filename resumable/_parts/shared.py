"""Digests nested objects that have more leaves than can be told, as those do that hold the same parts many times over.

Thirty lists, each of which holds the one before it twice, have a billion leaves. Here each container is looked at once,
and has the digest of what is in it, whether that stands there once or is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._parts.kinds import Whole, take
from resumable._parts.lists import as_one
from resumable._parts.texts import Text, Uncompared, digest_text, is_exact, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["DEEPEST", "Shared"]

DEEPEST = 200
_LEVELS = 2  # from the top, of which parts are told one by one if they are too large


class Shared:
    """Takes one content apart.

    Args:
        most: leaves of a container that is told leaf by leaf.
        lists: whether a list of numbers and texts is one leaf.
        opened: gives what is to be looked at in place of a part, on the way down.
    """

    def __init__(self, most: int, *, lists: bool, opened: Callable[[Any], Any] | None = None) -> None:
        self._most, self._lists, self._opened = most, lists, opened
        self._known: dict[int, tuple[Any, int, str]] = {}  # of each container: itself, so that it lives; leaves; digest
        self._parts: dict[int, Any] = {}

    def leaves(self, content: Any) -> Iterator[tuple[str, Any]]:
        """Yield path and leaf; below the two highest levels, a container of too many leaves is one."""
        yield from self._told(content, "", 0, self._most)

    def _told(self, value: Any, path: str, level: int, most: int) -> Iterator[tuple[str, Any]]:
        leaves, digest = self._digest(value, level)
        found = self._take(value)
        if not isinstance(found, list):
            yield path, Text(digest) if isinstance(found, Whole) else found
        elif leaves > most and level >= _LEVELS:
            yield path, Text(f"{leaves} parts: {digest}")
        else:
            share = most if leaves <= most else most // len(found)
            for step, part in found:
                yield from self._told(part, f"{path}.{step}" if path else step, level + 1, share)

    def _take(self, value: Any) -> Any:
        """Return what `take` does, once for each value that has parts."""
        if id(value) in self._parts:
            return self._parts[id(value)]
        opened = self._opened(value) if self._opened else value
        found = as_one(opened) if self._lists else None
        if found is None:
            found = opened if is_exact(opened) else take(opened)
        if isinstance(found, (list, Whole)):
            self._known[id(value)] = (value, 1, "what holds it")  # until all that is in it is known
            self._parts[id(value)] = found
        return found

    def _digest(self, value: Any, level: int) -> tuple[int, str]:
        """Return the number of leaves, and a digest of them with their paths."""
        if id(value) in self._known:
            return self._known[id(value)][1:]
        found = self._take(value)
        if not isinstance(found, (list, Whole)):
            return 1, text_of(found)
        if level >= DEEPEST:
            inner = [(1, text_of(Uncompared(f"it lies {DEEPEST} levels deep")))]
        elif isinstance(found, Whole):
            inner = [self._digest(part, level + 1) for part in found.parts]
        else:
            inner = [self._digest(part, level + 1) for _, part in found]
        leaves, texts = sum(count for count, _ in inner) or 1, [text for _, text in inner]
        if isinstance(found, Whole):
            text = f"{found.name}: {digest_text(repr(texts if found.ordered else sorted(texts)))}"
            self._known[id(value)] = (value, 1, text)
        else:
            steps = [step for step, _ in found]
            self._known[id(value)] = (value, leaves, digest_text(repr(list(zip(steps, texts, strict=False)))))
        return self._known[id(value)][1:]
