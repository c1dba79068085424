"""Detect the kind of a checkpoint from its content, and read it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import zipfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._distribution import pip_install
from resumable._flight.record import KIND
from resumable._inspect.distributed import METADATA, SHARD, read_distributed
from resumable._inspect.pickles import read_bare_pickle, read_torch_zip
from resumable._inspect.values import DTYPES, File, Opaque, Tensor, open_path
from resumable.checkpoint.marker import MARKER, Marker
from resumable.checkpoint.steps import DIRECTORY
from resumable.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptCheckpointError,
    MissingDependencyError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from numpy.typing import NDArray

    from resumable._inspect.values import CheckpointPath

__all__ = ["Content", "Step", "open_checkpoint"]


@contextlib.contextmanager
def open_checkpoint(path: str | os.PathLike[str]) -> Iterator[Content]:
    """Read a checkpoint of any kind; its tensors can be read until the block exits.

    Raises:
        ConfigurationError: it is a flight recorder's folder, or a URL that fsspec does not know.
        CheckpointNotFoundError: nothing exists there, or it is empty.
        CorruptCheckpointError: it is truncated or damaged.
        CheckpointError: it is not a checkpoint, or could not be read.
    """
    with open_path(path) as place:
        try:
            content = _read_folder(place) if place.is_folder() else _read_file(place)
        except (CorruptCheckpointError, CheckpointNotFoundError) as error:
            raise type(error)(
                f"{os.fspath(path)}: {error}.\nThis checkpoint cannot be used to resume. Use a different checkpoint."
            ) from error
        except CheckpointError as error:
            if error.__cause__ is not None:
                raise
            raise CheckpointError(f"{os.fspath(path)}: {error}.\n{_KNOWN}") from error
        yield content


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint.

    Args:
        kind: kind of checkpoint, in words.
        tree: dicts, lists, numbers, and stand-ins for everything else.
        size: in bytes, over all files that were read.
        steps: the steps of a store.
        step: the step that the tree belongs to.
        notes: further remarks.
    """

    kind: str
    tree: Any
    size: int
    steps: tuple[Step, ...] = ()
    step: int | None = None
    notes: tuple[str, ...] = ()


class Step(NamedTuple):
    """A step of a store.

    Attributes:
        step: its number.
        size: size of its data in bytes; None if it is not committed.
        problem: the reason why it cannot be read; empty if no problem is known.
    """

    step: int
    size: int | None
    problem: str = ""


_KNOWN = (
    "Pass a file of torch.save, Lightning, safetensors, NumPy or JSON, a pickle, or a folder of CheckpointStore, "
    "torch.distributed.checkpoint, Accelerate or the Hugging Face Trainer."
)
_HEAD = 16


def _read_file(place: CheckpointPath) -> Content:
    size = place.size()
    file = place.open()
    head = file.read(_HEAD)
    file.seek(0)
    if not head:
        raise CorruptCheckpointError("it is empty")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        if _is_npz(file):
            return Content("file of NumPy", _read_npz(file), size)
        tree = read_torch_zip(file)
        return Content("Lightning checkpoint" if _is_lightning(tree) else "file of torch.save", tree, size)
    if head.startswith(b"\x80"):
        by_torch, tree = read_bare_pickle(file)
        kind = "file of torch.save in its older format" if by_torch else "pickle"
        return Content("Lightning checkpoint" if _is_lightning(tree) else kind, tree, size)
    if head.startswith(_NPY):
        load = partial(np.load, place.path, "r") if place.is_local else partial(np.load, file)
        return Content("file of NumPy", _array("its array", partial(load, allow_pickle=False)), size)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size:
        return Content("file of safetensors", _read_safetensors(place), size)
    if head.startswith(KIND):
        raise _is_flight(place)
    if head.lstrip()[:1] in {b"{", b"["}:
        return _read_json(file.read(), size)
    raise CheckpointError("it is not a known kind of checkpoint")


def _read_json(text: bytes, size: int) -> Content:
    """Read one document, or one per line, as in logs."""
    try:
        return Content("JSON", json.loads(text), size)
    except (ValueError, RecursionError) as error:
        lines = list(filter(bytes.strip, text.splitlines()))
        if len(lines) > 1:
            with contextlib.suppress(ValueError, RecursionError):
                return Content("JSON, line by line", list(map(json.loads, lines)), size)
        raise CorruptCheckpointError(f"it starts as JSON, but is truncated or damaged: {error}") from error


