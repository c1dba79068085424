"""Operations of all ranks through the store of the default process group, under keys that all ranks count equally.

If the store fails, these functions raise. Requests that must not end a run, such as checking on other ranks, are in
`store.py`. None of this is a collective: a rank sets a key, and others read it. A blocking `wait` or `get` is never
used: PyTorch's TCPStore client holds a lock meanwhile, which blocks all other threads of the process.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resumable._ranks.store import find_store, is_initialized
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Rendezvous", "find"]


@dataclass(frozen=True)
class Rendezvous:
    """The ranks of the default process group, and their store.

    Args:
        store: of `torch.distributed`.
        rank: of this process.
        size: number of ranks.
    """

    store: Any
    rank: int
    size: int
    _counted: dict[str, int] = field(default_factory=dict, compare=False)

    def key(self, kind: str) -> str:
        """Return the key for the next operation of a kind. All ranks call it in the same order."""
        number = self._counted.get(kind, 0)
        self._counted[kind] = number + 1
        return f"resumable/{kind}/{number}"

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self.store.set(key, value)

    def set_once(self, key: str, value: str) -> str:
        """Set a key unless it is set, and return its value: the first rank to set it decides."""
        return str(self.store.compare_set(key, "", value).decode())

    def look(self, key: str) -> str | None:
        """Return the value of a key, or None if it is not set yet."""
        return str(self.store.get(key).decode()) if self.store.check([key]) else None

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Return the indices of the keys that are not set yet."""
        if self.store.check(list(keys)):
            return []
        return [place for place, key in enumerate(keys) if not self.store.check([key])]

    def delete(self, key: str) -> None:
        """Remove a key that no rank will read again."""
        self.store.delete_key(key)


_found: list[Rendezvous] = []  # at most one: its counts last as long as the group


def find() -> Rendezvous | None:
    """Return the rendezvous of this process, or None without a process group; a new group counts from 0.

    Raises:
        UnsupportedError: the process group has no store.
    """
    if not is_initialized():
        _found.clear()
        return None
    store = find_store()
    if store is None:
        raise UnsupportedError(
            "the default process group has no key-value store, for example because it uses MPI.\n"
            "The ranks could not agree on anything. Use the backend gloo or nccl."
        )
    if not _found or _found[0].store is not store:
        distributed = sys.modules["torch.distributed"]
        _found[:] = [Rendezvous(store, distributed.get_rank(), distributed.get_world_size())]
    return _found[0]
