"""Canary: a digest of one element. With it, a resumed run checks whether the source continues with the same elements.

It covers the structure of the element and at most 4 kB of its bytes, so it costs a few µs, or up to a millisecond for a
table or an image. Arrays on other devices than the CPU, and objects that show no content, count only with their type
and shape. So a canary never rejects a correct source, and different elements rarely have the same one.

Content of these types is digested:

- numbers, texts, bytes, dates, enums; of a path, the name
- lists, tuples, deques, dicts; sets, in any order
- NumPy arrays, also of objects; PyTorch's tensors of any layout; any object with `__array__` or `__dlpack__`, such as
  an image of PIL
- tables, series and indices of pandas; tables, batches, arrays and scalars of Arrow
- the fields of dataclasses, and the attributes of other objects. Computed attributes, such as a `cached_property`,
  and cached hash values are left out, because they come and go.

Digests that earlier versions made are still compared: a digest that covers a type that they did not read starts with
`2:`. If the digest of a state does not, the element is digested as they did.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import hashlib
import pathlib
import sys
import types
import uuid
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._content.arrays import Array, has_plain_numbers, of_tensor
from resumable._content.elements import spread
from resumable._content.leaves import digest_text, excerpt, walk
from resumable._introspection import (
    ask,
    attributes_of,
    has,
    is_exactly,
    members_of,
    module_of,
    mro_of,
    package_of,
    qualname_of,
    survive,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Read = tuple[Iterable[bytes], Sequence[tuple[str, Any]]]  # leaves of a part, and the parts in it

__all__ = ["END", "Canary"]

END = "end"  # instead of a digest: the epoch ends here
_BYTES = 4096  # of all leaves together
_LEAVES = 256
_BLOCKS = 16  # of a large array, spread over it: many images start with a black border
_ROWS = 64  # of a table or an array of objects, spread over it
_COLUMNS = 32
_IN_SETS = 1024  # elements of a set and of sets inside it; if there are more, only its length counts
_PLAIN_IN_SET = 1 << 16  # the same for a set of numbers and texts
_DEEPEST = 8  # sets inside sets
_MOST_BYTES = 1 << 26  # to copy out of an object with `__array__`, which may be a file
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_PATHS = {"__url__", "__local_path__"}  # WebDataset's keys for the location of a sample's file, which may change
_KEY = "key"  # the path of a dict's keys, which do not count as content
_NEW = "2:"
_SHOWN = (dt.date, dt.time, dt.timedelta, uuid.UUID, range, slice)  # with a full `repr`
_SHOWN_MODULES = {"decimal", "fractions"}  # so are their classes; importing them takes time
_LISTS: tuple[type, ...] = (collections.deque, type({}.keys()), type({}.values()), type({}.items()))
_LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "torch"}) - {"__main__"}
_HOLDERS = frozenset({"types", "argparse", "collections"})  # modules of these whose objects are data of users
_CPU = 1  # in DLPack


class Canary:
    """Digest of an element: computed when it is needed, or immediately if the element can be changed.

    Args:
        element: yielded by a source.
    """

    __slots__ = ("_digest", "_element", "_pending", "after", "unseen")

    def __init__(self, element: Any) -> None:
        self.after: list[str] = []  # digests of the elements after it, as far as they are known, and END
        self._pending = issubclass(type(element), _PLAIN)
        self._element = element if self._pending else None
        self._digest, self.unseen = (None, None) if self._pending else _digest(element)

    @classmethod
    def known(cls, digest: str) -> Canary:
        """Return the canary of an element from a different run.

        Args:
            digest: as `text`.
        """
        canary = cls(None)
        canary._pending, (canary._digest, *canary.after) = False, digest.split(",")
        return canary

    @property
    def text(self) -> str | None:
        """The digests of the element and of those after it, separated by commas; None if there is none."""
        return None if self.digest is None else ",".join([self.digest, *self.after])

    def differs_after(self, elements: Sequence[Any]) -> int | None:
        """Return the index of the first element that cannot be one of those after this one; None if all may be.

        Args:
            elements: as many as are known, or fewer if the epoch ends before.
        """
        for number, digest in enumerate(self.after):
            ended = number >= len(elements)
            if not digest and not ended:  # an element that cannot be digested
                continue
            if ended != (digest == END) or not (ended or Canary.known(digest).fits(elements[number])):
                return number
        return None

    @property
    def digest(self) -> str | None:
        """16 hexadecimal digits, some after a version; None if the element cannot be digested."""
        if self._pending:
            (self._digest, _), self._pending = _digest(self._element), False
            self._element = None
        return self._digest

    def fits(self, element: Any) -> bool:
        """Return whether an element may be the one that this canary was made from."""
        known, (now, _) = self.digest, _digest(element)
        if known is not None and now is not None and now.startswith(_NEW) and not known.startswith(_NEW):
            now, _ = _digest(element, old=True)
        return None in (now, known) or now == known


def _digest(element: Any, *, old: bool = False) -> tuple[str | None, str | None]:
    """Return the digest of an element, and the type of which nothing is compared, if there is only that."""
    reader = _Reader(old=old)
    digest = survive("an element of the source", lambda: _digested(element, reader), None)
    if digest is None:
        return None, qualname_of(type(element))
    return digest, None if reader.has_content else reader.unseen


def _digested(element: Any, reader: _Reader) -> str:
    whole = hashlib.blake2b(digest_size=8, person=b"canary1")
    room = _BYTES
    for count, (_, part) in enumerate(walk(element, reader.read)):
        if count > _LEAVES or room <= 0:
            break
        whole.update(b"%d:" % len(part) + part[:room])
        room -= len(part)
    return (_NEW if reader.is_new else "") + whole.hexdigest()


class _Name(str):
    """A text that does not count as content, such as the name of an attribute."""

    __slots__ = ()


class _TooManyError(Exception):
    """A set is too large, or lies too deep in sets."""


class _Reader:
    """Reads one element for `walk`: the structure of each value and samples of its bytes.

    `is_new` says whether it has read a type that earlier versions did not, `has_content` whether anything but types and
    shapes, and `unseen` is the first type that showed no content.

    Args:
        old: read as earlier versions did.
        sets: how many sets are around the element.
        room: how many elements of these sets may still be read.
    """

    def __init__(self, *, old: bool = False, sets: int = 0, room: Iterator[int] | None = None) -> None:
        self._old, self._sets, self._room, self.is_new, self.has_content = old, sets, room, False, False
        self.unseen: str | None = None

    def read(self, path: str, value: Any, _depth: int) -> Read:
        """Read a value. At most `_LEAVES` parts are read."""
        kind = type(value)
        found: Read
        if issubclass(kind, (np.ndarray, np.generic)):
            found = self._array(np.asarray(value))
        elif _is_tensor(value):
            found = self._tensor(value)
        elif issubclass(kind, (str, bytes, bytearray)):
            self.has_content |= path != _KEY and kind is not _Name
            found = (b"text %d" % len(value), excerpt(value)), ()
        elif issubclass(kind, _PLAIN):
            self.has_content |= path != _KEY
            found = (f"{kind.__name__} {value!r}".encode(),), ()
        elif issubclass(kind, dict):
            items = [((_KEY, key), ("", inner)) for key, inner in islice(value.items(), _LEAVES)]
            found = (
                (b"dict %d" % len(value),),
                [one for pair in items for one in pair[: 1 if pair[0][1] in _PATHS else 2]],
            )
        elif issubclass(kind, (list, tuple)):
            found = (b"list %d" % len(value),), [("", part) for part in islice(value, _LEAVES)]
        elif issubclass(kind, (set, frozenset)) and not self._old:
            found = self._seen(f"{qualname_of(kind)} of {len(value)}", self._of_set(value))
        else:
            found = self._other(value)
        return found

    def _array(self, array: np.ndarray[Any, Any]) -> Read:
        if array.dtype.hasobject and not self._old:
            some = array.reshape(-1)[spread(array.size, _ROWS)].tolist()
            return self._seen(f"array {array.dtype.str} {array.shape}", some)
        self.has_content |= not array.dtype.hasobject
        return _array(array), ()

    def _of_set(self, value: Any) -> list[_Name]:
        """Return the digests of the elements, which have no order."""
        room = iter(range(_IN_SETS)) if self._room is None else self._room
        digests = list[_Name]()
        if len(value) <= _PLAIN_IN_SET and all(is_exactly(one, _PLAIN) for one in value):  # in a tenth of the time
            self.has_content |= len(value) > 0
            return [_Name(digest_text(repr(sorted(map(repr, value)))))]
        for one in value:
            if self._sets >= _DEEPEST or next(room, None) is None:
                return self._without_elements()
            inner = _Reader(sets=self._sets + 1, room=room)
            try:
                digests.append(_Name(_digested(one, inner)))
            except _TooManyError:
                return self._without_elements()
            self.has_content |= inner.has_content
            self.unseen = self.unseen or inner.unseen
        return sorted(digests)

    def _without_elements(self) -> list[_Name]:
        """Return nothing for the outermost set: what fits into the limits depends on the order of a set."""
        if self._sets:
            raise _TooManyError
        return []

    def _other(self, value: Any) -> Read:
        name = qualname_of(type(value))
        found = None if self._old else survive(f"an element's {name}", lambda: _of_other(value), None)
        if found is not None:
            return self._seen(name, found)
        self.unseen = self.unseen or name
        return (name.encode(),), ()

    def _seen(self, name: str, parts: Sequence[Any]) -> Read:
        self.is_new = True
        return (name.encode(),), [("", part) for part in parts]

    def _tensor(self, value: Any) -> Read:
        if self._old and value.is_nested:
            raise TypeError("the sizes in the digests of nested tensors of earlier versions were counted per process")
        if self._old:
            return _tensor(value), ()
        plain = not value.is_nested and has_plain_numbers(value)
        leaves = survive(None, lambda: list(_tensor(value)), None) if plain else None
        if leaves is not None:
            self.has_content = True
            return leaves, ()
        if value.device.type != "cpu":
            self.unseen = self.unseen or f"{qualname_of(type(value))} on {value.device.type}"
            return _tensor(value), ()
        found = of_tensor(sys.modules["torch"], value)
        inner = [found.values] if isinstance(found, Array) else found.values() if isinstance(found, dict) else found
        return self._seen(f"tensor {value.dtype} {value.layout}", list(inner))


def _of_other(value: Any) -> Sequence[Any] | None:
    """Return the content of a value of any other type as values of known types; None if it shows none."""
    kind = type(value)
    modules = {package_of(base) for base in mro_of(kind)}
    found: Sequence[Any] | None = None
    if issubclass(kind, (enum.Enum, pathlib.PurePath)):
        found = [value.name]  # of a path only the name, as its folder may be moved
    elif issubclass(kind, _SHOWN) or module_of(kind) in _SHOWN_MODULES:
        found = [repr(value)]
    elif issubclass(kind, memoryview):
        found = [bytes(value)]
    elif issubclass(kind, _LISTS):
        found = [_Name(len(value)), *islice(value, _LEAVES)]
    elif issubclass(kind, types.MappingProxyType):
        found = [dict(value)]
    elif "pandas" in modules:
        found = _of_pandas(value)
    elif "pyarrow" in modules:
        found = _of_arrow(value)
    if found is None and (array := _as_array(value)) is not None:
        found = [_Name(ask(value, "mode", "")), array]  # the mode of an image
    return _of_object(value, kind) if found is None else found


def _of_pandas(value: Any) -> list[Any] | None:
    pandas: Any = sys.modules["pandas"]
    if isinstance(value, pandas.DataFrame):
        few = value.take(spread(len(value), _ROWS))
        columns = [few.iloc[:, place].array for place in spread(few.shape[1], _COLUMNS)]
        return [value.shape, np.asarray(value.columns), np.asarray(few.index), *map(np.asarray, columns)]
    if isinstance(value, pandas.Series):
        few = value.take(spread(len(value), _ROWS))
        return [len(value), value.name, np.asarray(few.index), str(value.dtype), np.asarray(few.array)]
    if isinstance(value, pandas.Index):
        return [len(value), str(value.dtype), np.asarray(value.take(spread(len(value), _ROWS)))]
    return None


def _of_arrow(value: Any) -> list[Any] | None:
    arrow: Any = sys.modules["pyarrow"]
    if isinstance(value, (arrow.Table, arrow.RecordBatch)):
        columns = [value.column(place) for place in spread(value.num_columns, _COLUMNS)]
        return [value.num_rows, value.schema.names, *columns]
    if isinstance(value, (arrow.Array, arrow.ChunkedArray)):
        nested = arrow.types.is_nested(value.type)
        some = [value[place] for place in spread(len(value), _ROWS)]
        return [len(value), str(value.type), *(some if nested else [repr([_excerpt_of(one.as_py()) for one in some])])]
    if isinstance(value, arrow.Scalar) and value.is_valid and has(type(value), "values"):
        return [*value.values()] if callable(value.values) else [value.values]  # of a struct, or of a list
    if isinstance(value, arrow.Scalar):
        return [value.as_py()]
    return [value.to_pybytes()] if isinstance(value, arrow.Buffer) else None


def _excerpt_of(value: Any) -> Any:
    """Return a value, or an excerpt of a text."""
    return excerpt(value) if isinstance(value, (str, bytes)) else value


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an object that shows its numbers as an array; None if it does not, or not without much work."""
    kind = type(value)
    arrays = has(kind, "__array__") or has(kind, "__array_interface__") or issubclass(kind, bytearray)
    if not arrays and not has(kind, "__dlpack__"):  # first, as only an array is asked for its size
        return None
    size = ask(value, "nbytes")
    if type(size) is int and size > _MOST_BYTES:
        return None
    if arrays:
        return np.asarray(value)
    if value.__dlpack_device__()[0] == _CPU:
        return np.from_dlpack(value)
    return None


