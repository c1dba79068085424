"""What one file holds, part by part, so that two runs can be compared by it. Nothing of a file is executed."""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._content import UNCOMPARED, parts_of
from resumable._inspect.reading import open_checkpoint
from resumable._inspect.values import File, Name, Opaque, Tensor, children
from resumable._state import is_state
from resumable.chaos.recorder.digest import weight_sketch
from resumable.errors import ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["BYTES", "CURSOR", "SAMPLED", "is_log", "parts_of_file", "unversioned"]

BYTES = "bytes"  # the part of a file that is compared by its bytes
CURSOR = "cursor"  # what is looked at of the state of a loader
SAMPLED = "bytes of some blocks"
_LARGE = 1 << 30  # bytes above which a file is not read whole
_BLOCK, _BLOCKS = 1 << 20, 64
_LARGEST_TEXT = 64 << 20  # bytes of JSON or YAML
_MOST_PARTS = 100_000
_PATHS = {"best_model_path", "kth_best_model_path"}  # Lightning's ModelCheckpoint: which files this start has written
_VERSION = re.compile(r"(^|/)version_\d+(?=/|$)")
_PICKLES = {".pkl", ".pickle", ".joblib", ".dill", ".sav"}
_UNREADABLE = (ResumableError, ValueError, TypeError, KeyError, EOFError, RecursionError, csv.Error)


def unversioned(text: str) -> str:
    """Return a path with Lightning's `version_0`, `version_1`, ... as one: each start has a folder of its own."""
    return _VERSION.sub(r"\1version_N", text)


def is_log(path: Path) -> bool:
    """Return whether a file is one that is written line by line, whose last values are compared."""
    return path.suffix in _LOGS


def parts_of_file(path: Path, work: Path, *, rounded: bool = False) -> dict[str, str]:
    """Return a text for each part of a file, by its dotted path; of one that cannot be read so, of its bytes.

    Args:
        path: of the file; or of a folder of torch.distributed.checkpoint.
        work: the directory of the run, whose name is the same in no two runs.
        rounded: numbers are to be compared up to rounding.
    """
    opened = _Opened(work, weight_sketch if rounded else None)
    try:
        if read := _LOGS.get(path.suffix):
            return _apart(read(path), opened)
        return _parts_of_content(path, opened)
    except _UNREADABLE:
        if path.suffix in _PICKLES:
            return {BYTES: f"{UNCOMPARED}its parts cannot be read, and of equal objects a pickle may have other bytes"}
        with suppress(OSError):
            return _bytes_of(path)
    except OSError as error:
        return {BYTES: f"cannot be read: {type(error).__name__}"}
    return {BYTES: "cannot be read"}


def _apart(content: Any, opened: _Opened) -> dict[str, str]:
    return parts_of(content, opened, opened.more)


def _parts_of_content(path: Path, opened: _Opened) -> dict[str, str]:
    if path.suffix == ".npy":
        return _apart(np.load(path, mmap_mode="r", allow_pickle=False), opened)
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            return {name: _apart(arrays[name], opened)["content"] for name in arrays.files}
    if path.suffix in {".json", ".yaml", ".yml"} and path.stat().st_size > _LARGEST_TEXT:
        return _bytes_of(path)
    if path.suffix in {".yaml", ".yml"} and find_spec("yaml"):
        return _parts_of_yaml(path, opened)
    if path.suffix == ".json":
        return _apart(_read_json(path), opened)
    with open_checkpoint(path) as content:
        return _apart(content.tree, opened)


def _read_json(path: Path) -> Any:
    text = path.read_bytes()
    try:
        return json.loads(text)
    except ValueError:
        return _last_values(map(json.loads, filter(None, map(bytes.strip, text.splitlines()))))


def _parts_of_yaml(path: Path, opened: _Opened) -> dict[str, str]:
    yaml = import_module("yaml")
    try:
        return _apart(yaml.safe_load(path.read_bytes()), opened)
    except yaml.YAMLError:
        return _bytes_of(path)


