"""Loops over two loaders that meet, and whose samples get the same order and the same randomness at each place."""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from resumable.loader import Loader

__all__ = ["is_over", "tell_twins", "tell_twins_of"]

_log = getLogger("resumable")
_loops: WeakKeyDictionary[Any, tuple[tuple[int, str], int]] = WeakKeyDictionary()  # that are being read
_said: set[tuple[int, str]] = set()


def tell_twins(loop: Any, loader: Loader) -> None:
    """Warn in the log, once per seed and name, where another loader of the same ones is read in turn with this one.

    A loop that was left by `break` is gone, so what is there is being read. The order tells a twin for certain, so only
    loaders that are shuffled by their seed count.

    Args:
        loop: an iterator that begins; remembered as long as it lives.
        loader: what it reads.
    """
    if not loader.shuffles:
        return
    stream, place = (loader.seed, loader.name), id(loader.progress)
    met = any(other == stream and where != place for other, where in _loops.values())
    _loops[loop] = stream, place
    if met:
        _tell(loader)


def tell_twins_of(loaders: list[Loader]) -> None:
    """Warn likewise of loaders whose batches are taken together."""
    known: set[tuple[int, str]] = set()
    for loader in loaders:
        stream = loader.seed, loader.name
        if loader.shuffles and stream in known:
            _tell(loader)
        known |= {stream} if loader.shuffles else set()


def _tell(loader: Loader) -> None:
    stream = loader.seed, loader.name
    if stream in _said:
        return
    _said.add(stream)
    _log.warning(
        "two loaders with seed %d and %s are read in turn: at each step they have the same order and the same "
        "randomness.\nBatches of both are no independent samples. Give each a name of its own: wrap(..., name=...)",
        loader.seed,
        f"name {loader.name!r}" if loader.name else "no name",
    )


def is_over(loop: Any) -> None:
    """Forget a loop that has come to its end."""
    _loops.pop(loop, None)
