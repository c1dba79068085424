"""Identity of DALI pipelines: what must be the same in the run that saved a state and the run that loads it.

DALI itself compares only the names of the operators. Everything that changes the samples, their order or the pixels has
an entry here. Settings that change none of them are left out: threads, prefetch depth, executor, line of the script.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.backends.dali.private import operators, pipelines_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from resumable.backends.dali.private import Operator


__all__ = ["OPTIONS", "Listing", "identity_of", "is_of_files", "look_at"]


_READER = {
    "random_shuffle": False,
    "shuffle_after_epoch": False,
    "shuffle_after_epoch_seed": None,
    "initial_fill": 1024,
    "seed": None,
}
_FACTS = {
    "epoch_size": "samples",
    "number_of_shards": "num_shards",
    "shard_id": "shard_id",
    "pad_last_batch": "pad_last_batch",
    "stick_to_shard": "stick_to_shard",
}
# Arguments that have a separate entry, change no sample, or are addresses of this process.
_UNSEEN = {"seed", "bytes_per_sample_hint", "preserve", "preserve_name", "num_shards", "shard_id", "pad_last_batch",
           "stick_to_shard", "dont_use_mmap", "prefetch_queue_depth", "lazy_init", "read_ahead", "skip_cached_images",
           "num_threads", "use_o_direct", "tensor_init_bytes",
           "function_id", "run_fn", "setup_fn"} | set(_READER)  # fmt: skip


def identity_of(iterators: Sequence[Any], name: str | None, unread: list[str]) -> dict[str, Any]:
    """Return the identity of one iterator, or of several in turn: a value per field, or a list if they differ.

    Args:
        iterators: DALI iterators.
        name: the user's name for the data; without it, the names and sizes of its files are used.
        unread: filled with the names in readers that this process cannot read.
    """
    import nvidia.dali  # noqa: PLC0415  # only here, for its version

    each = [_of_iterator(one, name, unread) for one in iterators]
    merged = {field: _common_value([part[field] for part in each]) for field in each[0]}
    return {"dali": nvidia.dali.__version__, "iterators": len(each), **merged}


def _of_iterator(iterator: Any, name: str | None, unread: list[str]) -> dict[str, Any]:
    pipelines, settings = pipelines_of(iterator), settings_of(iterator)
    parts = [_of_pipeline(pipeline, name, unread) for pipeline in pipelines]
    return {
        "pipelines": len(parts),
        "batch_size": iterator.batch_size,
        "last_batch_policy": settings.policy,
        "reader_name": settings.reader,
        "size": None if settings.reader else settings.size,
        "outputs": settings.outputs,
        **{field: _common_value([part[field] for part in parts]) for field in parts[0]},
    }


def _of_pipeline(pipeline: Any, name: str | None, unread: list[str]) -> dict[str, Any]:
    known, meta = operators(pipeline), pipeline.reader_meta()
    readers = [one for one in known if one.name in meta]
    return {
        **{field: _common_value([meta[one.name][theirs] for one in readers]) for theirs, field in _FACTS.items()},
        **{field: _common_value([_argument(one, field) for one in readers]) for field in _READER if field != "seed"},
        "seed": pipeline.seed,
        "seeds": {one.name: _as_plain(one.arguments["seed"]) for one in known if "seed" in one.arguments},
        "files": name or _common_value([_files(one, unread) for one in readers]),
        "graph": _graph(known, {one.name for one in readers}),
    }


def _files(reader: Operator, unread: list[str]) -> str | None:
    listing = look_at(reader.arguments, reader.texts)
    unread_here = listing.unread if listing.digest else ["no argument names files"]
    unread += [f"{reader.name} ({reader.schema}): {one}" for one in unread_here]
    return listing.digest


def _argument(reader: Operator, field: str) -> Any:
    return _as_plain(reader.arguments.get(field, _READER[field]))


def _graph(known: Iterable[Operator], readers: set[str]) -> str:
    """Hash the operators, their connections and their arguments."""
    state = hashlib.blake2b(digest_size=16)
    for one in known:
        given = one.arguments.items() if one.name in readers else ()
        of_files = {key for key, value in given if is_of_files(key, value, one.texts)}
        state.update(f"{one.schema} {one.name}\n".encode())
        for line in one.text.splitlines()[1:]:
            key = line.strip().partition(":")[0]
            if not key.startswith("_") and key not in _UNSEEN and key not in of_files:
                state.update(line.encode() + b"\n")
    return state.hexdigest()


def _common_value(values: list[Any]) -> Any:
    """Return the value that all have in common; otherwise, all values."""
    if not values:
        return None
    return values[0] if all(value == values[0] for value in values) else values


def _as_plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


# ------------------------------------------------------------------ listing
#
# Fingerprints of the data of a reader: which files, in which order, without reading any sample.
#
# argument of a reader     fingerprint
# list of samples          names and order (there may be a million, so no file is opened)
# list of archives         names, order and sizes; for a directory, as with LMDB, the sizes of its files
# folder                   names in it, sorted
# index, manifest, list    its content, which contains the order of the samples
# any other text           the content of the file with that name, or of the files in the folder, if it exists
#
# The directory of the files does not count, as data may be copied to the disk of a different node.

_SAMPLES = {"files", "images", "labels"}
_ARCHIVES = {"path", "paths", "filenames"}
_LISTS = {"file_list", "index_path", "index_paths", "manifest_filepaths", "annotations_file",
          "preprocessed_annotations"}  # fmt: skip
_ROOT = "file_root"
_KNOWN = _SAMPLES | _ARCHIVES | _LISTS | {_ROOT}
# Texts of DALI's readers that do not name a file to read.
OPTIONS = {"dir_filters", "enable_frame_num", "ext", "feature_names", "file_filter", "file_filters", "file_list_format",
           "file_list_rounding", "missing_component_behavior", "mode", "out_of_bounds_policy", "pad_mode",
           "save_preprocessed_annotations_dir"}  # fmt: skip
_LOCK = "lock.mdb"  # LMDB creates it for reading
_BLOCK = 1 << 20
_LARGEST = 64 << 20  # bytes of a file whose purpose is unknown


class Listing(NamedTuple):
    """A fingerprint of a reader's data.

    Args:
        digest: of names, order, sizes and lists; None if the reader names no files.
        unread: names that this process cannot read, so a different order in them would go unnoticed.
    """

    digest: str | None
    unread: list[str]


def is_of_files(key: str, value: Any, texts: Collection[str]) -> bool:
    """Return whether an argument of a reader names files.

    Args:
        key: its name.
        value: its value.
        texts: names of the arguments that DALI declares as text or a list of text.
    """
    if key in _KNOWN:
        return not (value is None or (hasattr(value, "__len__") and len(value) == 0))
    # Path.exists raises an error if text is longer than a name may be.
    return key in texts and key not in OPTIONS and any(os.path.exists(one) for one in _strings(value)[:1])  # noqa: PTH110


def look_at(arguments: Mapping[str, Any], texts: Collection[str]) -> Listing:
    """Return a fingerprint of the files that the arguments of a reader name.

    Args:
        arguments: of the reader, from name to value.
        texts: names of the arguments that DALI declares as text or a list of text.
    """
    state, unread = hashlib.blake2b(digest_size=16), list[str]()
    named = {key for key, value in arguments.items() if is_of_files(key, value, texts)}
    if named & {"files", "file_list"}:
        named.discard(_ROOT)  # these say which files; the directory does not count
    for key in sorted(named):
        state.update(key.encode())
        unread += [f"{key}={path!r}" for path in _add(state, key, arguments[key])]
    return Listing(state.hexdigest() if named else None, unread)


def _add(state: hashlib.blake2b, key: str, value: Any) -> list[str]:
    """Add an argument, and return the names in it that could not be read."""
    if key in _SAMPLES:
        state.update(_joined(list(value)))
        return []
    names = _strings(value)
    if key in _ARCHIVES:
        state.update(_joined(names))
        for name in names:
            _add_sizes(state, Path(name))
        return []
    return [name for name in names if not _add_content(state, Path(name), key)]


def _joined(values: list[Any]) -> bytes:
    """Join values, names without the directory that they share."""
    if not values or not isinstance(values[0], (str, bytes, os.PathLike)):
        return repr(list(map(int, values))).encode()
    names = [os.fsdecode(value) for value in values]
    start = _shared(min(names), max(names)).rfind(os.sep) + 1
    return "\0".join(name[start:] for name in names).encode()


def _shared(first: str, last: str) -> str:
    """Return the common prefix of the smallest and the largest name, and thus of all between them."""
    differs = (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(differs, min(len(first), len(last)))]


def _add_sizes(state: hashlib.blake2b, path: Path) -> None:
    """Add the size of a file; for a directory, add the names and sizes of its files."""
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.name != _LOCK:
                state.update(f"{file.name} {file.stat().st_size}\n".encode())
    else:
        state.update(f"{path.stat().st_size if path.exists() else -1}\n".encode())


def _add_names(state: hashlib.blake2b, root: Path) -> None:
    """Add the names in a directory and in its subdirectories, sorted; DALI's readers do not go deeper."""
    with os.scandir(root) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        state.update(entry.name.encode() + b"\n")
        if entry.is_dir():
            # With a million names, making a Path for each would take longer than everything else.
            state.update("\0".join(sorted(os.listdir(entry.path))).encode())  # noqa: PTH208


def _add_content(state: hashlib.blake2b, path: Path, key: str) -> bool:
    """Add the content of a list or a folder; return whether it could be read."""
    try:
        if key == _ROOT:
            _add_names(state, path)
        elif path.is_dir():
            return all(_add_content(state, file, key) for file in sorted(path.iterdir()) if file.is_file())
        elif key not in _LISTS and path.stat().st_size > _LARGEST:
            state.update(f"{path.name} {path.stat().st_size}\n".encode())
            return False
        else:
            _add_bytes(state, path)
    except OSError:  # not a file on this machine, but for example the address of an object store
        state.update(os.fsencode(path))
        return False
    return True


def _add_bytes(state: hashlib.blake2b, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
        state.update(f"{file.tell()}\n".encode())


def _strings(value: Any) -> list[str]:
    alone = isinstance(value, (str, bytes, os.PathLike)) or not hasattr(value, "__iter__")
    return [os.fsdecode(one) for one in ([value] if alone else value) if isinstance(one, (str, bytes, os.PathLike))]
