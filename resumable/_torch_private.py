"""The one file with names that PyTorch does not document. They are checked when it is imported.

Two classes build on PyTorch's iterator over worker processes, and override some of its methods: for workers that send
small tensors by value (`_fetch/transport.py`), and for workers that are restarted (`_fetch/restarting_workers.py`). If
one of the names that they use is missing, or takes other arguments, `ABSENT` says which, and the workers of a plain
`DataLoader` are used instead: batches and states are the same. Every other name has its own replacement here.

The names of the queues of `multiprocessing` that the same classes use are checked with them.
"""

from __future__ import annotations

import inspect
import multiprocessing.queues
import multiprocessing.synchronize
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader, dataloader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as WorkersIterator
else:
    WorkersIterator = getattr(dataloader, "_MultiProcessingDataLoaderIter", object)

__all__ = [
    "ABSENT",
    "VARIABLE",
    "WorkersIterator",
    "awaited_worker",
    "copy_all",
    "default_store",
    "end_workers",
    "forget_workers",
    "is_exiting",
    "iterates_its_own_way",
    "iterator_of",
    "mesh_of_all_ranks",
    "persistent_buffers",
    "plain_workers",
    "pytree",
    "requests_of",
    "seen_as_worker",
    "shows_streams",
    "torchs_collate",
    "version_of",
    "worker_info",
]

VARIABLE = "RESUMABLE_PLAIN_WORKERS"  # "1" selects the workers of a plain `DataLoader`

_utils: Any = getattr(dataloader, "_utils", None)
_worker_module: Any = getattr(_utils, "worker", None)
_collate_module: Any = getattr(_utils, "collate", None)

# Methods that are overridden or called, with the names of their arguments after `self`.
METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    DataLoader: {"_get_iterator": (), "check_worker_number_rationality": ()},
    WorkersIterator: {
        "_get_data": (),
        "_mark_worker_as_unavailable": ("worker_id", "shutdown"),
        "_reset": ("loader", "first_iter"),
        "_shutdown_workers": (),
        "_try_get_data": ("timeout",),
        "_try_put_index": (),
    },
}
# Attributes that their methods set.
ATTRIBUTES: dict[type, tuple[str, ...]] = {
    DataLoader: ("_iterator",),
    WorkersIterator: (
        "_data_queue",
        "_index_queues",
        "_num_workers",
        "_pin_memory",
        "_pin_memory_thread",
        "_pin_memory_thread_done_event",
        "_prefetch_factor",
        "_rcvd_idx",
        "_send_idx",
        "_shutdown",
        "_task_info",
        "_timeout",
        "_worker_pids_set",
        "_worker_result_queue",
        "_workers",
        "_workers_done_event",
        "_workers_status",
    ),
    multiprocessing.queues.Queue: ("_closed", "_poll", "_reader", "_sem", "_thread", "_wlock", "_writer"),
    multiprocessing.synchronize.Event: ("_cond",),
}
_COLLATE = ("collate", "collate_float_fn", "collate_int_fn", "collate_tensor_fn", "default_collate_fn_map")


def _absent() -> str:
    if not hasattr(dataloader, "_MultiProcessingDataLoaderIter"):
        return "_MultiProcessingDataLoaderIter"
    for kind, methods in METHODS.items():
        for name, arguments in methods.items():
            method = getattr(kind, name, None)
            if not inspect.isfunction(method):
                return f"{kind.__name__}.{name}()"
            if tuple(inspect.signature(method).parameters)[1:] != arguments:
                return f"{kind.__name__}.{name}({', '.join(arguments)})"
    for kind, attributes in ATTRIBUTES.items():
        used = _names_in(kind)
        if absent := [name for name in attributes if name not in used]:
            return f"{kind.__name__}.{absent[0]}"
    functions = ((torch._C, "_remove_worker_pids"), (reductions, "reduce_storage"), (reductions, "reduce_tensor"))
    return next((f"{module.__name__}.{name}()" for module, name in functions if not hasattr(module, name)), "")


def _names_in(kind: type) -> set[str]:
    """Return the names of all attributes that the methods of a class set or read. Only an instance has them itself."""
    members = [member for base in kind.__mro__ for member in vars(base).values()]
    return {name for member in members if inspect.isfunction(member) for name in member.__code__.co_names}


