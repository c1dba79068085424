"""What each rank alone knows, in a file that the main process writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

from resumable.errors import StateMismatchError

if TYPE_CHECKING:
    from resumable.integrations.accelerate.boundary import Boundary

__all__ = ["exchange", "exchange_with_buffers"]


def exchange(own: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Return what all ranks know, in their order. All of them have to call it, as they have to call `save_state`.

    Args:
        own: the states of this rank's loaders, its generators, and the accelerator's count.
        ranks: how many there are.

    Raises:
        StateMismatchError: they stand at different batches; on all of them.
    """
    if ranks == 1:
        return [own]
    everyone: list[Any] = [None] * ranks
    distributed.all_gather_object(everyone, own)
    places = [_place(one) for one in everyone]
    for rank, place in enumerate(places):
        if place != places[0]:
            raise StateMismatchError(
                f"the ranks save at different batches.\n  rank 0: {places[0]}\n  rank {rank}: {place}\n"
                "No checkpoint could bring both back. Save on all ranks, after the same optimizer step."
            )
    return everyone


def exchange_with_buffers(own: dict[str, Any], boundary: Boundary, ranks: int) -> list[dict[str, Any]]:
    """Return the same, with the buffers of the ranks in which they are not those of rank 0.

    Under DDP the running means of a normalisation differ, and Accelerate saves those of the main process. Each rank
    evaluates with its own.

    Args:
        own: as above.
        boundary: which has the buffers of this rank.
        ranks: how many there are.
    """
    everyone = exchange({**own, "digests": [kept.digest() for kept in boundary.buffers] if ranks > 1 else []}, ranks)
    digests = [one.pop("digests") for one in everyone]
    found: list[Any] = [None] * ranks
    if any(one != digests[0] for one in digests):
        distributed.all_gather_object(
            found, boundary.copies() if digests[distributed.get_rank()] != digests[0] else None
        )
    return [{**one, "buffers": buffers} for one, buffers in zip(everyone, found, strict=True)]


def _place(known: dict[str, Any]) -> str:
    cursors = [state["cursor"] for state in known["loaders"]]
    return ", ".join(f"epoch {cursor['epoch']}, step {cursor['step']}" for cursor in cursors)
