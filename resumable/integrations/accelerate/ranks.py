"""What each rank alone knows, in a file that the main process writes."""

from __future__ import annotations

from typing import Any

from torch import distributed

from resumable.errors import StateMismatchError

__all__ = ["exchange"]


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


def _place(known: dict[str, Any]) -> str:
    cursors = [state["cursor"] for state in known["loaders"]]
    return ", ".join(f"epoch {cursor['epoch']}, step {cursor['step']}" for cursor in cursors)
