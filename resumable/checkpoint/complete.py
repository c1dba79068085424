"""Marks checkpoints of `torch.distributed.checkpoint` as complete, and finds the newest complete one.

    <root>/step-8/__0_0.distcp, .metadata   output of dcp.save, written one file after the other
    <root>/step-8/COMPLETE.json             the mark: the step, and names and sizes of the files; written last

If a run is killed during a save, DCP may be able to load a part of the folder, or nothing. Such a folder has no mark.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from resumable._ranks.store import is_initialized
from resumable._storage import open_url, storage_of
from resumable.errors import CheckpointError, ConfigurationError, CorruptCheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._storage import Storage

__all__ = ["mark_complete", "newest_complete"]

_MARK, _METADATA, _FORMAT = "COMPLETE.json", ".metadata", 1


def mark_complete(folder: str | os.PathLike[str], step: int, *, process_group: Any = None) -> None:
    """Mark a checkpoint of `torch.distributed.checkpoint` as complete. All ranks must call it after the save.

        dcp.save({"model": model, "loader": loader.dcp()}, checkpoint_id=f"checkpoints/{step}")
        mark_complete(f"checkpoints/{step}", step)

    After `async_save`, call it when `future.result()` has returned. Rank 0 writes the mark.

    Args:
        folder: of the checkpoint: a path, or a URL that fsspec supports. Use a separate folder for each save.
        step: number that orders the checkpoints.
        process_group: of the ranks that saved; None for all.

    Raises:
        CheckpointError: DCP has not finished the save, or the mark cannot be written; on all ranks.
        ConfigurationError: the folder already has a mark, so the save has overwritten a checkpoint; on all ranks.
    """
    url, number = os.fspath(folder).rstrip("/"), operator.index(step)
    _by_rank_0(lambda: _mark(url, number), process_group)


def newest_complete(root: str | os.PathLike[str], *, process_group: Any = None) -> str | None:
    """Return the folder of the newest checkpoint that has a mark; None if there is none.

    All ranks must call it. Rank 0 finds the checkpoint for all ranks, so they return the same one.

    Args:
        root: parent folder of the checkpoints: a path, or a URL that fsspec supports.
        process_group: of the ranks that load; None for all.

    Raises:
        CheckpointError: the folder cannot be read; on all ranks.

    Warns:
        CorruptCheckpointWarning: a checkpoint has a mark, but its files are truncated or missing. It is skipped.
    """
    url = os.fspath(root).rstrip("/")
    found = _by_rank_0(lambda: _newest(url), process_group)
    return None if found is None else f"{url}/{found}"


def _mark(url: str, step: int) -> None:
    storage, path = _open(url, "folder")
    sizes = {name: size for name, size in storage.sizes(path).items() if size is not None}
    if _METADATA not in sizes:
        raise CheckpointError(
            f"{url} is not a complete checkpoint of torch.distributed.checkpoint: it has no {_METADATA} file, which is "
            "written last.\nIt was not marked. Call mark_complete after dcp.save, or after async_save and its "
            "future.result()."
        )
    if _MARK in sizes:
        raise ConfigurationError(
            f"{url} already has a mark, so this save has overwritten an earlier checkpoint.\n"
            "If a run is killed during such a save, the folder contains a mixture that is marked as complete. Use a "
            "separate folder for each save, for example with the step in its name, or remove the old checkpoint before "
            "the save."
        )
    files = {
        name: size for name, size in sizes.items() if not name.startswith(_MARK)
    }  # leftovers of a killed mark_complete
    text = json.dumps({"format": _FORMAT, "step": step, "files": files}, sort_keys=True)
    storage.settle(path)  # make the names of DCP's files durable before the mark exists
    storage.stage(f"{path}/{_MARK}", f"{path}/{_MARK}.{uuid4().hex}.tmp", text.encode())()


def _newest(url: str) -> str | None:
    storage, root = _open(url, "root")
    folders = [name for name, size in storage.sizes(root).items() if size is None]
    marks = {name: _read(storage, f"{root}/{name}") for name in folders}
    marked = [(mark["step"], name, mark["files"]) for name, mark in marks.items() if mark is not None]
    for _, name, files in sorted(marked, reverse=True, key=operator.itemgetter(0, 1)):
        held = storage.sizes(f"{root}/{name}")
        wrong = [file for file, size in files.items() if held.get(file) != size]
        if not wrong:
            return name
        file = wrong[0]
        damage = f"has {held[file]} bytes instead of {files[file]}" if file in held else "is missing"
        warnings.warn(
            f"the checkpoint {url}/{name} is marked as complete, but its file {file} {damage}.\n"
            "Skipping it: the next older complete checkpoint is used, if there is one.",
            CorruptCheckpointWarning,
            stacklevel=5,
        )
    return None


def _open(url: str, what: str) -> tuple[Storage, str]:
    filesystem, path = open_url(url, what=f"{what}={url!r}")
    filesystem.invalidate_cache()
    return storage_of(filesystem), path.rstrip("/")


def _read(storage: Storage, folder: str) -> dict[str, Any] | None:
    try:
        mark = json.loads(storage.read(f"{folder}/{_MARK}"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        mark = None
    if not isinstance(mark, dict) or mark.get("format") != _FORMAT or type(mark.get("step")) is not int:
        raise CheckpointError(
            f"this version of resumable cannot read the mark {folder}/{_MARK}.\n"
            "Using an older checkpoint would lose work. Use the version that wrote the mark, or remove that folder."
        )
    return mark


def _by_rank_0(do: Callable[[], Any], process_group: Any) -> Any:
    """Call a function on the first rank of a group, and return its result or raise its error on all ranks."""
    if not is_initialized():
        return _reported(do)
    distributed = sys.modules["torch.distributed"]
    found: list[Any] = [None, None]
    first = distributed.get_rank(process_group) == 0
    if first:
        try:
            found[0] = _reported(do)
        except Exception as error:  # noqa: BLE001  # the others wait; it is raised below
            found[1] = error
    source = 0 if process_group is None else distributed.get_global_rank(process_group, 0)
    distributed.broadcast_object_list(found, source, process_group)
    if found[1] is not None:
        raise found[1]
    return found[0]


def _reported(do: Callable[[], Any]) -> Any:
    try:
        return do()
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint folder could not be read or written: {type(error).__name__}: {error}.\n"
            "Earlier checkpoints are unchanged. Fix the storage and try again."
        ) from error
