"""Iterables: generator functions, re-iterable objects, generators, and objects with their own state.

An object that has `state_dict`/`load_state_dict` or `get_state`/`set_state`, or whose iterator has them, resumes from
that state. Anything else is opened again and skipped through, so the elements of an epoch must not depend on earlier
epochs. The function gets the epoch as an argument `epoch`, or the object with a method `set_epoch`.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from resumable._data import shards_of
from resumable._fetch.hugging_face import divided, replayed
from resumable._fetch.memory import copied
from resumable._fetch.own_state import state_methods
from resumable._fetch.positioning import Borrowed, give_back, iterate, iterate_at, orders_of
from resumable._introspection import ask, has, qualname_of, signature_of
from resumable._naming import name_of
from resumable._options import check_count
from resumable.errors import ConfigurationError, OnePassError, UnsupportedError
from resumable.loader.registry import refuse_returned
from resumable.protocols import Traits
from resumable.samplers.base import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable._data import Columns
    from resumable._options import Options

__all__ = ["FunctionBackend", "ObjectBackend", "adapt"]

_OBJECT, _ITERATOR = "state of the object", "state of its iterator"


def adapt(source: Any, options: Options) -> tuple[FunctionBackend | ObjectBackend, Options]:
    """Adapt an iterable, or a function that returns one."""
    name = name_of(source, options.identity)
    if ask(source, "restart_on_stop_iteration", False) is True:
        raise UnsupportedError(
            f"{name} was created with restart_on_stop_iteration=True, so after its last element its state already "
            "belongs to the next epoch.\nA run that resumes there would count that epoch as part of the old one. "
            "Create it with restart_on_stop_iteration=False."
        )
    if issubclass(type(source), type):
        return FunctionBackend(source, name), options
    options = divided(source, options)
    stateful = state_methods(source) is not None
    if stateful and has(source, "__iter__"):
        options = replayed(source, name, options)
    if has(source, "__next__") or stateful:
        if not has(source, "__iter__"):
            raise _not_iterable(name, source)
        if not (stateful and options.replays):
            return ObjectBackend(source, name), options
    if has(source, "__iter__"):
        return FunctionBackend(_Epochs(source), name, _length(source, name), shards_of(source)), options
    return FunctionBackend(source, name), options


class FunctionBackend:
    """A function that returns a fresh iterable for each epoch.

    Args:
        function: called without arguments, or with `epoch=` if it has a parameter of that name.
        name: a name for the data.
        length: number of elements per epoch, if known.
        stored: a fingerprint of the data, if known.
    """

    kind = "iterable"

    def __init__(
        self, function: Callable[..., Any], name: str, length: int | None = None, stored: Columns | None = None
    ) -> None:
        self._function, self.stored = function, stored
        self._takes_epoch = _takes_epoch(function, name)
        self.identity = {"source": name}
        self.traits = Traits(length=length, reopens=True, snapshot_every=_snapshot_every(function))
        self._iterator: _Watched | None = None

    def open(self, epoch: int) -> Iterator[Any]:
        """Call the function."""
        return self._watch(self._call(epoch), skips=True)

    def snapshot(self) -> Any:
        """Return the iterator's own state in the middle of an epoch; None if it has none, and between epochs."""
        methods = None if self._iterator is None or self._iterator.ended else state_methods(self._iterator.inner)
        return None if methods is None else methods[0]()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Call the function, and restore the state of the iterator over its result."""
        produced = self._call(epoch)
        return self._watch_at(produced, None, snapshot, (False, False))

    def restore_otherwise(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Call the function, and restore the state of its result before that is iterated over."""
        produced = self._call(epoch)
        if state_methods(produced) is None:
            return self._watch_at(produced, None, snapshot, (False, False))
        return self._watch_at(produced, snapshot, None, (True, False))

    def _watch_at(self, produced: Any, state: Any, iterator_state: Any, order: tuple[bool, bool]) -> _Watched:
        name = self.identity["source"]
        begin = partial(_iterate, name, produced)
        self._iterator = _Watched(iterate_at(produced, begin, state, iterator_state, order=order, name=name))
        return self._iterator

    replays = True

    @property
    def lives(self) -> bool:
        """Whether an object lives over epochs. A function may also remember something, outside."""
        return True

    @property
    def remembering(self) -> Any:
        """The object, or the function."""
        return self._function.source if isinstance(self._function, _Epochs) else self._function

    def apart(self) -> FunctionBackend:
        """Return a backend over a copy of the object, or over the same function."""
        function = self._function
        if isinstance(function, _Epochs):
            function = _Epochs(copied(function.source))
        return FunctionBackend(function, self.identity["source"])

    def leave(self) -> None:
        """Close the iterator if it is a generator."""
        self.close()

    def close(self) -> None:
        """Close the iterator, if this backend made it."""
        if self._iterator is not None:
            self._iterator.end(fresh=not isinstance(self._function, _Epochs))

    def _call(self, epoch: int) -> Any:
        return _call(self.identity["source"], self._function, {"epoch": epoch} if self._takes_epoch else {})

    def _watch(self, produced: Any, *, skips: bool = False) -> _Watched:
        self._iterator = _Watched(_iterate(self.identity["source"], produced, iterate if skips else iter))
        return self._iterator


