"""What all ranks do together by the store of the default process group, under keys that they count alike.

A store that fails raises here; what must not end a run, such as a look at how the others do, is in `store.py`.
Nothing here is a collective: a rank sets a key, others look for it. A blocking `wait` or `get` is never used, as
torch's client of a TCPStore holds a lock meanwhile, which every other thread of the process would wait for.
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
        """Return the key of the next thing of a kind that all ranks do, in the same order."""
        number = self._counted.get(kind, 0)
        self._counted[kind] = number + 1
        return f"resumable/{kind}/{number}"

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self.store.set(key, value)

    def set_once(self, key: str, value: str) -> str:
        """Set a key that is not set yet, and return what it is now: of several ranks, the first one decides."""
        return str(self.store.compare_set(key, "", value).decode())

    def look(self, key: str) -> str | None:
        """Return what a key is, or None if it is not set yet."""
        return str(self.store.get(key).decode()) if self.store.check([key]) else None

    def missing(self, keys: Sequence[str]) -> list[int]:
        """Return which of the keys are not set yet, by their place."""
        if self.store.check(list(keys)):
            return []
        return [place for place, key in enumerate(keys) if not self.store.check([key])]

    def delete(self, key: str) -> None:
        """Remove a key that is not looked for any longer."""
        self.store.delete_key(key)


_found: list[Rendezvous] = []  # at most one: what was counted lives as long as the group


def find() -> Rendezvous | None:
    """Return that of this process, or None without a process group; a new group begins to count again.

    Raises:
        UnsupportedError: the process group has no store.
    """
    if not is_initialized():
        _found.clear()
        return None
    store = find_store()
    if store is None:
        raise UnsupportedError(
            "the default process group has no key-value store, as that of MPI.\n"
            "The ranks could not agree on anything. Use the backend gloo or nccl."
        )
    if not _found or _found[0].store is not store:
        distributed = sys.modules["torch.distributed"]
        _found[:] = [Rendezvous(store, distributed.get_rank(), distributed.get_world_size())]
    return _found[0]
