"""Compares what a source gives at a place with the canary in the state: see `resumable._state.canary`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._state.canary import Canary

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._fetch.keyed_draws import KeyedDraws

__all__ = [
    "differs_ahead",
    "gone_elsewhere",
    "read_otherwise",
    "skip_and_compare",
    "skipped_elsewhere",
]


def differs_ahead(draws: KeyedDraws, position: int, canary: Canary) -> str | None:
    """Return what comes next in words, if that is not the element that the state announced; else None."""
    if not draws.has(position):
        return "the end of the epoch"
    if not draws.ahead or canary.fits(draws.ahead[0]):  # none is ahead where drawing it failed: the next draw says so
        return None
    return _in_words(draws.ahead[0])


def skip_and_compare(  # noqa: PLR0913  # what is compared is one more than where and with what
    draws: KeyedDraws,
    position: int,
    count: int,
    canary: Canary | None,
    *,
    read: bool = False,
    told: Callable[[int], Any] | None = None,
) -> tuple[int, str | None]:
    """Go past `count` elements; return how many there were, and the last one in words if it differs from the canary.

    A way to skip that was not made for this counts only where there is a canary that can tell that it is wrong. With
    `told`, the canary is of what that returns, so no element is drawn for it.
    """
    if canary is None or not count:
        return draws.skip(position, count, read=read or draws.borrows), None
    if told is not None:
        found = draws.skip(position, count, read=read)
        before = told(position + count) if found == count else None
        return found, None if before is None or canary.fits(before) else _in_words(before, "a batch of indices")
    found = draws.skip(position, count - 1, read=read or (draws.borrows and canary.digest is None))
    if found < count - 1:
        return found, None
    last = draws.take(position + found, 1)
    return found + len(last), None if not last or canary.fits(last[0]) else _in_words(last[0])


def gone_elsewhere(what: str, found: str, canary: Canary, position: int, *, tried: bool) -> str:
    """Say that a source, brought back by its own state, goes on with another element.

    Args:
        what: the source, for the message.
        found: digest of what it gave, or words.
        canary: of what the state announced.
        position: of the element in the epoch.
        tried: the state was given back in both orders, before iterating and after.
    """
    orders = " It was given back before iterating, and after." if tried else ""
    return (
        f"{what} was brought back by its own state, and goes on with another element than the run that saved it.\n"
        f"  in the checkpoint: element {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        f"Elements would be lost or repeated.{orders} Let the state say all that the next element depends on, or give "
        'wrap(..., resume="replay") to read the epoch again up to the place instead. If the element changes from run '
        'to run for a reason of its own, give checks="ranks".'
    )


def read_otherwise(what: str, found: str, canary: Canary, position: int, *, drawn: bool = False) -> str:
    """Say that a source that was read again gave another element than before, or its sampler that was drawn again."""
    if drawn:
        return _drawn_otherwise(what, found, canary, position)
    return (
        f"{what} was read again up to the place of the state, and gave another element there than in the run before.\n"
        f"  in the checkpoint: element {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        "It gives other elements in every run, or its data changed, so elements would be lost or repeated. Seed what "
        "shuffles in it, as in shuffle(..., seed=0), and sort what lists files. If the elements are the same but for "
        'something like a time stamp, give wrap(..., checks="ranks").'
    )


def _drawn_otherwise(what: str, found: str, canary: Canary, position: int) -> str:
    return (
        f"the sampler over {what} was drawn from again up to the place of the state, and gave another batch there than "
        "in the run before.\n"
        f"  in the checkpoint: batch {position} with the digest {canary.digest}\n"
        f"  in this run:       {found}\n"
        "It gives another order in every run, so some samples would be read twice, and others never. Seed what "
        "shuffles in it by the epoch, from set_epoch(epoch); let it draw from random, numpy.random or torch, which are "
        "seeded for it; or give it state_dict and load_state_dict. If that is as it should be, give wrap(..., "
        'checks="ranks").'
    )


def skipped_elsewhere(what: str, count: int) -> str:
    """Say that a source does not skip to the element to which reading it leads."""
    return (
        f"the skip() of {what} does not lead to the element to which reading leads.\n"
        f"  after skip({count}):            one element\n  after reading {count} elements: another one\n"
        "Elements would be lost or repeated. skip(n) has to leave the iterator where n calls of next() would; mend it, "
        "or take it away, so that the elements are read."
    )


def _in_words(element: object, kind: str = "an element") -> str:
    return f"{kind} with the digest {Canary(element).digest}"
