"""Whether a state belongs to this loader: the same data, order and configuration, and a global batch to go on with."""

from __future__ import annotations

import warnings
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from resumable._introspection import shorten
from resumable._ranks.seeds import GIVEN
from resumable._state.schema import BY_DCP
from resumable._state.source import AtPlace
from resumable.errors import StateFormatError, StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable._options import Options
    from resumable._order.plan import Plan
    from resumable._state.schema import State
    from resumable._state.source import SourceState

__all__ = ["agree_on_batch", "brought_along", "check_intact", "check_position", "check_remembered", "check_same"]

_NONE: Mapping[str, str] = MappingProxyType({})

_NOTED_LATER = {"backend.parameters"}  # states of earlier versions are not refused for the want of these

_HINTS = {
    "backend.kind": "Wrap the same sort of source as the run that saved it.",
    "backend": "Give the data that the run was started with, or start a new run. If only its name changed, give both "
    "runs the same wrap(..., identity=...).",
    "backend.length": "The data grew or shrank since. Give the data that the run was started with, or start a new run.",
    "sampler": "Use the sampler and the options that the run was started with.",
    "tail": "Give wrap(..., tail=...) the policy that the run was started with.",
    "randomness": "Give wrap(..., randomness=...) the mode that the run was started with.",
    "name": "Give wrap(..., name=...) the name that the run was started with, or load the state of this stream.",
    "rank": f"Give each rank the state that it saved itself. {BY_DCP}",
    "world_size": "Restart with as many ranks: each has a stream or state of its own, which cannot be divided again.",
}


def brought_along(state: State, options: Options) -> tuple[int, str] | None:
    """Return the seed and the name that a state brings along for a loader that was given none; None if it has them.

    A name that an integration suggested stays, unless the state has none, as those of earlier versions.
    """
    seed, name = state.fingerprint["randomness.seed"], state.fingerprint.get("name", "")
    if options.origin.seed == GIVEN or type(seed) is not int or seed < 0:
        seed = options.seed
    if options.origin.name == GIVEN or (options.origin.name == "suggested" and name):
        name = options.name
    return None if (seed, name) == (options.seed, options.name) else (seed, name)


def check_same(
    stored: Mapping[str, Any], own: Mapping[str, Any], *, strict: bool, hints: Mapping[str, str] = _NONE
) -> None:
    """Compare the fingerprint of a state with this loader's.

    Args:
        stored: the state's fingerprint.
        own: this loader's fingerprint.
        strict: refuse any difference; else only another kind of source is refused and the rest is warned about.
        hints: what to do about a difference, by its name, where the backend knows it better; `backend.` stands before
            a name without a dot.

    Raises:
        StateMismatchError: they differ; the message names the field, both values and the way out.
    """
    _say_what_is_missing([name for name in own if name in _NOTED_LATER and name not in stored])
    renamed = stored.get("name") != own.get("name")
    for name in sorted({**own, **stored}, key=lambda name: name != "name"):  # it says why the sampler's seed differs
        before, now = stored.get(name), own.get(name)
        if renamed and name == "sampler.seed":
            continue
        if _equal(before, now) or (name in _NOTED_LATER and name not in stored):
            continue
        message = _mismatch(name, before, now, hints)
        if strict or name == "backend.kind":
            raise StateMismatchError(message)
        warnings.warn(message + "\nGone on with because of strict=False.", StateMismatchWarning, stacklevel=4)


def _equal(before: Any, now: Any) -> bool:
    try:
        return bool(before == now)
    except Exception:  # noqa: BLE001  # a damaged state may have anything there, such as an array
        return False


def _say_what_is_missing(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"the state says nothing of {', '.join(names)}: an earlier version saved it, which did not note that.\n"
            "It is not compared, so other data would not be noticed by it. The next state that is saved has it.",
            StateMismatchWarning,
            stacklevel=5,
        )


