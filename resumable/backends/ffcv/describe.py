"""The identity of a pipeline: names of the operations, and a digest of their parameters."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ffcv.pipeline.graph import DecoderNode, RefNode
from ffcv.transforms import ModuleWrapper, ToDevice

from resumable._randomness.keyed import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ffcv.loader import Loader
    from ffcv.pipeline.operation import Operation

__all__ = ["describe_pipelines", "operations_of"]

_LONGEST = 300
_FFCVS_OWN = {"metadata", "memory_read", "field"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe_pipelines(loader: Loader) -> str:
    """Name the operations of each field, and digest their parameters; short enough for a state."""
    parts, state = dict[str, list[str]](), hashlib.blake2b(digest_size=8, person=b"resumable1")
    for name, _, operation in operations_of(loader):
        parts.setdefault(name, []).append(_name(operation))
        state.update(repr((name, _name(operation), list(_parameters(operation)))).encode())
    text = "; ".join(f"{name}: {' '.join(names)}" for name, names in parts.items())
    return f"{text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'} ({state.hexdigest()})"


def operations_of(loader: Loader) -> Iterator[tuple[str, int, Operation]]:
    """Yield the operations of each field with its name, and their numbers in it."""
    nodes = iter(loader.graph.nodes)
    for name, spec in loader.graph.pipeline_specs.items():
        for number in range(1 + len(spec.transforms)):
            yield name, number, _operation(next(nodes))


def _operation(node: Any) -> Operation:
    if isinstance(node, RefNode):
        return node.ref_operation
    return node.decoder if isinstance(node, DecoderNode) else node.operation


def _name(operation: Operation) -> str:
    named = operation.module if isinstance(operation, ModuleWrapper) else operation
    return type(named).__qualname__.removesuffix("RGBImageDecoder")


def _parameters(operation: Operation) -> Iterator[tuple[str, str]]:
    if isinstance(operation, ModuleWrapper):
        yield "module", _ADDRESS.sub("", repr(operation.module))
        yield from _attributes(operation.module)
        return
    for name, value in sorted(vars(operation).items()):
        if isinstance(operation, ToDevice) and name == "device":
            yield name, torch.device(value).type  # without the number, as each rank has its own GPU and all one state
            continue
        text = None if name in _FFCVS_OWN else _text(value)
        if text is not None:
            yield name, text


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the plain public attributes of a module and of those inside of it, which its `repr` may leave out."""
    for number, inner in enumerate(module.modules()):
        for name, value in sorted(vars(inner).items()):
            if not name.startswith("_") and name != "training" and (text := _text(value)) is not None:
                yield f"{number}.{name}", text


def _text(value: Any) -> str | None:
    """Return a plain value as text that is the same in every process; None for what is none."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        return None if array.dtype.hasobject else f"{array.dtype.str}{array.shape}{digest(array)}"
    if isinstance(value, (list, tuple)):
        return f"({','.join(str(_text(item)) for item in value)})"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, torch.device):
        return value.type
    plain = (bool, int, float, str, bytes, np.dtype, torch.dtype)
    return repr(value) if value is None or isinstance(value, plain) else None
