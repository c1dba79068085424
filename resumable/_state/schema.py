"""The state of a Loader as plain values: its schema, and how it is written and read.

format          version of this schema
backend         kind of source and identity of the data
sampler         algorithm with its version, and its parameters
cursor          epoch, position, step
global_step     global batches over all epochs that are in the weights
samples_seen    samples over all epochs and ranks that are in the weights
global_batch    samples per step over all ranks
batch_size      samples per rank and step, as the script requested when the run started
world_size      number of ranks when it was taken; for information
tail            tail policy
randomness      mode, and the seed of the per-sample keys
name            of the stream; order and keys depend on it
unit            what a position counts: "sample" or "element"
journal         changes during the run, oldest first: [[epoch, position], change]
fingerprint     digests of some samples as stored; None if the source does not show them
canary          digest of the next element (with a source_state), or of the one delivered last
source_state    the source's own snapshot, and the elements to skip after it; None if the cursor is enough
past            what was seen of the epoch before, if the source is opened again in each epoch; else None
rank            the rank that the state belongs to, if ranks have separate streams; else None
digest          of all of these; None in a state that was edited by hand
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from resumable._content import Canary, digest_of
from resumable._introspection import offers, shorten
from resumable._order.cursor import Cursor
from resumable._order.plan import History, Plan
from resumable._state.fields import check_fields, newer
from resumable._state.source import KnowsSnapshots, SourceState, parse_source
from resumable.errors import StateFormatError

__all__ = [
    "BY_DCP",
    "FORMAT",
    "LEAF",
    "MOST_STARTS",
    "Journal",
    "Mark",
    "Resize",
    "State",
    "damaged",
    "describe",
    "is_leaf",
    "is_shared",
    "is_state",
    "parse",
    "upgrade",
    "without_settings",
]


# ------------------------------------------------------------------ describe
#
# Describes values that were passed as a state but are not one, briefly enough for a message.

LEAF = "states"  # key in a checkpoint of torch.distributed.checkpoint for the states of all ranks, as bytes
BY_DCP = (
    "If torch.distributed.checkpoint saved it, pass it loader.dcp() instead of the Loader: it splits a Loader's state "
    "into parts from several ranks."
)
_DEEPEST_SEARCH = 4
_GIVE = "Pass the result of loader.state_dict(); its field 'format' is an integer."
_OTHERS = (
    ({"param_groups", "state"}, "It is an optimizer's state: did you mean the loader's? "),
    ({"python", "numpy"}, "It is a state of the RNGs, for resumable.rng.load_state_dict. "),
    ({"pytorch-lightning_version"}, "It is a Lightning checkpoint: pass it to the Trainer as ckpt_path. "),
)


def describe(value: Any) -> str:
    """Describe a value: of a mapping, the keys; else the value itself."""
    if isinstance(value, Mapping) and value:
        return shorten(f"a {type(value).__name__} with the keys {', '.join(map(shorten, value))}", show=str)
    return shorten(value)


def is_state(value: Any) -> bool:
    """Return whether a value looks like a state of a Loader, of any version."""
    return isinstance(value, Mapping) and type(value.get("format")) is int and "cursor" in value


def is_leaf(values: Any) -> bool:
    """Return whether a value was saved by `Loader.dcp()`, and is not a state."""
    return isinstance(values, Mapping) and set(values) == {LEAF} and isinstance(values[LEAF], bytes)


def advise(values: Any) -> str:
    """Say what to pass instead: a state that is inside the value, if there is one."""
    if values is None:
        return "On a first run there is nothing to load: call load_state_dict() only if there is a checkpoint."
    if isinstance(values, (str, bytes, PathLike)):
        return 'If it is a path, load the file first: loader.load_state_dict(torch.load(path)["loader"]).'
    if (path := _find(values)) is not None:
        return f"It contains a state of a Loader: did you mean load_state_dict(state{path})?"
    for names, advice in _OTHERS:
        if isinstance(values, Mapping) and names <= set(values):
            return advice + _GIVE
    return _GIVE


def _find(values: Any, deep: int = 0) -> str | None:
    """Return the subscripts, as Python code, that lead to the first state of a Loader inside a value."""
    if not isinstance(values, Mapping) or deep > _DEEPEST_SEARCH:
        return None
    for key, value in values.items():
        if isinstance(value, Mapping):
            if is_state(value) or is_leaf(value):
                return f"[{key!r}]"
            if (path := _find(value, deep + 1)) is not None:
                return f"[{key!r}]{path}"
    return None


# ------------------------------------------------------------------ journal
#
# The journal of a state: changes during a run, as [[epoch, position], change], oldest first.
#
# change                          meaning
# {"global_batch": [was, is],     samples per step over all ranks, before the position and from there on; and the
#  "ranks": [was, is]}            ranks, which format 2 lacks. If nothing differs, the epoch before was left early
# {"seek": step}                  the run went to the position, which is before this step; only the last one is kept
# {"in_force": settings}          the cursor's epoch started with these backend settings, and continues with them
# {"set": settings}               set at the cursor, for later epochs, until they are set again
#
# Settings are differences from the backend when it was wrapped; a backend may not have any.


_CHANGES = ("global_batch", "ranks", "seek", "in_force", "set")
MOST_STARTS = 16  # starts of epochs that are kept


class Resize(NamedTuple):
    """A different global batch or number of ranks from a position on, or the start of an epoch."""

    epoch: int
    position: int
    was: int
    now: int
    ranks: tuple[int, int]

    @property
    def before(self) -> tuple[int, int]:
        """Global batch and ranks before it."""
        return self.was, self.ranks[0]

    @property
    def is_start(self) -> bool:
        """Whether it only says where an epoch starts."""
        return self.was == self.now and self.ranks[0] == self.ranks[1]


class Journal(NamedTuple):
    """The changes in a state.

    Args:
        resizes: changes of the global batch, oldest first.
        in_force: settings that the cursor's epoch started with; None if it has not started.
        settings: those that are set at the cursor; None if the backend has no settings.
        sought: the target of the last `seek`.
    """

    resizes: tuple[Resize, ...] = ()
    in_force: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    sought: Cursor | None = None

    def as_list(self, cursor: Cursor) -> list[list[Any]]:
        """Return the journal at a cursor, as fresh plain values."""
        entries: list[list[Any]] = [
            [[one.epoch, one.position], {"global_batch": [one.was, one.now], "ranks": list(one.ranks)}]
            for one in self.resizes
        ]
        if (sought := self.sought) is not None:
            later = [place for place, _ in entries if place < [sought.epoch, sought.position]]
            entries.insert(len(later), [[sought.epoch, sought.position], {"seek": sought.step}])
        if self.in_force is not None:
            entries.append([[cursor.epoch, 0], {"in_force": copy.deepcopy(dict(self.in_force))}])
        if self.settings is not None:
            entries.append([[cursor.epoch, cursor.position], {"set": copy.deepcopy(dict(self.settings))}])
        return entries

    def history(self, here: Cursor, plan: Callable[[int, int], Plan], now: tuple[int, int]) -> History:
        """Return the plans of the run up to a position.

        Args:
            here: the position.
            plan: makes a plan from a global batch and a number of ranks.
            now: global batch and number of ranks at the position.
        """
        kept: list[Resize] = []
        for one in self.resizes:  # format 2 did not record seek(), so a later one may be at an earlier position
            kept = [before for before in kept if before[:2] < one[:2]] + [one]
        starts = [one.epoch for one in kept if one.is_start]
        changes = tuple((one.epoch, one.position, plan(one.now, one.ranks[1])) for one in kept)
        first = plan(*(self.resizes[0].before if self.resizes else now))
        return History(here, plan(*now), first, changes, starts[0] if len(starts) >= MOST_STARTS else 0)

    @classmethod
    def parse(cls, values: Any, cursor: Cursor, ranks: int) -> Journal:
        """Read the journal of a state that was taken at a cursor, with a number of ranks.

        Raises:
            ValueError: it is not a journal, or has settings after the cursor.
            StateFormatError: a newer version wrote an entry.
        """
        resizes, settings, sought = [], dict[str, Any](), None
        for (epoch, position), change in values:
            if not all(type(number) is int and number >= 0 for number in (epoch, position)):
                raise ValueError(f"the journal has an entry at {[epoch, position]}, which is not a position")
            check_fields(change, _CHANGES, f"the journal at {[epoch, position]}")
            (name,) = change.keys() - {"ranks"}
            if name == "global_batch":
                (was, now), (before, after) = change["global_batch"], change.get("ranks", (ranks, ranks))
                if not all(type(number) is int and number > 0 for number in (was, now, before, after)):
                    raise ValueError(f"the journal has an invalid global batch: {change}")
                resizes.append(Resize(epoch, position, was, now, (before, after)))
            elif name == "seek":
                sought = Cursor.from_dict({"epoch": epoch, "position": position, "step": change[name]})
            else:
                if (epoch, position) > (cursor.epoch, cursor.position):
                    raise ValueError(f"the journal has settings of {[epoch, position]}, after the cursor")
                settings[name] = copy.deepcopy(dict(change[name]))
        return cls(tuple(resizes), settings.get("in_force"), settings.get("set"), sought)


def without_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that does not change settings; for going back within a run."""
    kept = [entry for entry in values["journal"] if not {"in_force", "set"} & entry[1].keys()]
    return {**values, "journal": kept, "digest": None}


