"""Randomness per sample: seeds per (seed, epoch, position), and protection of the trainer's global RNGs.

Augmentation code uses the global RNGs of `random`, `numpy.random` and PyTorch. Before each sample they are seeded with
the sample's own key. So a sample's randomness depends neither on the worker that reads it, nor on the samples read
before it. In the training process the RNGs are restored afterwards, so loading never changes the trainer's own
randomness (dropout, initialization).
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
    "KEYED",
    "NUMPY",
    "POSITIVE",
    "PYTHON",
    "SEEDING",
    "Generator",
    "Randomness",
    "SampleKeys",
    "isolated",
    "reseed",
    "states",
    "torch_seed",
]


# ------------------------------------------------------------------ global RNGs
#
# Reads the states of the global RNGs of `random` and `numpy.random` in less than 1 µs.
#
# These states are large, and the public functions take up to 30 µs, because they create a Python number for each word.
# So the words are copied directly from memory. NumPy documents the address (`BitGenerator.ctypes`). For `random`, a
# separate instance is used to check whether the words are where CPython has them. If not, the public functions are
# used. Nothing writes to these addresses.

_numpy_random: Any = np.random  # its stubs leave out the functions that swap the bit generator

_WORDS = struct.Struct("625I")  # of a Mersenne Twister, including the position among them


class Generator(Protocol):
    """A global RNG that is slow to seed."""

    name: str

    def seed(self, key: int) -> None:
        """Seed it with a sample's key."""
        ...

    def look(self) -> Any:
        """Return its complete state, to compare and to restore."""
        ...

    def changed(self, look: Any) -> bool:
        """Return whether it was used or seeded since."""
        ...

    def put_back(self, look: Any) -> None:
        """Restore an earlier state."""
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
        """Return the result that `random.getstate()` had when the state was read."""
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
    """Return whether an RNG's position and words start where the object header ends, as in CPython."""
    base: Any = random.Random.__base__
    if sys.implementation.name != "cpython" or base.__basicsize__ < object.__basicsize__ + _WORDS.size:
        return False
    trial = random.Random(1)  # a separate instance
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
        np.random.seed(key >> 32)  # noqa: NPY002  # intentionally the global RNG

    def look(self) -> tuple[Any, Any, float | None]:
        bits = _numpy_random.get_bit_generator()
        return bits, self._words(bits), kept_normal()

    def changed(self, look: tuple[Any, Any, float | None]) -> bool:
        bits, words, normal = look
        now = _numpy_random.get_bit_generator()
        if now is not bits or self._words(bits) != words:
            return True
        return normal is not None and kept_normal() != normal  # a new one would have used words

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
        """Return the result that `numpy.random.get_state()` had when the state was read."""
        bits, words, normal = look
        if not isinstance(bits, np.random.MT19937):  # which `numpy.random.seed` cannot seed
            return tuple(np.random.get_state(legacy=True))  # noqa: NPY002  # intentionally the global RNG
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
    """Replaces the bit generator, whose state is slow to read, while NumPy's other state is read."""

    state: ClassVar = {"bit_generator": "none"}


def kept_normal() -> float | None:
    """Return the normal deviate that NumPy's global RNG keeps for its next call, or None."""
    legacy = _numpy_random.get_state.__self__
    generator = legacy._bit_generator  # noqa: SLF001  # the public way to the deviate copies 624 words
    legacy._bit_generator = _NoState  # noqa: SLF001  # the same
    try:
        state = legacy.get_state(legacy=False)
    finally:
        legacy._bit_generator = generator  # noqa: SLF001  # the same
    return float(state["gauss"]) if state["has_gauss"] else None


def keep_normal(deviate: float) -> None:
    """Let NumPy's global RNG keep a normal deviate for its next call."""
    state = _numpy_random.get_state(legacy=False)
    _numpy_random.set_state({**state, "has_gauss": 1, "gauss": deviate})


# ------------------------------------------------------------------ keys

Randomness = Literal["sample", "batch", "off", "passed"]
SEEDING: Collection[Randomness] = ("sample", "batch")  # the modes that seed the global RNGs
KEYED: Collection[Randomness] = ("sample", "passed")  # the modes in which each sample has a key

_spare_generators: list[np.random.MT19937] = []


class SampleKeys:
    """The 64-bit keys of an epoch's samples and batches.

    Args:
        seed: the loader's seed.
        epoch: the epoch.
        stream: further integers that identify the stream, such as the number of a worker.
    """

    def __init__(self, seed: int, epoch: int, *stream: int) -> None:
        words = derive(seed, epoch, *stream, words=4, purpose=b"augment")
        self._sample, self._batch = words[:2], (int(words[2]), int(words[3]))

    def samples(self, start: int, stop: int) -> Words:
        """Compute the keys of the positions `start..stop-1`; shape `(stop - start,)`."""
        return random_u64(self._sample, np.arange(start, stop))

    def batch(self, position: int) -> int:
        """Compute the key of the batch that starts at `position`."""
        return random_int(self._batch, position)


def reseed(key: int) -> None:
    """Seed the global RNGs of `random`, `numpy.random` and, if it is loaded, PyTorch on the CPU.

    Takes about 6 µs. `torch.manual_seed` would take at least 90 µs, because it also seeds every accelerator.
    """
    random.seed(key)
    np.random.seed(key >> 32)  # noqa: NPY002  # augmentation code uses the legacy RNG
    torch_seed()(key & POSITIVE)


def states() -> tuple[object, ...]:
    """Return the states of the same RNGs, to compare; takes about 20 µs."""
    torch = sys.modules.get("torch")
    name, words, *rest = np.random.get_state()  # noqa: NPY002  # as above
    ours = None if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return random.getstate(), name, np.asarray(words).tobytes(), *rest, ours


POSITIVE = (1 << 63) - 1


def torch_seed() -> Callable[[int], object]:
    """Return the function that seeds PyTorch's global RNG on the CPU; it does nothing if torch is not loaded.

    The RNG uses the low 32 bits of a seed. Pass 63 bits of a key, so `torch.initial_seed()` fits into a tensor. The
    function returns a true value.
    """
    torch = sys.modules.get("torch")
    return _nothing if torch is None else torch.default_generator.manual_seed


def _nothing(key: int) -> bool:  # noqa: ARG001  # the same signature
    return True


class isolated:  # noqa: N801  # used like a function
    """Context that restores the global RNGs at its end, even if they are used or seeded inside.

    NumPy's bit generator is swapped for a spare one instead of copied. It does not include the normal deviate that
    `numpy.random.randn` keeps for its next call, so that is saved separately.

    Args:
        key: seed the RNGs with it first.
        but: RNGs to leave unchanged, because the caller handles them.
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
