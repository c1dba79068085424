"""Read pickles, and the files of `torch.save` that contain them, without running anything.

Every class and function becomes a name, and every object a stand-in. The reader follows the opcodes as the standard
library lists them. It imports nothing and calls nothing in the pickle, so a malicious pickle is as safe to read as any
other. The functions below rebuild only tensors, ordered dicts, sizes, sets and bytes.

joblib, which saves scikit-learn's models, writes the numbers of an array between two opcodes, after the object that
represents it. They become one of its attributes.
"""

from __future__ import annotations

import base64
import io
import json
import math
import pickletools
import struct
import zipfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.values import DTYPES, Name, Opaque, Tensor
from resumable.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from numpy.typing import NDArray

__all__ = ["BUILDERS", "MOST_PACKED", "read_bare_pickle", "read_pickle", "read_torch_zip", "unpack"]


def read_torch_zip(file: BinaryIO) -> Any:
    """Return the content of a file of `torch.save`.

    Args:
        file: stays open as long as tensors may be read.

    Raises:
        CorruptCheckpointError: it is truncated or damaged.
        CheckpointError: it is a different kind of zip file.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, struct.error, EOFError, NotImplementedError) as error:
        raise CorruptCheckpointError(f"it starts as a zip file, but is truncated or damaged: {error}") from error
    names = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
    if not pickles:
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        held = ", ".join(list(names)[:_FEW]) or "nothing"
        raise CheckpointError(f"it is a zip file, but not from torch.save or NumPy: it contains {held}{more}")
    folder = pickles[0].removesuffix("data.pkl")
    order = ">" if f"{folder}byteorder" in names and _record(archive, f"{folder}byteorder") == b"big" else "<"
    read = partial(_data, archive, folder)
    return read_pickle(_record(archive, pickles[0]), lambda pid: _storage_of(pid, read, order))


_FEW = 3  # file names in a message


def _data(archive: zipfile.ZipFile, folder: str, key: str) -> bytes:
    return _record(archive, f"{folder}data/{key}")


def _record(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a record; the zip file verifies its checksum. PyTorch compresses none."""
    try:
        if (info := archive.getinfo(name)).compress_type != zipfile.ZIP_STORED:
            raise CorruptCheckpointError(f"its record {name} is compressed, which torch.save never does")
        return archive.read(info)
    except (
        KeyError,
        zipfile.BadZipFile,
        EOFError,
        ValueError,
        struct.error,
        RuntimeError,
        NotImplementedError,
    ) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CorruptCheckpointError(f"its record {name} is truncated or damaged: {error}") from error


def read_bare_pickle(file: BinaryIO) -> tuple[bool, Any]:
    """Return whether a pickle has the format of torch.save before the zip files, and its content.

    In a pickle of tensors that `pickle.dump` wrote, each storage is such a file, in bytes.

    Raises:
        CorruptCheckpointError: it is truncated or damaged.
    """
    return _read_older(io.BytesIO(file.read()), {**BUILDERS, "torch.storage._load_from_bytes": _of_bytes})


def _of_bytes(content: bytes) -> Any:
    is_file, value = _read_older(io.BytesIO(content), BUILDERS)
    if not is_file or not isinstance(value, _Storage):
        raise ValueError("no storage of torch")
    return value


_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of the older format
_PROTOCOL = 1001


def _read_older(content: io.BytesIO, builders: Mapping[str, Callable[..., Any]]) -> tuple[bool, Any]:
    first = read_pickle(content, builders=builders)
    if first != _MAGIC:
        return False, first
    if read_pickle(content, builders=builders) != _PROTOCOL:
        raise CorruptCheckpointError("it is a file of torch.save in an unknown format")
    read_pickle(content, builders=builders)  # describes the machine that wrote it; always the same
    kinds: dict[str, str] = {}
    where: dict[str, bytes] = {}
    value = read_pickle(content, partial(_older_storage, kinds, where), builders)
    for key in read_pickle(content, builders=builders):
        (count,) = struct.unpack("<q", content.read(8).ljust(8, b"\xff"))
        size = max(count, 0) * DTYPES[kinds.get(key, "uint8")][0]
        where[key] = content.read(size)
        if count < 0 or len(where[key]) != size:
            raise CorruptCheckpointError(f"its file ends inside the tensor {key}")
    return True, value


