"""Finds what a dataset stores per sample, without calling its code: names of files, texts, arrays.

A *column* holds the values under one name, one for each requested sample. Lists, arrays, tensors, data frames and
PyTorch's own datasets are read according to their type. For any other object, the attributes that have an entry for
each of its samples are read.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from functools import partial
from itertools import accumulate
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._content.elements import MixtureSample, leaves_of_samples, names_a_file, tells_apart
from resumable._introspection import (
    ask,
    attributes_of,
    has,
    is_a,
    is_exactly,
    module_of,
    mro_of,
    package_of,
    qualname_of,
    survive,
    takes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["SAID", "Columns", "Shards", "shards_of", "without_seed"]

Column = tuple[str, list[Any]]

SAID = "fingerprint()"  # a source's own fingerprint, which may take long
_DEEPEST = 4  # levels of datasets inside datasets
_ATTRIBUTES = 64
_MOST = 4  # columns
_EXACTLY = (list, tuple, range)  # not subclasses, which may compute their elements


class Columns:
    """The stored values of a source's samples.

    Args:
        source: a sequence or map-style dataset.
        length: number of its samples.
    """

    def __init__(self, source: Any, length: int) -> None:
        self._source, self._length = source, length

    @property
    def lengths(self) -> list[int]:
        """Number of samples of each source of a mixture; of all samples if it is not a mixture."""
        parts = _parts(self._source)
        return [self._length] if parts is None else [length for length, _ in parts]

    @property
    def version(self) -> str | None:
        """A Hugging Face dataset's `_fingerprint` of the steps that made it, which is sometimes random."""
        source = ask(self._source, "dataset", self._source)  # of a Subset
        if not module_of(type(source)).startswith("datasets."):
            return None
        said = ask(source, "_fingerprint")
        return said if issubclass(type(said), str) else None

    @property
    def total(self) -> int | None:
        """Number of files or rows, if it is not the number of samples, as for a stream."""
        return self._length if ask(type(self._source), "resumable_shards") is not None else None

    def __call__(self, indices: Sequence[int]) -> dict[str, list[Any]]:
        """Return a dict from name to column, with values in the order of the indices; the most informative is first."""
        return survive(self._where, lambda: self._best(indices), {})

    def _best(self, indices: Sequence[int]) -> dict[str, list[Any]]:
        found = list(_columns(self._source, self._length, list(indices), 0))
        best = sorted(found, key=lambda column: _rank(column[1]))[:_MOST]
        return {name: values[:1] if name == SAID else values for name, values in best}

    def again(self, name: str, indices: Sequence[int]) -> list[Any] | None:
        """Return one of the columns, if it still exists."""
        return survive(self._where, lambda: self._named(name, indices), None)

    def _named(self, name: str, indices: Sequence[int]) -> list[Any] | None:
        columns = _columns(self._source, self._length, list(indices), 0)
        return next((values for one, values in columns if one == name), None)

    @property
    def _where(self) -> str:
        return f"what a {qualname_of(type(self._source))} stores of its samples"


def _columns(source: Any, length: int, indices: list[int], deep: int) -> Iterator[Column]:
    said = _fingerprint(source)
    if said is not None:
        yield SAID, [said] * len(indices)
    else:
        yield from _entries(source, length, indices, deep)


def _entries(source: Any, length: int, indices: list[int], deep: int) -> Iterator[Column]:
    if (rows := _rows(source, length, indices)) is not None:
        yield "elements", rows
    elif deep < _DEEPEST:
        inside = _of_mixture(source, length, indices, deep)
        inside = _of_torch(source, length, indices, deep) if inside is None else inside
        yield from _of_attributes(source, length, indices, deep) if inside is None else inside


def _fingerprint(source: Any) -> str | None:
    """Return the result of a dataset's own method `fingerprint`; None if it has none for this purpose."""
    method = ask(type(source), "fingerprint")
    if not callable(method) or takes(method, source) is False:  # it has a different purpose
        return None
    said = survive(f"fingerprint() of a {qualname_of(type(source))}", lambda: method(source), None)
    return said if issubclass(type(said), str) else None


def _rows(source: Any, length: int, indices: list[int]) -> list[Any] | None:
    """Return the entries of an object that stores one for each sample; None for any other object."""
    kind = type(source)
    torch = sys.modules.get("torch")
    stores = is_exactly(source, _EXACTLY)
    if stores or is_exactly(source, (np.ndarray, np.memmap)) or (torch is not None and kind is torch.Tensor):
        if not stores and not source.shape:
            return None
        return [source[index] for index in indices] if len(source) == length else None
    if package_of(kind) == "pandas" and has(source, "iloc"):
        return _frame(source.iloc[indices]) if len(source) == length else None
    if module_of(kind) == "datasets.arrow_dataset" and qualname_of(kind) == "Dataset":
        return source.with_format("arrow")[indices].to_pylist() if len(source) == length else None
    return None


