"""Compiled code around FFCV's random operations, which seeds the generator before each sample, or once per batch.

FFCV draws from generators that belong to its threads: what a sample gets depends on the thread that takes it, and on
what that drew before. Here a loop over the samples seeds the generator with the sample's own key, and gives the
operation that one sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from resumable.backends.ffcv.compiling import compile_function
from resumable.backends.ffcv.operations import draws_from_python
from resumable.backends.ffcv.seeding import (
    FEW,
    seed_generator,
    seed_generator_for_few,
    seed_python_generator,
    words_drawn,
)
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["mixed", "per_batch", "per_batch_decoder", "per_sample", "per_sample_decoder"]

_MOST_BUFFERS = 2
_PYTHON = np.uint64(0x9E3779B97F4A7C15)  # so that the two generators draw different numbers


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def mixed(key: Any, salt: Any) -> Any:
    """Mix a key with the number of the operation: SplitMix64's finaliser."""
    z = np.uint64(key) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def per_sample(operation: Callable[..., Any], buffers: int, salt: int, *, few: bool) -> Any:
    """Make a transform seed the generator before each sample.

    Args:
        operation: what `generate_code` returned.
        buffers: how many arrays of memory it asked for.
        salt: number of the operation; 64 bits.
        few: it is known to draw a few numbers per sample only.

    Returns:
        A function of `(input, memory, keys, indices)` that returns what the operation returned for the last sample.
    """
    inner = compile_function(operation)
    call, row = _caller(inner, indices=getattr(operation, "with_indices", False)), _rows(buffers)
    number, seed, check = np.uint64(salt), _seeder(operation, few=few), _check_few if few else _check_nothing

    def keyed(images: Any, memory: Any, keys: Any, indices: Any) -> Any:
        for i in range(len(keys)):
            seed(mixed(keys[i], number))
            result = call(images[i : i + 1], row(memory, i), indices[i : i + 1])
            check()
        return result

    return compile_function(keyed)


def per_sample_decoder(decoder: Callable[..., Any], buffers: int, salt: int, *, few: bool) -> Any:
    """Do the same for a decoder; return a function of `(indices, memory, keys, metadata, storage)`."""
    inner, row = compile_function(decoder), _rows(buffers)
    number, seed, check = np.uint64(salt), _seeder(decoder, few=few), _check_few if few else _check_nothing

    def keyed(indices: Any, memory: Any, keys: Any, metadata: Any, storage: Any) -> Any:
        for i in range(len(keys)):
            seed(mixed(keys[i], number))
            result = inner(indices[i : i + 1], row(memory, i), metadata, storage)
            check()
        return result

    return compile_function(keyed)


def per_batch(operation: Callable[..., Any], salt: int) -> Any:
    """Make an operation seed the generator once, and take the samples one after the other.

    Returns:
        A function of `(input, memory, batch key, indices)`.
    """
    inner, number, seed = compile_function(operation), np.uint64(salt), _seeder(operation)
    call = _caller(inner, indices=getattr(operation, "with_indices", False))

    def keyed(images: Any, memory: Any, key: Any, indices: Any) -> Any:
        seed(mixed(key, number))
        return call(images, memory, indices)

    return compile_function(keyed)


def per_batch_decoder(decoder: Callable[..., Any], salt: int) -> Any:
    """Do the same for a decoder; return a function of `(indices, memory, batch key, metadata, storage)`."""
    inner, number, seed = compile_function(decoder), np.uint64(salt), _seeder(decoder)

    def keyed(indices: Any, memory: Any, key: Any, metadata: Any, storage: Any) -> Any:
        seed(mixed(key, number))
        return inner(indices, memory, metadata, storage)

    return compile_function(keyed)


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _seed_numpy(key: Any) -> None:
    seed_generator(key)


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _seed_both(key: Any) -> None:
    seed_generator(key)
    seed_python_generator(key ^ _PYTHON)


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _seed_few(key: Any) -> None:
    seed_generator_for_few(key)


def _seeder(function: Callable[..., Any], *, few: bool = False) -> Any:
    if draws_from_python(function):
        return _seed_both
    return _seed_few if few else _seed_numpy


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _check_nothing() -> None:
    pass


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _check_few() -> None:
    if words_drawn() > _FEW:
        raise ValueError(_TOO_MANY)


_FEW = FEW
_TOO_MANY = (
    "an operation of FFCV drew more than 128 random words for a sample, which it was not known to do.\n"
    "The words after these belong to no key, so augmentations could not be repeated. Say "
    'keyed={TheOperation: "batch"} for it.'
)


def _caller(inner: Any, *, indices: bool) -> Any:
    if indices:
        return inner

    def call(images: Any, memory: Any, indices: Any) -> Any:  # noqa: ARG001  # one signature for both
        return inner(images, memory)

    return njit(call)


def _rows(buffers: int) -> Any:
    if buffers > _MOST_BUFFERS:
        raise UnsupportedError(
            f"an operation asks for {buffers} arrays of memory, and can be keyed per sample with {_MOST_BUFFERS} at "
            "most.\nIts randomness could not be told apart by sample. Say "
            'keyed={TheOperation: "batch"} for it.'
        )
    return _ROWS[buffers]


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _no_row(memory: Any, i: Any) -> Any:  # noqa: ARG001  # one signature for all
    return None


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _one_row(memory: Any, i: Any) -> Any:
    return memory[i : i + 1]


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _two_rows(memory: Any, i: Any) -> Any:
    return memory[0][i : i + 1], memory[1][i : i + 1]


_ROWS = (_no_row, _one_row, _two_rows)
