"""The state of a Loader as plain values: its schema, how it is written, and how it is read.

format          version of this schema
backend         kind of source and identity of the data
sampler         algorithm with its version, and what it depends on
cursor          epoch, position, step
global_step     global batches over all epochs that are in the weights
samples_seen    samples over all epochs and ranks that are in the weights
global_batch    samples per step over all ranks
batch_size      samples per rank and step, as the script asked for when the run was started
world_size      number of ranks when it was taken; for information
tail            tail policy
randomness      mode, and the seed of the per-sample keys
name            of the stream, which salts order and keys
unit            what a position counts: "sample" or "element"
journal         changes in the middle of the run, oldest first: [[epoch, position], change]
fingerprint     what some samples are like as they are stored; None where they cannot be seen
canary          digest of the element that comes next (where there is a source_state), or of the one delivered last
source_state    the source's own snapshot, and the elements to skip after it; None where the cursor says it all
rank            whose state it is, where ranks draw streams of their own; else None
digest          of all of these; None in a state that was edited by hand
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from resumable._distribution import UPGRADE
from resumable._introspection import shorten
from resumable._order.cursor import Cursor
from resumable._state.canary import Canary
from resumable._state.describe import BY_DCP, advise, describe
from resumable._state.format1 import upgrade
from resumable._state.journal import Journal
from resumable._state.source import KnowsSnapshots, SourceState, parse_source
from resumable.errors import StateFormatError

__all__ = ["FORMAT", "Mark", "State", "damaged", "is_shared", "parse"]

FORMAT = 2
_COUNTS = {"global_step": 0, "samples_seen": 0, "global_batch": 1, "batch_size": 1, "world_size": 1}  # and the least
_LARGEST = dict.fromkeys(("global_batch", "batch_size", "world_size"), 1 << 30)  # as no run has
_MOST_RANKS = 1 << 20  # likewise
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_PLAIN = frozenset({type(None), bool, int, float, str})
_BASES: dict[type, Callable[[Any], Any]] = {str: str.__str__, int: int.__index__, float: float.__float__}
_LARGEST_INT = 1 << 256  # larger ones are digested otherwise, as Python writes at most 4300 digits of an integer
_DEEPEST = 100  # levels of a snapshot; deeper ones are digested otherwise
_LATER = ("name", "unit", "journal", "fingerprint", "canary")  # some are not read yet; there, so that the keys stay
_DIGESTED = ("format", "cursor", *_COUNTS, "rank", *_LATER)  # besides the fingerprint


class Mark(NamedTuple):
    """A place in the stream, how much is in the weights there, and the source's own state where it has one.

    `canary` is that of the element that comes next, where there is a source state; else of the one delivered last.
    Another element than that is refused where the place is gone to, or only warned about (`strict` is False).

    `in_force` are the settings with which the cursor's epoch began, once it has a batch and where the backend has some.
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
        """Return the mark of another place, with the same in the weights."""
        return Mark(cursor, source, self.global_step, self.samples_seen)


