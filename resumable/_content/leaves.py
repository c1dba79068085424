"""Splits nested objects into their leaves. The leaves of equal values are the same in every process."""

from __future__ import annotations

import copyreg
import datetime as dt
import enum
import json
import pathlib
import random
import re
import sys
import types
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from resumable._content.arrays import Array, of_numpy, of_tensor
from resumable._introspection import in_words, is_exactly, module_of, qualname_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Opened = Callable[[Any], Any]

__all__ = [
    "UNCOMPARED",
    "Text",
    "Uncompared",
    "digest_of",
    "dotted",
    "excerpt",
    "leaves_of",
    "parts_of",
    "step",
    "text_of",
    "walk",
]

UNCOMPARED = "not compared: "
_MOST = 100_000  # leaves to list
_DEEPEST = 200
_LEVELS = 2  # top levels whose parts are listed if there are too many leaves
_ROOT = "content"
_LONGEST = 40  # characters of a value that is its own text
_EXCERPT = 2048  # characters of a long text that element digests cover
_LARGEST = 1 << 256  # limit of numbers that are written out
_BARE = re.compile(r'(?!-?\d+\Z)[^\s."]+')
_PROTOCOL = 4
_REDUCERS = "__reduce__", "__reduce_ex__"
_EXACT = (int, float, str, bool, type(None), bytes, complex, type(...), range)  # their built-in `repr` is complete
_SCALARS = (type(None), bool, int, float, complex, str)
_SCALAR_IDS = frozenset(map(id, _SCALARS))
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_ARRAYS = "__array__", "__array_interface__"
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType, type)
_BASES = (bool, int, float, complex, str, bytes)
_SHOWN = (  # types with a complete `repr`
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, pathlib.PurePath, uuid.UUID, np.dtype, type(NotImplemented)),
)


class Text(str):
    """Text of a value that has no parts."""

    __slots__ = ()


class Uncompared(Text):
    """Text of a value that is not compared, with the reason."""

    __slots__ = ()

    def __new__(cls, why: str) -> Self:
        return super().__new__(cls, f"{UNCOMPARED}{why}")

    @property
    def why(self) -> str:
        """The reason."""
        return self.removeprefix(UNCOMPARED)


class Whole(NamedTuple):
    """A container that is a single leaf, because its parts have no names.

    Args:
        name: the start of its text.
        parts: of any kind.
        ordered: whether their order counts.
    """

    name: str
    parts: tuple[Any, ...]
    ordered: bool = True

    def text(self, texts: list[str]) -> Text:
        """Return the leaf; each part already has a text."""
        return Text(f"{self.name}: {digest_text(repr(texts if self.ordered else sorted(texts)))}")


def walk(
    content: Any,
    read: Callable[[Any, Any, int], tuple[Iterable[Any], Sequence[tuple[Any, Any]]]],
    *,
    path: Any = "",
    depth: int = 0,
) -> Iterator[tuple[Any, Any]]:
    """Walk through nested parts in order, at any depth, and yield path and leaf.

    Args:
        content: of any kind.
        read: called with path, value and depth of each part; returns its own leaves, and path and value of each part
            inside it.
        path: of the content.
        depth: of the content.
    """
    waiting = [(path, content, depth)]
    while waiting:
        path, value, depth = waiting.pop()
        leaves, parts = read(path, value, depth)
        for leaf in leaves:
            yield path, leaf
        if parts:
            waiting += [(*part, depth + 1) for part in reversed(parts)]


def parts_of(content: Any, opened: Opened | None = None, more: Callable[[Any], str] | None = None) -> dict[str, str]:
    """Return a dict from the dotted path of each part of nested objects to its text.

    Parts are bit-identical if their texts are the same. A short plain value is its own text. A tensor or an array has
    type, shape and digest. A list of plain values is one part, with its length and a digest. The text of a part that is
    not compared starts with `not compared` and says why.

    Args:
        content: of a checkpoint: tensors, arrays, plain values and objects.
        opened: returns a replacement for each part on the way down.
        more: returns a suffix for the text of a leaf.
    """
    found: dict[str, str] = {}
    for path, leaf in _leaves(content, lists=True, opened=opened):
        name, text = path or _ROOT, text_of(leaf) + (more(leaf) if more else "")
        found[name] = digest_text(f"{found[name]}\n{text}") if name in found else text  # keys that look the same
    return found


