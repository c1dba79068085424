"""Checks whether a state belongs to this loader: the same data, order and configuration, and a usable global batch."""

from __future__ import annotations

import json
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

__all__ = [
    "agree_on_batch",
    "brought_along",
    "check_intact",
    "check_position",
    "check_remembered",
    "check_same",
]

_NONE: Mapping[str, str] = MappingProxyType({})

_SOURCES = "sampler.sources"
_ONCE_DIGESTS = {_SOURCES, "sampler.weights"}  # of a mixture; states of earlier versions have digests of shorter texts
_NOTED_LATER = {"backend.parameters"}  # states of earlier versions are accepted without these

_WORDS = {
    "backend.kind": "the kind of source",
    "backend.length": "the number of samples",
    "sampler.name": "the order",
    "sampler.length": "the length of the sampler",
    "randomness.mode": "randomness",
}
_SHUFFLES = {"feistel8-v1": "shuffle=True", "sequential-v1": "shuffle=False"}  # keys: algorithms of samplers

_HINTS = {
    "backend.kind": "Wrap the same kind of source as in the run that saved it.",
    "backend": "Use the data that the run started with, or start a new run. If only the name of the data changed, pass "
    "the same wrap(..., identity=...) in both runs.",
    "backend.length": "The data grew or shrank. Use the data that the run started with, or start a new run.",
    "sampler": "Use the same sampler and options as when the run started.",
    "tail": "Pass the same wrap(..., tail=...) as when the run started.",
    "randomness": "Pass the same wrap(..., randomness=...) as when the run started.",
    "name": "Pass the same wrap(..., name=...) as when the run started, or load the state of this stream.",
    "rank": f"Load on each rank the state that it saved itself. {BY_DCP}",
    "world_size": "Restart with the same number of ranks: each has a separate stream or state, which cannot be "
    "divided.",
}


def brought_along(state: State, options: Options) -> tuple[int, str] | None:
    """Return the seed and the name from a state, for a loader that did not get them; None if they are the same.

    A name that an integration suggested stays, unless the state has one. States of earlier versions have none.
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
        strict: reject any difference; else reject only a different kind of source, and warn about the rest.
        hints: from the name of a difference to its fix, if the backend knows it better; a name without a dot gets the
            prefix `backend.`.

    Raises:
        StateMismatchError: they differ; the message has the field, both values and the fix.
    """
    _say_what_is_missing([name for name in own if name in _NOTED_LATER and name not in stored])
    differing = [name for name in {**own, **stored} if not _equal(stored.get(name), own.get(name))]
    if not differing:
        return
    first = {"name": 2, _SOURCES: bool(_changed_sources(stored.get(_SOURCES), own.get(_SOURCES)))}
    for name in sorted(differing, key=lambda name: -first.get(name, 0)):  # they explain the others
        before, now = stored.get(name), own.get(name)
        if name == "sampler.seed" and "name" in differing:
            continue
        if (name in _ONCE_DIGESTS and _is_digest(before, now)) or (name in _NOTED_LATER and name not in stored):
            continue
        message = _mismatch(name, before, now, hints)
        if strict or name == "backend.kind":
            raise StateMismatchError(message)
        warnings.warn(message + "\nContinuing because of strict=False.", StateMismatchWarning, stacklevel=4)


def _equal(before: Any, now: Any) -> bool:
    try:
        return bool(before == now)
    except Exception:  # noqa: BLE001  # a damaged state may have any value there, such as an array
        return False


def _say_what_is_missing(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"the state does not include {', '.join(names)}: an earlier version saved it.\n"
            "It is not compared, so a change of the data could go unnoticed. The next saved state will include it.",
            StateMismatchWarning,
            stacklevel=5,
        )


def agree_on_batch(state: State, options: Options, ranks: int) -> int:
    """Choose the global batch after a load: the state's, unless it or the batch of a rank was changed deliberately.

    Args:
        state: the state.
        options: the batch size of this run, and how to handle a change of it or of the number of ranks.
        ranks: number of ranks that share a global batch.

    Returns:
        Samples per step over all ranks.

    Raises:
        StateMismatchError: it has changed, and the options do not allow that.
    """
    batch_size = options.batch_size
    asked = (batch_size or 1) * ranks
    if options.on_change == "continue" or state.global_batch == asked:
        return asked
    if options.on_change == "keep_local" and state.batch_size == (batch_size or 1):
        return asked
    if state.batch_size == batch_size:  # only the ranks have changed
        return state.global_batch
    if batch_size is None:
        raise StateMismatchError(
            "the number of batches per step differs from the checkpoint's: each element of this source is a complete "
            "batch, and a step takes one per rank.\n"
            f"  in the checkpoint: {state.global_batch}\n  in this run:       {asked}\n"
            f'Restart with {state.global_batch} ranks, or pass wrap(..., on_change="keep_local") to keep the order '
            "but divide it into different steps."
        )
    raise StateMismatchError(
        "the batch size differs from the checkpoint's, so every step would train on a different set of samples.\n"
        f"  in the checkpoint: {state.batch_size} per rank, {state.global_batch} in total\n"
        f"  in this run:       {batch_size} per rank, {asked} in total\n"
        f"Use batch_size={state.batch_size} (the share of each rank is derived), or pass wrap(..., "
        'on_change="continue") to keep the order of the samples but divide it into different batches.'
    )


