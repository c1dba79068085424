"""Checks that a source which is opened again does not depend on its past, wherever an epoch of it starts or continues.

An object that lives over epochs may count its passes, shuffle a list in place, or use its own generator. A
resumed run opens it for the first time, so it yields different elements than in the run that saved. Saving changes
nothing: a state only contains what was seen anyway.

    epoch      the epoch that is opened next
    before     digests of the first elements of the epoch before
    values     digest of what the source remembered when that epoch started
    ended      the values at that epoch's end that it has changed since it was first opened

The check runs once, when the first epoch after a load is opened. It reads a few elements of a copy, or of the source
itself if it cannot be copied:

    the epoch after a different one     must start with the same elements. Else the source depends on its past
    the epoch before                    must start as in the state, unless a loop has set the source to something else
    what the source remembers           must be as in the state, unless opening it resets that
"""

from __future__ import annotations

import warnings
from ast import literal_eval
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from resumable._fetch.element_reader import FEW
from resumable._fetch.frameworks import Glimpsed
from resumable._fetch.memory import Memory, Note, memory_of
from resumable._introspection import offers, survive
from resumable._order.cursor import Cursor
from resumable.errors import PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._content import Canary
    from resumable._fetch.element_reader import SeededReader
    from resumable.protocols import ReplayBackend

__all__ = ["Lengths", "Past", "Run"]

_KEPT = 3  # epochs: a peek opens the next one, while a state still belongs to the one before
_MOST_NAMED = 3
_SURE = 2  # epochs of one length, from which on a different length is unexpected
_MOST_READ = 1 << 20  # elements of an epoch that are read to see whether the next one depends on it
_ALL = 1 << 40  # elements of an epoch: as many as it has
_REPEATS = 3  # two values of a clock may be equal by chance
_MOST_KEPT = 32  # things that a state has of what a source remembers
_KINDS = {
    "value": "the attribute {}",
    "order": "the order of {}, which it changes in place",
    "generator": "its own random generator {}",
    "iterator": "the iterator {}, which it keeps",
}
_WAYS = (
    "Add state_dict and load_state_dict to it, or wrap a function that makes it, or pass "
    'wrap(..., resume="replay_run") to read all epochs again.'
)


@dataclass(slots=True)
class _Epoch:
    """An epoch as far as it is known.

    Args:
        opened: what the source remembered when it started.
        first: digests of its first elements.
        changed: what the source had changed when it ended, since it was first opened.
    """

    opened: Memory
    first: dict[int, str] = field(default_factory=dict)
    changed: dict[str, Note] = field(default_factory=dict)