def digest_of(content: Any) -> str:
    """Digest everything in nested objects."""
    return digest_text(repr([(path, text_of(leaf)) for path, leaf in leaves_of(content, lists=True)]))


def leaves_of(content: Any, *, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of each part without parts; the path of the content itself is empty.

    Values are Python's built-in numbers, texts and bytes, `Array`, or a `Text` for any other value: `Uncompared` for
    one that could not be read.

    Args:
        content: of any kind.
        lists: whether a list of numbers and texts is one leaf.
    """
    return iter(_leaves(content, lists=lists))


class _TooManyError(Exception):
    """There are too many leaves to list."""


def _leaves(content: Any, *, lists: bool, opened: Opened | None = None) -> Iterable[tuple[str, Any]]:
    """Return the leaves; if there are too many, only the top two levels, with each container as one leaf."""
    try:
        return list(walk(content, _Reader({}, iter(range(_MOST)), lists=lists, opened=opened)))
    except _TooManyError:
        return _Shared(_MOST, lists=lists, opened=opened).leaves(content)


class _Reader:
    """Reads the parts of one content for `walk`.

    Args:
        above: the containers around a part.
        left: an item for each part that may still be read.
        lists: whether a list of numbers and texts is one leaf.
        opened: returns a replacement for each part on the way down.
    """

    def __init__(
        self, above: dict[int, Any], left: Iterator[int], *, lists: bool, opened: Opened | None = None
    ) -> None:
        self._above, self._left, self._lists, self._opened = above, left, lists, opened

    def __call__(self, path: str, value: Any, depth: int) -> tuple[tuple[Any, ...], Sequence[tuple[str, Any]]]:
        above = self._above
        while len(above) > depth:
            above.popitem()
        if next(self._left, None) is None:
            raise _TooManyError
        if id(value) in above:
            return (Text(f"what holds it, {len(above) - list(above).index(id(value))} above"),), ()
        found = take(self._opened(value) if self._opened else value, lists=self._lists)
        if not isinstance(found, (list, Whole)):
            return (found,), ()
        if len(above) >= _DEEPEST:
            return (Uncompared(f"it lies {_DEEPEST} levels deep"),), ()
        above[id(value)] = value  # a reference, so no new object gets its id
        if isinstance(found, Whole):
            return (self._text(found),), ()
        return (), [(f"{path}.{step}", part) for step, part in found] if path else found

    def _text(self, whole: Whole) -> Text:
        read, depth = _Reader(self._above, self._left, lists=True), len(self._above)
        inner = (walk(part, read, depth=depth) for part in whole.parts)
        return whole.text([repr([(path, text_of(leaf)) for path, leaf in leaves]) for leaves in inner])


class _Shared:
    """Splits a content that has more leaves than can be listed, for example because it holds the same parts many times.

    Thirty lists, each of which holds the previous one twice, have a billion leaves. Each container is read once, and
    its digest depends only on its parts, whether it occurs once or is shared.

    Args:
        most: leaves of a container that is listed leaf by leaf.
        lists: whether a list of numbers and texts is one leaf.
        opened: returns a replacement for each part on the way down.
    """

    def __init__(self, most: int, *, lists: bool, opened: Opened | None = None) -> None:
        self._most, self._lists, self._opened = most, lists, opened
        self._known: dict[int, tuple[Any, int, str]] = {}  # by id: the container (keeps the id valid), leaves, digest
        self._parts: dict[int, Any] = {}

    def leaves(self, content: Any) -> Iterator[tuple[str, Any]]:
        """Yield path and leaf; below the top two levels, a container with too many leaves is one leaf."""
        yield from self._told(content, "", 0, self._most)

    def _told(self, value: Any, path: str, level: int, most: int) -> Iterator[tuple[str, Any]]:
        leaves, digest = self._digest(value, level)
        found = self._take(value)
        if not isinstance(found, list):
            yield path, Text(digest) if isinstance(found, Whole) else found
        elif leaves > most and level >= _LEVELS:
            yield path, Text(f"{leaves} parts: {digest}")
        else:
            share = most if leaves <= most else most // len(found)
            for step, part in found:
                yield from self._told(part, f"{path}.{step}" if path else step, level + 1, share)

    def _take(self, value: Any) -> Any:
        """Return the same as `take`, but only call it once for each value that has parts."""
        if id(value) in self._parts:
            return self._parts[id(value)]
        found = take(self._opened(value) if self._opened else value, lists=self._lists)
        if isinstance(found, (list, Whole)):
            self._known[id(value)] = (value, 1, "what holds it")  # until all its parts are known
            self._parts[id(value)] = found
        return found

    def _digest(self, value: Any, level: int) -> tuple[int, str]:
        """Return the number of leaves, and a digest of them with their paths."""
        if id(value) in self._known:
            return self._known[id(value)][1:]
        found = self._take(value)
        if not isinstance(found, (list, Whole)):
            return 1, text_of(found)
        if level >= _DEEPEST:
            inner = [(1, text_of(Uncompared(f"it lies {_DEEPEST} levels deep")))]
        elif isinstance(found, Whole):
            inner = [self._digest(part, level + 1) for part in found.parts]
        else:
            inner = [self._digest(part, level + 1) for _, part in found]
        leaves, texts = sum(count for count, _ in inner) or 1, [text for _, text in inner]
        if isinstance(found, Whole):
            self._known[id(value)] = (value, 1, str(found.text(texts)))
        else:
            steps = [step for step, _ in found]
            self._known[id(value)] = (value, leaves, digest_text(repr(list(zip(steps, texts, strict=False)))))
        return self._known[id(value)][1:]


def take(value: Any, *, lists: bool = False) -> Any:
    """Return the parts of a container as a list of steps and values, and anything else as a leaf.

    A leaf is a built-in number, text or bytes, an `Array`, or a `Text` for any other value.
    """
    if is_exact(value):
        return value
    if lists and (one := as_one(value)) is not None:
        return one
    try:
        return _reader_of(type(value))(value)  # type: ignore[arg-type]  # classes are hashable, or raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # of any type: a user's class may raise anything
        why = _ADDRESS.sub("", f"({in_words(error)})")
        return Uncompared(f"{name_of(value)} cannot be read {why}")


@lru_cache(1024)
def _reader_of(kind: type) -> Callable[[Any], Any]:
    for known, read in (*_READERS, *_of_loaded()):
        if issubclass(kind, known):
            return read
    if callable(getattr(kind, "state_dict", None)):
        return lambda value: take(value.state_dict())
    if any(hasattr(kind, name) for name in _ARRAYS):
        return lambda value: _of_numpy(np.asarray(value))
    if issubclass(kind, Sequence):
        return _of_sequence
    mapping = issubclass(kind, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__"))
    return _of_mapping if mapping else _of_object


def _of_loaded() -> Iterator[tuple[Any, Callable[[Any], Any]]]:
    """Yield the readers for classes of modules that are slow to load; if a module is not loaded, it has no values."""
    if torch := sys.modules.get("torch"):
        yield torch.Tensor, lambda value: _of_read(of_tensor(torch, value))
        yield torch.Generator, lambda value: Array("generator", value.get_state().numpy())
    for module, name in (("decimal", "Decimal"), ("fractions", "Fraction")):
        if module in sys.modules:
            yield getattr(sys.modules[module], name), _of_shown


def _of_read(value: Any) -> Any:
    """Return the result of an array reader: an array, parts, or the reason why there is nothing."""
    if isinstance(value, str):
        return Uncompared(value)
    return value if isinstance(value, Array) else take(value)


def _of_numpy(value: Any) -> Any:
    return _of_read(of_numpy(value))


def _of_dict(value: dict[Any, Any]) -> Any:
    parts = [(step(key), part) for key, part in dict.items(value)]
    parts.sort(key=itemgetter(0))
    return parts or Text("{}")


def _of_mapping(value: Any) -> Any:
    return _of_dict({key: value[key] for key in value.keys()})  # noqa: SIM118  # it may not be a dict


def _of_sequence(value: Any) -> Any:
    if names := getattr(type(value), "_fields", None):
        return [(step(name), part) for name, part in zip(names, value, strict=True)]
    return [(str(number), part) for number, part in enumerate(value)] or Text("[]")


def _of_object(value: Any) -> Any:
    attributes = None if keeps_state_in_c(value) else vars_of(value)
    if attributes is not None:
        return [(step(name), part) for name, part in attributes.items()] or Text(f"{name_of(value)} with nothing in it")
    given = given_to_pickle(value)
    if given is None:
        return Uncompared(f"{name_of(value)} has no attributes and cannot be pickled")
    return Text(short(given)) if isinstance(given, str) else Whole(type(value).__qualname__, given)


def _of_shown(value: Any) -> Any:
    text = repr(value)
    return _of_object(value) if _ADDRESS.search(text) else Text(short(text))


def _of_code(value: Any) -> Any:
    if isinstance(value, types.MethodType):
        return [("self", value.__self__), ("function", value.__func__)]
    name = global_name(value)
    return Uncompared(f"{name_of(value)} is not data") if name is None else Text(short(name))


def _of_enum(value: enum.Enum) -> Any:
    return Text(short(f"{type(value).__qualname__}.{value.name}"))


def _of_base(value: Any) -> Any:
    """Return the built-in number or text inside an instance of a subclass, ignoring its methods."""
    kind: Any = next(kind for kind in _BASES if isinstance(value, kind))
    if kind is str:
        return str.__str__(value)
    return bytes.__getitem__(value, slice(None)) if kind is bytes else kind.__pos__(value)


def _of_set(value: Any) -> Any:
    return Whole(f"set of {len(value)}", tuple(value), ordered=False)


def _of_random(value: random.Random) -> Any:
    version, words, gauss = random.Random.getstate(value)
    return [("version", version), ("words", np.array(words, np.uint32)), ("gauss", gauss)]


def as_one(value: Any) -> Text | None:
    """Return the text of a list of plain numbers and texts; None for anything else."""
    if not is_exactly(value, (list, tuple)) or not value:
        return None
    kinds = {id(kind): kind for kind in map(type, value)}  # by id, because a class may not be hashable
    exact = kinds.keys() <= _SCALAR_IDS
    plain = exact or all(issubclass(kind, (*_SCALARS, np.generic)) for kind in kinds.values())
    return _of_list(value, exact=exact) if plain else None


def _of_list(value: Any, *, exact: bool) -> Text:
    try:
        inner = repr(list(value)) if exact else None
    except ValueError:  # a number with too many digits
        inner = None
    return Text(f"list of {len(value)}: {digest_text(inner or repr([text_of(take(part)) for part in value]))}")


def vars_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, including slots; None if Python cannot show any."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = None
    for kind in type(value).__mro__:
        for slot in _slots(kind):
            found = {} if found is None else found
            with suppress(AttributeError):  # the slot is empty
                found[slot] = object.__getattribute__(value, slot)
    return found


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [slot for slot in slots if slot not in {"__dict__", "__weakref__"}]
    private = f"_{kind.__name__.lstrip('_')}"
    return [f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names]


def keeps_state_in_c(value: Any) -> bool:
    """Return whether a class written in C pickles more than its attributes, such as `partial`."""
    kinds = type(value).__mro__[:-1]
    found = [vars(kind).get(name) for kind in kinds for name in _REDUCERS]
    return any(one is not None and not isinstance(one, types.FunctionType) for one in found)


def given_to_pickle(value: Any) -> tuple[Any, ...] | str | None:
    """Return the values from which an object is pickled; its name if it is a global one, None if it cannot be pickled.

    The pickle itself may differ between equal objects: it writes repeated objects only once.
    """
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        given = reduce(value) if reduce is not None else value.__reduce_ex__(_PROTOCOL)
    except Exception:  # noqa: BLE001  # the class decides how it fails
        return None
    if isinstance(given, str):
        return f"{type(value).__module__}.{given}"
    make, args, *more = given
    state, items, pairs = (*more, None, None, None)[:3]
    return (make, args, state, list(items or ()), dict(pairs or ()))


def global_name(value: Any) -> str | None:
    """Return the name under which a class or function can be imported; None if there is none."""
    module, name = getattr(value, "__module__", None) or "builtins", getattr(value, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(value, type):
        return f"{module}.{name}"
    return f"{module}.{name}" if name and found is value else None


_READERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (dict, _of_dict),
    ((list, tuple), _of_sequence),
    ((np.ndarray, np.generic), _of_numpy),
    (enum.Enum, _of_enum),
    (_BASES, _of_base),
    ((bytearray, memoryview), bytes),
    (_SHOWN, _of_shown),
    (slice, lambda value: [("start", value.start), ("stop", value.stop), ("step", value.step)]),
    (_CODE, _of_code),
    ((set, frozenset), _of_set),
    (random.Random, _of_random),
    (np.random.Generator, lambda generator: take(generator.bit_generator)),
    (np.random.BitGenerator, lambda generator: take(generator.state)),
    (np.random.RandomState, lambda generator: take(generator.get_state(legacy=False))),
)


def is_exact(value: Any) -> bool:
    """Return whether the `repr` of a value is complete."""
    return is_exactly(value, _EXACT)


def text_of(leaf: Any) -> str:
    """Return a short text that differs if the leaf differs."""
    kind = type(leaf)
    if kind is Array:
        return str(leaf.text)
    if kind is Text or kind is Uncompared:
        return str.__str__(leaf)
    if kind is int and not -_LARGEST < leaf < _LARGEST:
        return short(hex(leaf))
    if kind is bytes and len(leaf) > _LONGEST:
        return f"bytes of {len(leaf)}: {blake2b(leaf, digest_size=8).hexdigest()}"
    return short(repr(leaf))


def short(text: str) -> str:
    """Return a text, or its start and a digest."""
    return text if len(text) <= _LONGEST else f"{text[:20]}... with the digest {digest_text(text)}"


def excerpt(text: Any) -> bytes:
    """Return a text as bytes; for a long one, only both ends."""
    half = _EXCERPT // 2
    some = text if len(text) <= _EXCERPT else text[:half] + text[-half:]
    return some.encode(errors="surrogatepass") if isinstance(some, str) else bytes(some)


def digest_text(text: str) -> str:
    """Digest a text."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def name_of(value: Any) -> str:
    """Describe the class of a value, for a sentence."""
    return f"a value of {module_of(type(value))}.{qualname_of(type(value))}"


def step(key: Any) -> str:
    r"""Write a key as one step of a dotted path.

    Names and integers are written unchanged. Texts that contain a dot or a space, or look like numbers, are quoted as
    in JSON. Other keys are also quoted, after the name of their type.

    >>> [step(key) for key in ("lr", 0, "0", "layer.weight", 0.5, (1, "a"), None)]
    ['lr', '0', '"0"', '"layer.weight"', 'float"0.5"', 'tuple"(1, \'a\')"', 'NoneType"None"']
    """
    kind = type(key)
    if kind is str or kind is np.str_:
        return _of_name(str(key))
    if kind is int or issubclass(kind, np.integer):
        return str(key) if -_LARGEST < key < _LARGEST else hex(key)
    return f"{kind.__name__}{_quoted(_of_key(key))}"


@lru_cache(4096)
def _of_name(name: str) -> str:
    return name if name.isprintable() and _BARE.fullmatch(name) else _quoted(name)


def dotted(path: tuple[Any, ...]) -> str:
    """Join the keys on the way to a part to its path."""
    return ".".join(map(step, path))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _of_key(key: Any) -> str:
    if is_exact(key):
        return text_of(key)
    if type(key) is tuple and all(map(is_exact, key)):
        return short(f"({', '.join(map(text_of, key))})")
    return digest_of(key)
