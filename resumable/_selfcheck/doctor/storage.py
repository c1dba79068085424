"""Whether a folder can hold checkpoints: it is tried, in a folder of its own that is removed again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable._selfcheck.doctor.findings import Findings

__all__ = ["look_at_store"]

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "9p", "glusterfs")
_BUCKETS = ("gcsfuse", "s3fs", "mountpoint-s3", "goofys", "rclone", "blobfuse")
_IN_MEMORY = ("tmpfs", "ramfs")


def look_at_store(found: Findings, store: str) -> None:
    """Look at a folder for checkpoints, or where it would be made.

    Raises:
        ConfigurationError: it is a file.
    """
    if "://" in store:
        found.known["store"] = f"{store} (an address: not tried)"
        return
    path = Path(store).absolute()
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"the store {store} is a file.\nNo checkpoint can be saved there. Give a folder.")
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    kind, source = _file_system(there)
    found.known["store"] = f"{store} on {kind}" + ("" if there == path else f" (not there yet; tried: {there})")
    _look_at_kind(found, kind, source)
    try:
        with tempfile.TemporaryDirectory(prefix=".resumable-doctor-", dir=there) as folder:
            _try(found, Path(folder))
    except OSError as error:
        found.breaks(f"no checkpoint can be saved in {there}: {error.strerror}.")


def _look_at_kind(found: Findings, kind: str, source: str) -> None:
    if any(name in kind or name in source for name in _BUCKETS):
        found.breaks(
            f"the store is on a bucket that is mounted as a folder ({kind}), which renames by copying or not at all: "
            "a crash can leave half a checkpoint. Give the bucket's URL to CheckpointStore."
        )
    elif kind.startswith(_NETWORK):
        found.mind(f"the store is on a network file system ({kind}): one process may write, and others see it later.")
    elif kind in _IN_MEMORY:
        found.mind(f"the store is in memory ({kind}): its checkpoints survive a killed process, and no reboot.")
    elif kind == "overlay":
        found.mind("the store is in a container's own layer (overlay): its checkpoints go with the container.")


def _try(found: Findings, folder: Path) -> None:
    """Write, sync, rename over a file that is there, and look what came out."""
    old, new = folder / "Old", folder / "new"
    old.write_bytes(b"old")
    with new.open("wb") as file:
        file.write(b"new")
        file.flush()
        if (error := _sync(file.fileno())) is not None:
            found.breaks(f"fsync of a file fails in the store ({error}): a saved checkpoint may be lost at power loss.")
    if (folder / "old").exists():
        found.mind("names in the store are the same in upper and lower case: do not tell two runs apart by that.")
    try:
        new.replace(old)
        is_replaced = old.read_bytes() == b"new" and not new.exists()
    except OSError:
        is_replaced = False
    if not is_replaced:
        found.breaks("a file cannot be renamed over another one in the store: a crash can leave half a checkpoint.")
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            if (error := _sync(descriptor)) is not None:
                found.breaks(f"fsync of a folder fails in the store ({error}): a saved step may be gone at power loss.")
        finally:
            os.close(descriptor)


def _sync(descriptor: int) -> str | None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _file_system(path: Path) -> tuple[str, str]:
    """Return the type of file system that a folder is on, and what is mounted; as far as Linux tells."""
    if not _MOUNTS.exists():
        return "a file system of unknown type", ""
    found, kind, source = Path("/"), "a file system of unknown type", ""
    for line in _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        what, where, name, *_ = line.split(" ")
        mounted = Path(where.replace("\\040", " "))
        if path.resolve().is_relative_to(mounted) and len(mounted.parts) >= len(found.parts):
            found, kind, source = mounted, name, what
    return kind, source