class Past:
    """Notes what a source has shown, and compares it after a load.

    Args:
        backend: the source.
        reader: returns a reader of an epoch.
        name: returns the name of the source, for messages.
    """

    def __init__(self, backend: ReplayBackend, reader: Callable[[int], SeededReader], name: Callable[[], str]) -> None:
        self._source = backend if offers(backend, Glimpsed) and backend.replays else None
        # Weak, as their object holds this one: a cycle would keep a Loader until it is collected.
        self._reader_of, self._name_of = WeakMethod(reader), WeakMethod(name)
        self._epochs = dict[int, _Epoch]()
        self._loaded: tuple[Cursor, dict[str, Any]] | None = None
        self._checks = False
        self._orders = dict[str, Note]()  # when the state was loaded
        self._doubts = list[str]()

    def _reader(self, epoch: int) -> SeededReader:
        reader = self._reader_of()
        assert reader is not None
        return reader(epoch)

    def _name(self) -> str:
        return _called(self._name_of)

    def opening(self, epoch: int) -> None:
        """Note what the source remembers before an epoch is opened."""
        if self._source is None:
            return
        if epoch not in self._epochs:
            self._epochs[epoch] = _Epoch(self._memory())
        for number in [one for one in self._epochs if not epoch - _KEPT < one <= epoch]:
            del self._epochs[number]

    def read(self, epoch: int, first: Mapping[int, Canary]) -> None:
        """Note the first elements of an epoch."""
        if (known := self._epochs.get(epoch)) is not None:
            known.first |= {place: canary.digest or "" for place, canary in first.items() if place not in known.first}

    def ended(self, epoch: int) -> None:
        """Note what the source remembers when an epoch is over."""
        if (known := self._epochs.get(epoch)) is None or epoch != max(self._epochs):
            return
        before, now = known.opened.notes, self._memory().notes
        earlier = self._epochs[epoch - 1].changed if epoch - 1 in self._epochs else self._loaded_changes(epoch)
        names = set(_differing(before, now)) | (earlier.keys() & now.keys())
        known.changed = {path: now[path] for path in sorted(names)[:_MOST_KEPT]}

    def as_dict(self, epoch: int) -> dict[str, Any] | None:
        """Return what a state contains if an epoch is opened next; None if nothing was seen before that epoch."""
        before = self._epochs.get(epoch - 1)
        if before is None or not before.first:
            loaded = self._loaded
            return loaded[1] if loaded is not None and loaded[0].epoch == epoch else None
        return {
            "epoch": epoch,
            "before": [[place, digest] for place, digest in sorted(before.first.items())],
            "values": before.opened.values(),
            "ended": {path: list(note) for path, note in before.changed.items()},
        }

    def expect(self, cursor: Cursor, values: dict[str, Any] | None) -> None:
        """Take over what a state contains, to compare it when the epoch of its cursor is opened."""
        self._loaded, self._checks = None, True
        if values is not None and values["values"]:
            self._loaded = (cursor if values["epoch"] == cursor.epoch else Cursor(values["epoch"])), values
        self._epochs = {}
        self._orders = {} if self._loaded is None else _orders(self._memory())

    def check(self, cursor: Cursor, report: Callable[[str], None]) -> None:
        """Compare the source with what the last loaded state contains, if the cursor is still there.

        Args:
            cursor: from where the source is read.
            report: called with a message about a difference; it raises, or returns if the run should continue.
        """
        if not self._checks or self._loaded is None or self._loaded[0] != cursor or self._source is None:
            return
        self._checks = False
        epoch = cursor.epoch
        ended, now = self._loaded_changes(epoch), self._memory().notes
        if ended and all(now.get(path) == note for path, note in ended.items()):
            return  # the source was there in this process
        fresh, used = self._source.apart(), self._source.apart()
        try:
            self._compare(epoch, fresh, used, report)
        finally:
            fresh.close()
            used.close()

    def _compare(self, epoch: int, fresh: Any, used: Any, report: Callable[[str], None]) -> None:
        """Compare an epoch of the source with the same epoch after the one before, and that one with the state."""
        assert self._source is not None
        ended, now, lives = self._loaded_changes(epoch), self._memory(), self._source.lives
        first = self._glimpse(fresh, epoch) if lives else {}
        once = memory_of(fresh.remembering) if lives else now
        before = self._glimpse(used, epoch - 1)
        again = self._glimpse(used, epoch) if lives else {}
        twice = memory_of(used.remembering) if lives else now
        if _differs(first, again):  # it may only continue where it was left
            again, twice = self._after_whole(epoch)
        moved = _differing(once.notes, twice.notes)
        if _differs(first, again):
            causes = {path: twice.notes[path] for path in moved} or ended
            report(_depends(self._name(), epoch, _named(causes, now, ended)))
            return
        if lives:
            self._compare_memory(epoch, first, now, once, ended, moved, report)
        assert self._loaded is not None
        values = self._loaded[1]
        known = {place: digest for place, digest in values["before"] if digest}
        # A loop that has changed a value or an order since then may have set the source to another stage.
        if now.values() == values["values"] and _orders(now) == self._orders and _differs(known, before):
            self._doubts.append(_other_process(self._name(), epoch - 1))

    def tell(self) -> None:
        """Warn about what the check found, once the source is at the position, as an error there says more.

        Warns:
            PromiseWarning: something differs that need not have an effect.
        """
        doubts, self._doubts = self._doubts, []
        for doubt in doubts:
            warnings.warn(doubt, PromiseWarning, stacklevel=2)

    def _compare_memory(  # noqa: PLR0913, PLR0917  # what was seen
        self,
        epoch: int,
        first: Mapping[int, str],
        now: Memory,
        once: Memory,
        ended: Mapping[str, Note],
        moved: list[str],
        report: Callable[[str], None],
    ) -> None:
        """Compare what the source remembers with the state, unless opening the source has reset it."""
        other = {}
        for path, note in ended.items():
            was = now.notes.get(path)
            reset = path in _differing(now.notes, once.notes) and path not in moved
            if was != note and not reset and not _grows(was, note):
                other[path] = note
        for path in self._reset(epoch, other, first, once) if other else ():
            del other[path]
        if not other:
            return
        message = _remembers(self._name(), {path: (note, now.notes.get(path)) for path, note in other.items()})
        if all(note.kind == "value" for note in other.values()):
            self._doubts.append(message)
        else:
            report(message)

    def _reset(self, epoch: int, other: Mapping[str, Note], first: Mapping[int, str], once: Memory) -> list[str]:
        """Return the plain values that opening an epoch resets, such as counters of what was read in an epoch.

        A copy gets the values from the end of the epoch before. If they have no effect on the elements, and are the
        same afterwards as without that, the source has reset them. So it has if they differ from time to time, as the
        values of a clock do.
        """
        after = self._after_given(epoch, other, first) or {}
        reset = [path for path, note in after.items() if note == once.notes.get(path)]
        for _ in range(_REPEATS if len(reset) < len(after) else 0):
            again = self._after_given(epoch, other, first)
            if again is None:
                return []
            reset += [path for path, note in after.items() if path not in reset and note != again.get(path)]
        return reset

    def _after_given(
        self, epoch: int, other: Mapping[str, Note], first: Mapping[int, str]
    ) -> dict[str, Note | None] | None:
        """Return what values that a copy got are after it was opened; None if they had an effect on its elements."""
        assert self._source is not None
        copy = self._source.apart()
        try:
            if copy.remembering is self._source.remembering:
                return None
            survive(None, partial(self._glimpse, copy, epoch), None)  # which may set some for the first time
            places, given = memory_of(copy.remembering).places, list[str]()
            for path, note in other.items():
                with suppress(ValueError, SyntaxError):
                    if note.kind == "value" and path in places:
                        holder, key = places[path]
                        holder[key] = literal_eval(note.text)
                        given.append(path)
            found = survive(None, partial(self._glimpse, copy, epoch), None)
            after = memory_of(copy.remembering).notes
        finally:
            copy.close()
        return None if found is None or _differs(first, found) else {path: after.get(path) for path in given}

    def _after_whole(self, epoch: int) -> tuple[dict[int, str], Memory]:
        """Return the first elements of an epoch after the whole epoch before it, and what the source remembers then."""
        assert self._source is not None
        source = self._source.apart()
        try:
            reader = self._reader(epoch - 1)
            reader.begin(lambda: source.open(epoch - 1))
            reader.skip(0, _MOST_READ, read=True)
            reader.close()
            return self._glimpse(source, epoch), memory_of(source.remembering)
        finally:
            source.close()

    def _glimpse(self, backend: Any, epoch: int) -> dict[int, str]:
        """Return the digests of the first elements of an epoch."""
        reader = self._reader(epoch)
        reader.begin(lambda: backend.open(epoch))
        reader.take(0, FEW)
        reader.close()
        backend.leave()
        return {place: canary.digest or "" for place, canary in reader.first.items()}

    def _loaded_changes(self, epoch: int) -> dict[str, Note]:
        """Return what had changed before an epoch, if the loaded state is from that epoch."""
        if self._loaded is None or self._loaded[0].epoch != epoch:
            return {}
        return {path: Note(*note) for path, note in self._loaded[1]["ended"].items()}

    def _memory(self) -> Memory:
        return memory_of(None if self._source is None else self._source.remembering)