def _frame(rows: Any) -> list[Any]:
    return list(rows.itertuples(index=False, name=None)) if hasattr(rows, "itertuples") else rows.tolist()


def _parts(source: Any) -> list[tuple[int, Any]] | None:
    """Return the sources of a mixture with their lengths; None if it is not a mixture."""
    method = ask(type(source), "resumable_parts")
    return None if method is None else list(method(source))


def _of_mixture(source: Any, length: int, indices: list[int], deep: int) -> list[Column] | None:
    """Return the column of a mixture; sources without a column do not hide the others."""
    parts = _parts(source)
    if parts is None:
        return None
    ends = list(accumulate(size for size, _ in parts))
    return _joined(ends, [part for _, part in parts], indices, deep, partly=True) if ends[-1] == length else []


def _of_torch(source: Any, length: int, indices: list[int], deep: int) -> list[Column] | None:
    """Return the columns of one of PyTorch's own datasets, from the datasets inside it; None for other classes."""
    own: Any = sys.modules.get("torch.utils.data")
    kinds = None if own is None else (own.TensorDataset, own.Subset, own.ConcatDataset, *_stacked(own))
    if kinds is None or not is_a(source, kinds):
        return None
    if len(source) != length:
        return []
    if isinstance(source, own.TensorDataset):
        return [("tensors", [tuple(one[index] for one in source.tensors) for index in indices])]
    if isinstance(source, own.Subset):
        return _chosen(source, indices, deep)
    if isinstance(source, own.ConcatDataset):
        return _joined(source.cumulative_sizes, source.datasets, indices, deep)
    datasets: Any = source.datasets
    parts = datasets.items() if isinstance(datasets, dict) else enumerate(datasets)
    inside = ((key, _columns(part, len(part), indices, deep + 1)) for key, part in parts)
    return [(f"{key}.{name}", values) for key, columns in inside for name, values in columns]


def _chosen(source: Any, indices: list[int], deep: int) -> list[Column]:
    inner = [int(source.indices[index]) for index in indices]
    columns = list(_columns(source.dataset, len(source.dataset), inner, deep + 1))
    if any(SAID in name for name, _ in columns):  # the fingerprint does not cover which samples are selected
        return [(f"indices {name}", list(zip(inner, values, strict=True))) for name, values in columns]
    return [*columns, ("indices", list(inner))]


def _stacked(own: Any) -> Any:
    return [own.StackDataset] if hasattr(own, "StackDataset") else []  # in PyTorch since 2.1


def _joined(
    ends: list[int], datasets: Sequence[Any], indices: list[int], deep: int, *, partly: bool = False
) -> list[Column]:
    """Return the column of concatenated datasets; an empty list if one has none, unless `partly`."""
    parts = [bisect_right(ends, index) for index in indices]
    values, names = dict[int, Any](), list[str]()
    for number, dataset in enumerate(datasets):
        begin = ends[number - 1] if number else 0
        some = [index for index, part in zip(indices, parts, strict=True) if part == number]
        if not some:
            continue
        inner = list(_columns(dataset, ends[number] - begin, [index - begin for index in some], deep + 1))
        if not inner and not partly:
            return []
        if not inner:
            values |= {index: MixtureSample(number, None) for index in some}
            continue
        name, column = min(inner, key=lambda one: _rank(one[1]))
        names.append(name)
        values |= {index: MixtureSample(number, value) for index, value in zip(some, column, strict=True)}
    if not names:
        return []
    name = ", ".join(dict.fromkeys(names))
    return [(f"parts {name}" if name == SAID else name, [values[index] for index in indices])]


def _of_attributes(source: Any, length: int, indices: list[int], deep: int) -> Iterator[Column]:
    """Yield the attributes with an entry per sample that differ from sample to sample, and are not just a numbering."""
    kept = source if issubclass(type(source), dict) else attributes_of(source)
    for name, value in list(dict.items(kept))[:_ATTRIBUTES]:
        if type(name) is str:
            look = partial(_of_attribute, name, value, length, indices, deep)
            none: list[Column] = []
            yield from survive(f"the attribute {name} of a {qualname_of(type(source))}", look, none)


def _of_attribute(name: str, value: Any, length: int, indices: list[int], deep: int) -> list[Column]:
    rows = _rows(value, length, indices)
    if rows is not None:
        return [(name, rows)] if _tells(rows, indices) else []
    if type(value) is dict or _is_indexed(value):
        return [(f"{name}.{inner}", values) for inner, values in _entries(value, length, indices, deep + 1)]
    return []


def _is_indexed(value: Any) -> bool:
    kind = type(value)
    return has(kind, "__getitem__") and has(kind, "__len__") and bool(attributes_of(value))


def _tells(values: list[Any], indices: list[int]) -> bool:
    return not _numbers(values, indices) and tells_apart(values)


