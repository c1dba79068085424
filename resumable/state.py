"""The state of a Loader: plain values, their schema, and the check that a state belongs to this loader.

format          version of this schema
backend         kind of source and identity of the data
sampler         algorithm with its version, and what it depends on
cursor          epoch, position, step
global_batch    samples per step over all ranks
batch_size      samples per rank and step, as the script asked for when the run was started
world_size      number of ranks when it was taken; for information
tail            tail policy
randomness      mode, and the seed of the per-sample keys
native          the source's own snapshot and the elements to skip after it; snapshot backends only
rank            whose native snapshot it is; only where ranks draw streams of their own
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE
from resumable.cursor import Cursor
from resumable.errors import StateFormatError, StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable.schedule import Schedule

__all__ = ["FORMAT", "Mark", "State", "agree_on_batch", "check_position", "check_same", "damaged", "parse"]

FORMAT = 1
_NONE: Mapping[str, str] = MappingProxyType({})

_REMEDIES = {
    "backend.kind": "Wrap the same sort of source as the run that saved it.",
    "backend": "Give the data that the run was started with, or start a new run. If only its name changed, give both "
    "runs the same wrap(..., identity=...).",
    "backend.length": "The data grew or shrank since. Give the data that the run was started with, or start a new run.",
    "sampler": "Use the sampler and the options that the run was started with.",
    "tail": "Give wrap(..., tail=...) the policy that the run was started with.",
    "randomness": "Give wrap(..., randomness=...) the mode that the run was started with.",
    "rank": "Give each rank the state that it saved itself.",
    "world_size": "Restart with as many ranks: each draws a stream of its own here, which cannot be shared anew.",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the stream, with the source's own snapshot where it has one."""

    cursor: Cursor
    native: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A parsed state; `facts` are the fields that must be the same in both runs, under dotted names."""

    mark: Mark
    global_batch: int
    batch_size: int
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self, world_size: int) -> dict[str, Any]:
        """Return the state as fresh plain values."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "cursor": self.mark.cursor.as_dict(),
            "global_batch": self.global_batch,
            "batch_size": self.batch_size,
            "world_size": world_size,
        }
        for name, value in self.facts.items():
            group, _, key = name.partition(".")
            if key:
                values.setdefault(group, {})[key] = value
            else:
                values[group] = value
        if self.mark.native is not None:
            values["native"] = copy.deepcopy(self.mark.native)
        return values


def parse(values: Any) -> State:
    """Read a state from what `state_dict()` returned, possibly by way of JSON or `torch.load`.

    Raises:
        StateFormatError: it is no state, or truncated, or of a version that this code does not know.
    """
    version = values.get("format") if hasattr(values, "get") else None
    if type(version) is not int or version < 1:
        raise StateFormatError(
            f"this is no state of a Loader: {_short(values)}.\n"
            "Nothing was loaded. Give what loader.state_dict() returned; its field 'format' holds an integer."
        )
    if version > FORMAT:
        raise StateFormatError(
            f"the state was written by a newer version of resumable: format {version}, this version reads up to "
            f"{FORMAT}.\nNothing was loaded. Use the version that wrote it, or a newer one: {UPGRADE}"
        )
    try:
        return _read(values)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise damaged(values, error) from error


def damaged(values: Any, error: Exception) -> StateFormatError:
    """Return what to raise for a state that could not be read."""
    reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    return StateFormatError(
        f"the state is truncated or damaged: {reason}.\n"
        f"Nothing was loaded. It has the fields {', '.join(map(str, values))}. Load another checkpoint."
    )


def _read(values: Mapping[str, Any]) -> State:
    numbers = {name: values[name] for name in ("global_batch", "batch_size", "world_size")}
    for name, number in numbers.items():
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} must be an integer of 1 or more, but it is {number!r}")
    native = copy.deepcopy(values.get("native"))
    if native is not None:
        _check_native(native, values["cursor"]["position"])
    groups = {name: values[name] for name in ("backend", "sampler", "randomness")}
    facts = {f"{group}.{key}": value for group, fields in groups.items() for key, value in dict(fields).items()}
    facts["tail"] = values["tail"]
    if "rank" in values:
        facts |= {"rank": values["rank"], "world_size": values["world_size"]}
    for name in ("backend.kind", "sampler.name", "randomness.mode", "randomness.seed"):
        facts[name]  # a KeyError names what is missing
    mark = Mark(Cursor.from_dict(values["cursor"]), native)
    return State(mark, numbers["global_batch"], numbers["batch_size"], facts)


