"""The files at the end of a run, with their contents.

The path in the work folder identifies a file. Excluded are inputs that the run did not change, the steps of
a CheckpointStore, which are compared when they are saved, flight records, and Python's compiled files.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from resumable._content import UNCOMPARED, parts_of
from resumable._inspect.distributed import METADATA
from resumable._inspect.reading import open_checkpoint
from resumable._inspect.values import File, Name, Opaque, Tensor, children
from resumable._state import is_state
from resumable.chaos.digests import OF_ONE_LAUNCH, as_array, weight_sketch
from resumable.chaos.ledger import Left
from resumable.checkpoint.steps import DIRECTORY, TOKEN
from resumable.errors import ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


__all__ = [
    "CHECKPOINTS",
    "CURSOR",
    "SAMPLED",
    "Stamps",
    "changed",
    "parts_of_file",
    "read_left",
    "stamps",
    "take_inventory",
    "write_left",
]


# Suffixes of files that may hold a state.
CHECKPOINTS = {".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".pkl", ".pickle", ".joblib"}
_FILE = "left.json"  # in the directory of a case
_OURS = re.compile(rf"rank-\d+\.flight|.*\.pyc|{re.escape(TOKEN)}")
_WORD = re.compile(r"(\d+)")
Stamps = dict[Path, tuple[int, int]]
Row: TypeAlias = "tuple[int, dict[str, Any]]"  # the number of its line, from 1, and its values


def take_inventory(  # noqa: PLR0913  # what is left out, and how the rest is compared
    case: Path,
    ignore: Sequence[str] = (),
    damaged: Stamps | None = None,
    inputs: Stamps | None = None,
    *,
    appended: AbstractSet[str] = frozenset(),
    old: Mapping[str, int] | None = None,
    rounded: bool = False,
) -> Left:
    """Read all files at the end of a run.

    Args:
        case: its directory.
        ignore: patterns of names to leave out.
        damaged: files that were damaged on purpose, with their stamps after that; they are left out unless they have
            changed since.
        inputs: files of the mirror with their stamps; they are left out unless they have changed since.
        appended: names of files that were opened to append: their lines are records of what happened.
        old: for files that earlier launches wrote, how many bytes are older than the last launch.
        rounded: whether numbers are compared up to rounding.
    """
    files: dict[str, dict[str, str]] = {}
    ignored: set[str] = set()
    records: set[str] = set()
    written: dict[str, Counter[str]] = {}
    work = case / "work"
    spoilt, unchanged = (
        {path for path, stamp in (given or {}).items() if stamp == _stamp(path)} for given in (damaged, inputs)
    )
    for path in sorted(set(_paths(case)) - spoilt - unchanged, key=lambda path: _by_numbers(str(path))):
        name = _name(path, case)
        if any(_matches(name, glob) or _matches(path.name, glob) for glob in ignore):
            ignored.add(name)
            continue
        place = path.relative_to(work).as_posix()
        if place in appended and not _has_values(path):
            records.add(name)
            continue
        if old and (counts := _count_written(path, old.get(place, 0))):
            written.setdefault(name, Counter()).update(counts)
        parts = parts_of_file(path, work, rounded=rounded)
        files[name] = {**files.get(name, {}), **parts} if is_log(path) else parts
    single = {name: [key for key, count in rows.items() if count <= 1] for name, rows in written.items()}
    damaged_names = tuple(sorted(_name(path, case) for path in spoilt))
    return Left(files, tuple(sorted(ignored)), damaged_names, records=tuple(sorted(records)), single=single)


def _has_values(path: Path) -> bool:
    """Return whether a file that is written line by line has values to compare; its lines differ after a resume."""
    may_be_json = path.suffix in {*_TEXTS, ".json"}
    return path.suffix in {*_LOGS, *CHECKPOINTS} - _TEXTS or (may_be_json and bool(_read_json_line(path)))


def _name(path: Path, case: Path) -> str:
    return unversioned(path.relative_to(case / "work").as_posix())


def _paths(case: Path) -> Iterator[Path]:
    return _walk(case / "work")


def _walk(folder: Path) -> Iterator[Path]:
    """Yield files, and folders of torch.distributed.checkpoint; links count if they lead to a file next to them."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == METADATA for entry in entries):
        yield folder
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not DIRECTORY.fullmatch(entry.name) and entry.name != "__pycache__":
                yield from _walk(Path(entry.path))
        elif entry.is_file() and not _OURS.fullmatch(entry.name) and _is_beside(entry):
            yield Path(entry.path)