def _older_storage(kinds: dict[str, str], where: dict[str, bytes], pid: Any) -> _Storage | Opaque:
    found = _storage_of(pid, lambda key: where.get(key, b""), "<")
    if isinstance(found, _Storage):
        kinds[str(pid[2])] = found.dtype
    return found


# If only text or bytes can be stored, states are packed into a file of JSON, `torch.save` or pickle: for example in
# Hugging Face's `trainer_state.json`, or as one leaf of torch.distributed.checkpoint.
MOST_PACKED = 4  # levels of packed files
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_ENCODED = ("UEsDB", "gA")  # their first characters in base64


def unpack(value: Any) -> Any:
    """Return the dict or list packed into bytes or text; None if there is none. No code in it runs."""
    try:
        inside = _read(value)
    except (CheckpointError, ValueError, RecursionError):
        return None
    return inside if isinstance(inside, dict | list) else None


def _read(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_ENCODED):
        value = base64.b64decode(value, validate=True)
    if isinstance(value, str | bytes) and value[:1] in {"{", b"{", "[", b"["}:
        return json.loads(value)
    if not isinstance(value, bytes):
        return None
    if value.startswith(_ZIP):
        return read_torch_zip(io.BytesIO(value))
    return read_bare_pickle(io.BytesIO(value))[1] if value.startswith(_PICKLE) else None


_KINDS = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
_REPEATED = 4  # how often a tensor may repeat an element, apart from dimensions with stride 0


@dataclass(frozen=True, eq=False)
class _Storage:
    """The numbers of one or several tensors, which stay in the file.

    Args:
        dtype: type of its elements.
        read: returns its bytes.
        order: byte order, `"<"` or `">"`.
    """

    dtype: str
    read: Callable[[], bytes]
    order: str = "<"


def _storage_of(pid: Any, read: Callable[[str], bytes], order: str) -> _Storage | Opaque:
    """Resolve a persistent id of PyTorch: ("storage", kind, key, device, size)."""
    if isinstance(pid, tuple) and len(pid) > 2 and pid[0] == "storage" and isinstance(pid[1], Name):  # noqa: PLR2004
        dtype, key = _KINDS.get(pid[1].name), str(pid[2])
        if dtype is not None:
            return _Storage(dtype, lambda: read(key), order)
    return Opaque("reference", pid)


def _tensor(storage: Any, offset: int, shape: Any, stride: Any, *_: Any) -> Tensor:
    return _tensor_of(storage, storage.dtype, offset, shape, stride)


def _tensor_with_dtype(
    storage: Any, offset: int, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> Tensor:
    return _tensor_of(storage, dtype.name, offset, shape, stride)


def _tensor_of(storage: _Storage, dtype: str, offset: int, shape: Any, stride: Any) -> Tensor:
    if not isinstance(storage, _Storage):
        raise TypeError("no storage")
    shape, stride = tuple(shape), tuple(stride)
    numbers = (offset, *shape, *stride)
    if dtype not in DTYPES or len(shape) != len(stride) or not all(type(one) is int and one >= 0 for one in numbers):
        raise ValueError("no tensor")
    return Tensor(shape, dtype, lambda: _view(storage, dtype, offset, shape, stride))


def _view(storage: _Storage, dtype: str, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> NDArray[Any]:
    """Return a storage as a tensor. Dimensions with stride 0 are read once, and repeated without a copy."""
    size, name = DTYPES[dtype]
    raw = storage.read()
    flat = np.frombuffer(raw[: len(raw) // size * size], np.dtype(name).newbyteorder(storage.order))  # type: ignore[arg-type]
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    counted = [length for length, step in zip(shape, stride, strict=True) if step]
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    if last >= len(flat) or np.prod([float(one) for one in counted]) > _REPEATED * len(flat):
        raise CorruptCheckpointError(
            f"a tensor of shape {shape} needs {last + 1} elements, but its storage has {len(flat)}"
        )
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [step * size for step in stride], writeable=False)


def _from_type(build: Any, _type: Any, args: Any, *_: Any) -> Any:
    """Return the tensor that a subclass, or a tensor with attributes, is based on."""
    return BUILDERS[str(build)](*args)


def _first(value: Any, *_: Any) -> Any:
    return value


def _encoded(text: str, encoding: str) -> bytes:
    """Return the bytes that a pickle of protocol 2 writes as text."""
    if encoding not in {"latin1", "latin-1"}:
        raise ValueError("unknown encoding of bytes")
    return text.encode("latin-1")


def _ordered(*pairs: Any) -> dict[Any, Any]:
    return dict(*pairs)


def _default(_: Any = None, *pairs: Any) -> dict[Any, Any]:
    return dict(*pairs)


def _bytes_only(raw: bytes = b"") -> bytes:
    """Return the bytes of a bytearray; a number, which would create that many zeros, is rejected."""
    if not isinstance(raw, bytes):
        raise TypeError("no bytes")
    return raw


_BUILTINS: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (set, frozenset, list, tuple, dict, complex)},
    **dict.fromkeys(("bytes", "bytearray"), _bytes_only),
}
BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "torch.Size": tuple,
    "_codecs.encode": _encoded,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_with_dtype,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    **{f"{module}.{name}": build for module in ("builtins", "__builtin__") for name, build in _BUILTINS.items()},
}
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, MemoryError, RecursionError)


