"""Plan: how an epoch's positions are divided into global batches, and a global batch into the shares of the ranks.

It uses only integer arithmetic and has no state. `Schedule` is the plan for epochs of equal length: `N` is the number
of positions of an epoch, `G` the global batch.

    tail policy   the last batch of an epoch                       samples per epoch
    drop          dropped if fewer than G are left                 the multiple of G below N
    partial       smaller                                          exactly N
    pad           filled up to G from the start of the epoch       N plus fewer than G repeated
    carry         filled up to G from the next epoch               exactly N
    pad_ranks     smaller, filled up to a multiple of W            N plus fewer than W repeated
    drop_ranks    smaller, truncated to a multiple of W            the multiple of W below N

`W` is the number of ranks. The last two are equivalent to PyTorch's `DistributedSampler`. `History` has the plans of a
run whose `G` or `W` changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from resumable._order.cursor import Cursor
from resumable.errors import ConfigurationError, UnevenBatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._order.world import World

__all__ = ["ENDLESS", "History", "Padding", "Plan", "Schedule", "Segment", "Tail", "check_share", "share"]

ENDLESS = 1 << 62  # positions of an epoch whose length is unknown
Tail = Literal["drop", "pad", "partial", "carry", "pad_ranks", "drop_ranks"]
_SMALLER = {"partial", "pad_ranks", "drop_ranks"}  # the tails whose last batch may be smaller than G


class Padding(int):
    """Index of a sample that only fills up the last batch (`tail="pad"`, `"pad_ranks"`); check it with `isinstance`."""


class Segment(NamedTuple):
    """A range of positions `start..stop-1` inside one epoch, and the counter of the first of them.

    `counter` is the key of the randomness. It continues past the epoch's length if `pad` repeats samples, so a repeated
    sample is augmented differently.
    """

    epoch: int
    start: int
    stop: int
    counter: int


@runtime_checkable
class Plan(Protocol):
    """The global batches of every epoch, and which rank gets which part of them.

    A plan is an immutable value: it can be pickled, and two plans with the same results are equal. Worker processes get
    a copy, and a new one if the plan changes.
    """

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        ...

    def finished(self, cursor: Cursor) -> bool:
        """Return whether no batch of the cursor's epoch is left."""
        ...

    def advance(self, cursor: Cursor) -> Cursor:
        """Return the cursor after the next global batch, which takes the positions between the two cursors."""
        ...

    def following(self, cursor: Cursor) -> Cursor:
        """Return where the next epoch starts, after an epoch that ended at `cursor`."""
        ...

    def total(self, cursor: Cursor) -> int:
        """Count all global batches of the cursor's epoch: those done and those left."""
        ...

    def beginning(self, epoch: int, here: Cursor) -> Cursor:
        """Return where an epoch starts in a run that is at `here`; the cursor itself if it is in that epoch."""
        ...

    def ahead(self, cursor: Cursor, steps: int) -> Cursor:
        """Return the cursor after some more global batches of the cursor's epoch, which must have as many."""
        ...

    def segments(self, epoch: int, start: int, stop: int) -> Iterator[Segment]:
        """Resolve positions that may go past the epoch's length into ranges inside epochs."""
        ...

    def share(self, before: Cursor, after: Cursor, world: World) -> tuple[int, int]:
        """Return the positions `start..stop-1` that a rank takes of the global batch between two cursors."""
        ...

    def smallest(self, cursor: Cursor) -> int:
        """Return the number of samples in the smallest global batch that is left in the cursor's epoch."""
        ...

    def padding(self, start: int, stop: int) -> int:
        """Return how many of the positions `start..stop-1`, at their end, only fill up a batch."""
        ...

    def positions(self, epoch: int) -> int:
        """Return how many positions belong to an epoch itself; `segments` resolves those after them."""
        ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """The plan of epochs of one length, with one global batch.

    Args:
        length: positions per epoch, `N`.
        global_batch: samples per step over all ranks, `G`.
        tail: what happens to the last samples of an epoch.
        ranks: number of ranks, `W`; only used for `"pad_ranks"` and `"drop_ranks"`.

    Raises:
        ConfigurationError: `G` is larger than `N`, so `drop` and `carry` would have epochs without any batch; or `W`
            is, so `drop_ranks` would.
    """

    length: int
    global_batch: int
    tail: Tail
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.global_batch > self.length and self.tail in {"drop", "carry"}:
            raise ConfigurationError(
                f"the global batch is larger than the data: {self.global_batch} samples per step, "
                f"{self.length} samples per epoch.\n"
                f'With tail="{self.tail}" an epoch could have no batch at all. Use a batch size with which a step '
                f'takes at most {self.length} samples over all ranks, or use tail="partial" or tail="pad".'
            )
        if self.tail == "drop_ranks" and self.ranks > self.length:
            raise ConfigurationError(
                f"there are more ranks than samples: {self.ranks} ranks, {self.length} samples per epoch.\n"
                'With tail="drop_ranks" (drop_last=True in a DistributedSampler) an epoch would have no batch at all. '
                f'Use at most {self.length} ranks, or tail="pad_ranks".'
            )

    @property
    def end(self) -> int:
        """Position after the last sample of an epoch whose last batch may be smaller."""
        if self.tail == "pad_ranks":
            return -(-self.length // self.ranks) * self.ranks
        return self.length // self.ranks * self.ranks if self.tail == "drop_ranks" else self.length

    def finished(self, cursor: Cursor) -> bool:
        """Return whether no batch of the cursor's epoch is left."""
        left = self.end - cursor.position
        return left < self.global_batch if self.tail == "drop" else left <= 0

    def advance(self, cursor: Cursor) -> Cursor:
        """Return the cursor after the next global batch, which takes the positions between the two cursors."""
        stop = cursor.position + self.global_batch
        if self.tail in _SMALLER:
            stop = min(stop, self.end)
        return Cursor(cursor.epoch, stop, cursor.step + 1)

    def following(self, cursor: Cursor) -> Cursor:
        """Return where the next epoch starts, after an epoch that ended at `cursor`."""
        # A position above the length is from different data (strict=False). Without `%`, epochs would have no batch.
        begin = max(cursor.position - self.length, 0) % self.length if self.tail == "carry" else 0
        return Cursor(cursor.epoch + 1, begin, 0)

    def total(self, cursor: Cursor) -> int:
        """Count all global batches of the cursor's epoch: those done and those left."""
        left = max(self.end - cursor.position, 0)
        whole = left // self.global_batch
        return cursor.step + (whole if self.tail == "drop" else -(-left // self.global_batch))

    def beginning(self, epoch: int, here: Cursor) -> Cursor:
        """Return where an epoch starts in a run that is at `here`; the cursor itself if it is in that epoch.

        With `carry`, an epoch starts after the samples that filled up the epochs before it, so a later one depends on
        the current position. For an earlier one, `G` is assumed to have never changed.
        """
        if epoch == here.epoch:
            return here
        if self.tail != "carry":
            return Cursor(epoch)
        done = here.position - (epoch - here.epoch) * self.length if epoch > here.epoch else -epoch * self.length
        return Cursor(epoch, done if done > 0 else done % self.global_batch)

    def ahead(self, cursor: Cursor, steps: int) -> Cursor:
        """Return the cursor after some more global batches of the cursor's epoch, which must have as many."""
        position = cursor.position + steps * self.global_batch
        if steps and self.tail in _SMALLER:
            position = min(position, self.end)
        return Cursor(cursor.epoch, position, cursor.step + steps)

    def segments(self, epoch: int, start: int, stop: int) -> Iterator[Segment]:
        """Resolve positions that may go past the epoch's length into ranges inside epochs."""
        for lap in range(start // self.length, -(-stop // self.length)):
            offset = lap * self.length
            first, last = max(start, offset), min(stop, offset + self.length)
            if self.tail == "carry":
                yield Segment(epoch + lap, first - offset, last - offset, first - offset)
            else:
                yield Segment(epoch, first - offset, last - offset, first)

    def share(self, before: Cursor, after: Cursor, world: World) -> tuple[int, int]:
        """Return the contiguous part of a global batch that belongs to a rank."""
        return share(before.position, after.position, world)

    def smallest(self, cursor: Cursor) -> int:
        """Return the size of the last batch; `G` if the last batch is complete, or none is left."""
        last = max(self.length - cursor.position, 0) % self.global_batch if self.tail == "partial" else 0
        return last or self.global_batch

    def padding(self, start: int, stop: int) -> int:
        """Return how many of the positions repeat samples from the start of the epoch."""
        return 0 if self.tail == "carry" else max(stop - max(start, self.length), 0)

    def positions(self, epoch: int) -> int:  # noqa: ARG002  # the protocol has it
        """Return the length, which is the same for all epochs."""
        return self.length


class History(NamedTuple):
    """The plans of a run. With them, a step in the past has the samples that it had.

    Args:
        here: the position of the run.
        plan: the present plan. The steps from `here` on follow it.
        first: the plan of the first step.
        changes: epoch and position of each change, and the plan from there on, in order of their positions.
        unknown: the steps of the epochs 1 to this one, exclusive, are unknown.
    """

    here: Cursor
    plan: Plan
    first: Plan
    changes: tuple[tuple[int, int, Plan], ...] = ()
    unknown: int = 0

    def locate(self, epoch: int, step: int) -> tuple[Cursor, Plan]:
        """Return the cursor before the global batch number `step` of an epoch, and the plan of that batch.

        Raises:
            ConfigurationError: the epoch has no such step.
            UnsupportedError: the changes do not say where it was.
        """
        cursor, plan = self._nearest(epoch, step)
        first = plan.beginning(epoch, cursor)
        total = plan.total(first)
        if not 0 <= step <= total:
            raise ConfigurationError(
                f"epoch {epoch} has {total} batches, so step {step} does not exist.\n"
                f"Batches count from 0; step {total} is the end of the epoch."
            )
        return plan.ahead(first, step - first.step), plan

    def total(self, epoch: int) -> int:
        """Count the global batches of an epoch.

        Raises:
            UnsupportedError: the changes do not say how many there were.
        """
        cursor, plan = self._nearest(epoch, math.inf)
        return plan.total(plan.beginning(epoch, cursor))

    def _nearest(self, epoch: int, step: float) -> tuple[Cursor, Plan]:
        """Return the last known position up to a step, and the plan between them."""
        here = self.here
        if (epoch, step) >= (here.epoch, here.step):
            return here, self.plan
        if 0 < epoch < self.unknown:
            raise UnsupportedError(
                f"the samples of epoch {epoch} are unknown: too many epochs after it were left early.\n"
                'With tail="carry", an epoch starts where the one before it ended. The state only has this for '
                f"epoch {self.unknown} and later ones."
            )
        cursor, plan = Cursor(), self.first
        for number, position, following in self.changes:
            first = plan.beginning(number, cursor)
            steps = -((first.position - position) // plan.global_batch)
            last = plan.total(first) - first.step  # an epoch that is over stays so
            change = Cursor(number, position, first.step + min(steps, last) if position else 0)
            if (epoch, step) < (number, change.step):
                break
            over = position >= plan.ahead(first, last).position
            if position and not over and (steps < 0 or plan.ahead(first, steps).position != position):
                raise UnsupportedError(
                    f"the batches from step {first.step} of epoch {number} on are unknown: the global batch changed "
                    f"at position {position}, which is not the end of one of them.\nThe samples of a past step could "
                    "be wrong. The data changed with strict=False, or an earlier version wrote the state."
                )
            cursor, plan = change, following
        return cursor, plan


def share(start: int, stop: int, world: World) -> tuple[int, int]:
    """Return the contiguous part of the positions `start..stop-1` that belongs to this rank.

    Contiguous, not strided: concatenated, the ranks' parts are the global batch in its order.
    """
    count = stop - start
    return start + count * world.rank // world.size, start + count * (world.rank + 1) // world.size


def check_share(global_batch: int, world: World) -> None:
    """Reject a global batch that these ranks cannot share; their shares may differ in size, at most one sample.

    Raises:
        UnevenBatchError: a rank would get none.
    """
    if global_batch >= world.size:
        return
    raise UnevenBatchError(
        f"{world.size} ranks cannot share a global batch of {global_batch} samples.\n"
        "A rank would get no sample, and the others would wait for it. "
        f'Use at most {global_batch} ranks, or wrap(..., on_change="keep_local") to keep the batch of each rank '
        'instead, or a larger batch_size with on_change="continue".'
    )