@dataclass(slots=True)  # not frozen, which takes a microsecond of each state that is saved
class State:
    """A parsed state; never changed.

    Args:
        mark: where it was taken.
        global_batch: samples per step over all ranks.
        batch_size: samples per rank and step that the script asked for.
        fingerprint: what must be the same in both runs, under dotted names.
        unit: what a position counts.
        journal: what was changed in the middle of the run.
        intact: nothing was changed since it was saved, as far as its digest tells.
        world_size: number of ranks when it was taken.
        data: what some samples are like as they are stored.
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
            "canary": None if mark.canary is None else mark.canary.digest,
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
    """Return the group of a fact, and its name there; there are about ten of them."""
    group, _, key = name.partition(".")
    return group, key


def parse(values: Any, backend: Any = None) -> State:
    """Read a state from what `state_dict()` returned, possibly by way of JSON or `torch.load`.

    Args:
        values: the state.
        backend: of this run, which may look into its snapshots; None if there is none.

    Raises:
        StateFormatError: it is no state, or truncated, damaged, or of a version that this code does not know.
    """
    version = values.get("format") if hasattr(values, "get") else None
    if type(version) is not int or version < 1:
        raise StateFormatError(
            f"this is no state of a Loader: {describe(values)}.\nNothing was loaded. {advise(values)}"
        )
    if version > FORMAT:
        raise StateFormatError(
            f"the state was written by a newer version of resumable: format {shorten(version)}, this version reads up "
            f"to {FORMAT}.\nNothing was loaded. Use the version that wrote it, or a newer one: {UPGRADE}"
        )
    try:
        return _read(upgrade(values) if version == 1 else values, backend)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise damaged(values, error) from error


def is_shared(values: Mapping[str, Any]) -> bool:
    """Return whether a state is the same on all ranks, and can be made of a place alone."""
    return all(values.get(name) is None for name in ("source_state", "native", "rank"))


def damaged(values: Any, error: Exception) -> StateFormatError:
    """Return what to raise for a state that could not be read."""
    reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    names = ", ".join(shorten(name, show=str) for name in values)
    return StateFormatError(
        f"the state is truncated or damaged: {reason}.\n"
        f"Nothing was loaded. It has the fields {names}. Load another checkpoint. {BY_DCP}"
    )


def _read(values: Mapping[str, Any], backend: Any) -> State:
    numbers = {name: _count(name, values[name], least) for name, least in _COUNTS.items()}
    groups = {name: values[name] for name in ("backend", "sampler", "randomness")}
    fingerprint = {f"{group}.{key}": value for group, fields in groups.items() for key, value in dict(fields).items()}
    fingerprint["tail"] = values["tail"]
    if name := _name(values["name"]):
        fingerprint["name"] = name
    if values["rank"] is not None:
        fingerprint |= {"rank": values["rank"], "world_size": values["world_size"]}
    for name in ("backend.kind", "sampler.name", "randomness.mode", "randomness.seed"):
        fingerprint[name]  # a KeyError names what is missing
    cursor, source = Cursor.from_dict(values["cursor"]), values["source_state"]
    _check_place(cursor, numbers)
    state = None if source is None else parse_source(source, cursor.epoch, cursor.position, backend)
    for name in _LATER:
        values[name]  # a KeyError names what is missing
    intact = _is_intact(values, fingerprint, backend)
    journal = Journal.parse(values["journal"], cursor)
    canary, in_force = _canary(values["canary"]), journal.in_force
    mark = Mark(cursor, state, numbers["global_step"], numbers["samples_seen"], canary, in_force=in_force)
    batches = numbers["global_batch"], numbers["batch_size"]
    data = values["fingerprint"]
    return State(mark, *batches, fingerprint, values["unit"], journal, intact, numbers["world_size"], data)


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


def _check_place(cursor: Cursor, numbers: Mapping[str, int]) -> None:
    """Refuse a place that contradicts itself."""
    if cursor.step > cursor.position:
        raise ValueError(f"the position {cursor.position} is too small for {cursor.step} steps of a sample or more")
    ranks, left = divmod(numbers["global_batch"], numbers["batch_size"])
    if left or ranks > _MOST_RANKS:
        raise ValueError(
            f"global_batch is {numbers['global_batch']}, which no number of ranks makes of a batch_size of "
            f"{numbers['batch_size']}"
        )


def _digest(values: Mapping[str, Any], fingerprint: Mapping[str, Any], source: Any) -> str:
    """Digest a state: 16 hexadecimal digits of BLAKE2b over canonical JSON.

    The fingerprint and a list of the other fields, and not the dict as it is: that takes a third of the time.

    Args:
        values: the state.
        fingerprint: what is compared on load.
        source: the source's state, as JSON can write it.
    """
    own = [values[name] for name in _DIGESTED]
    text = _canonical([fingerprint, own, source])
    return hashlib.blake2b(text.encode(), digest_size=8, person=b"resumable2").hexdigest()


def _is_intact(values: Mapping[str, Any], fingerprint: Mapping[str, Any], backend: Any) -> bool:
    """Return whether the digest is that of the fields, as this or an earlier version computed it, or None.

    Raises:
        ValueError, TypeError, KeyError: the snapshot contradicts itself, as the backend tells; also without a digest.
    """
    source = values["source_state"]
    known = {None, _digest(values, fingerprint, _content(source))}
    if source is not None:
        own_fields = backend.own_fields if isinstance(backend, KnowsSnapshots) else None
        known.add(_digest(values, fingerprint, _without_snapshots(source, own_fields)))
    return values["digest"] in known


def _without_snapshots(source: Mapping[str, Any], own_fields: Callable[[Any], Any] | None) -> dict[str, Any]:
    """Return what earlier versions digested of a source's state."""
    own: dict[str, Any] = {"skip": source["skip"], "ended": source["ended"]}
    if "left_early" in source:
        left = source["left_early"]
        own["left_early"] = {**left, "source_state": _without_snapshots(left["source_state"], own_fields)}
    elif own_fields is not None:
        own["places"] = own_fields(source["snapshot"])
    return own


def _content(value: Any, deep: int = 0) -> Any:
    """Return a value as JSON can write it, the same for a snapshot when it is taken and when it is loaded.

    In between, JSON turns tuples into lists, and keys and enums into what they are made of.
    """
    kind = type(value)
    if kind in _PLAIN and (kind is not int or -_LARGEST_INT < value < _LARGEST_INT):
        return value
    if deep < _DEEPEST:
        if isinstance(value, Mapping):
            found = {_key(key): _content(part, deep + 1) for key, part in value.items()}
            return found if len(found) == len(value) else [found, len(value)]  # 1 and "1" are one key in JSON
        if isinstance(value, (list, tuple)):
            return [_content(part, deep + 1) for part in value]
        if isinstance(value, np.generic):
            return _content(value.item(), deep + 1)
        for base, plain in _BASES.items():
            if isinstance(value, base) and kind is not base:
                return _content(plain(value), deep + 1)
    return {"": _digest_of(value)}


def _key(key: Any) -> str:
    kind = type(key)
    if kind is str:
        return str(key)
    return json.dumps(key) if kind in _PLAIN else _digest_of(key)


def _digest_of(value: Any) -> str:
    from resumable._parts import digest_of  # noqa: PLC0415  # most states have plain values alone

    return digest_of(value)
