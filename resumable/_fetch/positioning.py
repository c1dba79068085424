"""Brings a source to a position, and compares what it gives there with what the run that saved the state saw.

    restore    by the source's own state, given back before it is iterated, or after, whichever leads there
    replay     from the beginning of the epoch on, by the source's `skip`, or by reading

Both end with the canary of the state: of the element that comes next after a restore, of the last one that was passed
after a replay (see `resumable._content`). The training process and the workers of a `DataLoader` do it alike.

An iterable's `skip(n)` that returns another iterable, as Hugging Face's `IterableDataset` has it, works from the
beginning on. It was not made for a resume, so it counts only if a canary shows that it leads where reading leads.
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
        name: returns that of the source, for messages.
        report: called with a message about a difference; it raises, or returns if the run shall continue.
    """

    def __init__(self, reader: SeededReader, name: Callable[[], str], report: Callable[[str], None]) -> None:
        self._reader, self._name, self._report = reader, name, report

    def restore(self, ways: Sequence[Callable[[], object]], position: int, canary: Canary | None) -> None:
        """Bring the source back by its own state.

        Args:
            ways: each of them does it, in another order of giving the state back and iterating. Which order a source
                needs cannot be seen: `__iter__` may reset it, or the state may be read by `__iter__` only.
            position: where that leads.
            canary: of the next element; None if nothing is compared: then the first way is taken.
        """
        found = None
        for way in ways:
            way()
            found = None if canary is None else self._other_ahead(position, canary)
            if found is None:
                return
        assert found is not None
        assert canary is not None
        self._report(_gone_elsewhere(self._name(), found, canary, position, tried=len(ways) > 1))
        if len(ways) > 1:
            ways[0]()  # the run continues as it would without a comparison

    def replay(  # noqa: PLR0913  # what is compared, and how, is more than where
        self,
        opener: Callable[[], Iterator[Any]],
        position: int,
        canary: Canary | None,
        *,
        again: Callable[[], Iterator[Any]] | None = None,
        announced: bool = False,
        witness: Callable[[int], Any] | None = None,
    ) -> int:
        """Read an epoch from its beginning, and return how many elements there were before the position.

        Args:
            opener: opens the source.
            position: where to go.
            canary: of the element before the position; None if nothing is compared.
            again: opens the source once more; None if it cannot be opened twice.
            announced: the canary is that of the element *after* the position, as the state has a snapshot of the
                source, which is not used.
            witness: returns what the element before a position was made of, such as indices. The canary is of that, so
                that no element is read for it.
        """
        before = None if announced else canary
        self._reader.begin(opener)
        found, other = self._pass(position, before, witness)
        # An element that differs may be the fault of the source's skip() alone, so it is read once more without it.
        # A witness is no element: if that differs, the order itself is another one, and reading does not mend it.
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
        """Report a wrong `skip`; only log it if that was not made for this, and was tried without being asked for."""
        if borrowed:
            logging.getLogger("resumable").warning("%s\nThe elements were read instead.", message)
        else:
            self._report(message)

    def _pass(
        self, count: int, canary: Canary | None, witness: Callable[[int], Any] | None, *, read: bool = False
    ) -> tuple[int, str | None]:
        """Pass `count` elements; return how many there were, and the last one in words if it is not the canary's."""
        reader = self._reader
        if canary is None or not count:
            return reader.skip(0, count, read=read or reader.borrows), None
        if witness is not None:
            found = reader.skip(0, count, read=read)
            before = witness(count) if found == count else None
            return found, None if before is None or canary.fits(before) else _in_words(before, "a batch of indices")
        # A skip() that was not made for this counts only if the canary can tell that it is wrong.
        found = reader.skip(0, count - 1, read=read or (reader.borrows and canary.digest is None))
        if found < count - 1:
            return found, None
        last = reader.take(found, 1)
        return found + len(last), None if not last or canary.fits(last[0]) else _in_words(last[0])

    def _other_ahead(self, position: int, canary: Canary) -> str | None:
        """Return in words what comes next, if that is not the element that the state announced; else None."""
        reader = self._reader
        if not reader.has(position):
            return "the end of the epoch"
        if not reader.ahead:  # drawing it failed, which the next draw raises
            return None
        return None if canary.fits(reader.ahead[0]) else _in_words(reader.ahead[0])


