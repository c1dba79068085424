"""Identity of DALI pipelines: what must be the same in the run that saved a state and the one that loads it.

DALI itself compares the names of the operators only. Everything that changes the samples, their order or the pixels is
an entry here; what does not (threads, prefetch depth, executor, the line of the script) is left out.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from resumable.backends.dali.native.listing import is_of_files, look_at
from resumable.backends.dali.native.private import operators, pipelines_of, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumable.backends.dali.native.private import Operator

__all__ = ["identity_of"]

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
# Arguments that have an entry of their own, change no sample, or are addresses of this process.
_UNSEEN = {"seed", "bytes_per_sample_hint", "preserve", "preserve_name", "num_shards", "shard_id", "pad_last_batch",
           "stick_to_shard", "dont_use_mmap", "prefetch_queue_depth", "lazy_init", "read_ahead", "skip_cached_images",
           "num_threads", "use_o_direct", "tensor_init_bytes",
           "function_id", "run_fn", "setup_fn"} | set(_READER)  # fmt: skip


def identity_of(iterators: Sequence[Any], name: str | None, unread: list[str]) -> dict[str, Any]:
    """Return the identity of one iterator, or of several in turn: a value per field, or a list where they differ.

    Args:
        iterators: DALI iterators.
        name: what the user calls the data; without, the names and sizes of its files are looked at.
        unread: gets what readers name and this process cannot read.
    """
    import nvidia.dali  # noqa: PLC0415  # only here, for its version

    each = [_iterator(one, name, unread) for one in iterators]
    merged = {field: _one([part[field] for part in each]) for field in each[0]}
    return {"dali": nvidia.dali.__version__, "iterators": len(each), **merged}


def _iterator(iterator: Any, name: str | None, unread: list[str]) -> dict[str, Any]:
    pipelines, settings = pipelines_of(iterator), settings_of(iterator)
    parts = [_pipeline(pipeline, name, unread) for pipeline in pipelines]
    return {
        "pipelines": len(parts),
        "batch_size": iterator.batch_size,
        "last_batch_policy": settings.policy,
        "reader_name": settings.reader,
        "size": None if settings.reader else settings.size,
        "outputs": settings.outputs,
        **{field: _one([part[field] for part in parts]) for field in parts[0]},
    }


def _pipeline(pipeline: Any, name: str | None, unread: list[str]) -> dict[str, Any]:
    known, meta = operators(pipeline), pipeline.reader_meta()
    readers = [one for one in known if one.name in meta]
    return {
        **{field: _one([meta[one.name][theirs] for one in readers]) for theirs, field in _FACTS.items()},
        **{field: _one([_argument(one, field) for one in readers]) for field in _READER if field != "seed"},
        "seed": pipeline.seed,
        "seeds": {one.name: _plain(one.arguments["seed"]) for one in known if "seed" in one.arguments},
        "files": name or _one([_files(one, unread) for one in readers]),
        "graph": _graph(known, {one.name for one in readers}),
    }


def _files(reader: Operator, unread: list[str]) -> str | None:
    listing = look_at(reader.arguments, reader.texts)
    told = listing.unread if listing.digest else ["no argument names files"]
    unread += [f"{reader.name} ({reader.schema}): {one}" for one in told]
    return listing.digest


def _argument(reader: Operator, field: str) -> Any:
    return _plain(reader.arguments.get(field, _READER[field]))


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


def _one(values: list[Any]) -> Any:
    """Return what all have in common, else all of them."""
    if not values:
        return None
    return values[0] if all(value == values[0] for value in values) else values


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
