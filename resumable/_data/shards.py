"""What a Hugging Face stream reads, in its order: the files of its shards, or the rows of the tables that it has.

The stream's own state says a number of shards and rows, so it would go on in other files without a word; a canary sees
that at the place of the state only. The order is part of it, so a shuffle of the shards without a seed is other data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._data.columns import Columns
from resumable._introspection import attributes_of, has, module_of, mro_of, qualname_of, survive

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Shards", "shards_of", "without_seed"]

_STREAM = ("datasets.iterable_dataset", "IterableDataset")
_BUFFER = ("datasets.iterable_dataset", "BufferShuffledExamplesIterable")
_HF = "a stream of Hugging Face"
_MOST = 1000  # objects to look at
_WORD = 1 << 64  # seeds that are given are smaller


class Shards:
    """Lists that a stream reads from, one after the other.

    Args:
        parts: lists of files and the like, and tables.
    """

    resumable_shards = True

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def resumable_parts(self) -> Iterator[tuple[int, Any]]:
        """Yield the parts with their lengths."""
        for part in self._parts:
            yield len(part), part


def shards_of(source: Any) -> Columns | None:
    """Return what tells what a stream reads; None for anything else, and where that cannot be seen."""
    if not _is(source, _STREAM):
        return None
    # Private objects of a library, which may change.
    parts: list[Any] = survive(_HF, lambda: [part for part in _parts(source) if len(part)], [])
    return Columns(Shards(parts), sum(map(len, parts))) if parts else None


def without_seed(source: Any) -> bool:
    """Return whether a stream is shuffled in a buffer by a generator that no seed was given to."""
    if not _is(source, _STREAM):
        return False
    return survive(
        _HF, lambda: any(_entropy(one.generator) >= _WORD for one in _inside(source) if _is(one, _BUFFER)), False
    )


def _parts(source: Any) -> Iterator[Any]:
    for one in _inside(source):
        if _is(one, _BUFFER) and one.buffer_size != 1:
            yield [f"shuffle in a buffer of {one.buffer_size} by {_state_of(one.generator)}"]
        kwargs = getattr(one, "kwargs", None)
        if isinstance(kwargs, dict) and hasattr(one, "generate_more_kwargs_fn"):
            yield from _of_shards(kwargs)


def _of_shards(kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the lists by which the shards are told apart."""
    for values in kwargs.values():
        if not isinstance(values, list) or not values:
            continue
        if all(isinstance(value, (str, int)) for value in values):
            yield values
        elif all(qualname_of(type(value)) == "FilesIterable" for value in values):
            yield [str(value.args[0]) for value in values]  # not iterated, as that lists folders
        elif all(module_of(type(value)) == "datasets.arrow_dataset" for value in values):
            yield from values


def _inside(source: Any) -> Iterator[Any]:
    """Yield the objects that a stream is made of, in their order."""
    waiting, seen = [source], set[int]()
    while waiting and len(seen) < _MOST:
        thing = waiting.pop()
        if id(thing) in seen or not module_of(type(thing)).startswith("datasets."):
            continue
        seen.add(id(thing))
        yield thing
        inner = [value for name, value in attributes_of(thing).items() if name != "_interleaved"]  # what is there twice
        found = [one for value in inner for one in (value if isinstance(value, list) else [value])]
        waiting += [one for one in reversed(found) if has(one, "_init_state_dict") or _is(one, _STREAM)]


def _is(thing: Any, kind: tuple[str, str]) -> bool:
    return any((module_of(base), qualname_of(base)) == kind for base in mro_of(type(thing)))


def _entropy(generator: Any) -> int:
    seed = getattr(generator.bit_generator.seed_seq, "entropy", 0)
    return seed if isinstance(seed, int) else 0


def _state_of(generator: Any) -> Any:
    return generator.bit_generator.state["state"]
