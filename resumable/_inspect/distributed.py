"""Folders of torch.distributed.checkpoint: `.metadata` maps each part to byte ranges of files."""

from __future__ import annotations

import io
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.pickles import read_bare_pickle, read_pickle, read_torch_zip
from resumable._inspect.values import DTYPES, Opaque, Tensor
from resumable.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable._inspect.values import CheckpointPath

__all__ = ["METADATA", "SHARD", "read_distributed"]

METADATA, SHARD = ".metadata", ".distcp"


def read_distributed(place: CheckpointPath) -> dict[Any, Any]:
    """Return the content of a folder of torch.distributed.checkpoint, nested as before saving.

    Raises:
        CorruptCheckpointError: its metadata, or a file listed there, is truncated, damaged or missing.
    """
    metadata = read_pickle(place.child(METADATA).read())
    try:
        stored = _stored(place, metadata.state)
        paths = metadata.state.get("planner_data") or {}
        tree = _Tree()
        for name, about in metadata.state["state_dict_metadata"].items():
            tree.put(paths.get(name, (name,)), _part(name, about, stored))
        return tree.plain()
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise CorruptCheckpointError(f"its {METADATA} is not PyTorch's: {type(error).__name__}: {error}") from error


_Stored = dict[tuple[str, tuple[int, ...] | None], Any]


def _stored(place: CheckpointPath, metadata: dict[str, Any]) -> _Stored:
    """Return a dict from name and offsets to a reader of each stored piece."""
    found: _Stored = {}
    for index, info in metadata["storage_data"].items():
        at = info.state
        offset = index.state.get("offset")
        file = place.child(_plain_name(at["relative_path"]))
        read = partial(_piece, file, at["offset"], at["length"])
        found[index.state["fqn"], None if offset is None else tuple(offset)] = read
    return found


def _plain_name(path: str) -> str:
    if "/" in path or "\\" in path or path in {".", ".."}:
        raise ValueError(f"it refers to the file {path!r}, outside the folder")
    return path


def _piece(file: CheckpointPath, offset: int, length: int) -> Any:
    raw = file.read(offset, length)
    if len(raw) != length:
        raise CorruptCheckpointError(f"its file {file.name} ends before byte {offset + length}")
    whole = io.BytesIO(raw)
    return read_torch_zip(whole) if raw[:2] == b"PK" else read_bare_pickle(whole)[1]


def _part(name: str, about: Opaque, stored: _Stored) -> Any:
    if about.kind.endswith(".BytesStorageMetadata"):
        return stored[name, None]()
    dtype = about.state["properties"].state[0].name
    shape = tuple(about.state["size"])
    chunks = [(tuple(chunk.state["offsets"]), tuple(chunk.state["sizes"])) for chunk in about.state["chunks"]]
    if dtype not in DTYPES:
        return Opaque(f"tensor of {dtype}", shape)
    return Tensor(shape, dtype, partial(_assemble, name, shape, dtype, chunks, stored))


def _assemble(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    chunks: list[tuple[tuple[int, ...], tuple[int, ...]]],
    stored: _Stored,
) -> NDArray[Any]:
    """Assemble a tensor from its shards."""
    whole: NDArray[Any] | None = None
    covered = 0
    for offsets, sizes in chunks:
        shard = stored[name, offsets]()
        if not isinstance(shard, Tensor) or shard.shape != sizes:
            raise CorruptCheckpointError(f"the shape of the part {name} differs from its {METADATA}")
        if sizes == shape:
            return shard.read()
        if whole is None:
            whole = np.zeros(shape, DTYPES[dtype][1])
        whole[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))] = shard.read()
        covered += shard.size
    if whole is None or covered != whole.size:
        raise CorruptCheckpointError(f"shards of the part {name} are missing")
    return whole


class _Tree:
    """Nested dicts; a dict with the keys 0, 1, 2, ... becomes a list."""

    def __init__(self) -> None:
        self._root: dict[Any, Any] = {}

    def put(self, path: tuple[Any, ...], value: Any) -> None:
        inside = self._root
        for key in path[:-1]:
            inside = inside.setdefault(key, _Node())
        inside[path[-1]] = value

    def plain(self) -> dict[Any, Any]:
        return {_key(key): _plain(value) for key, value in self._root.items()}


class _Node(dict[Any, Any]):
    """A dict that was created here, not read from the file."""


def _plain(value: Any) -> Any:
    if not isinstance(value, _Node):
        return value
    inner = {key: _plain(part) for key, part in value.items()}
    listed = all(type(key) is int for key in inner) and sorted(inner) == list(range(len(inner)))
    if listed:
        return [inner[number] for number in range(len(inner))]
    return {_key(key): part for key, part in inner.items()}


_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


def _key(key: Any) -> Any:
    """Return the original key: PyTorch writes integers, such as an optimizer's parameter numbers, as text."""
    return int(key) if isinstance(key, str) and _NUMBER.fullmatch(key) else key
