"""The batches of one rank, where the logical streams are dealt to the ranks.

Batch number `n` of an epoch is that of stream `n mod S`, and rank `r` reads the streams `r, r + W, ...`: so it has one
batch in every step of all ranks, and knows of the others by number only. That is exact as long as all streams give as
many batches. A rank whose own streams do not is stopped by an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.backends.torch.worker_states import WorkerState
from resumable.errors import DataError, StateMismatchError
from resumable.protocols import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable._order.world import World
    from resumable.backends.torch.stream import Batches

__all__ = ["DealtBatches", "check_even", "check_here"]


class DealtBatches:
    """Gives the batches of this rank, and `ELSEWHERE` for those of others.

    Args:
        batches: of this rank.
        world: which rank it is.
        streams: number of streams of all ranks, `S`.
        number: of the first batch to give.
    """

    def __init__(self, batches: Batches, world: World, streams: int, number: int) -> None:
        self._batches, self._world, self._streams, self._number = batches, world, streams, number
        self._round = -1  # the last one in which this rank gave a batch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        turn, stream = divmod(self._number, self._streams)
        if stream % self._world.size == self._world.rank:
            batch = self._own(stream)
            self._round = turn
        elif turn <= self._round or self._batches.has_more():
            batch = ELSEWHERE
        else:
            self._batches.ended = True
            raise StopIteration
        self._number += 1
        return batch

    def _own(self, stream: int) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if stream == self._world.rank:  # the first one of this rank: all streams end here
                raise
            raise _uneven(self._world.rank, stream, self._number // self._streams) from None
        if self._batches.last != stream:
            raise _uneven(self._batches.last, stream, self._number // self._streams)
        return batch

    @property
    def ended(self) -> bool:
        """Whether the epoch is over."""
        return self._batches.ended

    def ended_before(self, epoch: int) -> bool:
        """Return whether these were all the batches of the epoch just before."""
        return self._batches.ended_before(epoch)

    def snapshot(self) -> Any:
        """Return the states of this rank's streams, and how many batches the others have given."""
        states = self._batches.snapshot()["workers"]
        rank, ranks = self._world.rank, self._world.size
        return {
            "next": self._number % self._streams,
            "workers": [state if one % ranks == rank else self._of_other(one) for one, state in enumerate(states)],
        }

    def _of_other(self, stream: int) -> dict[str, Any]:
        given = _given(stream, self._number, self._streams)
        return WorkerState(given, elsewhere=given > 0).as_dict()

    def close(self) -> None:
        """Stop the workers."""
        self._batches.close()


def check_even(states: Sequence[WorkerState], number: int) -> None:
    """Refuse the states of streams of which some have ended and others have not: their turn is not that of ranks.

    Raises:
        StateMismatchError: they are.
    """
    counts = [state.batches for state in states]
    even = [_given(stream, number, len(states)) for stream in range(len(states))]
    if counts != even:
        raise StateMismatchError(
            "the state is of a place at which some streams have ended, and others go on.\n"
            f"  batches of each stream in the checkpoint: {counts}\n"
            f"  in turn they would be:                    {even}\n"
            "The ranks would have different numbers of batches. Go on with one rank, or with wrap(..., shard=True), by "
            "which every rank reads all streams."
        )


def check_here(states: Sequence[WorkerState], own: Sequence[int]) -> None:
    """Refuse a state in which another rank's streams are left out that this rank is to read.

    Raises:
        StateMismatchError: it is one.
    """
    missing = [stream for stream in own if states[stream].elsewhere]
    if missing:
        raise StateMismatchError(
            "the state lacks the dataset's own state for some streams that this rank reads: another rank saved those.\n"
            f"  in the checkpoint: {[stream for stream, state in enumerate(states) if not state.elsewhere]}\n"
            f"  in this run:       {list(own)}\n"
            "The missing ones would begin again. Give each rank the state that it saved itself, on as many ranks; or "
            'wrap(..., resume="replay") to read the streams again up to the place.'
        )


def _given(stream: int, number: int, streams: int) -> int:
    """Return how many batches a stream gave among the first `number` of all."""
    return number // streams + (stream < number % streams)


def _uneven(more: int, ended: int, count: int) -> DataError:
    return DataError(
        f"the streams have different numbers of batches: stream {ended} has ended after {count}, and stream {more} has "
        "more.\n"
        "The ranks would end at different steps, and wait for each other. Give every stream as much data, or let it "
        "repeat without an end and count steps; or give wrap(..., shard=True), by which every rank reads all streams."
    )
