"""source(), and the identity of an FFCV Loader: its file, its fields, and its operations with their parameters."""

from __future__ import annotations

import dis
import hashlib
import os
import re
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from ffcv.pipeline.graph import DecoderNode, RefNode
from ffcv.transforms import ModuleWrapper, ToDevice

from resumable._randomness.keyed import digest
from resumable.backends.ffcv.keyed import Mode
from resumable.errors import ConfigurationError, PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ffcv.loader import Loader
    from ffcv.pipeline.operation import Operation
    from ffcv.reader import Reader


__all__ = [
    "Settings",
    "Source",
    "describe_fields",
    "describe_pipelines",
    "fingerprint",
    "hash_content",
    "pages_of_samples",
    "source",
    "warn_of_batch",
]


_LONGEST = 300
_FFCVS_OWN = {"metadata", "memory_read", "field"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PROBES = 64
_PROBE = 4096
_BLOCK = 1 << 22
_NO_PAGE = -1
_WORK = ("accept_field", "accept_globals", "declare_shared_memory", "declare_state_and_memory", "forward",
         "generate_code", "generate_code_for_shared_state")  # fmt: skip
_NOT_OURS = {"device", "field", "memory_read", "metadata", "training"}  # the device differs on each rank
_OTHER = object()
_WHY: dict[Mode, str] = {
    "mixup": "mixes the samples of a batch",
    "batch": "uses random numbers and may mix the samples of a batch",
    "late": "uses random numbers where the batch is delivered",
}


def source(
    loader: Loader,
    *,
    keyed: bool | Mapping[type, Mode] = True,
    on_nondeterministic: Literal["error", "warn"] = "error",
    content_hash: bool = False,
    window: int | None = None,
) -> Source:
    """Set the options of an FFCV Loader that `wrap` does not have.

        loader = resumable.wrap(source(Loader(...), content_hash=True), seed=0)

    Args:
        loader: FFCV's; it is not modified.
        keyed: whether to make random operations reproducible. False is the same as `wrap(..., randomness="off")`: the
            order of the samples is exact, but their augmentation is up to FFCV. To set the mode of custom operations,
            pass a mapping from their types to "sample", "batch", "late" or "plain".
        on_nondeterministic: whether operations that cannot be made reproducible cause an error or a warning.
        content_hash: identify the file by all of its bytes, instead of its tables and 64 blocks of its content.
        window: number of pages that `OrderOption.QUASI_RANDOM` shuffles together; by default, twice the number of
            samples that all ranks read per step.

    Raises:
        ConfigurationError: an option has an invalid value.
    """
    modes = keyed if isinstance(keyed, Mapping) else {}
    for kind, mode in modes.items():
        if not isinstance(kind, type) or mode not in get_args(Mode) or mode == "mixup":
            raise ConfigurationError(
                f"keyed must map types of operations to sample, batch, late or plain, but it has {kind!r}: {mode!r}.\n"
                'Their randomness would not be handled as intended. Use for example keyed={MyFlip: "sample"}.'
            )
    if on_nondeterministic not in {"error", "warn"}:
        raise ConfigurationError(
            f"on_nondeterministic must be error or warn, but it is {on_nondeterministic!r}.\n"
            "It determines whether operations that cannot be made reproducible cause an error or a warning."
        )
    return Source(loader, keyed is not False, modes, on_nondeterministic, content_hash, window)


@dataclass(frozen=True)
class Source:
    """The result of `source`; pass it to `resumable.wrap`."""

    loader: Loader
    keyed: bool = True
    modes: Mapping[type, Mode] = field(default_factory=dict)
    on_nondeterministic: Literal["error", "warn"] = "error"
    content_hash: bool = False
    window: int | None = None


def describe_pipelines(loader: Loader) -> str:
    """Return the operations of each field, and a digest of their parameters; short enough for a state."""
    parts, state = dict[str, list[str]](), hashlib.blake2b(digest_size=8, person=b"resumable1")
    for name, _, operation in operations_of(loader):
        parts.setdefault(name, []).append(_name(operation))
        state.update(repr((name, _name(operation), list(_parameters(operation)))).encode())
    text = "; ".join(f"{name}: {' '.join(names)}" for name, names in parts.items())
    return f"{text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'} ({state.hexdigest()})"


def operations_of(loader: Loader) -> Iterator[tuple[str, int, Operation]]:
    """Yield the operations of each field: the field's name, the operation's number in it, and the operation."""
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
            yield name, torch.device(value).type  # without the number: each rank has its own GPU, but all share a state
            continue
        text = None if name in _FFCVS_OWN else _text(value)
        if text is not None:
            yield name, text


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the plain public attributes of a module and its submodules, which its `repr` may leave out."""
    for number, inner in enumerate(module.modules()):
        for name, value in sorted(vars(inner).items()):
            if not name.startswith("_") and name != "training" and (text := _text(value)) is not None:
                yield f"{number}.{name}", text


def _text(value: Any) -> str | None:
    """Return a plain value as text that is the same in every process; None for other values."""
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


def describe_fields(reader: Reader) -> str:
    """Return the names of the fields and their types."""
    return ", ".join(f"{name}: {type(handler).__name__}" for name, handler in reader.handlers.items())


def fingerprint(reader: Reader) -> str:
    """Return a digest of a .beton file: header, fields, metadata, allocation table, size, and 64 blocks of its content.

    The path and the time do not count, so copies are the same data. The content does: otherwise, a file with different
    images of the same size would look the same.
    """
    size = os.path.getsize(reader.file_name)  # noqa: PTH202  # a str
    state = hashlib.blake2b(f"{size}".encode(), digest_size=8, person=b"resumable1")
    for part in (reader.header, reader.field_descriptors, reader.metadata, reader.alloc_table):
        state.update(part.tobytes())
    with Path(reader.file_name).open("rb") as file:
        for place in np.linspace(0, max(size - _PROBE, 0), _PROBES).astype(np.int64).tolist():
            file.seek(place)
            state.update(file.read(_PROBE))
    return state.hexdigest()


def hash_content(name: str) -> str:
    """Return a digest of all bytes of a file, in about a second per gigabyte plus the time to read it."""
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    with Path(name).open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def pages_of_samples(reader: Reader) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the page of each sample in the file, the first page if there are several; -1 if it has no data."""
    pages = np.full(int(reader.num_samples), _NO_PAGE, np.int64)
    table = reader.alloc_table
    shift = np.uint64(int(reader.page_size).bit_length() - 1)
    pages[table["sample_id"][::-1].astype(np.int64)] = (table["ptr"][::-1] >> shift).astype(np.int64)
    return pages


class Settings:
    """The settings of all operations of a Loader, such as the size of the images, which users change between epochs.

    FFCV reads them from the operations when an epoch starts. Plain public attributes are settings, except those that an
    operation assigns while it works: these are its state. Changes since `wrap` become part of the loader's state.

    Args:
        loader: FFCV's, as passed to `wrap`.
    """

    def __init__(self, loader: Loader) -> None:
        self._owners = dict(_settings(loader))
        self._at_wrap = {key: getattr(*place) for key, place in self._owners.items()}
        self._plain = {key: _plain(value) for key, value in self._at_wrap.items()}

    def changed(self) -> dict[str, Any]:
        """Return the settings that have changed since `wrap`, by field, number of the operation, and attribute."""
        now = {key: _plain(getattr(owner, name, None)) for key, (owner, name) in self._owners.items()}
        return {key: value for key, value in now.items() if value is not _OTHER and value != self._plain[key]}

    def change(self, values: Mapping[str, Any]) -> None:
        """Apply the result of `changed`, and reset everything else to its value at `wrap`."""
        now = self.changed()
        for key, (owner, name) in self._owners.items():
            if key in values:
                if now.get(key, self._plain[key]) != values[key]:
                    setattr(owner, name, _like(self._at_wrap[key], values[key]))
            elif key in now:
                setattr(owner, name, self._at_wrap[key])


def _settings(loader: Loader) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield the key of each setting, with the object and the attribute that hold it."""
    for name, number, operation in operations_of(loader):
        if isinstance(operation, ToDevice):
            continue
        if isinstance(operation, ModuleWrapper):
            owners = [(f"{name}.{number}.{inner}", one) for inner, one in enumerate(operation.module.modules())]
        else:
            owners = [(f"{name}.{number}", operation)]
        for prefix, owner in owners:
            own = _NOT_OURS | _assigned(type(owner))
            for attribute, value in vars(owner).items():
                if not attribute.startswith("_") and attribute not in own and _plain(value) is not _OTHER:
                    yield f"{prefix}.{attribute}", (owner, attribute)


def _assigned(kind: type) -> frozenset[str]:
    """Return the attributes that a class assigns while it works: in its working methods, and those that they call."""
    found, waiting, seen = set[str](), list(_WORK), set[str]()
    while waiting:
        name = waiting.pop()
        method = getattr(kind, name, None)
        if name in seen or not isinstance(method, types.FunctionType):
            continue
        seen.add(name)
        for code in _codes(method.__code__):
            found.update(str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
            waiting += code.co_names
    return frozenset(found)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _plain(value: Any) -> Any:
    """Return a value as JSON would return it; `_OTHER` if it is not plain."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (tuple, list)):
        values = [_plain(one) for one in value]
        return _OTHER if _OTHER in values else values
    plain = value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value))
    return value if plain else _OTHER


def _like(model: Any, value: Any) -> Any:
    """Return a plain value, with tuples if the value at `wrap` had them."""
    if not isinstance(value, list):
        return value
    if isinstance(model, list):
        return [_like(model[0] if model else None, one) for one in value]
    return tuple(_like(None, one) for one in value)


def warn_of_batch(name: str, mode: Mode, stacklevel: int = 2) -> None:
    """Warn that the random numbers of an operation belong to the batch.

    Args:
        name: of the operation's class.
        mode: see `plan_for`.
        stacklevel: frames from the caller of this function to the code that the warning is about.
    """
    way_out = (
        ""
        if mode == "late"
        else (
            " If the operation handles each sample separately, declare that: "
            f'wrap(source(loader, keyed={{{name}: "sample"}})), with source from resumable.backends.ffcv.'
        )
    )
    warnings.warn(
        f"{name} {_WHY[mode]}, so its randomness is per batch: it resumes exactly, but changes with the batch size and "
        f'the number of ranks.\nPass wrap(..., randomness="batch") to accept this.{way_out}',
        PromiseWarning,
        stacklevel=stacklevel + 1,
    )
