"""What an indexed source remembers from sample to sample, as a dataset with a `state_dict` read in this process.

The place alone does not bring that back, so it goes with the place into the state, as it is when the state is taken. It
is given back when a state is loaded, when a batch fails, and when batches are read again; never because a stream is
opened where the source stands by itself. So what a user changes in the source meanwhile stays.
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
    """Return the methods that get and set a thing's state, or None where it has none."""
    for get, put in _METHODS:
        if callable(getter := ask(thing, get)) and callable(setter := ask(thing, put)):
            return getter, setter
    return None


def needs_arguments(get: Callable[..., Any]) -> bool:
    """Return whether only a loader of a source's own knows how to ask for its state."""
    return takes(get) is False


def given_back(restore: Callable[[], T], snapshot: Any) -> T:
    """Call what gives a source its snapshot back.

    Raises:
        StateFormatError: it cannot be one of this source's.
    """
    try:
        return restore()
    except ResumableError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the source could not take back the snapshot in the state: {type(error).__name__}: {error}.\n"
            f"  in the checkpoint: {shorten(snapshot)}\n"
            "Without it, the source would begin again. Load another checkpoint; or mend the source, if that is its "
            "own state."
        ) from error


def without_state(name: str, found: str = "a source that is replayed") -> StateMismatchError:
    """Return what to raise for a snapshot if the source of this run has no state to put it into.

    Args:
        name: of the source.
        found: describes it.
    """
    return StateMismatchError(
        f"the state has a snapshot of the source's own, and {name} has no state to put it into.\n"
        f"  in the checkpoint: a snapshot\n  in this run:       {found}\n"
        "It would begin again. Give the source that the run was started with."
    )


def own_state(source: Any, *, unless: str | None, advice: str = "", stacklevel: int) -> OwnState | None:
    """Return how to get and set what a source remembers, or the ones that torch's own datasets are made of.

    Args:
        source: has `source[index]`.
        unless: why it cannot be saved here, whatever it is.
        advice: what else can be done then.
        stacklevel: of a warning.

    Warns:
        PromiseWarning: it remembers something, and that cannot be saved.
    """
    holders = list({id(one): one for one in _holders(source)}.values())
    reasons = {id(one): unless or _cannot(one) for one in holders}
    for one in holders:
        if reasons[id(one)]:
            warnings.warn(
                f"the dataset {qualname_of(type(one))} has a {_getter(one)}() of its own, which is not saved: "
                f"{reasons[id(one)]}.\nAfter a resume, samples that depend on that state would be other ones. Let "
                f"__getitem__ depend on the index alone; or save that state yourself{advice}.",
                PromiseWarning,
                stacklevel=stacklevel,
            )
    pairs = [methods for one in holders if not reasons[id(one)] and (methods := state_methods(one))]
    return pairs[0] if [source] == holders and pairs else _together(pairs) if pairs else None


def _holders(source: Any) -> Iterator[Any]:
    """Yield the objects with a state that a source is made of."""
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
        return f"it has no {dict(_METHODS)[_getter(source) or '']}() to give it back"
    return "it needs arguments" if needs_arguments(methods[0]) else None


def _together(pairs: list[OwnState]) -> OwnState:
    def put(states: Any) -> None:
        for (_, one), state in zip(pairs, states, strict=True):
            one(state)

    return lambda: [get() for get, _ in pairs], put


@dataclass(frozen=True, slots=True)
class _Remembered(AtPlace):
    """What a source remembers at a place; another place after each batch that is read."""

    place: object = field(default=None, compare=False, repr=False)


class Follower:
    """Knows what a source remembers, and to which place that belongs.

    Args:
        own: get and set it.
    """

    def __init__(self, own: OwnState) -> None:
        self._get, self._set = own
        self._place = object()
        self._loaded: SourceState | None = None  # the state that was given back, if nothing was read since
        self._before: AtPlace | None = None  # the batch that is being read
        self._earlier: AtPlace | None = None  # than the batch that was read last

    def state(self) -> AtPlace:
        """Return what the source remembers now; while a batch is read, what it did before."""
        return self._before or _Remembered(copy.deepcopy(self._get()), place=self._place)

    def before(self) -> AtPlace | None:
        """Return what the source remembered before the batch that was read last."""
        return self._earlier

    def now(self, source: SourceState | None) -> SourceState | None:
        """Return a state again, if the source stands there: its user may have changed what it remembers."""
        return self.state() if self._stands_at(source) else source

    def go_to(self, source: SourceState | None) -> None:
        """Make the source remember what a state says, unless it stands there.

        Raises:
            StateFormatError: it cannot take that back.
        """
        if isinstance(source, AtPlace) and not self._stands_at(source):
            self._give_back(source)
            self._loaded, self._place = source, object()

    def follow(self, batches: Iterator[Any]) -> Generator[Any]:
        """Yield the batches; where one fails, the source remembers what it did before."""
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
            self._set(before)  # what was half taken is undone
            raise