def _check_native(native: Mapping[str, Any], most: int) -> None:
    """Refuse a native that no feed has written: a snapshot, or a native of the epoch before, and elements to skip."""
    if "before" in native:
        _check_integer("native.position", native["position"], most=None)
        _check_native(native["before"], native["position"])
    elif "snapshot" not in native:
        raise KeyError("native.snapshot")
    _check_integer("native.skip", native["skip"], most=most)


def _check_integer(name: str, value: Any, *, most: int | None) -> None:
    if type(value) is not int or value < 0 or (most is not None and value > most):
        limits = "0 or more" if most is None else f"0 to {most}"
        raise ValueError(f"{name} must be an integer of {limits}, but it is {value!r}")


def check_same(
    stored: Mapping[str, Any], own: Mapping[str, Any], *, strict: bool, remedies: Mapping[str, str] = _NONE
) -> None:
    """Compare the facts of a state with this loader's.

    Args:
        stored: the state's facts.
        own: this loader's facts.
        strict: refuse any difference; else only another kind of source is refused and the rest is warned about.
        remedies: what to do about a difference, by its name, where the backend knows it better.

    Raises:
        StateMismatchError: they differ; the message names the field, both values and the way out.
    """
    for name in [*own, *(name for name in stored if name not in own)]:
        before, now = stored.get(name), own.get(name)
        if before == now:
            continue
        message = _mismatch(name, before, now, remedies)
        if strict or name == "backend.kind":
            raise StateMismatchError(message)
        warnings.warn(message + "\nGone on with because of strict=False.", StateMismatchWarning, stacklevel=3)


def agree_on_batch(state: State, batch_size: int | None, ranks: int, on_change: str) -> int:
    """Decide on the global batch after a load: the state's, unless the batch size was changed on purpose.

    Args:
        state: the state.
        batch_size: samples per rank and step that this run asks for; None where each element is a whole batch.
        ranks: number of ranks that share a global batch.
        on_change: what to do where the batch size was changed: "error" or "continue".

    Returns:
        Samples per step over all ranks.

    Raises:
        StateMismatchError: it was changed, and that is not accepted.
    """
    asked = (batch_size or 1) * ranks
    if state.global_batch == asked or state.batch_size == batch_size:
        return state.global_batch
    if on_change == "continue":
        return asked
    if batch_size is None:
        raise StateMismatchError(
            "the number of batches per step differs from the checkpoint's: each element of this source is a whole "
            "batch, and a step takes one per rank.\n"
            f"  in the checkpoint: {state.global_batch}\n  in this run:       {asked}\n"
            f'Restart with {state.global_batch} ranks, or wrap(..., on_batch_change="continue") to keep the order '
            "and take other steps over it."
        )
    raise StateMismatchError(
        "the batch size differs from the checkpoint's, so every step would train on other samples together.\n"
        f"  in the checkpoint: {state.batch_size} per rank at the start, {state.global_batch} over all ranks\n"
        f"  in this run:       {batch_size} per rank, {asked} over all ranks\n"
        f"Use batch_size={state.batch_size} (the share of each rank is derived), or wrap(..., "
        'on_batch_change="continue") to keep the order of the samples and move the borders of the batches.'
    )


def check_position(state: State, schedule: Schedule) -> None:
    """Refuse a state whose position no epoch of this schedule has.

    Raises:
        StateFormatError: it lies behind the epoch's end.
    """
    position = state.mark.cursor.position
    if position > schedule.length + state.global_batch:
        raise StateFormatError(
            f"the state is damaged: its position {position} lies behind the epoch's {schedule.length} samples.\n"
            "Nothing was loaded. Load another checkpoint."
        )


def _mismatch(name: str, before: Any, now: Any, remedies: Mapping[str, str]) -> str:
    if name in {"randomness.seed", "sampler.seed"}:
        what = "the seed differs from the checkpoint's, so the order and the augmentations would change."
        remedy = f"Use seed={before}, or load_state_dict(state, strict=False) to start a new order at this position."
    else:
        what = f"{name} differs from the checkpoint's, so other samples would follow than in the run that saved it."
        known = {**_REMEDIES, **remedies}
        remedy = known.get(name) or known.get(name.partition(".")[0], "")
        if name != "backend.kind":
            remedy += " Or load_state_dict(state, strict=False) to go on at this position all the same."
    return f"{what}\n  in the checkpoint: {_short(before)}\n  in this run:       {_short(now)}\n{remedy}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."  # noqa: PLR2004  # a message's width
