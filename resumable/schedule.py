"""Schedule: how an epoch's positions are cut into global batches, and a global batch into the shares of the ranks.

All of it is arithmetic on integers without a state. `N` is the number of positions of an epoch, `G` the global batch.

    tail policy   the last batch of an epoch                       samples per epoch
    drop          left out where fewer than G are left             the multiple of G below N
    partial       smaller                                          exactly N
    pad           filled up to G from the epoch's beginning        N and fewer than G repeated
    carry         filled up to G from the next epoch               exactly N
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from resumable.cursor import Cursor
from resumable.errors import ConfigurationError, UnevenBatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.world import World

__all__ = ["Padding", "Schedule", "Segment", "Tail", "check_share", "share"]

Tail = Literal["drop", "pad", "partial", "carry"]


class Padding(int):
    """Index of a sample that only fills up the last batch (`tail="pad"`); datasets can ask for it by `isinstance`."""


class Segment(NamedTuple):
    """A run of positions `start..stop-1` inside of one epoch, and the counter of the first of them.

    `counter` keys the randomness: it goes on past the epoch's length where `pad` repeats samples, so that a repeated
    sample is augmented in another way.
    """

    epoch: int
    start: int
    stop: int
    counter: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The global batches of every epoch.

    Args:
        length: positions per epoch, `N`.
        global_batch: samples per step over all ranks, `G`.
        tail: what happens with the last samples of an epoch.

    Raises:
        ConfigurationError: `G` is larger than `N`, so that `drop` and `carry` would have epochs without any batch.
    """

    length: int
    global_batch: int
    tail: Tail

    def __post_init__(self) -> None:
        if self.global_batch > self.length and self.tail in {"drop", "carry"}:
            raise ConfigurationError(
                f"the global batch is larger than the data: {self.global_batch} samples per step, "
                f"{self.length} samples per epoch.\n"
                f'With tail="{self.tail}" an epoch could have no batch at all. Use a batch size with which a step '
                f'takes at most {self.length} samples over all ranks, or tail="partial" or tail="pad".'
            )

    def finished(self, cursor: Cursor) -> bool:
        """Tell whether no batch of the cursor's epoch is left."""
        left = self.length - cursor.position
        return left < self.global_batch if self.tail == "drop" else left <= 0

    def advance(self, cursor: Cursor) -> Cursor:
        """Return the cursor behind the next global batch, which takes the positions between the two cursors."""
        stop = cursor.position + self.global_batch
        if self.tail == "partial":
            stop = min(stop, self.length)
        return Cursor(cursor.epoch, stop, cursor.step + 1)

    def following(self, cursor: Cursor) -> Cursor:
        """Return where the next epoch begins, after an epoch that ended at `cursor`."""
        begin = max(cursor.position - self.length, 0) if self.tail == "carry" else 0
        return Cursor(cursor.epoch + 1, begin, 0)

    def total(self, cursor: Cursor) -> int:
        """Count the global batches of the cursor's whole epoch: those behind and those left."""
        left = max(self.length - cursor.position, 0)
        whole = left // self.global_batch
        return cursor.step + (whole if self.tail == "drop" else -(-left // self.global_batch))

    def beginning(self, epoch: int, here: Cursor) -> Cursor:
        """Return where an epoch begins in the run that stands at `here`; the cursor itself where that is its epoch.

        With `carry`, an epoch begins behind the samples that filled up the epochs before, so that a later one depends
        on where the run stands. For an earlier one, `G` is taken to have never changed.
        """
        if epoch <= here.epoch or self.tail != "carry":
            return here if epoch == here.epoch else self.at(epoch, 0)
        left = (epoch - here.epoch) * self.length - here.position
        return Cursor(epoch, -left % self.global_batch, 0)

    def at(self, epoch: int, step: int) -> Cursor:
        """Return the cursor before the global batch number `step` of an epoch, in a run that never changed `G`."""
        begin = -(epoch * self.length) % self.global_batch if self.tail == "carry" else 0
        cursor = Cursor(epoch, begin, 0)
        total = self.total(cursor)
        if not 0 <= step <= total:
            raise ConfigurationError(
                f"epoch {epoch} has the steps 0..{total}, but step {step} was asked for.\n"
                "There is no such batch. Use a step of that range (the last one is the end of the epoch)."
            )
        position = begin + step * self.global_batch
        return Cursor(epoch, min(position, self.length) if self.tail == "partial" else position, step)

    def segments(self, epoch: int, start: int, stop: int) -> Iterator[Segment]:
        """Resolve positions that may go past the epoch's length into runs inside of epochs."""
        for lap in range(start // self.length, -(-stop // self.length)):
            offset = lap * self.length
            first, last = max(start, offset), min(stop, offset + self.length)
            if self.tail == "carry":
                yield Segment(epoch + lap, first - offset, last - offset, first - offset)
            else:
                yield Segment(epoch, first - offset, last - offset, first)


def share(start: int, stop: int, world: World) -> tuple[int, int]:
    """Return the contiguous part of the positions `start..stop-1` that belongs to this rank.

    Contiguous and not strided: the ranks' parts, one after the other, are the global batch in its order.
    """
    count = stop - start
    return start + count * world.rank // world.size, start + count * (world.rank + 1) // world.size


def check_share(global_batch: int, world: World, *, uneven: bool) -> None:
    """Refuse a global batch that these ranks cannot share.

    Raises:
        UnevenBatchError: some rank would get fewer samples than another and `uneven` is off, or some would get none.
    """
    if global_batch % world.size == 0 or (uneven and global_batch > world.size):
        return
    sizes = [size for size in range(1, min(global_batch, 4096) + 1) if global_batch % size == 0]
    near = sorted(sorted(sizes, key=lambda size: abs(size - world.size))[:6])
    raise UnevenBatchError(
        f"a global batch of {global_batch} samples cannot be shared evenly by {world.size} ranks.\n"
        "Some ranks would train on more samples than others. "
        f"World sizes near this one that work: {', '.join(map(str, near))}; or wrap(..., uneven=True) to let the "
        "shares differ by one sample (each rank needs at least one), or another global batch with "
        'on_batch_change="continue".'
    )