def orders_of(source: Any, state: Any, iterator_state: Any) -> list[tuple[bool, bool]]:
    """Return the orders in which a source may need its state: whether before it is iterated, and whether after.

    The likelier one comes first.
    """
    if iterator_state is not None and state is None:  # only its iterator has one
        return [(False, False)]
    if iterator_state is not None:  # the object's state again after `__iter__`, which may count its passes
        return [(True, True), (True, False)]
    if has(source, "__next__"):  # its own iterator, which `__iter__` may set back
        return [(False, True), (True, False)]
    return [(True, False), (False, True)]


def iterate_at(  # noqa: PLR0913  # two states, their order, and whose they are
    source: Any,
    begin: Callable[[], Iterator[Any]],
    state: Any,
    iterator_state: Any,
    *,
    order: tuple[bool, bool],
    name: str,
) -> Iterator[Any]:
    """Return an iterator over a source, with its own state and that of its iterator given back.

    Args:
        source: has the state.
        begin: calls `iter`.
        state: of the source; None if it has none.
        iterator_state: of its iterator; None if that has none.
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
    """Give a user's object a copy of its own state back.

    Args:
        thing: the object.
        state: as it was saved.
        name: of the object, for messages.
        found: describes it, for messages.

    Raises:
        StateMismatchError: the object takes no state.
        StateFormatError: it cannot take this one.
    """
    methods = state_methods(thing)
    if methods is None:
        raise without_state(name, found)
    given_back(lambda: methods[1](copy.deepcopy(state)), state)


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


def _gone_elsewhere(what: str, found: str, canary: Canary, position: int, *, tried: bool) -> str:
    """Say that a source, brought back by its own state, goes on with another element.

    Args:
        what: the source, for the message.
        found: digest of what it gave, or words.
        canary: of what the state announced.
        position: of the element in the epoch.
        tried: the state was given back in both orders, before iterating and after.
    """
    orders = " It was given back before iterating, and after." if tried else ""
    return (
        f"{what} was brought back by its own state, and goes on with another element than the run that saved it.\n"
        f"  in the checkpoint: element {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        f"Elements would be lost or repeated.{orders} Let the state say all that the next element depends on, or give "
        'wrap(..., resume="replay") to read the epoch again up to the place instead. If the element changes from run '
        'to run for a reason of its own, give checks="ranks".'
    )


def _read_otherwise(what: str, found: str, canary: Canary, position: int, *, drawn: bool = False) -> str:
    """Say that a source that was read again gave another element than before, or its sampler that was drawn again."""
    if drawn:
        return _drawn_otherwise(what, found, canary, position)
    return (
        f"{what} was read again up to the place of the state, and gave another element there than in the run before.\n"
        f"  in the checkpoint: element {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        "It gives other elements in every run, or its data changed, so elements would be lost or repeated. Seed what "
        "shuffles in it, as in shuffle(..., seed=0), and sort what lists files. If the elements are the same but for "
        'something like a time stamp, give wrap(..., checks="ranks").'
    )


def _drawn_otherwise(what: str, found: str, canary: Canary, position: int) -> str:
    return (
        f"the sampler over {what} was drawn from again up to the place of the state, and gave another batch there than "
        "in the run before.\n"
        f"  in the checkpoint: batch {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        "It gives another order in every run, so some samples would be read twice, and others never. Seed what "
        "shuffles in it by the epoch, from set_epoch(epoch); let it draw from random, numpy.random or torch, which are "
        "seeded for it; or give it state_dict and load_state_dict. If that is as it should be, give wrap(..., "
        'checks="ranks").'
    )


def skipped_elsewhere(what: str, count: int) -> str:
    """Say that a source does not skip to the element to which reading it leads."""
    return (
        f"the skip() of {what} does not lead to the element to which reading leads.\n"
        f"  after skip({count}):            one element\n  after reading {count} elements: another one\n"
        "Elements would be lost or repeated. skip(n) has to leave the iterator where n calls of next() would; mend it, "
        "or take it away, so that the elements are read."
    )


def _in_words(element: object, kind: str = "an element") -> str:
    return f"{kind} with the digest {Canary(element).digest}"
