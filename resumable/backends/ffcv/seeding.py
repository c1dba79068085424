"""Seeds the random generator of the running thread inside of compiled code, several times faster than NumPy's way.

Numba keeps a Mersenne Twister for each thread, from which `np.random` draws in compiled code. `np.random.seed` would
fill its 624 words one after the other, mix all of them again at the first draw, and take 32 bits of a key. Here each
word is a hash of the key and the word's number, so that they are computed side by side, and are drawn as they are. What
is known to draw a few numbers only gets the first words, which are the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.cpython import randomimpl
from numba.extending import intrinsic

if TYPE_CHECKING:
    from resumable._randomness.keyed import Words

__all__ = [
    "FEW",
    "WORDS",
    "generator_words",
    "seed_generator",
    "seed_generator_for_few",
    "seed_python_generator",
    "words_drawn",
]

WORDS = 624
FEW = 128  # words; a number takes one or two
_GOLDEN = 0x9E3779B9
# The hash is triple32 of Chris Wellons (https://github.com/skeeto/hash-prospector), with the key's high half mixed in.
_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
_LAST_SHIFT = 14


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def seed_generator(typing_context: Any, key: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Seed this thread's `np.random` for compiled code with a key, uint64."""
    return types.void(types.uint64), partial(_fill, "np", WORDS)


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def seed_generator_for_few(typing_context: Any, key: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Seed as many words as `FEW`; whether they were enough, `words_drawn` says."""
    return types.void(types.uint64), partial(_fill, "np", FEW)


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def words_drawn(typing_context: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Return how many words this thread's `np.random` has drawn since it was seeded; int32, up to `WORDS`."""

    def drawn(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001  # Numba's
        return builder.load(randomimpl.get_index_ptr(builder, randomimpl.get_state_ptr(context, builder, "np")))

    return types.int32(), drawn


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def seed_python_generator(typing_context: Any, key: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Seed this thread's `random` for compiled code, another generator, with a key, uint64."""
    return types.void(types.uint64), partial(_fill, "py", WORDS)


def _fill(which: str, count: int, context: Any, builder: Any, *given: Any) -> Any:
    state = randomimpl.get_state_ptr(context, builder, which)
    _, (key,) = given
    low, high = builder.trunc(key, _I32), builder.trunc(builder.lshr(key, ir.Constant(ir.IntType(64), 32)), _I32)
    words = randomimpl.get_array_ptr(builder, state)
    with cgutils.for_range(builder, _constant(count)) as loop:
        word = builder.add(builder.mul(loop.index, _constant(_GOLDEN)), low)
        for number, (shift, factor) in enumerate(_ROUNDS):
            word = builder.xor(word, builder.lshr(word, _constant(shift)))
            word = builder.mul(word, _constant(factor))
            word = builder.xor(word, high) if number == 0 else word
        word = builder.xor(word, builder.lshr(word, _constant(_LAST_SHIFT)))
        builder.store(word, cgutils.gep_inbounds(builder, words, 0, loop.index))
    builder.store(_constant(0), randomimpl.get_index_ptr(builder, state))
    builder.store(_constant(0), randomimpl.get_has_gauss_ptr(builder, state))
    return context.get_dummy_value()


_I32 = ir.IntType(32)


def _constant(value: int) -> Any:
    return ir.Constant(_I32, value)


def generator_words(key: int) -> Words:
    """Compute what `seed_generator` puts into the generator: the raw words before tempering; for tests."""
    mask = np.uint64(0xFFFFFFFF)
    word = (np.arange(WORDS, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key & 0xFFFFFFFF)) & mask
    for number, (shift, factor) in enumerate(_ROUNDS):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor) & mask
        word = word ^ np.uint64(key >> 32) if number == 0 else word
    return word ^ (word >> np.uint64(_LAST_SHIFT))
