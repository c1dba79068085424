"""What the samples of a batch are, in the words of their source: files and rows, documents, shards; nothing is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._data import Columns, DataFingerprint
from resumable.errors import ConfigurationError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable._state import State

__all__ = ["in_words", "locate", "places_of"]


def places_of(source: Any, indices: Sequence[int], state: State) -> tuple[Any, ...]:
    """Return what a source says of samples, if it is that of a state; see `locate`.

    Raises:
        ConfigurationError: it says nothing of them.
        StateMismatchError: the state is of another one.
    """
    _check_locates(source)
    length = len(source)
    for name, now in getattr(source, "resumable_identity", {}).items():
        before = state.fingerprint.get(f"backend.{name}")
        if before not in {None, now}:
            raise StateMismatchError(_another(f"its {name} differ", before, now))
    DataFingerprint(Columns(source, length), length).check(state.data, strict=True)
    by_epoch = hasattr(type(source), "resumable_epochs")  # whose indices go on with each epoch
    if not by_epoch and indices and max(indices) >= length:
        raise StateMismatchError(
            _another("it has a sample that is not there", f"sample {max(indices)}", f"{length} samples")
        )
    return tuple(locate(source, indices))


def locate(source: Any, indices: Sequence[int]) -> list[Any]:
    """Return what a source says of samples: of a mixture, the name of the source with what that says of them.

    Raises:
        ConfigurationError: it says nothing of them.
    """
    _check_locates(source)
    found = list(source.locate(indices))
    if not hasattr(type(source), "resumable_parts"):
        return found
    inside = source.sources
    own = {name: [index for one, index in found if one == name] for name in {one for one, _ in found}}
    told = {name: iter(_inside(inside[name], some)) for name, some in own.items()}
    return [(name, next(told[name])) for name, _ in found]


def _check_locates(source: Any) -> None:
    if not hasattr(source, "locate"):
        raise ConfigurationError(
            "source must have a method locate(indices), as Tars, Parquet, Tokens, Packed and mixtures have, but it is "
            f"{source!r}.\nWhat a sample is could not be said. Leave it out to have the indices."
        )


def _inside(source: Any, indices: list[int]) -> list[Any]:
    return locate(source, indices) if hasattr(source, "locate") else list(indices)


def in_words(place: Any) -> str:
    """Return a place as a text."""
    if type(place) is tuple:  # a named one says by itself what it is
        if len(place) == 2 and isinstance(place[0], str):  # noqa: PLR2004  # a pair
            return f"{place[1]} in {place[0]}" if isinstance(place[1], str) else f"{place[0]}: {in_words(place[1])}"
        return "; ".join(map(in_words, place)) or "nothing"
    return f"sample {place}" if isinstance(place, int) else str(place)


def _another(why: str, before: object, now: object) -> str:
    return (
        f"the state is of another source: {why}.\n  in the checkpoint: {before}\n  in the source:     {now}\n"
        "Other samples would be named. Give the source that the run was started with."
    )
