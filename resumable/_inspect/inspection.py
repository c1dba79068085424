"""`resumable.inspect` and `resumable.diff`: what a checkpoint contains, and how two of them differ."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._content import parts_of, split, step, text_of
from resumable._inspect.pickles import MOST_PACKED, unpack
from resumable._inspect.reading import Content, Step, open_checkpoint
from resumable._inspect.states import LoaderState, describe_states, find_states
from resumable._inspect.values import File, Name, Opaque, Tensor, children, walk
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


__all__ = ["Diff", "Inspection", "Part", "StateDifference", "TensorDifference", "ValueDifference", "diff", "inspect"]


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Show what a checkpoint contains, including the states of Loaders. No code in it runs, and no file is written.

    Supported are `CheckpointStore` (the folder of a run or of a step), `torch.save`, Lightning,
    `torch.distributed.checkpoint`, the Hugging Face Trainer, Accelerate, safetensors, and JSON.

    Args:
        path: path of a file or folder, or a URL that fsspec knows.

    Raises:
        ConfigurationError: it is a flight recorder's folder, or a URL that fsspec does not know.
        CheckpointNotFoundError: nothing exists there, or it is empty.
        CorruptCheckpointError: it is truncated or damaged.
        CheckpointError: it is not a checkpoint, or could not be read.
    """
    with open_checkpoint(path) as content:
        states = describe_states(find_states(content.tree))
        return Inspection(
            os.fspath(path),
            content.kind,
            content.size,
            content.step,
            content.steps,
            states,
            _parts(content),
            content.notes,
        )


@dataclass(frozen=True)
class Inspection:
    """The content of a checkpoint.

    Args:
        path: the path as passed.
        kind: kind of checkpoint, in words.
        size: in bytes.
        step: the step of a CheckpointStore; None for other checkpoints.
        steps: all steps of a store.
        states: the states of Loaders.
        parts: the top-level parts.
        notes: further remarks, one sentence each.
    """

    path: str
    kind: str
    size: int
    step: int | None
    steps: tuple[Step, ...]
    states: tuple[LoaderState, ...]
    parts: tuple[Part, ...]
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as `resumable inspect --json` prints them."""
        return {**asdict(self), "steps": [one._asdict() for one in self.steps]}


@dataclass(frozen=True)
class Part:
    """A top-level part of a checkpoint.

    Args:
        name: its key.
        type: type of the value.
        tensors: number of tensors in it.
        bytes: size of its tensors; the file size if it is a file that is not a checkpoint.
        values: number of numbers, strings and other values in it.
        objects: classes of objects that were not created, in alphabetical order.
        problem: why it could not be read; empty if it could.
    """

    name: str
    type: str
    tensors: int = 0
    bytes: int = 0
    values: int = 0
    objects: tuple[str, ...] = ()
    problem: str = ""


def _parts(content: Content) -> tuple[Part, ...]:
    tree = content.tree
    return (
        tuple(_part(str(key), value) for key, value in tree.items()) if isinstance(tree, dict) else (_part("", tree),)
    )


def _part(name: str, value: Any) -> Part:
    if isinstance(value, File):
        return Part(name, "file", bytes=value.size, problem=value.why)
    tensors, values, objects = {}, 0, set()
    for _, part in walk(value):
        if isinstance(part, Tensor):
            tensors[id(part)] = part
        elif isinstance(part, Opaque):
            objects.add(part.kind)
        elif not isinstance(part, dict | list | tuple):
            values += 1
    size = sum(one.nbytes for one in tensors.values())
    return Part(name, _type_of(value), len(tensors), size, values, tuple(sorted(objects)))


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return value.kind if isinstance(value, Opaque) else type(value).__name__


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Diff:
    """Compare two checkpoints part by part. No code in them runs, and no file is written.

    The checkpoints may be of different kinds: parts are matched by path, such as `optimizer.state.0.exp_avg`.

    Args:
        a: path or URL of a checkpoint, as for `resumable.inspect`.
        b: path or URL of the second one.

    Raises:
        CheckpointError: one of them cannot be read, or they have no part in common.
    """
    with open_checkpoint(a) as first, open_checkpoint(b) as second:
        compared = _Comparison(find_states(first.tree), find_states(second.tree))
        compared.compare(first.tree, second.tree)
        notes = (*(f"a: {note}" for note in first.notes), *(f"b: {note}" for note in second.notes))
        result = compared.result(os.fspath(a), os.fspath(b), notes)
    if not (result.equal or result.tensors or result.states or result.values) and not result.is_equal:
        parts = [
            ", ".join(sorted({split(place)[0] for place in places})[:5]) for places in (result.only_a, result.only_b)
        ]
        raise CheckpointError(
            f"{a} and {b} have no part in common, so they cannot be compared.\n"
            f"  the first one has:  {parts[0]}\n  the second one has: {parts[1]}\n"
            "Pass checkpoints with the same structure, such as two steps of one run."
        )
    return result


@dataclass(frozen=True)
class Diff:
    """The result of comparing two checkpoints.

    Args:
        a: path of the first one.
        b: path of the second one.
        equal: paths of tensors and values that are equal.
        tensors: tensors that differ.
        states: states of Loaders that differ.
        values: other values that differ.
        only_a: paths that exist only in the first one.
        only_b: paths that exist only in the second one.
        notes: further remarks, one sentence each.
    """

    a: str
    b: str
    equal: tuple[str, ...]
    tensors: tuple[TensorDifference, ...]
    states: tuple[StateDifference, ...]
    values: tuple[ValueDifference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.tensors or self.states or self.values or self.only_a or self.only_b)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as `resumable diff --json` prints them."""
        return {"is_equal": self.is_equal, **asdict(self)}


