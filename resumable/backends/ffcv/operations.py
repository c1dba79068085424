"""Which operations of a pipeline are random, and how the randomness of each is made a function of keys.

mode     what is done                                                             exact on any batch size and ranks
plain    nothing: it is not random                                                yes
sample   the generator is seeded before each sample                               yes
batch    the generator is seeded once per batch, for one thread                   no
mixup    FFCV's mixup: its proportions come from the key of the batch             no
late     it runs where the batch is delivered, on global generators             no, if it is random
         that are seeded once per batch and put back afterwards
"""

from __future__ import annotations

import random
import types
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from ffcv import transforms
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder, ResizedCropRGBImageDecoder
from ffcv.pipeline.graph import DecoderNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ffcv.pipeline.operation import Operation

__all__ = ["Mode", "Plan", "draws", "draws_few", "draws_from_python", "is_ffcvs", "own_generators", "plan_for"]

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


class Plan(NamedTuple):
    """What is done about an operation; `known` tells that its randomness is FFCV's or none, or was told by the user."""

    mode: Mode
    known: bool = True


def plan_for(node: Any, operation: Operation, code: Any, told: Mapping[type, Mode]) -> Plan:
    """Decide about an operation.

    Args:
        node: of FFCV's graph.
        operation: its decoder or transform.
        code: what `generate_code` returned.
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


def draws_few(operation: Operation) -> bool:
    """Return whether an operation is known to draw a few numbers per sample: at most 44 words, for ten tries of a crop.

    What is drawn until it is below a bound, as a cutout's place is, takes each word after the second with half the
    chance of the one before. That was measured for one version of FFCV.
    """
    return type(operation) in {*_RANDOM, RandomResizedCropRGBImageDecoder} and version("ffcv") == _MEASURED


def own_generators(operation: Operation, code: Any) -> list[str]:
    """Name the random generators that an operation keeps for itself, whose state no key can set."""
    owners = [operation, *(operation.module.modules() if _is_module(operation) else ())]
    values = [(name, value) for owner in owners for name, value in vars(owner).items()]
    cells = getattr(code, "__closure__", None) or ()
    values += zip(getattr(code, "__code__", code).co_freevars, (cell.cell_contents for cell in cells), strict=False)
    return sorted({name for name, value in values if isinstance(value, _GENERATORS)})


def draws(function: Any) -> bool:
    """Return whether a function that Numba compiles, or one that it calls, draws from `np.random` or `random`."""
    return any(_belongs_to(value, np.random, np.random.RandomState) for value in _reached(function, set())) or (
        draws_from_python(function)
    )


def draws_from_python(function: Any) -> bool:
    """Return whether it, or one that it calls, draws from `random`, which compiled code does apart from `np.random`."""
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
    """Return whether an operation's code is that of a class of FFCV, also in a subclass."""
    return isinstance(operation, kind) and type(operation).generate_code is kind.generate_code  # type: ignore[attr-defined]