def _called(method: WeakMethod[Callable[[], str]]) -> str:
    found = method()
    assert found is not None
    return found()


def _orders(memory: Memory) -> dict[str, Note]:
    return {path: note for path, note in memory.notes.items() if note.kind == "order"}


def _differing(before: Mapping[str, Note], now: Mapping[str, Note]) -> list[str]:
    """Return the paths of the differences, without new entries of containers and without lists that grow."""
    return [
        path
        for path, note in now.items()
        if before.get(path) != note and (path in before or "[" not in path) and not _grows(before.get(path), note)
    ]


def _grows(one: Note | None, other: Note) -> bool:
    """Return whether a list has different elements than before: it is a cache, or a history."""
    return one is not None and one.kind == other.kind == "order" and one.parts != other.parts


def _differs(known: Mapping[int, str], found: Mapping[int, str]) -> bool:
    """Return whether an element differs, or is missing."""
    return any(found.get(place) != digest for place, digest in known.items())


def _named(causes: Mapping[str, Note], now: Memory, ended: Mapping[str, Note]) -> str:
    shown = sorted(causes, key=lambda path: (list(_KINDS)[::-1].index(causes[path].kind), path))[:_MOST_NAMED]
    if not shown:
        return (
            "Nothing that it remembers was found to differ: it may depend on a global variable, a clock, a thread, or "
            "the order of files."
        )
    named = ", ".join(_KINDS[causes[path].kind].format(path or "itself") for path in shown)
    values = "".join(
        f"\n  {path}, in the checkpoint: {ended[path].text}\n  {path}, in this run:       {_text(now.notes.get(path))}"
        for path in shown
        if path in ended
    )
    return f"It lives over epochs, and the likely cause is {named}.{values}"