@dataclass(frozen=True)
class StateDifference:
    """A state of a Loader that differs.

    Args:
        where: its path in the checkpoint.
        fields: the fields that differ; `where` of each is its path within the state.
    """

    where: str
    fields: tuple[ValueDifference, ...]


@dataclass(frozen=True)
class ValueDifference:
    """A value that differs.

    Args:
        where: its path in the checkpoint, keys joined with dots.
        a: the value in the first checkpoint.
        b: the value in the second one.
    """

    where: str
    a: Any
    b: Any


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that differs.

    Args:
        where: its path in the checkpoint, keys joined with dots.
        shapes: in the first checkpoint and in the second.
        dtypes: in the first checkpoint and in the second.
        elements: number of elements; None if shapes or types differ, because then no numbers are compared.
        differing: number of elements that differ. NaN equals NaN; -0.0 and 0.0 differ.
        largest: the largest absolute difference; None for types that NumPy lacks (8-bit floats).
    """

    where: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    elements: int | None = None
    differing: int | None = None
    largest: float | None = None


class _Comparison:
    """Walks two trees in parallel, and visits each pair of parts once."""

    def __init__(self, first: list[Any], second: list[Any]) -> None:
        self._states = {_text(one.path) for one in first} & {_text(one.path) for one in second}
        self._equal: list[str] = []
        self._tensors: list[TensorDifference] = []
        self._fields: dict[tuple[str, ...], list[ValueDifference]] = {}
        self._values: list[ValueDifference] = []
        self._only: tuple[list[str], list[str]] = ([], [])

    def compare(self, a: Any, b: Any) -> None:
        seen: set[tuple[int, int]] = set()
        waiting: list[tuple[tuple[str, ...], Any, Any, int]] = [((), a, b, 0)]
        while waiting:
            path, one, other, packed = waiting.pop()
            if _is_container(one) and _is_container(other) and _shape(one) == _shape(other):
                if (id(one), id(other)) in seen:
                    continue
                seen.add((id(one), id(other)))
                waiting += reversed([(*pair, packed) for pair in self._pairs(path, one, other)])
            elif packed < MOST_PACKED and (inside := _unpack_both(one, other)) is not None:
                waiting.append((path, *inside, packed + 1))
            else:
                self._leaf(path, one, other)

    def _pairs(self, path: tuple[str, ...], a: Any, b: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
        one = {step(key): value for key, value in children(a)}
        other = {step(key): value for key, value in children(b)}
        if not one and not other:
            self._equal.append(_place(path))
        for key in {**one, **other}:
            place = (*path, key)
            if key not in other:
                self._only[0].append(_place(place))
            elif key not in one:
                self._only[1].append(_place(place))
            else:
                yield place, one[key], other[key]

    def _leaf(self, path: tuple[str, ...], a: Any, b: Any) -> None:
        where = _place(path)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            found = compare_tensors(where, a, b)
            if found is None:
                self._equal.append(where)
            else:
                self._tensors.append(found)
        elif _same(a, b):
            self._equal.append(where)
        else:
            self._differs(path, ValueDifference(where, _plain(a), _plain(b)))

    def _differs(self, path: tuple[str, ...], difference: ValueDifference) -> None:
        for deep in range(len(path) + 1):
            if path[:deep] in self._states:
                field = ValueDifference(_place(path[deep:]), difference.a, difference.b)
                self._fields.setdefault(path[:deep], []).append(field)
                return
        self._values.append(difference)

    def result(self, a: str, b: str, notes: tuple[str, ...]) -> Diff:
        states = tuple(StateDifference(_place(path), _without_digest(fields)) for path, fields in self._fields.items())
        only_a, only_b = self._only
        return Diff(
            a,
            b,
            tuple(self._equal),
            tuple(self._tensors),
            states,
            tuple(self._values),
            tuple(only_a),
            tuple(only_b),
            notes,
        )


def _text(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(step, path))


def _place(path: tuple[str, ...]) -> str:
    return ".".join(path)


def _unpack_both(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Return the content packed into two parts that differ; None if they are equal, or nothing is packed."""
    if isinstance(a, str | bytes) and isinstance(b, str | bytes) and a != b:
        one, other = unpack(a), unpack(b)
        if one is not None and other is not None:
            return one, other
    return None


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | Opaque)


