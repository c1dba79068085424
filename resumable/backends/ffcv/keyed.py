"""Makes FFCV's random operations reproducible: compiled code seeds the generator for each sample, or for each batch.

FFCV uses the generators of its threads, so the random numbers of a sample depend on which thread processes it, and on
what that thread did before. Here, a loop over the samples seeds the generator with the key of each sample, and runs the
operation on that sample.
"""

from __future__ import annotations

import random
import types
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from ffcv import transforms
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, ResizedCropRGBImageDecoder
from ffcv.pipeline.graph import DecoderNode
from llvmlite import ir
from numba import njit
from numba import types as numba_types
from numba.core import cgutils
from numba.cpython import randomimpl
from numba.extending import intrinsic

from resumable.backends.ffcv.compiling import compile_function
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ffcv.pipeline.operation import Operation

    from resumable._randomness.keyed import Words


__all__ = [
    "FEW",
    "WORDS",
    "Mode",
    "Plan",
    "draws",
    "draws_few",
    "generator_words",
    "is_ffcvs",
    "mixed",
    "own_generators",
    "per_batch",
    "per_batch_decoder",
    "per_sample",
    "per_sample_decoder",
    "plan_for",
    "seed_generator",
    "seed_generator_for_few",
    "words_drawn",
]


# How an operation is made reproducible:
#
# mode     effect                                                          exact for any batch size and number of ranks
# plain    none, as the operation is not random                            yes
# sample   the generator is seeded before each sample                      yes
# batch    the generator is seeded once per batch, for one thread          no
# mixup    FFCV's mixup, with proportions from the batch's key             no
# late     runs where the batch is delivered, with global generators       no, if it is random
#          that are seeded once per batch and restored afterwards
Mode = Literal["plain", "sample", "batch", "mixup", "late"]
_RANDOM = (
    transforms.RandomResizedCrop,
    transforms.RandomHorizontalFlip,
    transforms.Cutout,
    transforms.RandomTranslate,
    transforms.RandomBrightness,
    transforms.RandomContrast,
    transforms.RandomSaturation,
)
_MEASURED = "1.0.2"
_MIXING = (transforms.ImageMixup, transforms.LabelMixup)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def plan_for(node: Any, operation: Operation, code: Any, told: Mapping[type, Mode]) -> Plan:
    """Return how to handle an operation.

    Args:
        node: of FFCV's graph.
        operation: its decoder or transform.
        code: the result of `generate_code`.
        told: modes by type, from the user.
    """
    for kind in type(operation).__mro__:
        if kind in told:
            return Plan(told[kind])
    if isinstance(node, DecoderNode):
        per_sample = _generated_by(operation, ResizedCropRGBImageDecoder)
        return Plan("plain") if not draws(code) else Plan("sample" if per_sample else "batch", known=per_sample)
    if not node.is_jitted:
        return Plan("plain") if is_ffcvs(operation) and not _is_module(operation) else Plan("late", known=False)
    if any(_generated_by(operation, kind) for kind in _RANDOM):
        return Plan("sample")
    if isinstance(operation, _MIXING) and is_ffcvs(operation):
        return Plan("mixup")
    return Plan("batch", known=False) if not is_ffcvs(operation) and draws(code) else Plan("plain")


class Plan(NamedTuple):
    """How to handle an operation; `known` means that its randomness is FFCV's or none, or that a user set the mode."""

    mode: Mode
    known: bool = True


def draws_few(operation: Operation) -> bool:
    """Return whether an operation is known to use few numbers per sample: at most 44 words, for ten tries of a crop.

    An operation that repeats until a number is small enough, as for the position of a cutout, uses each word after the
    second with half the probability of the word before. That was measured for one version of FFCV.
    """
    return type(operation) in {*_RANDOM, RandomResizedCropRGBImageDecoder} and version("ffcv") == _MEASURED


def own_generators(operation: Operation, code: Any) -> list[str]:
    """Return the names of an operation's own random generators, whose state no key can set."""
    owners = [operation, *(operation.module.modules() if _is_module(operation) else ())]
    values = [(name, value) for owner in owners for name, value in vars(owner).items()]
    cells = getattr(code, "__closure__", None) or ()
    values += zip(getattr(code, "__code__", code).co_freevars, (cell.cell_contents for cell in cells), strict=False)
    return sorted({name for name, value in values if isinstance(value, _GENERATORS)})


def draws(function: Any) -> bool:
    """Return whether a function that Numba compiles, or one that it calls, uses `np.random` or `random`."""
    return any(_belongs_to(value, np.random, np.random.RandomState) for value in _reached(function, set())) or (
        draws_from_python(function)
    )


def draws_from_python(function: Any) -> bool:
    """Return whether a function, or one that it calls, uses `random`; compiled code separates that from `np.random`."""
    return any(_belongs_to(value, random, random.Random) for value in _reached(function, set()))


