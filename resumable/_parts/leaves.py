"""Takes nested objects apart down to their leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._parts.kinds import Whole, take
from resumable._parts.lists import as_one
from resumable._parts.shared import DEEPEST, Shared
from resumable._parts.texts import Text, Uncompared, digest_text, is_exact, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Opened = Callable[[Any], Any]

__all__ = ["digest_of", "leaves_of", "parts_of"]

_MOST = 100_000  # leaves that are told one by one
_ROOT = "content"


def parts_of(content: Any, opened: Opened | None = None, more: Callable[[Any], str] | None = None) -> dict[str, str]:
    """Return a text for each part of nested objects, by its dotted path.

    Parts are the same, bit for bit, where their texts are. A short plain value is its own text; a tensor or an array
    has type, shape and digest; a list of plain values is one part, with its length and a digest. The text of what is
    not compared begins with `not compared` and says why.

    Args:
        content: of a checkpoint: tensors, arrays, plain values and objects.
        opened: gives what is to be looked at in place of a part, on the way down.
        more: gives what is added to the text of a leaf.
    """
    found: dict[str, str] = {}
    for path, leaf in _leaves(content, lists=True, opened=opened):
        name, text = path or _ROOT, text_of(leaf) + (more(leaf) if more else "")
        found[name] = digest_text(f"{found[name]}\n{text}") if name in found else text  # keys that look alike
    return found


def digest_of(content: Any) -> str:
    """Digest all that is in nested objects."""
    return digest_text(repr([(path, text_of(leaf)) for path, leaf in leaves_of(content, lists=True)]))


def leaves_of(content: Any, *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of each part that has none itself; that of the content itself is empty.

    Values are numbers, texts and bytes of Python's own, `Array`, or a text that stands for the value: `Uncompared` for
    one that could not be read.

    Args:
        content: of any kind.
        lists: whether a list of numbers and texts is one leaf.
    """
    return iter(_leaves(content, lists=lists))


class _TooManyError(Exception):
    """There are more leaves than are told one by one."""


def _leaves(content: Any, *, lists: bool, opened: Opened | None = None) -> Iterable[tuple[str, Any]]:
    """Return the leaves; of more than can be told, those of the two highest levels, each container in them as one."""
    try:
        return list(_walk(content, {}, iter(range(_MOST)), lists=lists, opened=opened))
    except _TooManyError:
        return Shared(_MOST, lists=lists, opened=opened).leaves(content)


def _walk(
    content: Any, above: dict[int, int], left: Iterator[int], *, lists: bool, opened: Opened | None = None
) -> Iterator[tuple[str, Any]]:
    """Go through the parts in order; `above` are the containers around a part, and how many are around each.

    Raises:
        _TooManyError: `left` came to its end.
    """
    waiting: list[tuple[str | None, Any]] = [("", content)]
    while waiting:
        path, value = waiting.pop()
        if path is None:
            del above[id(value)]
            continue
        if next(left, None) is None:
            raise _TooManyError
        value = opened(value) if opened else value
        if is_exact(value):
            yield path, value
        elif lists and (whole := as_one(value)) is not None:
            yield path, whole
        elif id(value) in above:
            yield path, Text(f"what holds it, {len(above) - above[id(value)]} above")
        else:
            found = take(value)
            if isinstance(found, (list, Whole)) and len(above) >= DEEPEST:
                yield path, Uncompared(f"it lies {DEEPEST} levels deep")
            elif isinstance(found, list):
                above[id(value)] = len(above)
                waiting.append((None, value))
                before = f"{path}." if path else ""
                waiting += [(before + step, part) for step, part in reversed(found)]
            elif isinstance(found, Whole):
                above[id(value)] = len(above)
                yield path, _of_whole(found, above, left)
                del above[id(value)]
            else:
                yield path, found


def _of_whole(whole: Whole, above: dict[int, int], left: Iterator[int]) -> Text:
    parts = (_walk(part, above, left, lists=True) for part in whole.parts)
    texts = [repr([(path, text_of(leaf)) for path, leaf in leaves]) for leaves in parts]
    return Text(f"{whole.name}: {digest_text(repr(texts if whole.ordered else sorted(texts)))}")