def check_intact(state: State) -> None:
    """Reject a state that was changed since it was saved, but is still a state of this loader.

    Raises:
        StateFormatError: its digest shows a change.
    """
    if not state.intact:
        raise StateFormatError(
            "the state is damaged: its digest does not match its fields, so it is not the state that was saved.\n"
            f"Nothing was loaded, because different batches would follow. Load a different checkpoint. {BY_DCP} If you "
            "changed a field on purpose, set its 'digest' to None."
        )


def check_position(state: State, plan: Plan) -> None:
    """Reject a state with a position that its epoch does not have.

    Raises:
        StateFormatError: it is after the end of the epoch.
    """
    cursor = state.mark.cursor
    position, length = cursor.position, plan.positions(cursor.epoch)
    if position > length + state.global_batch:
        raise StateFormatError(
            f"the state is damaged: its position {position} is after the end of the epoch ({length} samples).\n"
            "Nothing was loaded. Load a different checkpoint."
        )


def check_remembered(source: SourceState | None, *, takes: bool) -> None:
    """Reject a state of an indexed source that remembered something, if this run cannot restore it.

    Args:
        source: what the source of an indexed backend remembered.
        takes: whether the source of this run can restore it.

    Raises:
        StateMismatchError: it cannot.
        StateFormatError: it is the state of a source without indices.

    Warns:
        StateMismatchWarning: it could, but the state has nothing to restore.
    """
    if source is None:
        if takes:
            warnings.warn(
                "the state does not include the dataset's own state (its state_dict()): workers read the samples when "
                "it was saved, or an earlier version saved it.\nThe dataset continues with its current state. The next "
                "saved state will include it.",
                StateMismatchWarning,
                stacklevel=5,
            )
    elif not isinstance(source, AtPlace) or source.skip or source.ended:
        raise StateFormatError(
            "the state is damaged: its source_state belongs to a source without indices.\n"
            "Nothing was loaded. Load a different checkpoint."
        )
    elif not takes:
        raise StateMismatchError(
            "the state includes the dataset's own state (its state_dict()), but this run cannot restore it.\n"
            f"  in the checkpoint: {shorten(source.snapshot)}\n"
            "  in this run:       a dataset without a state, or one that workers read, each with its own copy\n"
            "Samples that depend on it would differ. Use the dataset that the run started with, and "
            "num_workers=0. Or use load_state_dict(state, strict=False) to continue without it."
        )


def _changed_sources(before: Any, now: Any) -> str:
    """Say which sources of a mixture are new, missing or of a different length; empty if a state has only a digest."""
    try:
        then, own = json.loads(before), json.loads(now)
        told = [f"{name!r} is missing, which had {length} samples" for name, length in then.items() if name not in own]
        told += [f"{name!r} is new, with {length} samples" for name, length in own.items() if name not in then]
        both = [(name, then[name], own[name]) for name in then if name in own]
    except (TypeError, ValueError, AttributeError):
        return ""
    told += [f"{name!r} had {was} samples and has {is_now}" for name, was, is_now in both if was != is_now]
    return "; ".join(told) or "their order differs"


def _is_digest(before: Any, now: Any) -> bool:
    """Return whether a state of an earlier version has the digest of this text."""
    from resumable.samplers.timeline import digest_of_text  # noqa: PLC0415  # only for mixtures

    return type(now) is str and bool(before == digest_of_text(now))


def _mismatch(name: str, before: Any, now: Any, hints: Mapping[str, str]) -> str:
    values = shorten(before), shorten(now)
    sources = _changed_sources(before, now) if name == _SOURCES else ""
    if sources:
        what = f"the sources of the mixture ({name}) differ from the checkpoint's: {sources}."
        hint = (
            "The samples that follow would differ from the saved run. Pass the sources that the run started with, in "
            "the same order, or start a new run. Or use load_state_dict(state, strict=False) to continue at this "
            "position anyway."
        )
    elif name in {"randomness.seed", "sampler.seed"}:
        what = "the seed differs from the checkpoint's, so the order and the augmentations would change."
        hint = f"Use seed={values[0]}, or load_state_dict(state, strict=False) to start a new order at this position."
    else:
        field = f"{_WORDS[name]} ({name})" if name in _WORDS else name
        known = {**_HINTS, **{one if "." in one else f"backend.{one}": hint for one, hint in hints.items()}}
        hint = known.get(name) or known.get(name.partition(".")[0], "")
        if name == "sampler.name" and all(type(one) is str and one in _SHUFFLES for one in (before, now)):
            field, values = f"shuffle ({name})", (_SHUFFLES[before], _SHUFFLES[now])
            hint = hints.get("sampler", f"Use {values[0]} or its equivalent, as when the run started.")
        what = f"{field} differs from the checkpoint's, so the samples that follow would differ from the saved run."
        if name != "backend.kind":
            hint += " Or use load_state_dict(state, strict=False) to continue at this position anyway."
    return f"{what}\n  in the checkpoint: {values[0]}\n  in this run:       {values[1]}\n{hint}"