def _is_beside(entry: os.DirEntry[str]) -> bool:
    return not entry.is_symlink() or not str(Path(entry.path).readlink()).startswith(("/", ".."))


def _by_numbers(text: str) -> list[Any]:
    """Return a sort key that puts version_2 before version_10."""
    return [int(word) if word.isdigit() else word for word in _WORD.split(text)]


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name, glob) or fnmatchcase(name, f"{glob.rstrip('/')}/*")


def stamps(case: Path) -> Stamps:
    """Return the modification time and size of each file."""
    return {path: _stamp(path) for path in _paths(case)}


def changed(before: Stamps, case: Path) -> Stamps:
    """Return the files that changed, with their current stamps; (0, 0) for a removed file."""
    now = stamps(case)
    return {path: now.get(path, (0, 0)) for path in {**before, **now} if before.get(path) != now.get(path)}


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def write_left(left: Left, case: Path) -> None:
    """Save the record of a run's files."""
    (case / _FILE).write_text(json.dumps(left._asdict()))


def read_left(case: Path) -> Left | None:
    """Load the record; None if there is none."""
    try:
        values = json.loads((case / _FILE).read_text())
    except (OSError, ValueError):
        return None
    files, single = values.pop("files"), values.pop("single", {})
    return Left(files, **{name: tuple(names) for name, names in values.items()}, single=single)


# Splits a file into parts, which are compared between two runs. No code in a file runs.

BYTES = "bytes"  # the part of a file that is compared as bytes
CURSOR = "cursor"  # the part of a loader's state that is compared
SAMPLED = "bytes of some blocks"
_LARGE = 1 << 30  # bytes above which a file is only sampled
_BLOCK, _BLOCKS = 1 << 20, 64
_LARGEST_TEXT = 64 << 20  # bytes of JSON or YAML
_MOST_PARTS = 100_000
_VERSION = re.compile(r"(^|/)version_\d+(?=/|$)")
# Texts such as 0:00:01, 2026-11-26, 14ms or 3.1it/s, and names of columns such as time, batch_time, eta_seconds.
_TIME = re.compile(r"\d:\d\d|\d{4}-\d\d-\d\d|^\(?\d+(\.\d+)?(ns|us|ms|s|sec|min|h|it/s|s/it|%|[KMG]i?B)(/s)?[,;)]?$")
_OF_TIME = re.compile(
    r"(^|[^a-z])(times?|timestamp|date|datetime|secs?|seconds|elapsed|duration|eta|speed|throughput|fps|uptime|pid|host|"
    r"hostname|memory|mem|runtime|ms|per_?second|per_?sec)([^a-z]|$)",
    re.IGNORECASE,
)
_TEXTS = {".log", ".out", ".txt"}
_PICKLES = {".pkl", ".pickle", ".joblib", ".dill", ".sav"}
_UNREADABLE = (ResumableError, ValueError, TypeError, KeyError, EOFError, RecursionError, csv.Error)


def unversioned(text: str) -> str:
    """Return a path with Lightning's `version_0`, `version_1`, ... unified, because each launch has its own folder."""
    return _VERSION.sub(r"\1version_N", text)


def is_log(path: Path) -> bool:
    """Return whether a file is written line by line; its last values are compared."""
    return path.suffix in _LOGS


def parts_of_file(path: Path, work: Path, *, rounded: bool = False) -> dict[str, str]:
    """Return a dict from dotted path to text for each part of a file; a digest of its bytes if it cannot be split.

    Args:
        path: of the file, or of a folder of torch.distributed.checkpoint.
        work: the directory of the run, whose name differs in each run.
        rounded: whether numbers are compared up to rounding.
    """
    opened = _Opened(work, weight_sketch if rounded else None)
    try:
        if read := _LOGS.get(path.suffix):
            return _apart(read(path), opened)
        return _parts_of_content(path, opened)
    except _UNREADABLE:
        if path.suffix in _PICKLES:
            return {BYTES: f"{UNCOMPARED}its parts cannot be read, and pickles of equal objects may differ in bytes"}
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
        values = json.loads(text)
        return _without_times(values) if isinstance(values, dict) else values
    except ValueError:
        lines = map(json.loads, filter(None, map(bytes.strip, text.splitlines())))
        return _without_times(_merged((0, line if isinstance(line, dict) else {"value": line}) for line in lines))


