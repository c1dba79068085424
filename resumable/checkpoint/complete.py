"""A mark that a checkpoint of `torch.distributed.checkpoint` is complete, and the newest one that has it.

    <root>/step-8/__0_0.distcp, .metadata   what dcp.save wrote, one file after the other
    <root>/step-8/COMPLETE.json             the mark: the step, and names and sizes of the files; written last

A run that is killed in the middle of a save leaves a folder that DCP loads in part, or not at all. It has no mark.
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
    """Mark a checkpoint of `torch.distributed.checkpoint` as complete. All ranks call it, after the save has returned.

        dcp.save({"model": model, "loader": loader.dcp()}, checkpoint_id=f"checkpoints/{step}")
        mark_complete(f"checkpoints/{step}", step)

    After `async_save`, call it once `future.result()` has returned. Rank 0 writes the mark.

    Args:
        folder: the checkpoint: a path, or a URL that fsspec knows. Each save has a folder of its own.
        step: by which checkpoints are ordered.
        process_group: of the ranks that saved; None for all.

    Raises:
        CheckpointError: DCP has not finished it, or it cannot be written; on all ranks.
        ConfigurationError: it has a mark already, so an earlier checkpoint was written over; on all ranks.
    """
    url, number = os.fspath(folder).rstrip("/"), operator.index(step)
    _by_rank_0(lambda: _mark(url, number), process_group)


def newest_complete(root: str | os.PathLike[str], *, process_group: Any = None) -> str | None:
    """Return the folder of the newest checkpoint that has a mark, the same on all ranks; None where there is none.

    Rank 0 looks and tells the others, so that no rank goes on from an older one. All ranks call it.

    Args:
        root: the folder in which the checkpoints are: a path, or a URL that fsspec knows.
        process_group: of the ranks that load; None for all.

    Raises:
        CheckpointError: it cannot be looked into; on all ranks.

    Warns:
        CorruptCheckpointWarning: a checkpoint has a mark, and files that it names are cut or missing; it is skipped.
    """
    url = os.fspath(root).rstrip("/")
    found = _by_rank_0(lambda: _newest(url), process_group)
    return None if found is None else f"{url}/{found}"


def _mark(url: str, step: int) -> None:
    storage, path = _open(url, "folder")
    sizes = {name: size for name, size in storage.sizes(path).items() if size is not None}
    if _METADATA not in sizes:
        raise CheckpointError(
            f"{url} is no complete checkpoint of torch.distributed.checkpoint: it has no file {_METADATA}, which is "
            "written last.\nIt was not marked. Call mark_complete after dcp.save has returned, or after async_save's "
            "future.result()."
        )
    if _MARK in sizes:
        raise ConfigurationError(
            f"{url} has a mark already, so an earlier checkpoint was written over.\n"
            "A run that is killed in the middle of that leaves a mixture, which the earlier mark calls complete. "
            "Give each save a folder of its own, as with the number of the step in its name; or remove the old one "
            "before the save."
        )
    files = {name: size for name, size in sizes.items() if not name.startswith(_MARK)}  # not of a mark that was killed
    text = json.dumps({"format": _FORMAT, "step": step, "files": files}, sort_keys=True)
    storage.settle(path)  # the names of DCP's files are durable before the mark is there
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
        warnings.warn(
            f"the checkpoint {url}/{name} is marked as complete, and its file {wrong[0]} has "
            f"{held.get(wrong[0], 'no')} bytes of {files[wrong[0]]}.\nIt is skipped, and an older one is looked for.",
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
            f"the mark {folder}/{_MARK} cannot be read by this version.\n"
            "An older checkpoint would lose work. Use the version that wrote it, or remove that folder."
        )
    return mark


def _by_rank_0(do: Callable[[], Any], process_group: Any) -> Any:
    """Return on all ranks of a group what its first one found; raise on all of them what it raised."""
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
            f"the checkpoint could not be marked or looked for: {type(error).__name__}: {error}.\n"
            "What was saved before is as it was. See to the storage, and start again."
        ) from error