class ObjectBackend:
    """An object that continues from its current position: an object with its own state, or an iterator.

    Its iterator may also have a state, which is then saved together with the object's.

    Args:
        source: has `__iter__` or `__next__`.
        name: a name for the data.
    """

    kind = "iterable"

    def __init__(self, source: Any, name: str) -> None:
        self._source = source
        self._methods = state_methods(source)
        self._own_iterator = has(source, "__next__")
        self._iterator: _Watched | None = None
        # The length is read before any element, as it may be the number of elements left.
        self.traits = Traits(length=_length(source, name), goes_on=True, snapshot_every=_snapshot_every(source))
        self.stored = shards_of(source)
        self.identity = {"source": name}

    def open(self, epoch: int) -> Iterator[Any]:
        """Start an epoch."""
        once = None
        if self._own_iterator and self._iterator is not None:
            once = OnePassError(
                f"{self.identity['source']} can only be read once, but epoch {epoch} must read it from the start.\n"
                "There is nothing left in it. Pass the function that makes it instead of its result: wrap(make) "
                "instead of wrap(make())."
            )
            if self._methods is None and not (self._iterator.ended and _may_set_back(self._source)):
                raise once
        set_epoch(self._source, epoch)
        return self._iterate(once)

    def snapshot(self) -> Any:
        """Return the source's own state, and the state of its iterator; None if it has none."""
        if self._methods is None:
            return None
        if self._iterator is None:
            try:
                return self._methods[0]()
            except Exception:  # noqa: BLE001  # any type: some sources have no state before their first iter()
                return None
        own, iterator = self._methods[0](), self._iterator
        methods = None if iterator.ended or iterator.inner is self._source else state_methods(iterator.inner)
        return own if methods is None else {_OBJECT: own, _ITERATOR: methods[0]()}

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the source's state, and continue."""
        return self._restore(epoch, snapshot, 0)

    def restore_otherwise(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the source's state in the opposite order."""
        return self._restore(epoch, snapshot, -1)

    def _restore(self, epoch: int, snapshot: Any, which: int) -> Iterator[Any]:
        both = isinstance(snapshot, dict) and set(snapshot) == {_OBJECT, _ITERATOR}
        own, iterator = (snapshot[_OBJECT], snapshot[_ITERATOR]) if both else (snapshot, None)
        name = self.identity["source"]
        set_epoch(self._source, epoch)
        order = orders_of(self._source, own, iterator)[which]
        begin = partial(_iterate, name, self._source)
        self._iterator = _Watched(iterate_at(self._source, begin, own, iterator, order=order, name=name))
        return self._iterator

    lives = True

    @property
    def replays(self) -> bool:
        """Whether it has no state, and starts over in its `__iter__`."""
        return self._methods is None and self._own_iterator and _may_set_back(self._source)

    @property
    def remembering(self) -> Any:
        """The object."""
        return self._source

    def apart(self) -> FunctionBackend:
        """Return a backend over a copy of the object."""
        return FunctionBackend(_Epochs(copied(self._source)), self.identity["source"])

    def reopen(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the state that the source had between two epochs, and start the later one, as `open` does."""
        give_back(self._source, snapshot, self.identity["source"])
        set_epoch(self._source, epoch)
        return self._iterate()

    def close(self) -> None:
        """Close the iterator if it is a generator."""
        if self._iterator is not None:
            self._iterator.end(fresh=False)

    def _iterate(self, once: OnePassError | None = None) -> _Watched:
        self._iterator = _Watched(_iterate(self.identity["source"], self._source), once)
        return self._iterator


def _snapshot_every(source: Any) -> int:
    """Return how many steps lie between two snapshots taken in advance; a source with costly snapshots sets it."""
    every = ask(source, "snapshot_every")
    return 1 if every is None else check_count("snapshot_every", every, "It counts steps, and the source sets it.")


def _may_set_back(iterator: Any) -> bool:
    """Return whether the `__iter__` of an iterator does more than return it."""
    code = ask(ask(type(iterator), "__iter__"), "__code__")
    return code is not None and bool(code.co_names)


def set_epoch(source: Any, epoch: int) -> None:
    """Call a source's `set_epoch`, if it has one."""
    if callable(tell := ask(source, "set_epoch")):
        tell(epoch)


def _takes_epoch(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function takes the epoch.

    Raises:
        UnsupportedError: it cannot be called without other arguments.
    """
    signature = signature_of(function)
    if signature is None:
        return False
    try:
        inspect.Signature([one for one in signature.parameters.values() if one.name != "epoch"]).bind()
    except TypeError as error:
        raise UnsupportedError(
            f"{name} cannot be called without arguments: {error}.\n"
            "It is called once per epoch, with no argument but epoch (if it has that parameter). Pass a function that "
            "needs no other arguments, such as functools.partial(function, ...)."
        ) from error
    return "epoch" in signature.parameters


def _call(name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # raised inside the function, not when calling it
        raise UnsupportedError(
            f"{name} could not be called: {error}.\n"
            "It is called once per epoch, with no argument but epoch (if it has that parameter). Pass a function that "
            "needs no other arguments, such as functools.partial(function, ...)."
        ) from error


def _iterate(name: str, produced: Any, begin: Callable[[Any], Iterator[Any]] = iter) -> Iterator[Any]:
    refuse_returned(name, produced)
    try:
        return begin(produced)
    except TypeError as error:
        raise _not_iterable(name, produced) from error


def _not_iterable(name: str, produced: Any) -> UnsupportedError:
    return UnsupportedError(
        f"{name} provides nothing to iterate over: got an object of the type {qualname_of(type(produced))}.\n"
        "There would be no batches. Pass an object with __iter__, or a function that returns one or yields."
    )


def _length(source: Any, name: str) -> int | None:
    """Return the number of elements; None if the source has no `__len__`, or it raises an error: loops do not need it.

    Raises:
        ConfigurationError: the length is larger than Python can handle.
    """
    try:
        return length_of(source, name)
    except UnsupportedError:
        return None
    except (ConfigurationError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001  # user code may raise anything
        return None


class _Epochs:
    """Calls a re-iterable object like a function of the epoch."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.snapshot_every = ask(source, "snapshot_every")

    def __call__(self, epoch: int) -> Any:
        set_epoch(self.source, epoch)
        return self.source


class _Watched:
    """An iterator that knows whether it has ended, and stays ended.

    Args:
        inner: the source's iterator.
        empty: raised if the source yields no element at all.
    """

    def __init__(self, inner: Iterator[Any], empty: OnePassError | None = None) -> None:
        self.inner, self._empty = inner, empty
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            element = next(self.inner)
        except StopIteration:
            self.ended = True
            if self._empty is not None:
                raise self._empty from None
            raise
        self._empty = None
        return element

    def end(self, *, fresh: bool) -> None:
        """Close a generator, or an iterator made for one pass; a user's object may be iterated over again."""
        close = ask(self.inner, "close")
        if callable(close) and (fresh or isinstance(self.inner, (GeneratorType, Borrowed))):
            close()

    def __getattr__(self, name: str) -> Any:
        missing = object()
        found = ask(self.inner, name, missing) if name in {"skip", "anywhere", "borrowed"} else missing
        if found is missing:
            raise AttributeError(name)
        return found