# ------------------------------------------------------------------ format 1
#
# Reads states of format 1 as states of format 2. Missing fields are left empty and are not compared.


def upgrade(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same state in format 2.

    Its counters start with the cursor's epoch, because format 1 does not record how long earlier epochs were.

    Raises:
        ValueError: it has a later format, and its number was damaged.
        StateFormatError: a newer version wrote a field.
    """
    if "digest" in values:
        raise ValueError("its format is 1, but it has a digest, which format 1 does not have")
    check_fields(values, ("format", *_SAME, "native", "rank"))
    cursor, native = values["cursor"], values.get("native")
    return {
        **{name: values[name] for name in _SAME},
        "format": 2,
        "global_step": cursor["step"],
        "samples_seen": cursor["position"],
        "rank": values.get("rank"),
        "name": "",
        "unit": "sample",
        "journal": [],
        "fingerprint": None,
        "canary": None,
        "source_state": None if native is None else _source_state(native, cursor["epoch"]),
        "digest": None,
    }


_SAME = ("backend", "sampler", "cursor", "global_batch", "batch_size", "world_size", "tail", "randomness")


def _source_state(native: Mapping[str, Any], epoch: int) -> Mapping[str, Any]:
    marks = {"skip": native["skip"], "ended": native.get("ended", False)}
    if "before" not in native:
        return {"snapshot": native["snapshot"], **marks}
    before = _source_state(native["before"], epoch - 1)
    if native["position"] == 0 and not marks["skip"]:
        return before  # nothing was read of the epoch that was left
    left = {"epoch": epoch - 1, "position": native["position"], "source_state": before}
    return {"left_early": left, **marks}


# ------------------------------------------------------------------ schema

FORMAT = 3  # format 2 has no `past`, and neither `seek` nor changed ranks in the journal
_COUNTS = {"global_step": 0, "samples_seen": 0, "global_batch": 1, "batch_size": 1, "world_size": 1}  # and the least
_LARGEST = dict.fromkeys(("global_batch", "batch_size", "world_size"), 1 << 30)  # larger than in any run
_MOST_RANKS = 1 << 20  # the same
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_PLAIN = frozenset({type(None), bool, int, float, str})
_BASES: dict[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__index__, float: float.__float__}
_LARGEST_INT = 1 << 256  # larger ones are digested differently, because Python writes at most 4300 digits
_DEEPEST = 100  # levels of a snapshot; deeper ones are digested differently
_DIGESTED = ("format", "cursor", *_COUNTS, "rank", "name", "unit", "journal", "fingerprint", "canary")
_GROUPS = ("backend", "sampler", "randomness")
_REQUIRED = (*_DIGESTED, *_GROUPS, "tail", "source_state", "digest")
_FIELDS = (*_REQUIRED, "past")  # which formats 1 and 2 lack
_NOTE = 3  # kind, text and parts


class Mark(NamedTuple):
    """A position in the stream, the number of batches in the weights there, and the source's own state if it has one.

    `canary` belongs to the next element if there is a source state, else to the one delivered last. If a load finds a
    different element at the position, it raises, or only warns (`strict` is False).

    `in_force` has the settings that the cursor's epoch started with, if it has a batch and the backend has settings.
    """

    cursor: Cursor
    source: SourceState | None = None
    global_step: int = 0
    samples_seen: int = 0
    canary: Canary | None = None
    strict: bool = True
    in_force: Mapping[str, Any] | None = None

    def delivered(
        self,
        cursor: Cursor,
        source: SourceState | None = None,
        canary: Canary | None = None,
        in_force: Mapping[str, Any] | None = None,
    ) -> Mark:
        """Return the mark after the next batch."""
        seen = self.samples_seen + cursor.position - self.cursor.position
        return Mark(cursor, source, self.global_step + 1, seen, canary, in_force=in_force)

    def at(self, cursor: Cursor, source: SourceState | None) -> Mark:
        """Return the mark for a different position, with the same batches in the weights."""
        return Mark(cursor, source, self.global_step, self.samples_seen)


@dataclass(slots=True)  # not frozen, which would cost 1 µs per saved state
class State:
    """A parsed state; never changed.

    Args:
        mark: its position.
        global_batch: samples per step over all ranks.
        batch_size: samples per rank and step that the script asked for.
        fingerprint: what must be the same in both runs, by dotted names.
        unit: what a position counts.
        journal: changes during the run.
        intact: its digest shows no change since it was saved.
        world_size: number of ranks when it was taken.
        data: digests of some samples as stored.
        past: what was seen of the epoch before.
    """

    mark: Mark
    global_batch: int
    batch_size: int
    fingerprint: dict[str, Any] = field(default_factory=dict)
    unit: str = "sample"
    journal: Journal = field(default_factory=Journal)
    intact: bool = True
    world_size: int = 1
    data: Any = None
    past: dict[str, Any] | None = None

    def as_dict(self, world_size: int) -> dict[str, Any]:
        """Return the state as fresh plain values.

        Args:
            world_size: number of ranks.
        """
        mark = self.mark
        values: dict[str, Any] = {
            "format": FORMAT,
            "cursor": mark.cursor.as_dict(),
            "global_step": mark.global_step,
            "samples_seen": mark.samples_seen,
            "global_batch": self.global_batch,
            "batch_size": self.batch_size,
            "world_size": world_size,
            "rank": None,
            "name": "",
            "unit": self.unit,
            "journal": self.journal.as_list(mark.cursor),
            "fingerprint": self.data,
            "canary": None if mark.canary is None else mark.canary.text,
            "past": None if self.past is None else _canonical(self.past),  # its structure varies
        }
        for name, value in self.fingerprint.items():
            group, key = _parts_of(name)
            if not key:
                values[group] = value
            elif group in values:
                values[group][key] = value
            else:
                values[group] = {key: value}
        values["source_state"] = None if mark.source is None else mark.source.as_dict()
        values["digest"] = _digest(values, self.fingerprint, _content(values["source_state"]))
        return values


@cache
def _parts_of(name: str) -> tuple[str, str]:
    """Return the group of a fingerprint entry, and its name there; there are about ten entries."""
    group, _, key = name.partition(".")
    return group, key


def parse(values: Any, backend: Any = None) -> State:
    """Read a state that `state_dict()` returned, possibly from JSON or `torch.load`.

    Args:
        values: the state.
        backend: of this run, which may inspect its snapshots; None if there is none.

    Raises:
        StateFormatError: it is not a state, is truncated or damaged, or has a version that this code does not know.
    """
    version = values.get("format") if hasattr(values, "get") else None
    if type(version) is not int or version < 1:
        raise StateFormatError(
            f"expected a state of a Loader, but got {describe(values)}.\nNothing was loaded. {advise(values)}"
        )
    if version > FORMAT:
        raise newer(f"format {shorten(version)}, but this version reads only up to {FORMAT}")
    try:
        return _read(upgrade(values) if version == 1 else values, backend)
    except StateFormatError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise damaged(values, error) from error


def is_shared(values: Mapping[str, Any]) -> bool:
    """Return whether a state is the same on all ranks, and only a position is needed to make it."""
    return all(values.get(name) is None for name in ("source_state", "native", "rank"))


def damaged(values: Any, error: Exception) -> StateFormatError:
    """Return the error for a state that could not be read."""
    reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    names = ", ".join(shorten(name, show=str) for name in values)
    return StateFormatError(
        f"the state is truncated or damaged: {reason}.\n"
        f"Nothing was loaded. It has the fields {names}. Load a different checkpoint. {BY_DCP}"
    )


def _read(values: Mapping[str, Any], backend: Any) -> State:
    for name in _FIELDS if values["format"] == FORMAT else _REQUIRED:
        values[name]  # raises a KeyError with the missing name
    check_fields(values, _FIELDS)
    check_fields(values["cursor"], ("epoch", "position", "step"), "its cursor")
    check_fields(values["randomness"], ("mode", "seed"), "its randomness")
    numbers = {name: _count(name, values[name], least) for name, least in _COUNTS.items()}
    groups = {name: values[name] for name in _GROUPS}
    fingerprint = {f"{group}.{key}": value for group, fields in groups.items() for key, value in dict(fields).items()}
    fingerprint["tail"] = values["tail"]
    if name := _name(values["name"]):
        fingerprint["name"] = name
    if values["rank"] is not None:
        fingerprint |= {"rank": values["rank"], "world_size": values["world_size"]}
    for name in ("backend.kind", "sampler.name", "randomness.mode", "randomness.seed"):
        fingerprint[name]  # raises a KeyError with the missing name
    cursor, source = Cursor.from_dict(values["cursor"]), values["source_state"]
    _check_place(cursor, numbers)
    state = None if source is None else parse_source(source, cursor.epoch, cursor.position, backend)
    intact = _is_intact(values, fingerprint, backend)
    journal = Journal.parse(values["journal"], cursor, numbers["world_size"])
    canary, in_force = _canary(values["canary"]), journal.in_force
    mark = Mark(cursor, state, numbers["global_step"], numbers["samples_seen"], canary, in_force=in_force)
    batches = numbers["global_batch"], numbers["batch_size"]
    data, past = values["fingerprint"], _past(values.get("past"))
    return State(mark, *batches, fingerprint, values["unit"], journal, intact, numbers["world_size"], data, past)


def _count(name: str, number: Any, least: int) -> int:
    if type(number) is not int or number < least:
        raise ValueError(f"{name} must be an integer of {least} or more, but it is {number!r}")
    if number > _LARGEST.get(name, number):
        raise ValueError(f"{name} must be an integer of {_LARGEST[name]} or less, but it is {number!r}")
    return number


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"name must be a string, but it is {name!r}")  # noqa: TRY004  # as for other fields
    return name


def _canary(digest: Any) -> Canary | None:
    if digest is None:
        return None
    if not isinstance(digest, str):
        raise ValueError(f"canary must be a string or None, but it is {digest!r}")  # noqa: TRY004  # as for other fields
    return Canary.known(digest)


def _past(text: Any) -> dict[str, Any] | None:
    if text is None:
        return None
    values = json.loads(text)
    check_fields(values, ("epoch", "before", "values", "ended", "lengths"), "its past")
    before = [[_count("past.before", place, 0), str(digest)] for place, digest in values["before"]]
    ended = {str(path): [str(text) for text in note] for path, note in values["ended"].items()}
    if not all(len(note) == _NOTE for note in ended.values()):
        raise ValueError(f"past.ended has an invalid entry: {shorten(ended)}")
    epoch = _count("past.epoch", values["epoch"], 1)
    past = {"epoch": epoch, "before": before, "values": str(values["values"]), "ended": ended}
    if "lengths" in values:
        epochs, length = values["lengths"]
        past["lengths"] = _count("past.lengths", epochs, 1), _count("past.lengths", length, -1)
    return past


def _check_place(cursor: Cursor, numbers: Mapping[str, int]) -> None:
    """Reject a position that contradicts itself."""
    if cursor.step > cursor.position:
        raise ValueError(f"the position {cursor.position} is too small for {cursor.step} steps of at least one sample")
    ranks, left = divmod(numbers["global_batch"], numbers["batch_size"])
    if left or ranks > _MOST_RANKS:
        raise ValueError(
            f"global_batch is {numbers['global_batch']}, which is not a possible multiple of batch_size="
            f"{numbers['batch_size']}"
        )


def _digest(values: Mapping[str, Any], fingerprint: Mapping[str, Any], source: Any) -> str:
    """Digest a state: 16 hexadecimal digits of BLAKE2b over canonical JSON.

    It covers the fingerprint and a list of the other fields instead of the dict, which takes a third of the time.

    Args:
        values: the state.
        fingerprint: what is compared on load.
        source: the source's state, in a form that JSON can write.
    """
    own = [values[name] for name in _DIGESTED] + ([] if values.get("past") is None else [values["past"]])
    text = _canonical([fingerprint, own, source])
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"resumable2").hexdigest()


def _is_intact(values: Mapping[str, Any], fingerprint: Mapping[str, Any], backend: Any) -> bool:
    """Return whether the digest is None, or fits the fields as this or an earlier version computed it.

    Raises:
        ValueError, TypeError, KeyError: the backend finds that the snapshot contradicts itself, even without a digest.
    """
    source = values["source_state"]
    known = {None, _digest(values, fingerprint, _content(source))}
    if source is not None:
        own_fields = backend.own_fields if offers(backend, KnowsSnapshots) else None
        known.add(_digest(values, fingerprint, _without_snapshots(source, own_fields)))
    return values["digest"] in known


def _without_snapshots(source: Mapping[str, Any], own_fields: Callable[[Any], Any] | None) -> dict[str, Any]:
    """Return the part of a source's state that earlier versions digested."""
    own: dict[str, Any] = {"skip": source["skip"], "ended": source["ended"]}
    if "left_early" in source:
        left = source["left_early"]
        own["left_early"] = {**left, "source_state": _without_snapshots(left["source_state"], own_fields)}
    elif own_fields is not None:
        own["places"] = own_fields(source["snapshot"])
    return own


def _content(value: Any, deep: int = 0) -> Any:
    """Return a value in a form that JSON can write, the same for a snapshot when it is taken and when it is loaded.

    In between, JSON turns tuples into lists, and keys and enums into plain values.
    """
    kind = type(value)
    if kind in _PLAIN and (kind is not int or -_LARGEST_INT < value < _LARGEST_INT):
        return value
    if deep < _DEEPEST:
        if isinstance(value, Mapping):
            found = {_key(key): _content(part, deep + 1) for key, part in value.items()}
            return found if len(found) == len(value) else [found, len(value)]  # 1 and "1" are the same key in JSON
        if isinstance(value, (list, tuple)):
            return [_content(part, deep + 1) for part in value]
        if isinstance(value, np.generic):
            return _content(value.item(), deep + 1)
        for base, plain in _BASES.items():
            if isinstance(value, base) and kind is not base:
                return _content(plain(value), deep + 1)
    return {"": digest_of(value)}


def _key(key: Any) -> str:
    kind = type(key)
    if kind is str:
        return str(key)
    return json.dumps(key) if kind in _PLAIN else digest_of(key)