def _text(note: Note | None) -> str:
    return "nothing" if note is None else note.text


def _depends(what: str, epoch: int, cause: str) -> str:
    return (
        f"the elements of {what} depend on how often it was iterated over: epoch {epoch} starts with different "
        f"elements if a different epoch was started before it.\n{cause}\n"
        f"The run that saved the state has iterated over it in {epoch} earlier epochs, so this run would train on "
        f"different elements. {_WAYS}"
    )


def _remembers(what: str, other: Mapping[str, tuple[Note, Note | None]]) -> str:
    lines = "".join(
        f"  {path or 'itself'}, in the checkpoint: {was.text}\n  {path or 'itself'}, in this run:       {_text(now)}\n"
        for path, (was, now) in list(other.items())[:_MOST_NAMED]
    )
    return (
        f"{what} lives over epochs, and remembers something different than in the run that saved the state.\n{lines}"
        f"If later elements depend on it, an uninterrupted run has different ones. {_WAYS}"
    )


def _other_process(what: str, epoch: int) -> str:
    return (
        f"epoch {epoch} of {what} starts with different elements in this process than in the run that saved the "
        "state.\nAn uninterrupted run would also have different elements next. The likely cause is the order "
        "of files or of a set, a clock, or a thread. Sort lists of files, use sorted(...) instead of a set, and seed "
        'what shuffles. If the elements are expected to differ, pass checks="ranks".'
    )


