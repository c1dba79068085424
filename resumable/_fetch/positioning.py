"""Brings a source to a position, and compares its element there with the one that the saving run saw.

    restore    with the source's own state, restored before or after it is iterated, whichever works
    replay     from the start of the epoch, with the source's `skip` or by reading

Both finish by comparing the canary of the state: with the next element after a restore, or with the last skipped one
after a replay (see `resumable._content`). The training process and the workers of a `DataLoader` do it the same way.

An iterable's `skip(n)` that returns a new iterable, like the one of Hugging Face's `IterableDataset`, works only from
the start. It was not made for resuming, so it is used only if a canary shows that it leads to the right element.
"""

from __future__ import annotations

import copy
import logging
import sys
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from resumable._content import Canary
from resumable._fetch.own_state import given_back, state_methods, without_state
from resumable._introspection import ask, has, is_a, qualname_of, takes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable._fetch.element_reader import SeededReader

__all__ = ["Borrowed", "Positioner", "give_back", "iterate", "iterate_at", "orders_of", "skipped_elsewhere"]


class Positioner:
    """Brings a source to a position of an epoch.

    Args:
        reader: reads the elements of the epoch.
        name: returns the name of the source, for messages.
        report: called with a message about a difference; it raises, or returns if the run should continue.
    """

    def __init__(self, reader: SeededReader, name: Callable[[], str], report: Callable[[str], None]) -> None:
        self._reader, self._name, self._report = reader, name, report

    def restore(
        self, ways: Sequence[Callable[[], object]], position: int, canary: Canary | None, *, again: bool = False
    ) -> None:
        """Restore the source with its own state.

        Args:
            ways: functions that do it. They differ in the order of restoring the state and iterating. The required
                order is unknown: `__iter__` may reset the source, or only `__iter__` may read the state.
            position: the position of the state.
            canary: of the next element. None if nothing is compared: then the first way is used.
            again: restore it once more after a comparison, so it is not ahead of the position.
        """
        found = None
        for way in ways:
            way()
            found = None if canary is None else self._other_ahead(position, canary)
            if found is None:
                if again:
                    way()
                return
        assert found is not None
        assert canary is not None
        self._report(_gone_elsewhere(self._name(), found, canary, position, tried=len(ways) > 1))
        if len(ways) > 1:
            ways[0]()  # the run continues like one without a comparison

    def replay(  # noqa: PLR0913  # includes what is compared, and how
        self,
        opener: Callable[[], Iterator[Any]],
        position: int,
        canary: Canary | None,
        *,
        again: Callable[[], Iterator[Any]] | None = None,
        announced: bool = False,
        witness: Callable[[int], Any] | None = None,
    ) -> int:
        """Read an epoch from its start, and return how many elements there were before the position.

        Args:
            opener: opens the source.
            position: where to go.
            canary: of the element before the position; None if nothing is compared.
            again: opens the source once more; None if it cannot be opened twice.
            announced: the canary belongs to the element *after* the position, because the state has a snapshot of the
                source, which is not used.
            witness: returns what the element before a position was made from, such as indices. The canary belongs to
                it, so no element needs to be read.
        """
        before = None if announced else canary
        self._reader.begin(opener)
        found, other = self._pass(position, before, witness)
        # If an element differs, the source's skip() may be wrong, so it is read again without it. If a witness differs,
        # the order itself has changed, and reading again does not help.
        if self._reader.skipped and witness is None and again is not None and (other is not None or found < position):
            borrowed = self._reader.borrows
            self._reader.begin(again)
            found, other = self._pass(position, before, witness, read=True)
            if other is None and found == position:
                self._report_skip(skipped_elsewhere(self._name(), position - 1), borrowed=borrowed)
        if other is not None and before is not None:
            self._report(_read_otherwise(self._name(), other, before, position - 1, drawn=witness is not None))
        if announced and canary is not None and found == position:
            other = self._other_ahead(position, canary)
            if other is not None:
                self._report(_read_otherwise(self._name(), other, canary, position))
        return found

    def _report_skip(self, message: str, *, borrowed: bool) -> None:
        """Report a wrong `skip`. Only log it if it was not made for resuming, and was used without being asked for."""
        if borrowed:
            logging.getLogger("resumable").warning("%s\nThe elements were read instead.", message)
        else:
            self._report(message)

    def _pass(
        self, count: int, canary: Canary | None, witness: Callable[[int], Any] | None, *, read: bool = False
    ) -> tuple[int, str | None]:
        """Skip `count` elements; return how many there were, and describe the last if it does not fit the canary."""
        reader = self._reader
        if canary is None or not count:
            return reader.skip(0, count, read=read or reader.borrows), None
        if witness is not None:
            found = reader.skip(0, count, read=read)
            before = witness(count) if found == count else None
            return found, None if before is None or canary.fits(before) else _in_words(before, "a batch of indices")
        # A skip() that was not made for resuming is used only if the canary can show that it is wrong.
        found = reader.skip(0, count - 1, read=read or (reader.borrows and canary.digest is None))
        if found < count - 1:
            return found, None
        last = reader.take(found, 1)
        return found + len(last), None if not last or canary.fits(last[0]) else _in_words(last[0])

    def _other_ahead(self, position: int, canary: Canary) -> str | None:
        """Describe the next element if it is not the one that the state announced; else return None."""
        reader = self._reader
        if not reader.has(position):
            return "the end of the epoch"
        if not reader.ahead:  # reading it failed, and the next read raises the error
            return None
        if not canary.fits(reader.ahead[0]):
            return _in_words(reader.ahead[0])
        reader.has(position, 1 + len(canary.after))
        if reader.failed:
            return None
        other = canary.differs_after(reader.ahead[1:])
        if other is None:
            return None
        found = reader.ahead[1:][other : other + 1]
        return (_in_words(found[0]) if found else "the end of the epoch") + f" at element {position + 1 + other}"