_NPY = b"\x93NUMPY"  # the first bytes of a file with one array
_NUMPYS = (ValueError, OSError, EOFError, MemoryError, RuntimeError, NotImplementedError, zipfile.BadZipFile)
_OF_OBJECTS = ("allow_pickle", "Python objects")  # in NumPy's messages about arrays that it does not read


def _is_npz(file: BinaryIO) -> bool:
    """Return whether a zip file contains only arrays."""
    try:
        names = zipfile.ZipFile(file).namelist()
    except _NUMPYS:
        return False
    finally:
        file.seek(0)
    return bool(names) and all(name.endswith(".npy") for name in names)


def _read_npz(file: BinaryIO) -> dict[str, Any]:
    arrays = np.load(file, allow_pickle=False)
    return {name: _array(f"its array {name}", partial(arrays.__getitem__, name)) for name in arrays.files}


def _array(name: str, load: Callable[[], NDArray[Any]]) -> Any:
    try:
        array = load()
    except _NUMPYS as error:
        if any(one in str(error) for one in _OF_OBJECTS):
            return Opaque("array of objects")
        raise CorruptCheckpointError(f"{name} is truncated or damaged: {error}") from error
    if array.dtype.name in DTYPES:
        return Tensor(array.shape, array.dtype.name, lambda: array)
    return array.tolist()


_SAFETENSORS = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "BOOL": "bool",
}


def _package(name: str, what: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"reading {what} needs the package {name}, which failed to import: {error}.\n"
            f"Install it: {pip_install(extra)}"
        ) from error


def _read_safetensors(place: CheckpointPath) -> dict[str, Any]:
    safetensors = _package("safetensors", place.name, "cli")
    try:
        if place.is_local:
            file = safetensors.safe_open(place.path, "np")
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a dict
            return {
                name: _tensor(one.get_dtype(), one.get_shape(), partial(_numbers, place.path, name, one.get_dtype()))
                for name, one in found.items()
            }
        parts = dict(safetensors.deserialize(place.read()))
        return {name: _tensor(one["dtype"], one["shape"], partial(one.get, "data")) for name, one in parts.items()}
    except safetensors.SafetensorError as error:
        raise CorruptCheckpointError(f"its header is truncated or damaged: {error}") from error


def _tensor(kind: str, shape: list[int], read: Callable[[], Any]) -> Any:
    dtype = _SAFETENSORS.get(kind)
    if dtype is None:
        return Opaque(f"tensor of {kind}", tuple(shape))
    return Tensor(tuple(shape), dtype, lambda: np.frombuffer(read(), f"<{DTYPES[dtype][1]}").reshape(shape))


def _numbers(path: str, name: str, kind: str) -> Any:
    safe_open = _package("safetensors", path, "cli").safe_open
    if not kind.startswith(("BF16", "F8")):
        return safe_open(path, "np").get_tensor(name)
    torch = _package("torch", f"a tensor of {kind}", "torch")  # NumPy has no such type
    return safe_open(path, "pt").get_tensor(name).reshape(-1).view(torch.uint8).numpy()


def _is_lightning(tree: Any) -> bool:
    return isinstance(tree, dict) and "pytorch-lightning_version" in tree


def _is_flight(place: CheckpointPath) -> ConfigurationError:
    return ConfigurationError(
        f"{place.path} belongs to a flight recorder, which records the position of a run but no state.\n"
        "To show it, run: resumable flight FOLDER"
    )


_FLIGHT = re.compile(r"rank-\d+\.flight")


def _read_folder(place: CheckpointPath) -> Content:
    sizes = place.children()
    if MARKER in sizes:
        return _read_step(place, sizes)
    if any(map(DIRECTORY.fullmatch, sizes)):
        return _read_store(place, sizes)
    if any(map(_FLIGHT.fullmatch, sizes)):
        raise _is_flight(place)
    if not sizes:
        raise CheckpointNotFoundError("the folder is empty")
    return _read_files(place, sizes)


def _read_step(place: CheckpointPath, sizes: dict[str, Any]) -> Content:
    number = DIRECTORY.fullmatch(place.name)
    marker = Marker.parse(place.child(MARKER).read(), int(number[1]) if number else _step_of(place))
    problem = _problem(marker, sizes)
    if problem:
        raise CorruptCheckpointError(problem)
    inside = _read_file(place.child(marker.file))
    return Content("step of a CheckpointStore", inside.tree, inside.size, step=marker.step)


def _step_of(place: CheckpointPath) -> int:
    """Return the step in the marker of a folder that was renamed."""
    try:
        return int(json.loads(place.child(MARKER).read())["step"])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptCheckpointError(f"its {MARKER} cannot be read: {error}") from error


