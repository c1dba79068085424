"""What a source will be asked for: said in advance, so that it can read in larger pieces than samples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.protocols import Upcoming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable._fetch.order import Order
    from resumable.protocols import Request

__all__ = ["prefetch"]


def prefetch(source: Any, indices: Sequence[Any], request: Request | None = None) -> None:
    """Call the method of a source that is `protocols.Prefetching`; do nothing for others.

    Args:
        source: of the samples.
        indices: that it will be asked for.
        request: which they are of; None where the order is not that of the source.
    """
    method = getattr(type(source), "resumable_prefetch", None)
    if method is not None:
        method(source, indices, partial(_upcoming, request))


def _upcoming(request: Request | None) -> Upcoming | None:
    """Return the blocks at and after a request; None where its order is not in blocks, or not known here."""
    order: Any = None if request is None else request.order
    sampler = getattr(order, "sampler", None)
    if request is None or not hasattr(sampler, "blocks_of"):
        return None
    return _blocks(order, request)


def _blocks(order: Order, request: Request) -> Upcoming:
    """Return them: of all windows from the first sample of a request to its last, and a part of the one after."""
    sampler: Any = order.sampler
    first, *more = order.plan.segments(request.epoch, request.start, request.stop)
    last = next((one for one in reversed(more) if one.epoch > first.epoch), first)  # others only fill up the batch
    windows = sampler.blocks_of(first.epoch, first.start)
    while (windows[-2].epoch, windows[-2].stop) < (last.epoch, last.stop):
        windows += sampler.blocks_of(windows[-1].epoch, windows[-1].start)[1:]
    *here, following = windows
    passed = (last.stop - here[-1].start) / (here[-1].stop - here[-1].start)
    soon = following.blocks[: int(np.ceil(passed * len(following.blocks)))]
    return Upcoming(sampler.spans(np.concatenate([one.blocks for one in here])), sampler.spans(soon))