def orders_of(source: Any, state: Any, iterator_state: Any) -> list[tuple[bool, bool]]:
    """Return the orders in which a source may need its state: whether before it is iterated, and whether after.

    The more likely one comes first.
    """
    if iterator_state is not None and state is None:  # only its iterator has a state
        return [(False, False)]
    if iterator_state is not None:  # restore the object again after `__iter__`, which may count its passes
        return [(True, True), (True, False)]
    if has(source, "__next__"):  # it is its own iterator, and `__iter__` may reset it
        return [(False, True), (True, False)]
    return [(True, False), (False, True)]


def iterate_at(  # noqa: PLR0913  # two states, their order, and their owners
    source: Any,
    begin: Callable[[], Iterator[Any]],
    state: Any,
    iterator_state: Any,
    *,
    order: tuple[bool, bool],
    name: str,
) -> Iterator[Any]:
    """Return an iterator over a source, after restoring its state and its iterator's state.

    Args:
        source: has the state.
        begin: calls `iter`.
        state: of the source; None if it has none.
        iterator_state: of its iterator; None if it has none.
        order: one of `orders_of`.
        name: of the source, for messages.
    """
    before, after = order
    if before:
        give_back(source, state, name)
    iterator = begin()
    if after:
        give_back(source, state, name)
    if iterator_state is not None:
        found = f"a {qualname_of(type(iterator))}"
        give_back(iterator, iterator_state, f"the iterator of {name}", found)
    return iterator


def give_back(thing: Any, state: Any, name: str, found: str = "a source that is replayed") -> None:
    """Restore a user's object from a copy of its own state.

    Args:
        thing: the object.
        state: the saved state.
        name: of the object, for messages.
        found: describes it, for messages.

    Raises:
        StateMismatchError: the object has no method to restore a state.
        StateFormatError: it cannot restore this state.
    """
    methods = state_methods(thing)
    if methods is None:
        raise without_state(name, found)
    given_back(lambda: methods[1](copy.deepcopy(state)), state)


class Borrowed:
    """An iterator over an iterable that can start after some elements instead of at the first one.

    Args:
        iterator: of the iterable.
        skipped: returns an iterator that starts after `n` elements; None if there is none.
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
        """Skip elements, and return whether that was possible."""
        found = None if self._skipped is None else self._skipped(count)
        self._skipped = None
        if found is None:
            return False
        self.inner = found
        return True

    def close(self) -> None:
        """Close a generator; a user's own object may be iterated again."""
        if isinstance(self.inner, GeneratorType):
            self.inner.close()


def iterate(iterable: Any) -> Iterator[Any]:
    """Return an iterator, which can skip if the iterable can."""
    iterator: Iterator[Any] = iter(iterable)
    own = iterator is iterable or callable(ask(iterator, "skip")) or state_methods(iterator) is not None
    if own or not _may_skip(iterable):
        return iterator
    return Borrowed(iterator, lambda count: _skipped(iterable, count))


