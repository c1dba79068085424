"""Randomness that belongs to the sample: seeds per (seed, epoch, position), and global generators that are left alone.

Augmentation code draws from the global generators of `random`, `numpy.random` and torch. Before each sample they are
seeded with the sample's own key, so that what a sample gets depends neither on the worker that reads it, nor on what
was read before it. In the training process they are put back afterwards, so that loading never changes the trainer's
own randomness (dropout, initialisation).
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from resumable._randomness.generators import NUMPY, PYTHON, keep_normal, kept_normal
from resumable._randomness.keyed import Words, derive, random_int, random_u64

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from resumable._randomness.generators import Generator

__all__ = ["POSITIVE", "Randomness", "SampleKeys", "isolated", "reseed", "states", "torch_seed"]

Randomness = Literal["sample", "batch", "off"]

_numpy_random: Any = np.random  # its stubs leave out the functions that swap the bit generator
_spare_generators: list[np.random.MT19937] = []


class SampleKeys:
    """The 64-bit keys of an epoch's samples and batches.

    Args:
        seed: the loader's seed.
        epoch: the epoch.
        stream: further integers that set this stream apart, such as the number of a worker.
    """

    def __init__(self, seed: int, epoch: int, *stream: int) -> None:
        words = derive(seed, epoch, *stream, words=4, purpose=b"augment")
        self._sample, self._batch = words[:2], (int(words[2]), int(words[3]))

    def samples(self, start: int, stop: int) -> Words:
        """Compute the keys of the positions `start..stop-1`; shape `(stop - start,)`."""
        return random_u64(self._sample, np.arange(start, stop))

    def batch(self, position: int) -> int:
        """Compute the key of the batch that begins at `position`."""
        return random_int(self._batch, position)


def reseed(key: int) -> None:
    """Seed the global generators of `random`, `numpy.random` and (where it is loaded) torch on the CPU.

    About 6 microseconds. `torch.manual_seed` would take 90 and more, as it also visits every accelerator.
    """
    random.seed(key)
    np.random.seed(key >> 32)  # noqa: NPY002  # the legacy generator is the one that augmentation code draws from
    torch_seed()(key & POSITIVE)


def states() -> tuple[object, ...]:
    """Return the states of the same generators, to compare; about 20 microseconds."""
    torch = sys.modules.get("torch")
    name, words, *rest = np.random.get_state()  # noqa: NPY002  # as above
    ours = None if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(words).tobytes(), *rest, ours


POSITIVE = (1 << 63) - 1


def torch_seed() -> Callable[[int], object]:
    """Return the function that seeds torch's global generator on the CPU; it does nothing where torch is not loaded.

    The generator uses the low 32 bits of a seed. It is to get 63 of a key, so that `torch.initial_seed()` fits into a
    tensor. What the function returns is true.
    """
    torch = sys.modules.get("torch")
    return _nothing if torch is None else torch.default_generator.manual_seed


def _nothing(key: int) -> bool:  # noqa: ARG001  # like the other
    return True


class isolated:  # noqa: N801  # used like a function
    """Context that gives the global generators back as they were found, whatever is drawn or seeded inside.

    NumPy's bit generator is swapped for a spare one instead of copied. The normal deviate that `numpy.random.randn`
    keeps for its next call is no part of it, and is kept beside it.

    Args:
        key: seed the generators with it at the beginning.
        but: generators that stay as they are, as the caller looks after them.
    """

    __slots__ = ("_but", "_key", "_normal", "_numpy", "_python", "_spare", "_torch")

    def __init__(self, key: int | None = None, but: Collection[Generator] = ()) -> None:
        self._key, self._but = key, but

    def __enter__(self) -> None:
        torch = sys.modules.get("torch")
        self._torch: Any = None if torch is None else torch.default_generator.get_state()
        self._python = None if PYTHON in self._but else PYTHON.look()
        self._spare: Any = None
        if NUMPY not in self._but:
            self._normal = kept_normal()
            self._numpy = _numpy_random.get_bit_generator()
            self._spare = _spare_generators.pop() if _spare_generators else np.random.MT19937(0)
            _numpy_random.set_bit_generator(self._spare)
        if self._key is not None:
            reseed(self._key)

    def __exit__(self, *error: object) -> None:
        if self._spare is not None:
            _numpy_random.set_bit_generator(self._numpy)
            _spare_generators.append(self._spare)
            if self._normal is not None:
                keep_normal(self._normal)
        if self._python is not None and PYTHON.changed(self._python):
            PYTHON.put_back(self._python)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