ABSENT = _absent()  # the first missing name of the worker processes; empty if none is missing


def plain_workers() -> str:
    """Return why the workers of a plain `DataLoader` are used; empty if this package's are."""
    if os.environ.get(VARIABLE) == "1":
        return f"{VARIABLE}=1 is set"
    return f"PyTorch {torch.__version__} has no {ABSENT}, which resumable needs" if ABSENT else ""


# ---------------------------------------------------------------------- iterators over worker processes


def iterates_its_own_way(kind: type[DataLoader[Any]]) -> bool:
    """Return whether a subclass of `DataLoader` overrides how it is iterated over."""
    return any(
        getattr(kind, name, None) is not getattr(DataLoader, name, None) for name in ("__iter__", "_get_iterator")
    )


def iterator_of(loader: DataLoader[Any]) -> Any:
    """Return the iterator that a `DataLoader` keeps for its persistent workers; None if there is none."""
    return getattr(loader, "_iterator", None)


def requests_of(iterator: Any) -> list[Any]:
    """Return the queues to the workers of an iterator; empty if they are unknown."""
    return getattr(iterator, "_index_queues", [])


def end_workers(iterator: Any) -> None:
    """End the workers of an iterator now; if PyTorch has no method for it, they end when it is garbage."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def forget_workers(iterator: Any) -> None:
    """Let PyTorch's signal handler ignore the death of an iterator's workers.

    Raises:
        ValueError: they are not registered with it.
    """
    torch._C._remove_worker_pids(id(iterator))


def awaited_worker(iterator: Any) -> tuple[int, int]:
    """Return the number and the process of the worker that owes the next batch."""
    number = iterator._task_info[iterator._rcvd_idx][0]
    return number, iterator._workers[number].pid


def is_exiting() -> bool:
    """Return whether the interpreter exits, where PyTorch leaves the workers to the system."""
    return getattr(_utils, "python_exit_status", False) in {True, None}


# ---------------------------------------------------------------------- code in workers

torchs_collate: Any = _collate_module if all(hasattr(_collate_module, name) for name in _COLLATE) else None
shows_streams = hasattr(_worker_module, "_worker_info") and hasattr(_worker_module, "WorkerInfo")


def worker_info(number: int, count: int, seed: int, dataset: Any) -> Any:
    """Return what `get_worker_info()` returns in a worker; needs `shows_streams`."""
    return _worker_module.WorkerInfo(id=number, num_workers=count, seed=seed, dataset=dataset)


@contextmanager
def seen_as_worker(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` return `info` inside the block; needs `shows_streams`."""
    before, _worker_module._worker_info = _worker_module._worker_info, info
    try:
        yield
    finally:
        _worker_module._worker_info = before


# ---------------------------------------------------------------------- tensors and modules


def version_of(tensor: torch.Tensor) -> int:
    """Return a number that changes when a tensor is written in place; 0 if it is unknown."""
    with suppress(Exception):  # tensors of an inference mode have none
        return tensor._version
    return 0


def persistent_buffers(module: Any) -> list[tuple[dict[str, Any], str]]:
    """Return the dict and the name of each buffer that is in the state of a module, but not of inner modules."""
    buffers = module._buffers  # getattr() costs 20 times as much
    return [(buffers, name) for name in buffers if name not in module._non_persistent_buffers_set]


def _copy_each(into: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    for one, tensor in zip(into, tensors, strict=True):
        one.copy_(tensor)


pytree: Any = getattr(torch.utils, "_pytree", None)  # Lightning needs it, too

# One kernel for many small tensors; versions without it copy one tensor after the other.
copy_all: Any = getattr(torch, "_foreach_copy_", _copy_each)


# ---------------------------------------------------------------------- torch.distributed


def default_store() -> Any:
    """Return the store with which the default process group was made; None if PyTorch does not say."""
    find = getattr(sys.modules["torch.distributed"].distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def mesh_of_all_ranks(mesh: Any) -> Any:
    """Return the mesh that a dimension belongs to; the dimension itself if PyTorch does not say."""
    root = getattr(mesh, "_get_root_mesh", None) or getattr(mesh, "get_root_mesh", None)
    return mesh if root is None else root()
