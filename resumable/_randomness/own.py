"""The generators that a source has of its own, seeded for each sample like the global ones.

Each is seeded with the sample's key mixed with a digest of the generator's path, so that two generators of one pipeline
draw different numbers. What a key gives is pinned by test vectors.
"""

from __future__ import annotations

import os
import pickle
import random
import warnings
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._introspection import is_exactly, qualname_of, survive
from resumable._randomness.finding import find_generators, is_generator
from resumable._randomness.keyed import mix_int
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["OwnGenerator", "OwnGenerators"]

_POSITIVE = (1 << 63) - 1
_PCG = {"PCG64", "PCG64DXSM"}  # whose state is one number, and another one that is odd
_INCREMENT = 0xDA3E39CB94B95BDB_5851F42D4C957F2D
_MOST = 64  # generators
_OF_LIBRARIES = (random.Random, np.random.RandomState)  # others have a state by another class
_LATE = (
    "a random generator was found at {} only after batches had been read: a {}.\n"
    "What was drawn from it until now did not belong to the sample, and would be other numbers after a resume. Make it "
    "before the first sample is read, as in __init__; or make a new one for each sample, from a number that a global "
    "generator gives."
)


class OwnGenerator:
    """A generator in its place in a source.

    Args:
        path: of the place.
        get: returns what is there now.
    """

    def __init__(self, path: str, get: Callable[[], Any]) -> None:
        self.name, self.get = path, get
        self._was: Any = None  # what was there before a batch
        self._in_a_row = 0  # how often in a row that was replaced in a batch
        self._salt = int.from_bytes(blake2b(path.encode(), digest_size=8, person=b"resumable1").digest(), "little")

    def now(self) -> Any:
        """Return the generator that is there now; None where there is none any more."""
        found = self.get()
        return found if is_generator(found) else None

    @property
    def kind(self) -> str:
        """The name of its class, for messages."""
        return qualname_of(type(self.now()))

    def seed(self, key: int) -> None:
        """Seed it with what is made of a sample's key."""
        generator = self.now()
        if generator is not None:
            _seed(generator, mix_int(key ^ self._salt))

    def look(self) -> tuple[Any, Any]:
        """Return the generator that is there, and its state."""
        generator = self.now()
        return generator, _state_of(generator)

    def changed(self, look: tuple[Any, Any]) -> bool:
        """Return whether another one is there now, or it was drawn from, or seeded."""
        generator, state = look
        return self.now() is not generator or _state_of(generator) != state

    def put_back(self, look: tuple[Any, Any]) -> None:
        """Give the generator that was there the state that it had."""
        _give(*look)

    def begin(self) -> None:
        """A batch is about to be read."""
        self._was = self.now()

    def is_another(self) -> bool:
        """Return whether the source replaced it in this batch, so that samples were read without it being seeded.

        One that is replaced when the batch is read again is made for each sample, and not by what this seeds.
        """
        if self.now() is self._was:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        return self._in_a_row == 1


class OwnGenerators:
    """The generators of a source's own, looked for in each process and again in each epoch.

    Args:
        roots: what samples are read by, by the names with which the paths begin.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = dict(roots)
        self._known: dict[str, OwnGenerator | None] = {}  # None for one that cannot be seeded
        self._looked: tuple[int, int] | None = None  # in which process and epoch
        self._read = 0  # batches since

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is looked into: another process has other generators."""
        return OwnGenerators, (self._roots,)

    def forget(self, root: str) -> None:
        """Leave the generators alone that are below a root."""
        self._roots.pop(root, None)

    def before(self, epoch: int) -> Sequence[OwnGenerator]:
        """Return those that were not known, where the process or the epoch is another one than at the last batch."""
        self._read += 1
        if self._looked == (os.getpid(), epoch):
            return ()
        self._looked, self._read = (os.getpid(), epoch), 1
        return self._look()

    def after(self) -> Sequence[OwnGenerator]:
        """Return those that came up in a batch, which is looked for after the batches 1, 2, 4, 8 and so on.

        Warns:
            PromiseWarning: of one that came up after the first batch, when it may have been in use.
        """
        if self._read & (self._read - 1):
            return ()
        found = self._look()
        for one in found if self._read > 1 else ():
            warnings.warn(_LATE.format(one.name, one.kind), PromiseWarning, stacklevel=2)
        return found

    def _look(self) -> Sequence[OwnGenerator]:
        """Look where generators are now, and return those in new places."""
        found, seen = list[OwnGenerator](), Counter[str]()
        for path, get in find_generators(self._roots)[:_MOST]:
            seen[path] += 1
            name = path if seen[path] == 1 else f"{path} ({seen[path]})"
            if name not in self._known:
                one = self._known[name] = OwnGenerator(name, get) if _can_be_seeded(name, get()) else None
                found += [] if one is None else [one]
            elif (known := self._known[name]) is not None:
                known.get = get  # what holds it may be another one
        return found


def _can_be_seeded(name: str, generator: Any) -> bool:
    """Return whether a generator takes a seed, and its state back; one of a user's class may do neither."""
    if is_exactly(generator, _OF_LIBRARIES):
        return True
    return survive(f"the random generator at {name}", lambda: _is_as_before(generator), False)


def _is_as_before(generator: Any) -> bool:
    state = _state_of(generator)
    _seed(generator, 0)
    _give(generator, state)
    return bool(_state_of(generator) == state)


def _seed(generator: Any, key: int) -> None:
    """Seed a generator with 64 bits, or as many of them as it takes."""
    if isinstance(generator, random.Random):
        generator.seed(key)
    elif isinstance(generator, np.random.Generator):
        _seed_bits(generator.bit_generator, key)
    elif not isinstance(generator, np.random.RandomState):
        generator.manual_seed(key & _POSITIVE)  # torch's, which uses the low 32
    elif isinstance(bits := generator._bit_generator, np.random.MT19937):  # noqa: SLF001  # no public way tells
        generator.seed(key >> 32)
    else:
        _seed_bits(bits, key)
        generator.set_state({**generator.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})


def _seed_bits(bits: Any, key: int) -> None:
    name = type(bits).__name__
    if name in _PCG:
        state = {"state": mix_int(key) << 64 | key, "inc": _INCREMENT}
        bits.state = {"bit_generator": name, "state": state, "has_uint32": 0, "uinteger": 0}
    else:
        bits.state = type(bits)(key).state


def _state_of(generator: Any) -> Any:
    """Return a state that is compared and given back."""
    if generator is None:
        return None
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return generator.get_state().numpy().tobytes()


def _give(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = pickle.loads(state)  # noqa: S301  # our own bytes
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(pickle.loads(state))  # noqa: S301  # our own bytes
    elif generator is not None:
        import torch  # noqa: PLC0415  # it is one of torch's, so torch is loaded

        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
