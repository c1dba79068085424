"""Strided: an order whose ranks take every W-th sample of a global batch, as torch's `DistributedSampler` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._fetch.order import Order

if TYPE_CHECKING:
    from resumable._order.cursor import Cursor
    from resumable._order.plan import Plan
    from resumable._order.world import World
    from resumable._randomness.keyed import IntArray, Words
    from resumable.protocols import Request
    from resumable.samplers import Sampler

__all__ = ["Strided"]


class Strided(Order):
    """Rank `r` of `W` gets the positions `r`, `r + W`, `r + 2W`... of each global batch.

    A request's `start` is the first of its positions, and `stop - start` their number. It stays in this process, as
    its sampler may keep whole permutations: worker processes get the samples in a list.

    Args:
        sampler: maps positions to sample indices.
        plan: cuts the epochs into global batches.
        seed: of the keys, which belong to the positions, whoever reads them.
        keyed: give every sample a key.
        ranks: number of ranks, `W`.
    """

    travels = False

    def __init__(self, sampler: Sampler, plan: Plan, seed: int, *, keyed: bool = True, ranks: int) -> None:
        super().__init__(sampler, plan, seed, keyed=keyed)
        self._ranks = ranks

    def share(self, before: Cursor, after: Cursor, world: World) -> tuple[int, int]:
        """Return the first position of a rank in a global batch, and that plus their number."""
        start = before.position + world.rank
        return start, start + max(0, -(-(after.position - start) // self._ranks))

    def indices(self, request: Request) -> IntArray:
        """Return the sample indices of a request."""
        return super().indices(self._from_first_to_last(request))[:: self._ranks]

    def keys(self, request: Request) -> Words:
        """Return the keys of a request's samples."""
        return super().keys(self._from_first_to_last(request))[:: self._ranks]

    def padding(self, request: Request) -> int:
        """Return how many samples of a request only fill up the batch."""
        return -(-super().padding(self._from_first_to_last(request)) // self._ranks)

    def _from_first_to_last(self, request: Request) -> Request:
        return request._replace(stop=request.start + max(0, (request.size - 1) * self._ranks + 1))