class Run:
    """Reads all epochs of a run again, for a source that depends on how often it was iterated over.

    Args:
        name: returns the name of the source, for messages.
    """

    def __init__(self, name: Callable[[], str]) -> None:
        self._name_of = WeakMethod(name)
        self._done: int | None = 0  # epochs that the source has completed; None in the middle of one

    def _name(self) -> str:
        return _called(self._name_of)

    def ended(self, epoch: int) -> None:
        """Note that an epoch was read to its end."""
        self._done = epoch + 1

    def replay_before(self, epoch: int, reader: Callable[[int], SeededReader], backend: ReplayBackend) -> None:
        """Read all epochs before one that is opened next, as far as the source has not completed them.

        Raises:
            UnsupportedError: the source is past the start of the epoch.
        """
        done, self._done = self._done, None
        if done is None or done > epoch:
            raise UnsupportedError(
                f'{self._name()} would need to go back to the start of epoch {epoch}, but resume="replay_run" can only '
                "read the run again from its start, with a source that was not read yet.\nIts elements depend on how "
                "often it was iterated over. Load the state in a new process, or wrap a new source."
            )
        from tqdm import tqdm  # noqa: PLC0415  # would add a third to the import time of this package

        for past in tqdm(range(done, epoch), desc="replaying the run", unit="epoch", delay=1.0, leave=False):
            elements = reader(past)
            elements.begin(partial(backend.open, past))
            elements.skip(0, _ALL, read=True)
            elements.close()

    def refuse_leaving(self, cursor: Cursor) -> None:
        """Reject leaving an epoch before its end.

        Raises:
            UnsupportedError: the source has not completed the epoch.
        """
        if self._done is None:
            raise UnsupportedError(
                f"epoch {cursor.epoch} was left after {cursor.position} elements of {self._name()}, but "
                'resume="replay_run" reads earlier epochs again to their ends.\nA resumed run would read different '
                "elements. Read each epoch to its end, or add state_dict and load_state_dict to the source."
            )


class Lengths:
    """Counts the elements of whole epochs, and compares the count of a resumed epoch with them.

    A source's own state may be wrong in a way that shows only later, such as a bucket that was not saved.

    Args:
        name: returns the name of the source, for messages.
        told: the length that the source tells; None if it tells none, or it depends on workers.
    """

    def __init__(self, name: Callable[[], str], told: int | None) -> None:
        self._name_of, self._told = WeakMethod(name), told
        # Before an epoch: whole epochs, and the elements of each; -1 if they differ.
        self._before = {0: (0, 0)}

    def load(self, epoch: int, values: dict[str, Any] | None) -> None:
        """Continue with the counts of a state."""
        self._before = {epoch: (values or {}).get("lengths", (0, 0))}

    def added_to(self, values: dict[str, Any] | None, epoch: int) -> dict[str, Any] | None:
        """Return what a state in an epoch contains of the past, with the counts before it."""
        epochs, length = self._known(epoch)
        if not epochs:
            return values
        none = {"epoch": max(epoch, 1), "before": [], "values": "", "ended": {}}
        return (none if values is None else values) | {"lengths": [epochs, length]}

    def over(self, start: Cursor, elements: int, *, restored: bool) -> None:
        """Note the number of elements of an epoch that is over.

        Args:
            start: the position at which this run started to read it.
            elements: of the whole epoch.
            restored: this run restored a state of the source there.

        Warns:
            PromiseWarning: this run started in the middle, and a different number was expected.
        """
        epochs, length = self._known(start.epoch)
        if not start.position or (epochs and elements == length):
            now = epochs + 1, elements if elements == length or not epochs else -1
            self._before = {start.epoch: (epochs, length), start.epoch + 1: now}
            return
        if restored and epochs < start.epoch:
            return  # an epoch before may have been left, and this one may be the rest of its elements
        expected = length if epochs >= _SURE or (epochs and length == self._told) else -1
        if not epochs and restored and self._told is not None:
            expected = max(self._told, elements)  # some lengths are too small
        if expected not in {-1, elements}:
            why = f"as in {epochs} epochs before" if epochs else "its length"
            warnings.warn(
                f"epoch {start.epoch} of {_called(self._name_of)} was resumed after {start.position} elements, and "
                f"ended with a different number of elements.\n  expected:    {expected}, {why}\n"
                f"  in this run: {elements}\nElements were lost or repeated since the resume, or the data changed. "
                'Include all buffers in the state of the source, or pass wrap(..., resume="replay"). If epochs differ '
                'in length, pass checks="ranks".',
                PromiseWarning,
                stacklevel=2,
            )

    def _known(self, epoch: int) -> tuple[int, int]:
        """Return the counts before an epoch; as far as they are known, if epochs before it were left."""
        return self._before[max((one for one in self._before if one <= epoch), default=min(self._before))]