def _parts_of_yaml(path: Path, opened: _Opened) -> dict[str, str]:
    yaml = import_module("yaml")
    try:
        return _apart(yaml.safe_load(path.read_bytes()), opened)
    except yaml.YAMLError:
        return _bytes_of(path)


def _bytes_of(path: Path) -> dict[str, str]:
    """Digest the bytes of a file; for a large one, its size and evenly spaced blocks."""
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


def _read_csv(path: Path) -> dict[str, Any]:
    """Return the last value of each column."""
    last = _merged(_rows_of_csv(path))
    return _without_times({name: _number(value) for name, value in last.items()})


def _rows_of_csv(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        first = next(rows, [])
        names = [f"column {number}" for number in range(len(first))] if any(map(_is_number, first)) else first
        if names is not first:
            yield rows.line_num, dict(zip(names, first, strict=False))
        for row in rows:
            if row != first:  # a launch may write the header again
                yield rows.line_num, {name: value for name, value in zip(names, row, strict=False) if value}


def _is_number(text: str) -> bool:
    return not isinstance(_number(text), str)


def _number(text: str) -> Any:
    """Convert a text to a number, if it is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _read_jsonl(path: Path) -> dict[str, Any]:
    return _without_times(_merged(_rows_of_json(path)))


def _rows_of_json(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            with suppress(ValueError, RecursionError):  # a kill may leave an incomplete line
                values = json.loads(line)
                yield number, values if isinstance(values, dict) else {"value": values}


def _merged(rows: Iterable[Row]) -> dict[str, Any]:
    last: dict[str, Any] = {}
    for _, values in rows:
        last |= values
    return last


def _count_written(path: Path, since: int) -> dict[str, int]:
    """Return how often each value was written, from a byte on, to a file that is written line by line."""
    rows = _ROWS.get(path.suffix)
    if rows is None or (path.suffix in _TEXTS and not _read_json_line(path)):
        return {}
    with path.open("rb") as file:
        older = file.read(min(since, path.stat().st_size)).count(b"\n")
    counts: Counter[str] = Counter()
    with suppress(csv.Error):
        for number, values in rows(path):
            counts.update(dict.fromkeys(map(str, values), int(number > older)))
    return counts


def _read_last_line(path: Path) -> dict[str, Any]:
    """Return the values of the last line if it is JSON, else its words; numbers with a decimal point as numbers."""
    if values := _read_json_line(path):
        return values
    words = (_number(word) if "." in word else word for word in _last_line(path).split())
    found = {f"last line, word {number}": word for number, word in enumerate(words, start=1)}
    return {name: word for name, word in found.items() if not (isinstance(word, str) and _TIME.search(word))}


def _read_json_line(path: Path) -> dict[str, Any]:
    """Return the values of the last line of a file, if it is an object in JSON."""
    line = _last_line(path)
    with suppress(ValueError, RecursionError):
        if line.startswith("{") and isinstance(values := json.loads(line), dict):
            return _without_times(values)
    return {}


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _BLOCK))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out times, judged from name and form: two runs may happen to have equal ones."""
    return {
        name: value
        for name, value in values.items()
        if not _OF_TIME.search(str(name)) and not (isinstance(value, str) and _TIME.search(value))
    }


_ROWS: dict[str, Callable[[Path], Iterator[Row]]] = {
    **dict.fromkeys((".csv", ".tsv"), _rows_of_csv),
    **dict.fromkeys((".jsonl", ".ndjson", *sorted(_TEXTS)), _rows_of_json),
}
_LOGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **dict.fromkeys((".csv", ".tsv"), _read_csv),
    **dict.fromkeys((".jsonl", ".ndjson"), _read_jsonl),
    **dict.fromkeys(sorted(_TEXTS), _read_last_line),
}


class _Opened:
    """Converts each node of a tree to plain values and arrays, without values that differ in each run.

    Args:
        work: the directory of the run.
        more: returns the text to add to a leaf.
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
        if node.keys() >= OF_ONE_LAUNCH:
            return {}
        return {self._text(name) if isinstance(name, str) else name: value for name, value in node.items()}

    def _of_list(self, node: list[Any]) -> Any:
        return as_array([self._text(value) if isinstance(value, str) else value for value in node])

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
