"""Randomness that is passed: each sample's function gets an RNG as an argument, and no global RNG is touched.

NumPy's counter-based Philox makes the numbers. Creating one takes 13 µs, so one object is set to the key of each sample
of a batch. PyTorch's and Python's RNGs are created if they are asked for. Code inside of a sample that reads another
Loader, and other threads, borrow a different object.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import random
import struct
import sys
from bisect import bisect_right
from functools import cache, partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._introspection import ask, module_of, qualname_of, signature_of
from resumable._randomness.keyed import random_int
from resumable._randomness.keys import POSITIVE
from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from torch import Generator

    Read: TypeAlias = Callable[[Any, "SampleRNG"], Any]

__all__ = [
    "SampleRNG",
    "borrow_rng",
    "passing",
    "passing_on",
    "passing_on_all",
    "refuse_without",
    "return_rng",
    "takes_rng",
]


_LARGEST = (1 << 64) - 1
_CHILDREN = 0x9216D5D98979FB1B  # distinguishes the keys of children from other keys


class SampleRNG(np.random.Generator):
    """The RNG of one sample: NumPy's `Generator`, with PyTorch's and Python's RNGs of the same key.

    `wrap(..., randomness="passed")` passes it to the functions that make samples and batches. Its numbers depend only
    on the key, which is computed from seed, epoch and position: they are the numbers of
    `numpy.random.Generator(numpy.random.Philox(key=rng.key))`.

    It is valid until the function that got it returns: then it becomes the RNG of a different sample. To keep it, copy
    it with `copy.deepcopy`, which returns a plain `Generator`, or use one of its children.

    Args:
        key: an integer from 0 to 2**64 - 1, such as one of `Request.keys` in a custom backend.

    Raises:
        ConfigurationError: the key is out of range.
    """

    __slots__ = ("_key", "_made", "_set")  # with a dictionary, `at` would take 0.04 µs longer

    def __init__(self, key: int) -> None:
        key = operator.index(key)
        if not 0 <= key <= _LARGEST:
            raise ConfigurationError(
                f"the key of a SampleRNG must be an integer from 0 to {_LARGEST}, but it is {key}.\n"
                "Its numbers would belong to no sample. Use a key of the request, such as request.keys[0]."
            )
        bits = np.random.Philox(key=key)
        super().__init__(bits)
        self._set = _set_memory_of(bits) if _lies_as_expected() else partial(_set_state, bits)
        self._key = key
        self._made: dict[str, Any] | None = None  # what was created for this key

    def at(self, key: int) -> SampleRNG:
        """Become the RNG of another key, and return it."""
        self._set(key)
        self._key = key
        self._made = None
        return self

    def read(self, function: Read, arguments: Iterable[Any], keys: Iterable[int]) -> list[Any]:
        """Return what a function returns for each argument, with this RNG at its key."""
        set_key, found = self._set, []
        for argument, key in zip(arguments, keys, strict=True):
            set_key(key)  # what `at` does: calling it takes as long again
            self._key = key
            self._made = None
            found.append(function(argument, self))
        return found

    @property
    def key(self) -> int:
        """The sample's key, to seed anything else, such as `jax.random.key`."""
        return self._key

    @property
    def torch(self) -> Generator:
        """A `torch.Generator` on the CPU with the same key, for the `generator=` of PyTorch's functions."""
        return self._once("torch", self._torch)  # type: ignore[no-any-return]  # what `_torch` returns

    @property
    def python(self) -> random.Random:
        """A `random.Random` with the same key."""
        return self._once("python", lambda: random.Random(self.key))  # type: ignore[no-any-return]  # it is one

    def spawn(self, n_children: int) -> list[np.random.Generator]:
        """Return independent `SampleRNG`s, for instance one per thread. Their keys are computed from this one's key.

        Args:
            n_children: how many. Later calls return others.
        """
        numbers = self._once("children", itertools.count)
        return [SampleRNG(random_int((self.key, _CHILDREN), next(numbers))) for _ in range(n_children)]

    def _torch(self) -> Any:
        from torch import Generator  # noqa: PLC0415  # only this property needs PyTorch

        return Generator().manual_seed(self.key & POSITIVE)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what was created under a name for this key."""
        if self._made is None:
            self._made = {}
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


# Sets the state of a Philox in 0.1 µs. Its public property takes eight times as long, more than reading a sample may
# take. NumPy documents the address of the state (`BitGenerator.ctypes`): a struct that starts with pointers to counter
# and key. A separate Philox is used to check that all of it is where NumPy 1.24 to 2.5 has it. If not, the property is
# used. Only objects of this module are written to.

_POINTERS = 2  # at the start of the struct, to the counter and to the key; after them are 12 words:
_KEY, _COUNTER = 6, 8  # and before these the position in the buffer, the buffer, and the kept half of a word
_STATE = struct.Struct("=i44xQ40x")  # the position in the buffer, and the key; all else becomes zero
_USED_UP = 4  # the buffer is; so it is after a Philox was created


def _set_memory_of(bits: np.random.Philox) -> Callable[[int], object]:
    """Return a function that sets the state to the start of a key."""
    begin = bits.ctypes.state_address + 8 * _POINTERS
    memory = (ctypes.c_ubyte * _STATE.size).from_address(begin)
    return partial(_STATE.pack_into, memory, 0, _USED_UP)


def _set_state(bits: np.random.Philox, key: int) -> None:
    bits.state = np.random.Philox(key=key).state


@cache
def _lies_as_expected() -> bool:
    """Return whether a Philox has its words where they are expected."""
    bits = np.random.Philox(key=1)
    begin = bits.ctypes.state_address
    inside = id(bits) < begin and begin + 8 * _POINTERS + _STATE.size <= id(bits) + np.random.Philox.__basicsize__
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or not inside:
        return False
    pointers = (ctypes.c_uint64 * _POINTERS).from_address(begin)
    if list(pointers) != [begin + 8 * (_POINTERS + place) for place in (_COUNTER, _KEY)]:
        return False
    set_key, seen = _set_memory_of(bits), []
    for key in (2, 3):
        np.random.Generator(bits).integers(9, size=3, dtype=np.uint32)  # keeps half of a word
        set_key(key)
        seen.append(repr(bits.state) == repr(np.random.Philox(key=key).state))
    return all(seen)


# ------------------------------------------------------------------ passing it

_spare: list[SampleRNG] = []


def borrow_rng() -> SampleRNG:
    """Return an RNG that no other code uses until it is returned with `return_rng`."""
    try:
        return _spare.pop()
    except IndexError:
        return SampleRNG(0)


def return_rng(rng: SampleRNG) -> None:
    """Let others use a borrowed RNG."""
    _spare.append(rng)


def takes_rng(function: Any) -> bool:
    """Return whether a function takes an RNG after its first argument: a parameter named `rng`, or a required one."""
    signature = None if function is None else signature_of(function)
    if signature is None:
        return False
    positional = [
        one
        for one in signature.parameters.values()
        if one.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    ]
    return len(positional) > 1 and (positional[1].name == "rng" or positional[1].default is Parameter.empty)


def passing(function: Callable[..., Any]) -> Read:
    """Return a function that takes an RNG as its second argument: the same one, or one that ignores it."""
    return function if takes_rng(function) else partial(_ignoring, function)


def _ignoring(function: Callable[[Any], Any], argument: Any, _: SampleRNG) -> Any:
    return function(argument)


def passing_on(dataset: Any) -> Read | None:
    """Return a function of an index and its RNG that reads a sample; None if the dataset takes no RNG.

    PyTorch's `Subset` and `ConcatDataset` pass only the index on, so their datasets are read directly. A dataset of
    this package that contains others has a method `resumable_passing`, which does the same.
    """
    read = ask(dataset, "__getitem__")
    if takes_rng(read):
        return read  # type: ignore[no-any-return]  # a user's
    if (own := ask(type(dataset), "resumable_passing")) is not None:
        return own(dataset)  # type: ignore[no-any-return]  # ours
    kind = qualname_of(type(dataset)) if module_of(type(dataset)) == "torch.utils.data.dataset" else ""
    if kind == "Subset" and (inner := passing_on(dataset.dataset)) is not None:
        return partial(_of_subset, inner, dataset.indices)
    if kind == "ConcatDataset" and (reads := passing_on_all(dataset.datasets)) is not None:
        return partial(_of_parts, reads, dataset.cumulative_sizes)
    return None


def passing_on_all(datasets: Sequence[Any]) -> list[Read] | None:
    """Return the functions that read samples of several datasets; None if none of them takes an RNG."""
    found = [passing_on(one) for one in datasets]
    if not any(found):
        return None
    return [read or passing(one.__getitem__) for one, read in zip(datasets, found, strict=True)]


def _of_subset(read: Read, indices: Sequence[int], index: int, rng: SampleRNG) -> Any:
    return read(indices[index], rng)


def _of_parts(reads: list[Read], ends: list[int], index: int, rng: SampleRNG) -> Any:
    part = bisect_right(ends, index)
    return reads[part](index - (ends[part - 1] if part else 0), rng)


def refuse_without(what: str, functions: Mapping[str, Any]) -> None:
    """Reject `randomness="passed"` if no function takes the RNG.

    Args:
        what: the wrapped object, for the message.
        functions: functions that could take it, with the signature that the message shows as key; None if missing.

    Raises:
        UnsupportedError: none takes it.
    """
    if any(takes_rng(function) for function in functions.values()):
        return
    raise UnsupportedError(
        f'randomness="passed" needs a function that takes an RNG, but {what} has none.\n'
        f"  searched for: {', '.join(functions)}\n"
        "Its random numbers would depend on RNGs that nothing seeds, and differ after a resume. Give one of these "
        'functions a second parameter named rng, and use it. Or use randomness="sample", which seeds the global RNGs.'
    )
