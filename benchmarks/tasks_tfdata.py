"""tf.data pipelines, alone and wrapped, measured inside a process."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import resumable
from resumable.backends import tfdata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.backends.tfdata.strategy import Choice

__all__ = ["PIPELINES", "Reading", "States"]

_BATCH = 64


def _decoded(index: Any) -> Any:
    seed = tf.stack([index, index])
    return tf.random.stateless_uniform((64, 64, 3), seed, maxval=256, dtype=tf.int32)


def _rows(index: Any) -> Any:
    return tf.data.Dataset.range(index * 1000, index * 1000 + 1000)


def _numbers(length: int, buffer: int) -> Any:
    return tf.data.Dataset.range(length).shuffle(buffer, seed=1).batch(_BATCH).prefetch(2)


def _before(length: int, buffer: int) -> Any:
    shuffled = tf.data.Dataset.range(length).shuffle(buffer, seed=1)
    return shuffled.map(_decoded, num_parallel_calls=2).batch(_BATCH).prefetch(2)


def _behind(length: int, buffer: int) -> Any:
    decoded = tf.data.Dataset.range(length).map(_decoded, num_parallel_calls=2)
    return decoded.shuffle(buffer, seed=1).batch(_BATCH).prefetch(2)


def _interleaved(length: int, buffer: int) -> Any:
    files = tf.data.Dataset.range(max(length // 1000, 1)).shuffle(64, seed=1)
    rows = files.interleave(_rows, cycle_length=4, num_parallel_calls=2).shuffle(buffer, seed=2)
    return rows.map(_decoded, num_parallel_calls=2).batch(_BATCH).prefetch(2)


PIPELINES: dict[str, Callable[[int, int], Any]] = {
    "numbers": _numbers,
    "shuffle, then decode": _before,
    "decode, then shuffle": _behind,
    "parallel interleave": _interleaved,
}


class Reading:
    """Reads the start of passes over one pipeline, each from scratch, because TensorFlow would prefetch between turns.

    Args:
        name: of the pipeline.
        length: elements of a pass, before batching.
        buffer: of the shuffle.
        strategy: the resume strategy; None for the pipeline alone.
    """

    def __init__(self, name: str, length: int, buffer: int, strategy: Choice | None) -> None:
        dataset = PIPELINES[name](length, buffer)
        self._begin: Callable[[], Iterator[Any]] = dataset.as_numpy_iterator
        if strategy is not None:
            self._begin = lambda: iter(resumable.wrap(tfdata.source(dataset, strategy=strategy)))

    def turn(self, batches: int, seconds: float) -> float:
        """Return the batches per second over up to `batches` batches or `seconds`, after the first batch."""
        iterator, count = self._begin(), 0
        next(iterator)
        begin = time.perf_counter()
        while count < batches and time.perf_counter() - begin < seconds and next(iterator, None) is not None:
            count += 1
        return count / (time.perf_counter() - begin)


class States:
    """Saves the state of a pipeline in the middle of a pass, and resumes from it.

    Args:
        name: of the pipeline.
        length: elements of a pass, before batching.
        buffer: of the shuffle.
        strategy: the resume strategy.
    """

    def __init__(self, name: str, length: int, buffer: int, strategy: Choice) -> None:
        self._dataset, self._middle = PIPELINES[name](length, buffer), length // _BATCH // 2
        self._strategy = strategy
        self._loader = self._wrapped()
        batches = iter(self._loader)
        for _ in range(self._middle):
            next(batches)
        self._state = self._loader.state_dict()

    def size(self) -> int:
        """Return the size of TensorFlow's state in bytes."""
        return len(self._state["source_state"]["snapshot"]["state"])

    def save(self) -> float:
        """Return the milliseconds of a state, after a new batch each time."""
        next(iter(self._loader))
        begin = time.perf_counter()
        self._loader.state_dict()
        return (time.perf_counter() - begin) * 1e3

    def resume(self) -> float:
        """Return the milliseconds from creating the loader to the first batch after the state."""
        begin = time.perf_counter()
        loader = self._wrapped()
        loader.load_state_dict(self._state)
        next(iter(loader))
        return (time.perf_counter() - begin) * 1e3

    def replay(self) -> float:
        """Return the milliseconds of the same by reading everything before it."""
        begin = time.perf_counter()
        batches = iter(self._dataset.skip(self._middle).as_numpy_iterator())
        next(batches)
        return (time.perf_counter() - begin) * 1e3

    def cold(self) -> float:
        """Return the milliseconds from creating the loader to the first batch of a new run."""
        begin = time.perf_counter()
        next(iter(self._wrapped()))
        return (time.perf_counter() - begin) * 1e3

    def _wrapped(self) -> resumable.Loader:
        return resumable.wrap(tfdata.source(self._dataset, strategy=self._strategy))