def _reached(function: Any, seen: set[int]) -> Iterator[Any]:
    function = getattr(function, "py_func", function)
    if id(function) in seen or not isinstance(function, types.FunctionType):
        return
    seen.add(id(function))
    names = _names(function.__code__)
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    modules = [value for value in values if isinstance(value, types.ModuleType)]
    values += [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
    for value in values:
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType, types.MethodType)):
            yield value
        yield from _reached(value, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _belongs_to(value: Any, module: types.ModuleType, generator: type) -> bool:
    return value is module or isinstance(getattr(value, "__self__", None), generator)


def _is_module(operation: Operation) -> bool:
    return isinstance(operation, transforms.ModuleWrapper)


def is_ffcvs(operation: Operation) -> bool:
    """Return whether an operation is one of FFCV's own."""
    return type(operation).__module__.startswith("ffcv.")


def _generated_by(operation: Operation, kind: type) -> bool:
    """Return whether an operation, or the class it inherits from, generates the code of a class of FFCV."""
    return isinstance(operation, kind) and type(operation).generate_code is kind.generate_code  # type: ignore[attr-defined]


def per_sample(operation: Callable[..., Any], buffers: int, salt: int, *, few: bool) -> Any:
    """Make a transform seed the generator before each sample.

    Args:
        operation: the result of `generate_code`.
        buffers: how many arrays of memory it needs.
        salt: number of the operation; 64 bits.
        few: whether it is known to use only a few random numbers per sample.

    Returns:
        A function of `(input, memory, keys, indices)` that returns the operation's result for the last sample.
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
    """Make an operation seed the generator once, and process the samples one after another.

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
def mixed(key: Any, salt: Any) -> Any:
    """Mix a key with the number of the operation (SplitMix64's finaliser)."""
    z = np.uint64(key) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _seeder(function: Callable[..., Any], *, few: bool = False) -> Any:
    if draws_from_python(function):
        return _seed_both
    return _seed_few if few else _seed_numpy


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _seed_numpy(key: Any) -> None:
    seed_generator(key)


_PYTHON = np.uint64(0x9E3779B97F4A7C15)  # makes the numbers of the two generators differ


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _seed_both(key: Any) -> None:
    seed_generator(key)
    seed_python_generator(key ^ _PYTHON)


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _seed_few(key: Any) -> None:
    seed_generator_for_few(key)


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _check_nothing() -> None:
    pass


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def _check_few() -> None:
    if words_drawn() > FEW:
        raise ValueError(_TOO_MANY)


_TOO_MANY = (
    "an FFCV operation used more than 128 random words for one sample, although it was known to use fewer.\n"
    "No key determines the words after that, so augmentations could not be reproduced. Pass "
    'keyed={TheOperation: "batch"} to source().'
)


def _caller(inner: Any, *, indices: bool) -> Any:
    if indices:
        return inner

    def call(images: Any, memory: Any, indices: Any) -> Any:  # noqa: ARG001  # one signature for both
        return inner(images, memory)

    return njit(call)


_MOST_BUFFERS = 2


def _rows(buffers: int) -> Any:
    if buffers > _MOST_BUFFERS:
        raise UnsupportedError(
            f"an operation needs {buffers} arrays of memory, but at most {_MOST_BUFFERS} are supported with keys per "
            "sample.\nThe random numbers of its samples could not be separated. Pass "
            'keyed={TheOperation: "batch"} to source().'
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


# Numba keeps a Mersenne Twister for each thread, which `np.random` uses in compiled code. `np.random.seed` would fill
# its 624 words one after another, mix them all again before the first number, and use only 32 bits of a key. Here, each
# word is a hash of the key and the word's number. The words can be computed in parallel and are used unmixed, which is
# several times faster. Operations that are known to use few numbers get only the first words, which are the same.
WORDS = 624
FEW = 128  # words; a number takes one or two
_GOLDEN = 0x9E3779B9
# The hash is triple32 of Chris Wellons (https://github.com/skeeto/hash-prospector), with the key's high half mixed in.
_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))
_LAST_SHIFT = 14


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def seed_generator(typing_context: Any, key: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Seed this thread's `np.random` for compiled code with a uint64 key."""
    return numba_types.void(numba_types.uint64), partial(_fill, "np", WORDS)


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def seed_generator_for_few(typing_context: Any, key: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Seed only the first `FEW` words; `words_drawn` shows whether they were enough."""
    return numba_types.void(numba_types.uint64), partial(_fill, "np", FEW)


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def words_drawn(typing_context: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Return how many words this thread's `np.random` has used since it was seeded; int32, up to `WORDS`."""

    def drawn(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001  # Numba's
        return builder.load(randomimpl.get_index_ptr(builder, randomimpl.get_state_ptr(context, builder, "np")))

    return numba_types.int32(), drawn


@intrinsic  # type: ignore[untyped-decorator]  # Numba ships no types
def seed_python_generator(typing_context: Any, key: Any) -> Any:  # noqa: ARG001  # an intrinsic's signature
    """Seed this thread's `random` for compiled code, a separate generator, with a uint64 key."""
    return numba_types.void(numba_types.uint64), partial(_fill, "py", WORDS)


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
    """Compute the raw words that `seed_generator` writes into the generator, before tempering; for tests."""
    mask = np.uint64(0xFFFFFFFF)
    word = (np.arange(WORDS, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key & 0xFFFFFFFF)) & mask
    for number, (shift, factor) in enumerate(_ROUNDS):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor) & mask
        word = word ^ np.uint64(key >> 32) if number == 0 else word
    return word ^ (word >> np.uint64(_LAST_SHIFT))