def _numbers(values: list[Any], indices: list[int]) -> bool:
    """Return whether the values are the indices themselves, plus a constant."""
    try:
        begin = _number(values[0]) - indices[0]
        return all(_number(value) - index == begin for value, index in zip(values, indices, strict=True))
    except (TypeError, ValueError, RuntimeError):
        return False


def _number(value: Any) -> float:
    if _is_scalar(value):
        value = (value.detach() if hasattr(value, "detach") else value).item()
    if not issubclass(type(value), (int, float, str)):
        raise TypeError
    return float(value)


def _is_scalar(value: Any) -> bool:
    """Return whether a value is an array or a tensor without dimensions. Other objects are not accessed."""
    torch = sys.modules.get("torch")
    kinds = (np.ndarray, np.generic) if torch is None else (np.ndarray, np.generic, torch.Tensor)
    return issubclass(type(value), kinds) and bool(value.ndim == 0)


def _rank(values: list[Any]) -> int:
    """Return 0 for names of files, 1 for texts, 2 for anything else."""
    leaves = [leaf for one in leaves_of_samples(values) for _, leaf in one]
    if any(map(names_a_file, leaves)):
        return 0
    return 1 if any(issubclass(type(leaf), (str, PurePath)) for leaf in leaves) else 2


# ------------------------------------------------------------------ shards
#
# The files of a Hugging Face stream's shards, or the rows of its tables, in the order in which it reads them.
#
# The stream's own state only holds numbers of shards and rows, so it would silently continue in different files. A
# canary detects that only at the saved position. The order counts, so shuffling the shards without a seed is a change
# of the data.

_STREAM = ("datasets.iterable_dataset", "IterableDataset")
_BUFFER = ("datasets.iterable_dataset", "BufferShuffledExamplesIterable")
_HF = "a stream of Hugging Face"
_MOST_OBJECTS = 1000  # objects to inspect
_WORD = 1 << 64  # seeds that users pass are smaller


class Shards:
    """Lists that a stream reads one after another.

    Args:
        parts: lists of files and the like, and tables.
    """

    resumable_shards = True

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def resumable_parts(self) -> Iterator[tuple[int, Any]]:
        """Yield the parts with their lengths."""
        for part in self._parts:
            yield len(part), part


def shards_of(source: Any) -> Columns | None:
    """Return the columns that identify a stream; None for anything else, or if they cannot be read."""
    if not _is(source, _STREAM):
        return None
    # These objects are private to the library, and may change.
    parts: list[Any] = survive(_HF, lambda: [part for part in _stream_parts(source) if len(part)], [])
    return Columns(Shards(parts), sum(map(len, parts))) if parts else None


def without_seed(source: Any) -> bool:
    """Return whether a stream is shuffled in a buffer, and its generator got no seed."""
    if not _is(source, _STREAM):
        return False
    return survive(
        _HF, lambda: any(_entropy(one.generator) >= _WORD for one in _inside(source) if _is(one, _BUFFER)), False
    )


def _stream_parts(source: Any) -> Iterator[Any]:
    for one in _inside(source):
        if _is(one, _BUFFER) and one.buffer_size != 1:
            yield [f"shuffle in a buffer of {one.buffer_size} by {_state_of(one.generator)}"]
        kwargs = getattr(one, "kwargs", None)
        if isinstance(kwargs, dict) and hasattr(one, "generate_more_kwargs_fn"):
            yield from _of_shards(kwargs)


def _of_shards(kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the lists that distinguish the shards."""
    for values in kwargs.values():
        if not isinstance(values, list) or not values:
            continue
        if all(isinstance(value, (str, int)) for value in values):
            yield values
        elif all(qualname_of(type(value)) == "FilesIterable" for value in values):
            yield [str(value.args[0]) for value in values]  # not iterated, because that lists folders
        elif all(module_of(type(value)) == "datasets.arrow_dataset" for value in values):
            yield from values


def _inside(source: Any) -> Iterator[Any]:
    """Yield the objects inside a stream, in their order."""
    waiting, seen = [source], set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        thing = waiting.pop()
        if id(thing) in seen or not module_of(type(thing)).startswith("datasets."):
            continue
        seen.add(id(thing))
        yield thing
        inner = [value for name, value in attributes_of(thing).items() if name != "_interleaved"]  # a duplicate
        found = [one for value in inner for one in (value if isinstance(value, list) else [value])]
        waiting += [one for one in reversed(found) if has(one, "_init_state_dict") or _is(one, _STREAM)]


def _is(thing: Any, kind: tuple[str, str]) -> bool:
    return any((module_of(base), qualname_of(base)) == kind for base in mro_of(type(thing)))


def _entropy(generator: Any) -> int:
    seed = getattr(generator.bit_generator.seed_seq, "entropy", 0)
    return seed if isinstance(seed, int) else 0


def _state_of(generator: Any) -> Any:
    return generator.bit_generator.state["state"]
