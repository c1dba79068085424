"""Randomness that belongs to the sample: seeds per (seed, epoch, position), and global generators that are left alone.

Augmentation code draws from the global generators of `random`, `numpy.random` and torch. Before each sample they are
seeded with the sample's own key, so that what a sample gets depends neither on the worker that reads it, nor on what was
read before it. In the training process they are put back afterwards, so that loading never changes the trainer's own
randomness (dropout, initialisation).
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from resumable.errors import ConfigurationError
from resumable.keyed import Words, derive, random_int, random_u64

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Randomness", "SampleKeys", "check_randomness", "isolated", "reseed"]

Randomness = Literal["sample", "batch", "off"]

_spare_generators: list[np.random.MT19937] = []


def check_randomness(mode: object) -> Randomness:
    """Return a randomness mode.

    Raises:
        ConfigurationError: there is none of that name.
    """
    for known in get_args(Randomness):
        if mode == known:
            return known  # type: ignore[no-any-return]  # get_args is untyped
    raise ConfigurationError(
        f"randomness must be one of {', '.join(get_args(Randomness))}, but it is {mode!r}.\n"
        'It says how often the generators are seeded. Use "sample" unless its few microseconds per sample matter.'
    )


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
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(key & 0xFFFFFFFF)


@contextmanager
def isolated(key: int | None = None) -> Iterator[None]:
    """Give the global generators back as they were found, whatever is drawn or seeded inside.

    NumPy's is swapped for a spare one instead of copied, as its state is large.

    Args:
        key: seed the generators with it at the beginning.
    """
    python, numpy, torch = random.getstate(), np.random.get_bit_generator(), sys.modules.get("torch")
    torch_state: Any = torch.default_generator.get_state() if torch is not None else None
    spare = _spare_generators.pop() if _spare_generators else np.random.MT19937(0)
    np.random.set_bit_generator(spare)
    try:
        if key is not None:
            reseed(key)
        yield
    finally:
        np.random.set_bit_generator(numpy)
        _spare_generators.append(spare)
        random.setstate(python)
        if torch is not None:
            torch.default_generator.set_state(torch_state)
