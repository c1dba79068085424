"""A reader of pickles that runs nothing: every class and function is a name, every object a stand-in.

It goes through the opcodes as the standard library lists them. Nothing is imported and nothing of the pickle is called,
whatever it asks for, so that a pickle made to do harm is as readable as any other. Tensors, ordered dicts, sizes, sets
and bytes are put together by the functions below, as they are known to mean what they say.

joblib, by which scikit-learn's models are saved, writes the numbers of an array between two opcodes, after the object
that stands for it. They become one of its attributes.
"""

from __future__ import annotations

import io
import math
import pickletools
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.values import Name, Opaque
from resumable.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Builders", "damaged_pickle", "read_pickle"]

if TYPE_CHECKING:
    Builders = Mapping[str, Callable[..., Any]]

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_SET": set}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
    *("SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES"),
    *("BINBYTES8", "BYTEARRAY8"),
}
_IGNORED = {"PROTO", "FRAME"}
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, MemoryError, RecursionError)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ARRAY_OF_JOBLIB = "joblib.numpy_pickle.NumpyArrayWrapper"


def read_pickle(
    data: Any, builders: Builders, persistent: Callable[[Any], Any] = lambda pid: Opaque("reference", pid)
) -> Any:
    """Return what a pickle says, with stand-ins for all objects.

    Args:
        data: bytes, or a file, of which one pickle is read.
        builders: of what is put together, by the names of the classes and functions that stand for it.
        persistent: gives what a persistent id stands for.

    Raises:
        CorruptCheckpointError: it is no pickle, cut or damaged.
    """
    try:
        return _Machine(builders, persistent).run(data)
    except _DAMAGE as error:
        raise damaged_pickle(error) from error


def damaged_pickle(error: Exception) -> CorruptCheckpointError:
    """Return the error for a pickle that cannot be read."""
    return CorruptCheckpointError(f"its pickle is cut or damaged: {type(error).__name__}: {error}")


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self, builders: Builders, persistent: Callable[[Any], Any]) -> None:
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
        else:
            getattr(self, f"_{name.lower()}", self._unknown(name))(arg)

    def _unknown(self, name: str) -> Callable[[Any], None]:
        def refuse(_: Any) -> None:
            raise ValueError(f"{name} has no meaning in a file")

        return refuse

    # ------------------------------------------------------------------ the stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self, _: Any = None) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark is where a value belongs")
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

    # ------------------------------------------------------------------ objects, of which none is made

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
        """Read the numbers that follow on an object of joblib's."""
        if kind.hasobject:
            return _Machine(self._builders, self._persistent).run(self._file)
        if aligned:
            self._file.read(self._file.read(1)[0])
        size = kind.itemsize * math.prod(shape)
        raw = self._file.read(size)
        if size < 0 or len(raw) < size:
            raise ValueError(f"{size} bytes of an array are to follow, and there are {len(raw)}")
        return raw

    def _build_of(self, what: Any, args: Any) -> Any:
        build = self._builders.get(str(what)) if isinstance(what, Name) else None
        if build is not None and isinstance(args, tuple):
            try:
                return build(*args)
            except (TypeError, ValueError, LookupError, AttributeError):
                pass  # other arguments than it has: no such thing
        return Opaque(str(what) if isinstance(what, Name) else "call of an object", args)

    def _persid(self, arg: str) -> None:
        self._push(self._persistent(arg))

    def _binpersid(self, _: Any) -> None:
        self._push(self._persistent(self._pop()))

    def _ext1(self, arg: int) -> None:
        self._push(Name("extension", str(arg)))

    _ext2 = _ext4 = _ext1
