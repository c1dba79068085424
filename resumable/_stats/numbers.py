"""The numbers that users see."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["LoaderStats", "between"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStats:
    """What a loop over a Loader had, and what it waited for, in this process.

    All but the longest wait are sums, so the difference of two is what lies between them.

    Args:
        batches: number of batches that were delivered.
        samples: number of samples in them, of all ranks; elements, where the source has no sample indices.
        estimated_bytes: bytes of this rank's part of them. Batches 1, 2, 4, ... 64 of an epoch and every 64th after
            that are measured, and stand for the samples up to the next one: to measure each batch would cost a fast
            loop more than all the rest. It is exact where all samples are as large as each other. Tensors and arrays
            count by `nbytes`, text and bytes by their length, numbers as 8, in dicts, lists, tuples and dataclasses,
            nested as they like; of a list of more than 16 values, 16 are measured. Other objects count nothing.
        wait_seconds: what the loop waited in `next()`.
        opening_seconds: the part of `wait_seconds` that passed until the first batch of an epoch, or the first one
            after a resume: workers start, buffers fill, places are skipped to.
        loop_seconds: what the loop spent between the batches of an epoch: forward, backward, logging, checkpoints.
        read_seconds: what reading took. With the worker processes of a `DataLoader`, the time for which they were busy
            with these batches, summed over workers, as they measured it; apart from going to the place of a state.
            Without, that of this process: the waits that were not for opening. None where it is unknown: DALI, FFCV,
            tf.data and the threads of `tfds.source` read in the background, and tell no times.
        asks: how often a batch was asked of worker processes while these were at work, so without the first one of an
            epoch or after a resume. It counts once it is known what was ready then: after as many batches as workers
            read ahead, or at the end of the epoch. 0 without worker processes, as are the next two.
        ready: number of batches that the workers had made, and that were not taken yet, at all of these asks together.
        starved: how often the batch whose turn it was had not been made yet.
        longest_wait_seconds: the longest wait for a batch.
        longest_wait_epoch: the epoch of that batch; None before the first batch.
        longest_wait_step: its number in the epoch, from 0.
    """

    batches: int = 0
    samples: int = 0
    estimated_bytes: int = 0
    wait_seconds: float = 0.0
    opening_seconds: float = 0.0
    loop_seconds: float = 0.0
    read_seconds: float | None = 0.0
    asks: int = 0
    ready: int = 0
    starved: int = 0
    longest_wait_seconds: float = 0.0
    longest_wait_epoch: int | None = None
    longest_wait_step: int | None = None

    @property
    def wait_fraction(self) -> float:
        """Share of the time that the loop waited, from 0 to 1; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.wait_seconds / total if total else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples of all ranks by the time of the loop, waits included; 0 before the first batch."""
        total = self.wait_seconds + self.loop_seconds
        return self.samples / total if total else 0.0

    @property
    def queue_depth(self) -> float | None:
        """Batches that lay ready when the next one was asked for, in the mean; None without worker processes."""
        return self.ready / self.asks if self.asks else None

    @property
    def starved_fraction(self) -> float | None:
        """Share of the asks, from 0 to 1, at which the next batch was not made yet; None without worker processes."""
        return self.starved / self.asks if self.asks else None

    def as_dict(self) -> dict[str, int | float]:
        """Return all of it as plain numbers, for a logger; without what there is not yet, or is not known."""
        derived = ("wait_fraction", "samples_per_second", "queue_depth", "starved_fraction")
        values: dict[str, Any] = asdict(self) | {name: getattr(self, name) for name in derived}
        unknown = () if self.asks else ("asks", "ready", "starved")
        return {name: value for name, value in values.items() if value is not None and name not in unknown}


_SUMS = (
    *("batches", "samples", "estimated_bytes", "wait_seconds", "opening_seconds", "loop_seconds", "read_seconds"),
    *("asks", "ready", "starved"),
)


def between(before: LoaderStats, now: LoaderStats) -> LoaderStats:
    """Return what came between two moments; the longest wait is that of all."""
    sums: dict[str, tuple[Any, Any]] = {name: (getattr(before, name), getattr(now, name)) for name in _SUMS}
    recent: dict[str, Any] = {name: None if None in pair else pair[1] - pair[0] for name, pair in sums.items()}
    return replace(now, **recent)
