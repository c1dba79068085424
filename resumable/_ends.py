"""Where an epoch ends: whether a batch is its last one, and what that one is filled up with; for integrations."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from resumable._peeking import Peeks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._fetch import Fetcher
    from resumable._opening import Opening
    from resumable._order.plan import Plan
    from resumable._order.world import World

__all__ = ["Ends"]


class Ends(Peeks):
    """What is known of the end of an epoch: by its plan, or by reading one batch ahead."""

    _fetcher: Fetcher
    _opening: Opening

    if TYPE_CHECKING:  # what Progress has

        @property
        def global_batch(self) -> int: ...

    @property
    def world(self) -> World:
        """Rank and world size by which the batches are divided."""
        return self._options.find_world()

    def divide_among(self, world: World) -> None:
        """Say by which rank and world size what trains divides data; it counts where `wrap` was given none."""
        self._options.ranks.suggest(world)

    def stand_together(self, together: bool) -> None:
        """Say whether all ranks stand at the same place, or whoever drives them lets some of them catch up."""
        self._options.ranks.together = together

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """Read on without the other ranks, up to where they stand: they are not waited for."""
        self._options.ranks.catching_up = True
        try:
            yield
        finally:
            self._options.ranks.catching_up = False

    def share_evaluation(self) -> None:
        """Say that whoever drives this loader puts the scores of all ranks together, so that no log has to warn."""
        self._opening.shares = True

    @property
    def strided(self) -> bool:
        """Whether a rank takes every W-th sample of a global batch, and not a part of it that is in one piece."""
        return bool(self._fetcher.can.strided)

    def is_last(self) -> bool:
        """Return whether the batch that was delivered last is the last one of its epoch.

        Where the source does not say how many samples there are, the next batch is read; nothing moves by that.
        """
        if self._fetcher.finished(self._delivered.cursor, self.global_batch):
            return True
        if self._fetcher.unit == "sample" or self._stream is None:
            return False
        self._owner.enter()
        self.stopwatch.start()
        try:
            self._look()
        except StopIteration:
            return True
        finally:
            self.stopwatch.stop(self._delivered.cursor)
            self._owner.leave()
        return False

    def padding(self, start: int, stop: int) -> int:
        """Count the samples of a global batch, by its positions, that only fill it up; they are its last ones."""
        plan = self._plan()
        return 0 if plan is None else plan.padding(start, stop)

    def last_padding(self) -> int:
        """Count the samples that only fill up the last batch of an epoch."""
        plan, epoch = self._plan(), self._delivered.cursor.epoch
        if plan is None:
            return 0
        first = plan.at(epoch, 0)
        return self.padding(first.position, plan.at(epoch, plan.total(first)).position)

    def smallest(self) -> int | None:
        """Return the samples of an epoch's smallest global batch; None where the source does not say its length."""
        plan = self._plan()
        return None if plan is None else plan.smallest(plan.at(self._delivered.cursor.epoch, 0))

    def _plan(self) -> Plan | None:
        return self._fetcher.plan(self.global_batch)