# ------------------------------------------------------------------ bytes


def _bytes_of(path: Path) -> dict[str, str]:
    """Digest the bytes of a file block by block; of a large one, its size and blocks all over it."""
    size, found = path.stat().st_size, sha256()
    with path.open("rb") as file:
        if size <= _LARGE:
            while block := file.read(_BLOCK):
                found.update(block)
            return {BYTES: f"{size} bytes: {found.hexdigest()[:16]}"}
        for number in range(_BLOCKS):
            file.seek(number * (size - _BLOCK) // (_BLOCKS - 1))
            found.update(file.read(_BLOCK))
    return {SAMPLED: f"{size} bytes: {found.hexdigest()[:16]}"}


# ------------------------------------------------------------------ logs


def _read_csv(path: Path) -> dict[str, Any]:
    """Return the last value of each column."""
    last: dict[str, str] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        first = next(rows, [])
        names = [f"column {number}" for number in range(len(first))] if any(map(_is_number, first)) else first
        for row in [first] if names is not first else []:
            last |= zip(names, row, strict=False)
        for row in rows:
            if row != first:  # which a start may write again
                last |= {name: value for name, value in zip(names, row, strict=False) if value}
    return {name: _number(value) for name, value in last.items()}


def _is_number(text: str) -> bool:
    return not isinstance(_number(text), str)


def _number(text: str) -> Any:
    """Return a text as a number, if it is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _read_jsonl(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return _last_values(map(_line_of_json, filter(None, map(bytes.strip, file))))


def _line_of_json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return {}  # a kill in the middle of a line leaves a part of it


def _last_values(lines: Iterable[Any]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for line in lines:
        last |= line if isinstance(line, dict) else {"value": line}
    return last


def _read_last_line(path: Path) -> dict[str, Any]:
    """Return the words of the last line, those with a point as numbers, so that a time among them hides no others."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _BLOCK))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    words = (_number(word) if "." in word else word for word in last.split())
    return {f"last line, word {number}": word for number, word in enumerate(words, start=1)}


_LOGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **dict.fromkeys((".csv", ".tsv"), _read_csv),
    **dict.fromkeys((".jsonl", ".ndjson"), _read_jsonl),
    **dict.fromkeys((".log", ".out", ".txt"), _read_last_line),
}


# ------------------------------------------------------------------ values


class _Opened:
    """Gives each node of a tree as plain values and arrays, without what is another in each run.

    Args:
        work: the directory of the run.
        more: gives what is added to the text of a leaf.
    """

    def __init__(self, work: Path, more: Callable[[Any], str] | None = None) -> None:
        self._work, self._parts, self.more = str(work), 0, more

    def __call__(self, node: Any) -> Any:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise ValueError("too many parts")
        for kinds, plain in _PLAIN:
            if isinstance(node, kinds):
                node = plain(node)
        if isinstance(node, dict):
            return self._of_dict(node)
        if isinstance(node, list):
            return self._of_list(node)
        return self._text(node) if isinstance(node, str) else node

    def _of_dict(self, node: dict[Any, Any]) -> dict[Any, Any]:
        if is_state(node):
            return {CURSOR: node["cursor"]}
        if node.keys() >= _PATHS:
            return {}
        return {self._text(name) if isinstance(name, str) else name: value for name, value in node.items()}

    def _of_list(self, node: list[Any]) -> Any:
        if node and all(type(value) is float for value in node):
            return np.array(node)
        return [self._text(value) if isinstance(value, str) else value for value in node]

    def _text(self, text: str) -> str:
        return unversioned(text.replace(self._work, "{dir}"))


def _array_of(tensor: Tensor) -> Any:
    array = tensor.read()
    if tensor.dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Tensor, _array_of),
    (Opaque, lambda node: dict(children(node)) or f"object of {node.kind}"),
    (File, lambda node: f"file of {node.size} bytes"),
    (Name, str),
    ((set, frozenset), lambda node: sorted(map(repr, node))),
    (tuple, list),
)
