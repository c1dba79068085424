"""The state of an indexed source, such as a dataset with a `state_dict` that is read in this process.

The position alone cannot restore it, so each state includes it, as of the time when the state is taken. It is restored
when a state is loaded, when a batch fails, and when batches are read again. It is not restored if a stream opens where
the source already is. So a user's changes to the source in the meantime are kept.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from resumable._introspection import ask, module_of, qualname_of, shorten, takes
from resumable._state import AtPlace
from resumable.errors import PromiseWarning, ResumableError, StateFormatError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from resumable._state import SourceState

__all__ = ["Follower", "OwnState", "given_back", "needs_arguments", "own_state", "state_methods", "without_state"]

T = TypeVar("T")
OwnState: TypeAlias = "tuple[Callable[[], Any], Callable[[Any], Any]]"

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


def state_methods(thing: Any) -> OwnState | None:
    """Return the methods that get and set an object's state, or None if it has none."""
    for get, put in _METHODS:
        if callable(getter := ask(thing, get)) and callable(setter := ask(thing, put)):
            return getter, setter
    return None


def needs_arguments(get: Callable[..., Any]) -> bool:
    """Return whether `get` needs arguments, so only a loader made for the source can call it."""
    return takes(get) is False


def given_back(restore: Callable[[], T], snapshot: Any) -> T:
    """Call a function that restores a source's snapshot.

    Raises:
        StateFormatError: the snapshot cannot belong to this source.
    """
    try:
        return restore()
    except ResumableError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the source could not restore the snapshot in the state: {type(error).__name__}: {error}.\n"
            f"  in the checkpoint: {shorten(snapshot)}\n"
            "Without it, the source would start over. Load a different checkpoint, or fix the source if it wrote this "
            "state."
        ) from error


def without_state(name: str, found: str = "a source that is replayed") -> StateMismatchError:
    """Return the error for a state with a snapshot, if the source of this run has no method to restore it.

    Args:
        name: of the source.
        found: describes it.
    """
    return StateMismatchError(
        f"the state has a snapshot of the source, but {name} has no method to restore one.\n"
        f"  in the checkpoint: a snapshot\n  in this run:       {found}\n"
        "It would start over. Use the source that the run started with."
    )


def own_state(source: Any, *, unless: str | None, advice: str = "", stacklevel: int) -> OwnState | None:
    """Return how to get and set what a source remembers, including datasets inside PyTorch's wrapper datasets.

    Args:
        source: has `source[index]`.
        unless: why it cannot be saved here, whatever it is.
        advice: an alternative for that case.
        stacklevel: of a warning.

    Warns:
        PromiseWarning: it remembers something that cannot be saved.
    """
    holders = list({id(one): one for one in _holders(source)}.values())
    reasons = {id(one): unless or _cannot(one) for one in holders}
    for one in holders:
        if reasons[id(one)]:
            warnings.warn(
                f"the dataset {qualname_of(type(one))} has its own {_getter(one)}(), which is not saved: "
                f"{reasons[id(one)]}.\nAfter a resume, samples that depend on that state would differ. Make "
                f"__getitem__ depend only on the index, or save that state yourself{advice}.",
                PromiseWarning,
                stacklevel=stacklevel,
            )
    pairs = [methods for one in holders if not reasons[id(one)] and (methods := state_methods(one))]
    return pairs[0] if [source] == holders and pairs else _together(pairs) if pairs else None


def _holders(source: Any) -> Iterator[Any]:
    """Yield the objects with a state inside a source."""
    if _getter(source) is not None:
        yield source
    elif module_of(type(source)) == "torch.utils.data.dataset":  # Subset, ConcatDataset and the like
        inner = ask(source, "datasets")
        inner = [ask(source, "dataset")] if inner is None else inner
        for one in inner.values() if isinstance(inner, dict) else inner:
            yield from _holders(one)


def _getter(source: Any) -> str | None:
    return next((get for get, _ in _METHODS if callable(ask(source, get))), None)


def _cannot(source: Any) -> str | None:
    methods = state_methods(source)
    if methods is None:
        return f"it has no {dict(_METHODS)[_getter(source) or '']}() to restore it"
    return "it needs arguments" if needs_arguments(methods[0]) else None


def _together(pairs: list[OwnState]) -> OwnState:
    def put(states: Any) -> None:
        for (_, one), state in zip(pairs, states, strict=True):
            one(state)

    return lambda: [get() for get, _ in pairs], put


@dataclass(frozen=True, slots=True)
class _Remembered(AtPlace):
    """The source's own state at a position; `place` is a new object after each batch that is read."""

    place: object = field(default=None, compare=False, repr=False)


class Follower:
    """Tracks what a source remembers, and to which position that belongs.

    Args:
        own: gets and sets it.
    """

    def __init__(self, own: OwnState) -> None:
        self._get, self._set = own
        self._place = object()
        self._loaded: SourceState | None = None  # the state that was restored, if nothing was read since
        self._before: AtPlace | None = None  # before the batch that is being read
        self._earlier: AtPlace | None = None  # before the batch that was read last

    def state(self) -> AtPlace:
        """Return what the source remembers now; while a batch is read, what it remembered before."""
        return self._before or _Remembered(copy.deepcopy(self._get()), place=self._place)

    def before(self) -> AtPlace | None:
        """Return what the source remembered before the last batch."""
        return self._earlier

    def now(self, source: SourceState | None) -> SourceState | None:
        """Return a state again. If the source is there, the user may have changed what it remembers."""
        return self.state() if self._stands_at(source) else source

    def go_to(self, source: SourceState | None) -> None:
        """Make the source remember what a state says, unless it is there already.

        Raises:
            StateFormatError: it cannot restore that.
        """
        if isinstance(source, AtPlace) and not self._stands_at(source):
            self._give_back(source)
            self._loaded, self._place = source, object()

    def follow(self, batches: Iterator[Any]) -> Generator[Any]:
        """Yield the batches. If one fails, the source remembers what it did before."""
        try:
            while True:
                self._earlier = self._before = self.state()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                except BaseException:
                    self._give_back(self._before)
                    raise
                finally:
                    self._before = None
                self._loaded, self._place = None, object()
                yield batch
        finally:
            if hasattr(batches, "close"):
                batches.close()

    def _stands_at(self, source: SourceState | None) -> bool:
        return source is not None and (source is self._loaded or getattr(source, "place", None) is self._place)

    def _give_back(self, source: AtPlace) -> None:
        snapshot, before = copy.deepcopy(source.snapshot), copy.deepcopy(self._get())
        try:
            given_back(lambda: self._set(snapshot), source.snapshot)
        except Exception:
            self._set(before)  # undoes a partial restore
            raise
