"""A Loader in `torch.distributed.checkpoint` (DCP): one leaf of bytes with the states of all ranks, equal on all ranks.

DCP splits a state into leaves. It takes leaves with the same name on several ranks for copies, so one rank writes each,
and a load reads only the leaves that the object has at that time. A state that differs between the ranks, or changes
its shape, is loaded as a mixture or in part. One leaf with a constant name survives both.

    {"states": b'{"format": 1, "states": [...]}'}       one state that all ranks share, or one state per rank

The bytes are JSON if that returns the same values, else what `torch.save` writes. Neither runs code when it is read.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

from resumable._content import digest_of
from resumable._introspection import shorten
from resumable._ranks.store import is_initialized
from resumable._state import LEAF, check_fields, newer
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

    from resumable._options import Options
    from resumable._order.world import World

__all__ = ["DCPState", "state_of_rank"]

T = TypeVar("T")

_FORMAT = 1
_LONGEST = 2000  # characters of an error that the other ranks receive
_NAMED = 8  # ranks in a message


class _Loader(Protocol):
    """The Loader's half: this rank's state and its position among the ranks."""

    _options: Options

    def state_dict(self) -> dict[str, Any]: ...

    def _accepted(self, state_dict: Mapping[str, Any], *, strict: bool) -> Any: ...

    def _go_to(self, accepted: Any) -> None: ...


class DCPState:
    """A Loader as `torch.distributed.checkpoint` needs it; `Loader.dcp()` returns one. Give it to save and load.

    Both methods are collective calls over the process group, as the functions of DCP are. A rank that fails tells the
    others instead of its state, so none of them waits for it.

    DCP calls `state_dict()` also when it loads, to learn which leaves there are. Ranks may well differ then, so a
    difference must not raise there. Instead, it makes a leaf that a load overwrites, and that raises
    `StateMismatchError` as soon as DCP plans to write it, or something copies it.

    Args:
        loader: whose state it is.
        process_group: the ranks that save or load together; None for all.
        no_dist: this process saves or loads alone.

    Raises:
        ConfigurationError: `process_group` is not a process group of which this rank is a member.
    """

    __slots__ = ("_loader", "_no_dist", "_process_group")

    def __init__(self, loader: _Loader, process_group: Any = None, *, no_dist: bool = False) -> None:
        kind = getattr(sys.modules.get("torch.distributed"), "ProcessGroup", None)
        if process_group is not None and (kind is None or not isinstance(process_group, kind)):
            raise ConfigurationError(
                f"process_group must be a process group with this rank in it, but it is {process_group!r}.\n"
                "The ranks that save together would be unknown. Pass the same process_group as to dcp.save and "
                "dcp.load, on its members only; or none, for all ranks."
            )
        self._loader, self._process_group, self._no_dist = loader, process_group, bool(no_dist)

    def __repr__(self) -> str:
        ranks = "all ranks" if self._process_group is None else "the ranks of a process group"
        return f"<DCPState of {self._loader!r}, {'this rank alone' if self._no_dist else ranks}>"

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "loader.dcp() cannot be copied or pickled: it belongs to a Loader of this process.\n"
            "A copy would have no Loader to save. Pass it to dcp.save or dcp.async_save, which call its state_dict(); "
            "in a new process, call dcp() of the Loader there."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return one leaf with the states of all ranks. If they differ, or one of them failed, it cannot be written.

        The error is a `StateMismatchError` on all ranks: inside the `CheckpointException` of `dcp.save`, before a byte
        is written, and directly from `dcp.async_save`.
        """
        try:
            return {LEAF: self._gathered()}
        except StateMismatchError as error:
            return {LEAF: _Unsavable(error)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to this rank's position in a leaf, after all ranks have accepted theirs.

        Args:
            state_dict: `{"states": bytes}`, as DCP loads it.

        Raises:
            StateFormatError: the leaf is damaged, or is not one.
            StateMismatchError: a rank cannot go to its position, or the ranks loaded different checkpoints; on all
                ranks, and none of them has moved.
        """
        loader, load = self._loader, _Load(self._loader, state_dict)
        with loader._options.ranks.found_again():  # noqa: SLF001  # the Loader's half
            self._agreed(load, "Nothing was loaded.")
            self._together(load.go, "The ranks are at different positions now. Load again on all of them, or restart.")

    # ------------------------------------------------------------------ communication between the ranks

    def _gathered(self) -> bytes:
        """Return the leaf.

        Raises:
            StateMismatchError: the ranks differ, or one of them cannot take its state; on all ranks.
        """
        save = _Save(self._loader)
        reports = self._agreed(save, "Nothing was written.")
        if self._is_alone or (save.state["rank"] is None and len({one.own for one in reports}) == 1):
            return save.packed
        everyone = self._all(save.packed)
        return _pack([_unpack(everyone[number])[0] for number in _one_per_rank(reports)])

    def _agreed(self, own: _Save | _Load, outcome: str) -> list[_Report]:
        """Return the reports of all ranks, if none failed and they agree.

        Raises:
            StateMismatchError: the ranks differ, or another rank failed.
        """
        reports = self._together(own.report, outcome)
        if len({one.settings for one in reports}) > 1:
            raise _differing(self._all(_settings(own.state)), outcome)
        for number, name in enumerate(_SEEN):
            if len({one.seen[number] for one in reports} - {None}) > 1:
                raise _differing(self._all({name: own.state[name]}), outcome)
        return reports

    def _together(self, do: Callable[[], T], outcome: str) -> list[T]:
        """Do something on all ranks, and return the results. If it fails on one, it raises on all.

        Raises:
            StateMismatchError: it failed on another rank.
        """
        failed: Exception | None = None
        try:
            own: tuple[Any, str] = do(), ""
        except Exception as error:  # noqa: BLE001  # the other ranks wait; it is raised below
            failed, own = error, (None, f"{type(error).__name__}: {error}"[:_LONGEST])
        everyone = self._all(own)
        if failed is not None:
            raise failed
        if which := [rank for rank, (_, error) in enumerate(everyone) if error]:
            raise StateMismatchError(
                f"{_ranks(which)} failed, and the ranks save and load together. {outcome}\n"
                f"The error on rank {which[0]}: {everyone[which[0]][1]}"
            )
        return [result for result, _ in everyone]

    def _all(self, own: Any) -> list[Any]:
        """Return each rank's value."""
        if self._is_alone:
            return [own]
        distributed = sys.modules["torch.distributed"]
        everyone: list[Any] = [None] * distributed.get_world_size(self._process_group)
        distributed.all_gather_object(everyone, own, group=self._process_group)
        return everyone

    @property
    def _is_alone(self) -> bool:
        return self._no_dist or not is_initialized()


class _Save:
    """This rank's half of a save."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self.state: Mapping[str, Any] = {}
        self.packed = b""

    def report(self) -> _Report:
        """Take the state, and return the first message to the other ranks."""
        try:
            self.state = self._loader.state_dict()
            self.packed = _pack([self.state])
            world = self._loader._options.find_world()  # noqa: SLF001  # the Loader's half
            return _Report(world.rank, world.size, _digest(self.state), _own(self.state), _seen(self.state))
        except Exception as error:
            raise StateMismatchError(f"the state cannot be saved: {type(error).__name__}: {error}") from error


class _Load:
    """This rank's half of a load."""

    def __init__(self, loader: _Loader, state_dict: Any) -> None:
        self._loader, self._state_dict = loader, state_dict
        self._accepted: Any = None
        self.state: Mapping[str, Any] = {}

    def report(self) -> _Report:
        """Let the Loader accept its state, and return the first message to the other ranks."""
        world = self._loader._options.find_world()  # noqa: SLF001  # the Loader's half
        if not isinstance(self._state_dict, Mapping) or LEAF not in self._state_dict:
            raise _damaged(f"there are no {LEAF!r} in {shorten(self._state_dict)}")
        self.state = dict(state_of_rank(self._state_dict[LEAF], world))
        self._accepted = self._loader._accepted(self.state, strict=True)  # noqa: SLF001  # the same
        return _Report(world.rank, world.size, _digest(self.state))

    def go(self) -> None:
        """Move the Loader to the accepted position."""
        self._loader._go_to(self._accepted)  # noqa: SLF001  # the Loader's half


class _Unsavable(bytes):
    """A leaf while the ranks differ. A load reads over it as over any other; a save of it raises on every rank.

    It has no bytes, so code that writes it without pickle writes a leaf that cannot be loaded.

    Args:
        error: says what differs.
    """

    error: StateMismatchError

    def __new__(cls, error: StateMismatchError) -> Self:
        """Make an empty leaf that knows why it is."""
        leaf = super().__new__(cls)
        leaf.error = error
        return leaf

    def __create_write_items__(self, fqn: str, leaf: object) -> NoReturn:
        """Raise the error where DCP plans a save: on all ranks, before the folder is made. A load does not call it."""
        raise self.error

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise the error where the leaf is copied or pickled, as `dcp.async_save` does, and whatever writes states."""
        raise self.error


# ------------------------------------------------------------------ what ranks compare

_OF_A_RANK = ("source_state", "past", "digest")  # the digest covers the other fields and these
_OF_A_STREAM = ("cursor", "samples_seen", "backend")  # may differ if each rank has its own stream
_SEEN = ("fingerprint", "canary")  # what was seen of the data; None on a rank that has not looked
_HINTS = {
    "cursor": "Let all ranks save after the same step.",
    "global_step": "Let all ranks save after the same step.",
    "samples_seen": "Let all ranks save after the same step.",
    "backend": "Use the same data on all ranks.",
    "fingerprint": "Use the same data on all ranks, in the same order: sort listings, such as names of files.",
    "canary": "Use the same data on all ranks, in the same order: sort listings, such as names of files.",
    "rank": "Wrap the same kind of source on all ranks, with the same shard=.",
}


class _Report(NamedTuple):
    """The first message of a rank, of about 100 bytes.

    Args:
        rank: of the data.
        size: number of ranks that divide the data.
        settings: a digest of what must be the same.
        own: a digest of what may differ between ranks; empty if a state has no such part.
        seen: digests of `_SEEN`.
    """

    rank: int
    size: int
    settings: str
    own: str = ""
    seen: tuple[str | None, ...] = (None,) * len(_SEEN)


def _digest(state: Mapping[str, Any]) -> str:
    return digest_of([*_settings(state).items()])


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be the same on all ranks, under dotted names, in their order.

    If each rank has a separate stream, only the options must be: such streams may have different data and positions.
    """
    own = state.get("rank") is not None
    values = {**state, "rank": "each rank has a separate stream or state" if own else None}
    found = dict(_flat({name: part for name, part in values.items() if name not in (*_OF_A_RANK, *_SEEN)}))
    if own:
        found = {
            name: part
            for name, part in found.items()
            if name == "backend.kind" or name.partition(".")[0] not in _OF_A_STREAM
        }
    return dict(sorted(found.items()))


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _seen(state: Mapping[str, Any]) -> tuple[str | None, ...]:
    """Digest each of `_SEEN`; None if nothing was seen, or each rank has different data."""
    if state.get("rank") is not None:
        return (None,) * len(_SEEN)
    return tuple(None if state.get(name) is None else digest_of(state[name]) for name in _SEEN)


def _own(state: Mapping[str, Any]) -> str:
    own = [state[name] for name in ("rank", "source_state") if state.get(name) is not None]
    return digest_of([*own, state["cursor"]]) if own else ""


def _one_per_rank(reports: Sequence[_Report]) -> list[int]:
    """Return which processes have the states of the data's ranks 0, 1, ...

    Raises:
        StateMismatchError: two processes read the same part and have different states, or a part has no process.
    """
    found: dict[int, int] = {}
    for number, one in enumerate(reports):
        first = found.setdefault(one.rank, number)
        if reports[first].own != one.own:
            raise StateMismatchError(
                f"{_ranks([first, number])} read the same part of the data (part {one.rank} of {one.size}), and the "
                "states of their sources differ.\nOne of them would continue elsewhere. Nothing was written. Give both "
                "the same source."
            )
    if missing := [rank for rank in range(reports[0].size) if rank not in found]:
        raise StateMismatchError(
            f"each of {reports[0].size} ranks has a separate stream or state, and {_ranks(missing)} took no part in "
            "the save.\nTheir positions would be lost. Nothing was written. Call dcp.save on all ranks, with a process "
            "group of all of them."
        )
    return [found[rank] for rank in range(reports[0].size)]


def _differing(ranks: Sequence[Mapping[str, Any]], outcome: str) -> StateMismatchError:
    """Return the error that says which field differs first, with the ranks of each value.

    Args:
        ranks: the fields of each.
        outcome: what was not done.
    """
    names = list(dict.fromkeys(name for fields in ranks for name in fields))
    name = next(name for name in names if len({_shown(fields, name) for fields in ranks}) > 1)
    values: dict[str, list[int]] = {}
    for rank, fields in enumerate(ranks):
        values.setdefault(_shown(fields, name), []).append(rank)
    lines = "".join(f"  {_ranks(which)}: {value}\n" for value, which in values.items())
    hint = _HINTS.get(name.partition(".")[0], "Use the same options and the same seed on all ranks.")
    return StateMismatchError(
        f"{name} differs between the ranks, so they have no common position to continue from.\n{lines}{outcome} {hint}"
    )


def _shown(fields: Mapping[str, Any], name: str) -> str:
    """Return a field as text; a long text ends with a digest that tells it apart."""
    if name not in fields:
        return "none"
    text = shorten(fields[name])
    return f"{text} ({digest_of(fields[name])[:8]})" if text.endswith("...") else text


def _ranks(ranks: Sequence[int]) -> str:
    first = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {first}{more}"


# ------------------------------------------------------------------ the leaf


def state_of_rank(leaf: Any, world: World) -> Mapping[str, Any]:
    """Return the state of a rank in a leaf.

    Args:
        leaf: what a checkpoint has under `LEAF`.
        world: the rank, and the number of ranks.

    Raises:
        StateFormatError: it is not a leaf, truncated, damaged, or of a newer version.
        StateMismatchError: it has the streams of a different number of ranks.
    """
    states = _unpack(leaf)
    if len(states) == 1:
        return states[0]
    if len(states) != world.size:
        raise StateMismatchError(
            "the number of ranks differs from the checkpoint's: each has a separate stream or state, which cannot be "
            f"divided again.\n  in the checkpoint: {len(states)}\n  in this run:       {world.size}\n"
            f"Restart with {len(states)} ranks. Sources that are read by index, and streams that all ranks share, can "
            "continue with any number."
        )
    return states[world.rank]


def _pack(states: Sequence[Mapping[str, Any]]) -> bytes:
    """Make the leaf of the states of all ranks, or of one that all of them have.

    Raises:
        UnsupportedError: a source's state holds something that cannot be read again without running code.
    """
    content = {"format": _FORMAT, LEAF: [dict(state) for state in states]}
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        if json.loads(text) == content:
            return text.encode()
    except (TypeError, ValueError, RecursionError):
        pass
    return _saved(content)


def _saved(content: Mapping[str, Any]) -> bytes:
    import torch  # noqa: PLC0415  # who calls has it

    buffer = io.BytesIO()
    try:
        torch.save(content, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError, RuntimeError) as error:
        raise UnsupportedError(
            "the source's state holds something that torch.load(weights_only=True) does not read again: "
            f"{_culprit(error)}.\n"
            "The checkpoint could be written, and never be loaded. Let the source's state_dict() return numbers, "
            "texts, bytes, lists, dicts and tensors."
        ) from error
    return buffer.getvalue()


def _culprit(error: Exception) -> str:
    """Return the class that PyTorch rejects, which its message has somewhere; else how the message starts."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f"a {found[1]}" if found else shorten(error, show=_first_line)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _unpack(leaf: Any) -> list[Mapping[str, Any]]:
    """Return the states of all ranks, or the one that all of them have.

    Raises:
        StateFormatError: it is not a leaf, truncated, damaged, or of a newer version.
    """
    content = _read(leaf)
    version = content.get("format") if isinstance(content, Mapping) else None
    if type(version) is int and version > _FORMAT:
        raise newer(f"the ranks' part has format {shorten(version)}, but this version reads only up to {_FORMAT}")
    states = content.get(LEAF) if version == _FORMAT else None
    if not isinstance(states, list) or not states or not all(isinstance(one, Mapping) for one in states):
        raise _damaged("it holds no states")
    check_fields(content, ("format", LEAF), "the ranks' part")
    return states


def _read(leaf: Any) -> Any:
    if not isinstance(leaf, bytes):
        raise _damaged(f"it is {shorten(leaf)}")
    if not leaf:
        raise _damaged("it is empty, as if nothing was loaded into it")
    try:
        if leaf.startswith(b"{"):
            return json.loads(leaf)
        import torch  # noqa: PLC0415  # who calls has it

        return torch.load(io.BytesIO(leaf), weights_only=True)
    except (pickle.PickleError, ValueError, RuntimeError, EOFError, RecursionError, KeyError, TypeError) as error:
        raise _damaged(_first_line(error)) from error


def _damaged(reason: str) -> StateFormatError:
    return StateFormatError(
        f"the leaf of a Loader in a checkpoint of torch.distributed.checkpoint is damaged: {reason}.\n"
        f"Nothing was loaded. Load another checkpoint; the leaf is what dcp.save wrote under the Loader's key as "
        f"{LEAF!r}."
    )