def _may_skip(iterable: Any) -> bool:
    """Return whether there is a method `skip` that takes only a number."""
    skip = ask(iterable, "skip")
    return callable(skip) and not issubclass(type(iterable), type) and takes(skip, 1) is True


def _skipped(iterable: Any, count: int) -> Iterator[Any] | None:
    """Return an iterator over the elements after the first `count`; None if `skip` does not return a new iterable."""
    if _streams(iterable) and iterable.epoch:  # its skip() keeps the shards in the order of the first epoch
        return None
    found = iterable.skip(count * _shares(iterable))
    if found is None or found is iterable or not has(found, "__iter__"):
        return None
    left: Iterator[Any] = iter(found)
    return left


def _shares(iterable: Any) -> int:
    """Return how many workers divide a Hugging Face stream, and thus its skips, if it is read in one of them."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is None or not _streams(iterable):
        return 1
    return 1 if ask(iterable, "_distributed") is not None else int(info.num_workers)


def _streams(iterable: Any) -> bool:
    """Return whether an iterable is a Hugging Face stream."""
    known = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    return known is not None and is_a(iterable, known)


def _gone_elsewhere(what: str, found: str, canary: Canary, position: int, *, tried: bool) -> str:
    """Describe a source that continues with the wrong element after its own state was restored.

    Args:
        what: the source, for the message.
        found: describes the element that it yielded.
        canary: of the element that the state announced.
        position: of the element in the epoch.
        tried: the state was restored in both orders, before iterating and after.
    """
    orders = " Restoring it before and after iterating was tried." if tried else ""
    return (
        f"{what} was restored from its own state, but continues with a different element than in the saved run.\n"
        f"  in the checkpoint: element {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        f"Elements would be lost or repeated.{orders} Include everything that the next element depends on in the "
        'state, or pass wrap(..., resume="replay") to read the epoch again up to the saved position. If the element is '
        'expected to change from run to run, pass checks="ranks".'
    )


def _read_otherwise(what: str, found: str, canary: Canary, position: int, *, drawn: bool = False) -> str:
    """Describe a source that yielded a different element when read again, or a sampler with a different batch."""
    if drawn:
        return _drawn_otherwise(what, found, canary, position)
    return (
        f"{what} was read again up to the saved position, but yielded a different element there than "
        "in the saved run.\n"
        f"  in the checkpoint: element {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        "Its elements change from run to run, or its data have changed, so elements would be lost or repeated. Seed "
        "its shuffling, for example shuffle(..., seed=0), and sort lists of files. If the elements differ only in "
        'something like a time stamp, pass wrap(..., checks="ranks").'
    )


def _drawn_otherwise(what: str, found: str, canary: Canary, position: int) -> str:
    return (
        f"the sampler over {what} was iterated again up to the saved position, but yielded a different batch there "
        "than in the saved run.\n"
        f"  in the checkpoint: batch {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        "Its order changes from run to run, so some samples would be read twice, and others never. Seed its shuffling "
        "with the epoch from set_epoch(epoch), use random, numpy.random or torch, which are seeded for it, or add "
        "state_dict and load_state_dict to it. If the change is intended, "
        'pass wrap(..., checks="ranks").'
    )


def skipped_elsewhere(what: str, count: int) -> str:
    """Describe a source whose `skip` does not lead to the same element as reading."""
    return (
        f"the skip() of {what} does not lead to the same element as reading.\n"
        f"  after skip({count}):            one element\n  after reading {count} elements: a different one\n"
        "Elements would be lost or repeated. skip(n) must leave the iterator where n calls of next() would. Fix it, or "
        "remove it, and the elements are read instead."
    )


def shows_nothing(what: str, kind: str) -> str:
    """Describe a source whose elements cannot be compared.

    Args:
        what: the source, for the message.
        kind: the type of an element, or of a part of it.
    """
    return (
        f"elements of {what} cannot be compared after a resume: an object of type {kind} shows no content, only its "
        "type.\nIf the source continued with different elements, nothing would report it. Yield arrays, tensors, plain "
        "values, or objects with attributes or __array__, on the CPU. To continue without the comparison, pass "
        'wrap(..., checks="ranks").'
    )


def _in_words(element: object, kind: str = "an element") -> str:
    return f"{kind} with the digest {Canary(element).digest}"
