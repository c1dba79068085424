"""The location of a split's samples: files, and runs of records in them."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["HINTS", "Layout", "Run", "layout_of"]

HINTS = {
    "decode": "Different decoders produce different pixels. Use the same decoder in the source as in the original run.",
    "fields": "Use the same fields in the source as in the original run.",
    "layout": "The dataset was written with different shards. Use the files of the original run.",
}
_LONGEST = 120  # characters of a split's description in a state


class Run(NamedTuple):
    """Records `first..first+taken-1` of a file that has `total` of them."""

    path: str
    first: int
    taken: int
    total: int


@dataclass(frozen=True)
class Layout:
    """The samples of a split, in their order.

    Args:
        runs: their location.
        folder: of the prepared dataset, with its `features.json`.
        file_format: "tfrecord", "array_record", ...
        identity: dataset, version, split, features and shards, as plain values.
    """

    runs: tuple[Run, ...]
    folder: str
    file_format: str
    identity: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", list(accumulate(run.taken for run in self.runs)))

    def __len__(self) -> int:
        ends: list[int] = self._ends  # type: ignore[attr-defined]  # set in __post_init__, as the class is frozen
        return ends[-1] if ends else 0

    def locate(self, index: int) -> tuple[Run, int]:
        """Return the run that contains a sample, and the number of its record in the file."""
        ends: list[int] = self._ends  # type: ignore[attr-defined]  # as above
        number = bisect_right(ends, index)
        run = self.runs[number]
        return run, run.first + index - (ends[number] - run.taken)


def layout_of(info: Any, split: Any, folder: str) -> Layout:
    """Resolve a split.

    Args:
        info: the `DatasetInfo`.
        split: a name, a slice such as `"train[10%:50%]"`, a sum of them, or a split object of TensorFlow Datasets.
        folder: of the prepared dataset.

    Raises:
        ConfigurationError: there is no such split, or it is not prepared.
    """
    runs = tuple(
        Run(item.filename, item.skip, item.take, item.examples_in_shard) for item in _instructions(info, split)
    )
    shards = {name: part.file_instructions for name, part in info.splits.items()}
    name, _, version = info.full_name.rpartition("/")
    identity = {
        "dataset": name,
        "version": version,
        "split": describe_split(runs, shards),
        "features": _hash(_features(folder, info)),
        "layout": _describe_shards(runs, shards),
    }
    return Layout(runs, folder, info.file_format.value if info.file_format else "none", identity)


def _instructions(info: Any, split: Any) -> Iterable[Any]:
    known = ", ".join(info.splits) or "none: download_and_prepare() was not called, or data_dir is wrong"
    try:
        return list(info.splits[split].file_instructions)
    except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise ConfigurationError(
            f"the dataset {info.full_name} has no split {split!r}: {error}\nThere would be nothing to read. "
            f"Its splits are {known}. A slice is for example 'train[10%:50%]'."
        ) from error


def describe_split(runs: Iterable[Run], shards: Mapping[str, Any]) -> str:
    """Return which samples of which split are read, in the same form for all ways to specify them."""
    begins: dict[str, tuple[str, int]] = {}
    whole: dict[str, int] = {}
    for name, files in shards.items():
        whole[name] = 0
        for file in files:
            begins[file.filename] = name, whole[name]
            whole[name] += file.examples_in_shard
    pieces: list[tuple[str, int, int]] = []
    for run in runs:
        name, offset = begins[run.path]
        begin = offset + run.first
        if pieces and pieces[-1][0] == name and pieces[-1][2] == begin:
            begin = pieces.pop()[1]
        pieces.append((name, begin, offset + run.first + run.taken))
    said = "+".join(
        name if (begin, end) == (0, whole[name]) else f"{name}[{begin}:{end}]" for name, begin, end in pieces
    )
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}... {_hash(said)}"


def _describe_shards(runs: Iterable[Run], shards: Mapping[str, Any]) -> str:
    """Describe all files of the splits that are read from, without their format, which changes no sample."""
    read = {run.path for run in runs}
    lengths = {
        name: [file.examples_in_shard for file in files]
        for name, files in sorted(shards.items())
        if any(file.filename in read for file in files)
    }
    return f"{sum(map(len, lengths.values()))} shards, {_hash(lengths)}"


def _features(folder: str, info: Any) -> Any:
    file = Path(folder, "features.json")
    if not file.is_file():
        raise ConfigurationError(
            f"the dataset {info.full_name} is not prepared: there is no {file}.\nNothing could be read. Call "
            "builder.download_and_prepare(), or pass its data_dir. The files must be on a local disk."
        )
    return json.loads(file.read_text())


def _hash(values: Any) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=6).hexdigest()
