"""How iterables go past elements without making them, where their iterators have no method `skip(n)` of their own.

    an iterable whose skip(n) returns another iterable    Hugging Face's `IterableDataset`; only from its beginning on
    a WebDataset pipeline                                 anywhere; samples are dropped before they are decoded

Neither was made for a resume, so both count only where a canary shows that they lead where reading leads.
"""

from __future__ import annotations

import copy
import inspect
import sys
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from resumable._fetch.own_state import state_methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Borrowed", "iterate"]

# Stages of WebDataset that give one sample for each that they take. A `map` leaves out those for which it returns None.
_ONE_EACH = {"_decode", "_to_tuple", "_map_dict", "_map_tuple", "_rename", "_rename_keys"}


class Borrowed:
    """An iterator over an iterable, with a `skip(n)` that the iterator itself does not have.

    Args:
        iterator: of the iterable.
        skip: goes past elements; None where that works before the first element only.
        skipped: returns the iterator that begins after `n` elements.
    """

    borrowed = True

    def __init__(
        self,
        iterator: Iterator[Any],
        *,
        skip: Callable[[int], None] | None = None,
        skipped: Callable[[int], Iterator[Any] | None] | None = None,
    ) -> None:
        self.inner, self._skip, self._skipped = iterator, skip, skipped

    @property
    def anywhere(self) -> bool:
        """Whether elements can be skipped between others, too."""
        return self._skip is not None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._skipped = None
        return next(self.inner)

    def skip(self, count: int) -> bool:
        """Go past elements, and return whether that was possible."""
        if self._skip is not None:
            self._skip(count)
            return True
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
    pipeline = _undecoded(iterable)
    if pipeline is not None:
        gate, gated = pipeline
        return Borrowed(iter(gated), skip=gate.drop)
    iterator: Iterator[Any] = iter(iterable)
    own = iterator is iterable or hasattr(iterator, "skip") or state_methods(iterator) is not None
    if own or not _may_skip(iterable):
        return iterator
    return Borrowed(iterator, skipped=lambda count: _skipped(iterable, count))


def _may_skip(iterable: Any) -> bool:
    """Return whether there is a method `skip` that takes a number alone."""
    skip = getattr(iterable, "skip", None)
    if not callable(skip) or isinstance(iterable, type):
        return False
    try:
        inspect.signature(skip).bind(1)
    except (TypeError, ValueError):
        return False
    return True


def _skipped(iterable: Any, count: int) -> Iterator[Any] | None:
    """Return an iterator over what is left after `count` elements; None where `skip` gives no other iterable."""
    found = iterable.skip(count * _shares(iterable))
    if found is None or found is iterable or not hasattr(found, "__iter__"):
        return None
    if isinstance(getattr(iterable, "epoch", None), int) and callable(getattr(found, "set_epoch", None)):
        found.set_epoch(iterable.epoch)  # of which Hugging Face's has a new one
    left: Iterator[Any] = iter(found)
    return left


def _shares(iterable: Any) -> int:
    """Return over how many workers a Hugging Face stream divides what it is to skip, if it is read in one of them."""
    data, streams = sys.modules.get("torch.utils.data"), sys.modules.get("datasets")
    info = data.get_worker_info() if data is not None else None
    known = getattr(streams, "IterableDataset", None)
    if info is None or known is None or not isinstance(iterable, known):
        return 1
    return 1 if getattr(iterable, "_distributed", None) is not None else int(info.num_workers)


class _Gate:
    """A stage that drops as many samples as it is told."""

    def __init__(self) -> None:
        self._left = 0

    def drop(self, count: int) -> None:
        """Drop so many more of the next samples."""
        self._left += count

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Run the stage."""
        for sample in samples:
            if self._left:
                self._left -= 1
            else:
                yield sample


def _undecoded(iterable: Any) -> tuple[_Gate, Any] | None:
    """Return a WebDataset pipeline with a gate before the last stages that make one sample of each."""
    known = getattr(sys.modules.get("webdataset"), "DataPipeline", None)
    if known is None or not isinstance(iterable, known) or iterable.repetitions != 1:
        return None
    stages = list(iterable.pipeline)
    first = len(stages)
    while first > 1 and _makes_one_each(stages[first - 1]):
        first -= 1
    if first == len(stages):
        return None
    gate, gated = _Gate(), copy.copy(iterable)
    gated.pipeline = [*stages[:first], gate, *stages[first:]]
    return gate, gated


def _makes_one_each(stage: Any) -> bool:
    """Return whether a stage gives one sample for each; with a handler of errors, it may leave some out."""
    function, given = getattr(stage, "f", None), getattr(stage, "kw", {})
    handler = given.get("handler")
    if handler is not None and getattr(handler, "__name__", "") != "reraise_exception":
        return False
    name, arguments = getattr(function, "__name__", ""), [type(one).__name__ for one in getattr(stage, "args", ())]
    decodes = name == "_map" and arguments == ["Decoder"]
    return getattr(function, "__module__", "") == "webdataset.filters" and (decodes or name in _ONE_EACH)