def _problem(marker: Marker, sizes: dict[str, Any]) -> str:
    for name, size in marker.sizes.items():
        held = sizes.get(name)
        if held is None:
            return f"its data file {name} is missing"
        if held != size:
            return f"its data file {name} has {held} bytes instead of {size}"
    return ""


def _read_store(place: CheckpointPath, sizes: dict[str, Any]) -> Content:
    found = [match for match in map(DIRECTORY.fullmatch, sizes) if match]
    steps = tuple(sorted(_look_at(place.child(match[0]), int(match[1])) for match in found))
    whole = [one.step for one in steps if one.size is not None and not one.problem]
    if not whole:
        problems = ", ".join(f"step {one.step}: {one.problem or 'not committed'}" for one in steps)
        raise CorruptCheckpointError(f"no step of this store can be read: {problems}")
    newest = place.child(next(match[0] for match in found if int(match[1]) == whole[-1]))
    inside = _read_step(newest, newest.children())
    size = sum(one.size or 0 for one in steps)
    return Content(
        "CheckpointStore",
        inside.tree,
        size,
        steps,
        inside.step,
        (f"This is the content of step {inside.step}, the newest.",),
    )


def _look_at(place: CheckpointPath, step: int) -> Step:
    sizes = place.children()
    if MARKER not in sizes:
        return Step(step, None, "not committed")
    try:
        marker = Marker.parse(place.child(MARKER).read(), step)
    except CheckpointError as error:
        return Step(step, None, str(error).partition("\n")[0])
    return Step(step, sum(marker.sizes.values()), _problem(marker, sizes))


_ACCELERATE = re.compile(r"custom_checkpoint_\d+\.pkl|dl_state_dict(_\d+)?\.bin|random_states_\d+\.pkl")
_LIGHTNING_META = "meta.pt"  # next to the shards of Lightning's distributed strategies


def _read_files(place: CheckpointPath, sizes: dict[str, Any]) -> Content:
    notes: list[str] = []
    looked = _Looked()
    tree = _gather(place, sizes, looked, notes)
    if not _is_content(tree):
        raise CheckpointError("; ".join(notes) or "it is a folder that contains no known kind of checkpoint")
    return Content(_kind_of(sizes, tree), tree, looked.size, notes=tuple(notes))


def _kind_of(sizes: dict[str, Any], tree: dict[Any, Any]) -> str:
    if METADATA in sizes:
        is_lightning = _is_lightning(tree.get(_LIGHTNING_META))
        return "Lightning checkpoint" if is_lightning else "torch.distributed.checkpoint"
    if "trainer_state.json" in sizes:
        return "checkpoint of the Hugging Face Trainer"
    return "checkpoint of Accelerate" if any(map(_ACCELERATE.fullmatch, sizes)) else "folder of files"


def _is_content(tree: Any) -> bool:
    return not isinstance(tree, File) and (not isinstance(tree, dict) or any(map(_is_content, tree.values())))


_DEEPEST = 3


def _gather(
    place: CheckpointPath, sizes: dict[str, Any], looked: _Looked, notes: list[str], deep: int = 0
) -> dict[Any, Any]:
    tree: dict[Any, Any] = read_distributed(place) if METADATA in sizes else {}
    for name, size in sizes.items():
        looked.at(size)
        if name != METADATA and not (METADATA in sizes and name.endswith(SHARD)):
            inside = _read_one(place.child(name), size, looked, notes, deep)
            if inside is not None:
                tree[name] = inside
    return tree


def _read_one(place: CheckpointPath, size: int | None, looked: _Looked, notes: list[str], deep: int) -> Any:
    if size is None:
        sizes = place.children() if deep < _DEEPEST else {}
        return _gather(place, sizes, looked, notes, deep + 1) or None
    try:
        return _read_file(place).tree
    except (CorruptCheckpointError, MissingDependencyError) as error:
        if size:
            notes.append(f"{place.name}: {error}")
        return File(size, str(error))
    except (CheckpointError, ConfigurationError):
        return File(size)


_MOST_FILES = 500  # below the usual limit of open files per process


class _Looked:
    """Counts the files that were read, and their size."""

    files = size = 0

    def at(self, size: int | None) -> None:
        self.files, self.size = self.files + 1, self.size + (size or 0)
        if self.files > _MOST_FILES:
            raise CheckpointError(f"it is a folder of more than {_MOST_FILES} files, not a known kind of checkpoint")
