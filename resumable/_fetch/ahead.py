"""What a source will be asked for: said in advance, so that it can read in larger pieces than samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._introspection import ask
from resumable.protocols import Upcoming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable._fetch.order import Order
    from resumable.protocols import Request

__all__ = ["prefetch", "upcoming_of"]

_Place = tuple[int, int]  # an epoch, and a position in it


def prefetch(source: Any, indices: Sequence[Any], upcoming: Callable[[], Upcoming | None]) -> None:
    """Call the method of a source that is `protocols.Prefetching`; do nothing for others.

    Args:
        source: of the samples.
        indices: that it will be asked for.
        upcoming: tells the blocks that are read soon; None where the order is not that of the source, or not in blocks.
    """
    method = ask(type(source), "resumable_prefetch")
    if method is not None:
        method(source, indices, upcoming)


def upcoming_of(request: Request) -> Upcoming | None:
    """Return the blocks at and after a request; None where its order is not in blocks, or not known here.

    Those of a mixture are numbered as its samples are.
    """
    order: Any = request.order
    sampler: Any = getattr(order, "sampler", None)
    if hasattr(sampler, "blocks_of"):
        return _blocks(sampler, *_ends(order, request))
    if hasattr(sampler, "stretches"):
        return _of_mixture(sampler, *_ends(order, request))
    return None


def _ends(order: Order, request: Request) -> tuple[_Place, _Place]:
    """Return the places of the first sample of a request, and after its last; others only fill up the batch."""
    first, *more = order.plan.segments(request.epoch, request.start, request.stop)
    last = next((one for one in reversed(more) if one.epoch > first.epoch), first)
    return (first.epoch, first.start), (last.epoch, last.stop)


def _blocks(sampler: Any, begin: _Place, end: _Place) -> Upcoming:
    """Return those of all windows from one place to another, and a part of the window after them."""
    windows = sampler.blocks_of(*begin)
    while (windows[-2].epoch, windows[-2].stop) < end:
        windows += sampler.blocks_of(windows[-1].epoch, windows[-1].start)[1:]
    *here, following = windows
    passed = (end[1] - here[-1].start) / (here[-1].stop - here[-1].start)
    soon = following.blocks[: int(np.ceil(passed * len(following.blocks)))]
    return Upcoming(sampler.spans(np.concatenate([one.blocks for one in here])), sampler.spans(soon))


def _of_mixture(sampler: Any, begin: _Place, end: _Place) -> Upcoming | None:
    found = list(_of_sources(sampler, begin, end))
    if not found:
        return None
    here, soon = zip(*found, strict=True)
    return Upcoming(np.concatenate(here), np.concatenate(soon))


def _of_sources(sampler: Any, begin: _Place, end: _Place) -> Iterator[Upcoming]:
    for stretch in sampler.stretches(begin, end):
        own = _blocks(stretch.order, stretch.begin, stretch.end)  # a small source may go round several times
        yield Upcoming(*(np.unique(spans, axis=0) + stretch.first for spans in own))
