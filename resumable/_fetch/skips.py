"""How iterables go past elements without making them, where their iterators have no method `skip(n)` of their own.

An iterable's `skip(n)` that returns another iterable, as Hugging Face's `IterableDataset` has it, works from the
beginning on. It was not made for a resume, so it counts only where a canary shows that it leads where reading leads.
"""

from __future__ import annotations

import sys
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from resumable._fetch.own_state import state_methods
from resumable._introspection import ask, has, is_a, takes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Borrowed", "iterate"]


class Borrowed:
    """An iterator over an iterable, which can begin after some elements instead of at the first one.

    Args:
        iterator: of the iterable.
        skipped: returns the iterator that begins after `n` elements; None where there is none.
    """

    borrowed = True
    anywhere = False  # elements between others cannot be skipped

    def __init__(self, iterator: Iterator[Any], skipped: Callable[[int], Iterator[Any] | None]) -> None:
        self.inner = iterator
        self._skipped: Callable[[int], Iterator[Any] | None] | None = skipped

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._skipped = None
        return next(self.inner)

    def skip(self, count: int) -> bool:
        """Go past elements, and return whether that was possible."""
        found = None if self._skipped is None else self._skipped(count)
        self._skipped = None
        if found is None:
            return False
        self.inner = found
        return True

    def close(self) -> None:
        """Close a generator; an object of the user's may be iterated again."""
        if isinstance(self.inner, GeneratorType):
            self.inner.close()


def iterate(iterable: Any) -> Iterator[Any]:
    """Return an iterator, which skips where the iterable can."""
    iterator: Iterator[Any] = iter(iterable)
    own = iterator is iterable or callable(ask(iterator, "skip")) or state_methods(iterator) is not None
    if own or not _may_skip(iterable):
        return iterator
    return Borrowed(iterator, lambda count: _skipped(iterable, count))


def _may_skip(iterable: Any) -> bool:
    """Return whether there is a method `skip` that takes a number alone."""
    skip = ask(iterable, "skip")
    return callable(skip) and not issubclass(type(iterable), type) and takes(skip, 1) is True


def _skipped(iterable: Any, count: int) -> Iterator[Any] | None:
    """Return an iterator over what is left after `count` elements; None where `skip` gives no other iterable."""
    if _streams(iterable) and iterable.epoch:  # its skip() keeps the shards in the order of the first epoch
        return None
    found = iterable.skip(count * _shares(iterable))
    if found is None or found is iterable or not has(found, "__iter__"):
        return None
    left: Iterator[Any] = iter(found)
    return left


def _shares(iterable: Any) -> int:
    """Return over how many workers a Hugging Face stream divides what it is to skip, if it is read in one of them."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is None or not _streams(iterable):
        return 1
    return 1 if ask(iterable, "_distributed") is not None else int(info.num_workers)


def _streams(iterable: Any) -> bool:
    """Return whether an iterable is a stream of Hugging Face's library."""
    known = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    return known is not None and is_a(iterable, known)
