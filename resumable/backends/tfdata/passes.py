"""Passes over a pipeline: the dataset of an epoch, and an iterator that can save where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Always", "Datasets", "PerEpoch", "Stream", "is_endless", "with_symbolic_state"]


class Datasets(Protocol):
    """Gives the dataset of an epoch."""

    per_epoch: bool

    def of(self, epoch: int) -> Any:
        """Return the dataset to iterate over in an epoch."""
        ...


class Always:
    """One dataset, iterated again in each epoch. TensorFlow counts its passes, for shuffles that differ.

    Args:
        dataset: the dataset.
    """

    per_epoch = False

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def of(self, epoch: int) -> Any:  # noqa: ARG002  # the protocol has it
        """Return the dataset."""
        return self._dataset


class PerEpoch:
    """A dataset that is built again for each epoch, so that it does not depend on earlier ones.

    Args:
        build: takes the epoch and returns the dataset.
    """

    per_epoch = True

    def __init__(self, build: Callable[[int], Any]) -> None:
        self._build = build

    def of(self, epoch: int) -> Any:
        """Build the dataset."""
        return self._build(epoch)


class Stream:
    """One pass over a dataset.

    Args:
        dataset: a `tf.data.Dataset`.
        convert: applied to each element.
    """

    def __init__(self, dataset: Any, convert: Callable[[Any], Any]) -> None:
        self._inner = dataset.as_numpy_iterator()
        self._convert = convert
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.ended or self._inner is None:
            raise StopIteration
        try:
            element = next(self._inner)
        except StopIteration:
            self.ended = True
            raise
        return self._convert(element)

    def save(self) -> bytes:
        """Return TensorFlow's state of the iterator: text of base64."""
        state: bytes = self._inner.save().numpy()
        return state

    def restore(self, state: bytes) -> None:
        """Bring the iterator to a state, which must be one of the same pipeline: TensorFlow does not check it."""
        self._inner.restore(tf.constant(state))

    def stop(self) -> None:
        """End TensorFlow's threads, which may otherwise go on to draw from what passes have in common."""
        self._inner = None


def with_symbolic_state(dataset: Any, *, symbolic: bool) -> Any:
    """Return the dataset with the kind of native state that its iterators are to have."""
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    return dataset.with_options(options)


def is_endless(dataset: Any) -> bool:
    """Return whether a dataset is repeated for ever, so that it has one epoch only."""
    return int(dataset.cardinality()) == int(tf.data.INFINITE_CARDINALITY)