def _shape(value: Any) -> str:
    """Return the kind that two matching containers share; lists and tuples are the same, as in JSON."""
    if isinstance(value, Opaque):
        return f"object {value.kind}"
    return "dict" if isinstance(value, dict) else "list"


def _without_digest(fields: list[ValueDifference]) -> tuple[ValueDifference, ...]:
    """Leave out the digest if another field differs: the digest then differs as a result."""
    others = tuple(one for one in fields if one.where != "digest")
    return others or tuple(fields)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or isinstance(a, File):
        return False  # files are not read
    return text_of(a) == text_of(b) if isinstance(a, str | bytes | int | float) else parts_of(a) == parts_of(b)


_LONGEST = 10_000  # characters of a value


def _plain(value: Any) -> Any:
    """Return a value as JSON shows it."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Tensor):
        return f"tensor of {value.dtype}, shape {list(value.shape)}"
    if isinstance(value, File):
        return f"file of {value.size} bytes"
    if isinstance(value, Opaque):
        return f"object of {value.kind}"
    if isinstance(value, dict | list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    return (value if isinstance(value, str) else str(value) if isinstance(value, Name) else repr(value))[:_LONGEST]


_AT_ONCE = 1 << 20  # elements per comparison, to limit memory to the two tensors and little else


def compare_tensors(where: str, a: Tensor, b: Tensor) -> TensorDifference | None:
    """Compare two tensors; None if they are equal.

    Raises:
        CorruptCheckpointError: a file ends inside a tensor.
    """
    kinds = (a.shape, b.shape), (a.dtype, b.dtype)
    if a.shape != b.shape or a.dtype != b.dtype:
        return TensorDifference(where, *kinds)
    one, other = _without_repeats(a.read(), b.read())
    repeats = a.size // one.size if one.size else 1
    differing, largest = 0, 0.0
    flat, flat_other = one.reshape(-1), other.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        left, right = flat[start : start + _AT_ONCE], flat_other[start : start + _AT_ONCE]
        if left.tobytes() != right.tobytes():
            count, most = _compare(left, right, a.dtype)
            differing, largest = differing + count, _larger(largest, most)
    if not differing:
        return None
    return TensorDifference(
        where, *kinds, a.size, differing * repeats, None if a.dtype.startswith("float8") else largest
    )


def _without_repeats(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Keep one of the elements that a dimension repeats in both tensors, as after `expand`."""
    repeated = tuple(
        slice(0, 1) if not one and not other else slice(None) for one, other in zip(a.strides, b.strides, strict=True)
    )
    return a[repeated], b[repeated]


def _compare(a: NDArray[Any], b: NDArray[Any], dtype: str) -> tuple[int, float]:
    a, b = (one.astype(one.dtype.newbyteorder("=")) for one in (a, b))
    if dtype == "bfloat16":
        a, b = ((one.astype(np.uint32) << 16).view(np.float32) for one in (a, b))
    differ = _bits_differ(a, b)
    if a.dtype.kind in "fc":
        differ &= ~(np.isnan(a) & np.isnan(b))
    count = int(differ.sum())
    if not count:
        return 0, 0.0
    return count, _largest(a[differ], b[differ])


def _bits_differ(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    size = a.dtype.itemsize
    differ: NDArray[np.bool_] = (a.view(np.uint8).reshape(-1, size) != b.view(np.uint8).reshape(-1, size)).any(axis=1)
    return differ


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    if a.dtype.kind in "iu":
        wide = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)  # exact, due to wrap-around
        return float(wide.max())
    wider = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        return float(np.abs(wider - b).max())


def _larger(one: float, other: float) -> float:
    """Return the larger number, or NaN if either is NaN."""
    return other if other != other or other > one else one  # noqa: PLR0124  # not a number