def agree_on_batch(state: State, options: Options, ranks: int) -> int:
    """Decide on the global batch after a load: the state's, unless that or the batch of a rank was changed on purpose.

    Args:
        state: the state.
        options: the batch size that this run asks for, and what to do about a change of it or of the number of ranks.
        ranks: number of ranks that share a global batch.

    Returns:
        Samples per step over all ranks.

    Raises:
        StateMismatchError: it was changed, and that is not accepted.
    """
    batch_size = options.batch_size
    asked = (batch_size or 1) * ranks
    if options.on_change == "continue" or state.global_batch == asked:
        return asked
    if options.on_change == "keep_local" and state.batch_size == (batch_size or 1):
        return asked
    if state.batch_size == batch_size:  # the ranks alone have changed
        return state.global_batch
    if batch_size is None:
        raise StateMismatchError(
            "the number of batches per step differs from the checkpoint's: each element of this source is a whole "
            "batch, and a step takes one per rank.\n"
            f"  in the checkpoint: {state.global_batch}\n  in this run:       {asked}\n"
            f'Restart with {state.global_batch} ranks, or wrap(..., on_change="keep_local") to keep the order '
            "and take other steps over it."
        )
    raise StateMismatchError(
        "the batch size differs from the checkpoint's, so every step would train on other samples together.\n"
        f"  in the checkpoint: {state.batch_size} per rank at the start, {state.global_batch} over all ranks\n"
        f"  in this run:       {batch_size} per rank, {asked} over all ranks\n"
        f"Use batch_size={state.batch_size} (the share of each rank is derived), or wrap(..., "
        'on_change="continue") to keep the order of the samples and cut other batches.'
    )


def check_intact(state: State) -> None:
    """Refuse a state that was changed since it was saved, in a way that is still a state of this loader.

    Raises:
        StateFormatError: its digest says so.
    """
    if not state.intact:
        raise StateFormatError(
            "the state is damaged: its digest is not that of its fields, so it is not the one that was saved.\n"
            f"Nothing was loaded, as other batches would follow. Load another checkpoint. {BY_DCP} If you changed a "
            "field on purpose, set its 'digest' to None."
        )


def check_position(state: State, plan: Plan) -> None:
    """Refuse a state whose position its epoch does not have.

    Raises:
        StateFormatError: it lies after the epoch's end.
    """
    cursor = state.mark.cursor
    position, length = cursor.position, plan.positions(cursor.epoch)
    if position > length + state.global_batch:
        raise StateFormatError(
            f"the state is damaged: its position {position} lies after the epoch's {length} samples.\n"
            "Nothing was loaded. Load another checkpoint."
        )


def check_remembered(source: SourceState | None, *, takes: bool) -> None:
    """Refuse a state whose source remembered something that the one of this run has no place for.

    Args:
        source: what the source of an indexed backend remembered.
        takes: whether that of this run can take it back.

    Raises:
        StateMismatchError: it cannot.
        StateFormatError: it is the state of a source without an order by index.

    Warns:
        StateMismatchWarning: it could, and the state has nothing to take back.
    """
    if source is None:
        if takes:
            warnings.warn(
                "the state says nothing of what the dataset remembered (its state_dict()): it was saved where the "
                "samples were read by workers, or by an earlier version.\nThe dataset goes on with what it remembers "
                "now. The next state that is saved has it.",
                StateMismatchWarning,
                stacklevel=5,
            )
    elif not isinstance(source, AtPlace) or source.skip or source.ended:
        raise StateFormatError(
            "the state is damaged: its source_state is that of a source without an order by index.\n"
            "Nothing was loaded. Load another checkpoint."
        )
    elif not takes:
        raise StateMismatchError(
            "the state has what the dataset remembered (its state_dict()), and in this run it cannot be given back.\n"
            f"  in the checkpoint: {shorten(source.snapshot)}\n"
            "  in this run:       a dataset without a state, or one that is read by workers, each with a copy of it\n"
            "Samples that depend on it would be other ones. Give the dataset that the run was started with, and "
            "num_workers=0. Or load_state_dict(state, strict=False) to go on without."
        )


def _mismatch(name: str, before: Any, now: Any, hints: Mapping[str, str]) -> str:
    if name in {"randomness.seed", "sampler.seed"}:
        what = "the seed differs from the checkpoint's, so the order and the augmentations would change."
        seed = shorten(before)
        hint = f"Use seed={seed}, or load_state_dict(state, strict=False) to start a new order at this position."
    else:
        what = f"{name} differs from the checkpoint's, so other samples would follow than in the run that saved it."
        known = {**_HINTS, **{one if "." in one else f"backend.{one}": hint for one, hint in hints.items()}}
        hint = known.get(name) or known.get(name.partition(".")[0], "")
        if name != "backend.kind":
            hint += " Or load_state_dict(state, strict=False) to go on at this position all the same."
    return f"{what}\n  in the checkpoint: {shorten(before)}\n  in this run:       {shorten(now)}\n{hint}"