def read_pickle(
    data: Any,
    persistent: Callable[[Any], Any] = lambda pid: Opaque("reference", pid),
    builders: Mapping[str, Callable[..., Any]] = BUILDERS,
) -> Any:
    """Return the content of a pickle, with stand-ins for all objects.

    Args:
        data: bytes, or a file from which one pickle is read.
        persistent: resolves a persistent id.
        builders: from the name of a class or function to a function that rebuilds its objects.

    Raises:
        CorruptCheckpointError: it is not a pickle, truncated or damaged.
    """
    try:
        return _Machine(builders, persistent).run(data)
    except _DAMAGE as error:
        raise CorruptCheckpointError(f"its pickle is truncated or damaged: {type(error).__name__}: {error}") from error


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
    *("SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES"),
    *("BINBYTES8", "BYTEARRAY8"),
}
_IGNORED = {"PROTO", "FRAME"}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ARRAY_OF_JOBLIB = "joblib.numpy_pickle.NumpyArrayWrapper"


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self, builders: Mapping[str, Callable[..., Any]], persistent: Callable[[Any], Any]) -> None:
        self._builders, self._persistent = builders, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._file: Any = None

    def run(self, data: Any) -> Any:
        self._file = io.BytesIO(data) if isinstance(data, bytes) else data
        for code, arg, _ in pickletools.genops(self._file):
            name = code.name
            if name in _VALUES:
                self._stack.append(arg)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name in _EMPTY:
                self._stack.append(_EMPTY[name]())
            elif name == "STOP":
                return self._pop()
            elif name not in _IGNORED:
                self._step(name, arg)
        raise ValueError("it has no end")

    def _step(self, name: str, arg: Any) -> None:
        if name in _TUPLES:
            self._push(tuple(self._take(_TUPLES[name])))
        elif name in {"BINPUT", "LONG_BINPUT", "PUT"}:
            self._memo[arg] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in {"BINGET", "LONG_BINGET", "GET"}:
            self._push(self._memo[arg])
        elif (act := getattr(self, f"_{name.lower()}", None)) is not None:
            act(arg)
        else:
            raise ValueError(f"the opcode {name} is not allowed in a file")

    # ------------------------------------------------------------------ the stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self, _: Any = None) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("found a mark instead of a value")
        return value

    def _take(self, count: int) -> list[Any]:
        return [self._pop() for _ in range(count)][::-1]

    def _take_to_mark(self) -> list[Any]:
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _mark(self, _: Any) -> None:
        self._push(_MARK)

    def _pop_mark(self, _: Any) -> None:
        self._take_to_mark()

    def _dup(self, _: Any) -> None:
        self._push(self._stack[-1])

    # ------------------------------------------------------------------ containers

    def _tuple(self, _: Any) -> None:
        self._push(tuple(self._take_to_mark()))

    def _list(self, _: Any) -> None:
        self._push(self._take_to_mark())

    def _dict(self, _: Any) -> None:
        values = self._take_to_mark()
        self._push(dict(zip(values[::2], values[1::2], strict=True)))

    def _frozenset(self, _: Any) -> None:
        self._push(frozenset(self._take_to_mark()))

    def _append(self, _: Any) -> None:
        self._extend([self._pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._take_to_mark())

    def _extend(self, values: list[Any]) -> None:
        onto = self._stack[-1]
        (onto.items if isinstance(onto, Opaque) else onto).extend(values)

    def _additems(self, _: Any) -> None:
        values = self._take_to_mark()
        if isinstance(self._stack[-1], Opaque):
            self._stack[-1].items.extend(values)
        else:
            self._stack[-1].update(values)

    def _setitem(self, _: Any) -> None:
        key, value = self._take(2)
        self._set([key, value])

    def _setitems(self, _: Any) -> None:
        self._set(self._take_to_mark())

    def _set(self, values: list[Any]) -> None:
        onto = self._stack[-1]
        (onto.pairs if isinstance(onto, Opaque) else onto).update(zip(values[::2], values[1::2], strict=True))

    # ------------------------------------------------------------------ objects, which are never created

    def _global(self, arg: str) -> None:
        module, _, name = arg.partition(" ")
        self._push(Name(module, name))

    def _stack_global(self, _: Any) -> None:
        module, name = self._take(2)
        self._push(Name(str(module), str(name)))

    def _reduce(self, _: Any) -> None:
        what, args = self._take(2)
        self._push(self._build_of(what, args))

    def _newobj(self, _: Any) -> None:
        what, args = self._take(2)
        self._push(self._build_of(what, args))

    def _newobj_ex(self, _: Any) -> None:
        what, args, named = self._take(3)
        self._push(Opaque(str(what), (*args, named) if named else args))

    def _inst(self, arg: str) -> None:
        module, _, name = arg.partition(" ")
        self._push(Opaque(f"{module}.{name}", tuple(self._take_to_mark())))

    def _obj(self, _: Any) -> None:
        what, *args = self._take_to_mark()
        self._push(Opaque(str(what), tuple(args)))

    def _build(self, _: Any) -> None:
        state = self._pop()
        if isinstance(self._stack[-1], Opaque):
            self._stack[-1].state = state  # attributes of dicts and tensors are left out
            if self._stack[-1].kind == _ARRAY_OF_JOBLIB:
                kind, order = np.dtype(state["dtype"].args[0]), state.get("order")
                numbers = self._numbers(kind, state["shape"], aligned=bool(state.get("numpy_array_alignment_bytes")))
                self._stack[-1].state = {"dtype": kind.str, "shape": state["shape"], "order": order, "numbers": numbers}

    def _numbers(self, kind: np.dtype[Any], shape: tuple[int, ...], *, aligned: bool) -> Any:
        """Read the numbers that follow an object of joblib."""
        if kind.hasobject:
            return _Machine(self._builders, self._persistent).run(self._file)
        if aligned:
            self._file.read(self._file.read(1)[0])
        size = kind.itemsize * math.prod(shape)
        raw = self._file.read(size)
        if size < 0 or len(raw) < size:
            raise ValueError(f"expected {size} bytes of an array, found {len(raw)}")
        return raw

    def _build_of(self, what: Any, args: Any) -> Any:
        build = self._builders.get(str(what)) if isinstance(what, Name) else None
        if build is not None and isinstance(args, tuple):
            try:
                return build(*args)
            except (TypeError, ValueError, LookupError, AttributeError):
                pass  # unexpected arguments: not the class that its name says
        return Opaque(str(what) if isinstance(what, Name) else "call of an object", args)

    def _persid(self, arg: str) -> None:
        self._push(self._persistent(arg))

    def _binpersid(self, _: Any) -> None:
        self._push(self._persistent(self._pop()))

    def _ext1(self, arg: int) -> None:
        self._push(Name("extension", str(arg)))

    _ext2 = _ext4 = _ext1
