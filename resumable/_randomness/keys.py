"""Randomness that belongs to the sample: seeds per (seed, epoch, position), and global generators that are left alone.

Augmentation code draws from the global generators of `random`, `numpy.random` and torch. Before each sample they are
seeded with the sample's own key, so that what a sample gets depends neither on the worker that reads it, nor on what
was read before it. In the training process they are put back afterwards, so that loading never changes the trainer's
own randomness (dropout, initialisation).
"""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from resumable._randomness.keyed import Words, derive, random_int, random_u64

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


__all__ = [
    "ALL",
    "NUMPY",
    "POSITIVE",
    "PYTHON",
    "Generator",
    "Randomness",
    "SampleKeys",
    "isolated",
    "reseed",
    "states",
    "torch_seed",
]


# ------------------------------------------------------------------ generators
#
# The global generators of `random` and `numpy.random`, looked at in less than a microsecond.
#
# Their states are large, and the public ways to read them take up to 30 microseconds, as they make a Python number of
# each word. So the words are copied as they lie in memory: NumPy says where that is (`BitGenerator.ctypes`), and for
# `random` it is tried, on a generator of ours, whether they lie where CPython has them. Where they do not, the public
# way is taken. Nothing is written in this manner.

_numpy_random: Any = np.random  # its stubs leave out the functions that swap the bit generator

_WORDS = struct.Struct("625I")  # of a Mersenne Twister, with the place among them


class Generator(Protocol):
    """A global generator that is slow to seed."""

    name: str

    def seed(self, key: int) -> None:
        """Seed it with a sample's key."""
        ...

    def look(self) -> Any:
        """Return its whole state, to compare and to put back."""
        ...

    def changed(self, look: Any) -> bool:
        """Return whether its state is another one now, as it was drawn from, or seeded."""
        ...

    def put_back(self, look: Any) -> None:
        """Give it a state that it had."""
        ...


class _Python:
    name = "python"

    def __init__(self) -> None:
        self._own: random.Random = random.getstate.__self__  # type: ignore[attr-defined]  # a method of the global one
        self._memory = _memory_of(self._own) if _lies_as_expected() else None

    def __reduce__(self) -> str:
        return "PYTHON"

    def seed(self, key: int) -> None:
        random.seed(key)

    def look(self) -> tuple[Any, Any]:
        words = self._own.getstate() if self._memory is None else self._memory.tobytes()
        return words, self._own.gauss_next  # type: ignore[attr-defined]  # a normal deviate kept for the next call

    def changed(self, look: tuple[Any, Any]) -> bool:
        return self.look() != look

    def put_back(self, look: tuple[Any, Any]) -> None:
        self._own.setstate(self.state_of(look))

    def state_of(self, look: tuple[Any, Any]) -> tuple[Any, ...]:
        """Return what `random.getstate()` gave at a look."""
        words, normal = look
        if not isinstance(words, bytes):
            state: tuple[Any, ...] = words
            return state
        place, *numbers = _WORDS.unpack(words)
        return self._own.VERSION, (*numbers, place), normal


def _memory_of(generator: random.Random) -> memoryview:
    begin = id(generator) + object.__basicsize__
    return memoryview((ctypes.c_ubyte * _WORDS.size).from_address(begin)).cast("B")


def _lies_as_expected() -> bool:
    """Return whether a generator's place and words begin where the head of an object ends, as in CPython."""
    base: Any = random.Random.__base__
    if sys.implementation.name != "cpython" or base.__basicsize__ < object.__basicsize__ + _WORDS.size:
        return False
    trial = random.Random(1)  # nothing is drawn from it that counts
    memory, seen = _memory_of(trial), []
    for _ in range(3):
        place, *numbers = _WORDS.unpack(memory.tobytes())
        seen.append((*numbers, place) == trial.getstate()[1])
        trial.random()
    return all(seen)


class _Numpy:
    name = "numpy"

    def __init__(self) -> None:
        self._known: Any = None  # the bit generator whose memory is known
        self._memory: memoryview | None = None

    def __reduce__(self) -> str:
        return "NUMPY"

    def seed(self, key: int) -> None:
        np.random.seed(key >> 32)  # noqa: NPY002  # the global one is meant

    def look(self) -> tuple[Any, Any, float | None]:
        bits = _numpy_random.get_bit_generator()
        return bits, self._words(bits), kept_normal()

    def changed(self, look: tuple[Any, Any, float | None]) -> bool:
        bits, words, normal = look
        now = _numpy_random.get_bit_generator()
        if now is not bits or self._words(bits) != words:
            return True
        return normal is not None and kept_normal() != normal  # one that came since took words

    def put_back(self, look: tuple[Any, Any, float | None]) -> None:
        bits, words, normal = look
        if isinstance(bits, np.random.MT19937):
            *numbers, place = _WORDS.unpack(words)
            bits.state = {"bit_generator": "MT19937", "state": {"key": np.array(numbers, np.uint32), "pos": place}}
        else:
            bits.state = pickle.loads(words)  # noqa: S301  # our own bytes
        _numpy_random.set_bit_generator(bits)
        if normal is not None:
            keep_normal(normal)

    def state_of(self, look: tuple[Any, Any, float | None]) -> tuple[Any, ...]:
        """Return what `numpy.random.get_state()` gave at a look."""
        bits, words, normal = look
        if not isinstance(bits, np.random.MT19937):  # which `numpy.random.seed` cannot seed
            return tuple(np.random.get_state(legacy=True))  # noqa: NPY002  # the global one is meant
        *numbers, place = _WORDS.unpack(words)
        return "MT19937", numbers, place, int(normal is not None), normal or 0.0

    def _words(self, bits: Any) -> bytes:
        if bits is not self._known:
            self._known, self._memory = bits, None
            if isinstance(bits, np.random.MT19937):
                begin = bits.ctypes.state_address
                self._memory = memoryview((ctypes.c_ubyte * _WORDS.size).from_address(begin)).cast("B")
        return pickle.dumps(bits.state) if self._memory is None else self._memory.tobytes()


PYTHON, NUMPY = _Python(), _Numpy()
ALL: tuple[Generator, ...] = (PYTHON, NUMPY)


class _NoState:
    """Stands for the bit generator, whose state is slow to read, where what NumPy keeps beside it is asked for."""

    state: ClassVar = {"bit_generator": "none"}


def kept_normal() -> float | None:
    """Return the normal deviate that NumPy's global generator keeps for its next call, or None."""
    legacy = _numpy_random.get_state.__self__
    generator = legacy._bit_generator  # noqa: SLF001  # the public way to the deviate copies 624 words one by one
    legacy._bit_generator = _NoState  # noqa: SLF001  # likewise
    try:
        state = legacy.get_state(legacy=False)
    finally:
        legacy._bit_generator = generator  # noqa: SLF001  # likewise
    return float(state["gauss"]) if state["has_gauss"] else None


def keep_normal(deviate: float) -> None:
    """Let NumPy's global generator keep a normal deviate for its next call."""
    state = _numpy_random.get_state(legacy=False)
    _numpy_random.set_state({**state, "has_gauss": 1, "gauss": deviate})


# ------------------------------------------------------------------ keys

Randomness = Literal["sample", "batch", "off"]

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
