"""Loaders whose samples get the same order and the same randomness: read together, or one after another."""

from __future__ import annotations

import json
from collections import deque
from logging import getLogger
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from resumable.loader import Loader
    from resumable.progress import Progress

__all__ = ["is_over", "tell_twins", "tell_twins_of"]

_log = getLogger("resumable")
_MOST = 1000  # streams that are remembered
_loops: WeakKeyDictionary[Any, tuple[tuple[int, str], int]] = WeakKeyDictionary()  # that are being read
_said: set[tuple[int, str] | str] = set()
_first: deque[str] = deque(maxlen=_MOST)  # streams that were read from the start of epoch 0
_looked: WeakSet[Progress] = WeakSet()


def tell_twins(loop: Any, loader: Loader) -> None:
    """Warn in the log if a second loader has the same order and the same randomness.

    It warns once per seed and name if two loaders are read together, and once per process if an earlier loader started
    with the same data, seed and name, as happens if a loader is made again for each epoch. The order identifies a twin
    for certain, so only loaders that shuffle with their seed count.

    Args:
        loop: an iterator that starts; remembered as long as it lives.
        loader: what it reads.
    """
    if not loader.shuffles:
        return
    stream, place = (loader.seed, loader.name), id(loader.progress)
    met = any(other == stream and where != place for other, where in _loops.values())
    _loops[loop] = stream, place
    if met:
        _tell(loader)
    _look_back(loader)


def _look_back(loader: Loader) -> None:
    """Compare a loader with those before it, once, if it starts at epoch 0: not after a load or seek()."""
    progress = loader.progress
    if progress in _looked:
        return
    _looked.add(progress)
    if progress.moves or progress.steps_delivered:
        return
    stream = json.dumps([str(progress.world), loader.seed, loader.name, progress.fingerprint()], default=repr)
    if stream in _first and "again" not in _said:
        _said.add("again")
        _log.warning(
            "a Loader starts at epoch 0 with the data, seed %d and %s of an earlier Loader in this process: it has the "
            "same order and augmentation as the Loader before.\nIf it is made again for each epoch, every epoch is the "
            "same. Keep one Loader for all epochs, or call loader.seek(epoch=...) on the new one. If it is a different "
            "stream, pass a name: wrap(..., name=...)",
            loader.seed,
            _named(loader),
        )
    elif stream not in _first:
        _first.append(stream)


def tell_twins_of(loaders: list[Loader]) -> None:
    """Warn about loaders whose batches are taken together."""
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
        "two loaders with seed %d and %s are read together: at each step they have the same order and the same "
        "randomness.\nTheir batches are not independent samples. Pass a different name to each: wrap(..., name=...)",
        loader.seed,
        _named(loader),
    )


def _named(loader: Loader) -> str:
    return f"name {loader.name!r}" if loader.name else "no name"


def is_over(loop: Any) -> None:
    """Forget a loop that is over."""
    _loops.pop(loop, None)