def _of_object(value: Any, kind: type) -> list[Any] | None:
    """Return the attributes of an object with their names; None if it has none, or is not data."""
    if package_of(kind) in _LIBRARIES and module_of(kind) not in _HOLDERS:
        return None
    if issubclass(kind, type) or has(kind, "__next__"):
        return None
    if dataclasses.is_dataclass(kind):
        found = {field.name: ask(value, field.name) for field in dataclasses.fields(kind)}
    else:
        found, computed = dict(attributes_of(value)), set[str]()
        for known in map(members_of, mro_of(kind)):
            for name, member in known.items():
                if type(member) is types.MemberDescriptorType and "__slots__" in known:
                    found[name] = survive(None, partial(member.__get__, value), None)
                elif has(type(member), "__get__"):
                    computed.add(name)
        found = {name: one for name, one in found.items() if name not in computed and not str(name).endswith("hash")}
    return [part for name in sorted(found, key=str) for part in (_Name(name), found[name])] or None


def _array(values: np.ndarray[Any, Any]) -> Iterator[bytes]:
    yield f"array {values.dtype.str} {values.shape}".encode()
    if values.dtype.hasobject:
        return
    size, width = values.size, max(1, _BYTES // 4 // max(1, values.itemsize))
    if size <= width:
        yield values.tobytes()
        return
    block = max(1, width // _BLOCKS)
    starts = [number * (size - block) // (_BLOCKS - 1) for number in range(_BLOCKS)]
    if values.flags.c_contiguous:
        flat = values.reshape(-1)
        yield b"".join(flat[start : start + block].tobytes() for start in starts)
    else:
        yield values.flat[[start + one for start in starts for one in range(block)]].tobytes()


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.Tensor)


def _tensor(value: Any) -> Iterator[bytes]:
    yield f"tensor {value.dtype} {tuple(value.shape)} {value.layout}".encode()
    if has_plain_numbers(value):
        torch: Any = sys.modules["torch"]
        plain = value.detach()
        yield from _array((plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy())
