"""Adoption: where a job was adopted, and the batches that show it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Adoption"]

_SHOWN = 8  # samples of a batch
_RANDOM = (
    "Not those of the old program: random augmentations. They go by wrap's seed from here on, and are exact after each "
    "resume of this one."
)


@dataclass(frozen=True, slots=True)
class Adoption:
    """Where a job was adopted. Printed, it shows the next batches by the framework's own loader and by this one.

    Args:
        by: who says the place.
        epoch: the epoch in which the next batch is, or whose end was reached.
        step: batches of it that are done.
        framework: class of the loader that gave `theirs`.
        steps: epoch and step of each batch that was compared.
        theirs: its sample indices, by that loader.
        ours: the same, by the Loader.
    """

    by: str
    epoch: int
    step: int
    framework: str
    steps: tuple[tuple[int, int], ...]
    theirs: tuple[tuple[int, ...], ...]
    ours: tuple[tuple[int, ...], ...]

    @property
    def first_difference(self) -> int | None:
        """Number of the first batch that differs; None where all are the same."""
        pairs = enumerate(zip(self.theirs, self.ours, strict=True))
        return next((number for number, (theirs, ours) in pairs if theirs != ours), None)

    def show(self, number: int) -> str:
        """Return the lines of a batch."""
        epoch, step = self.steps[number]
        head = f"epoch {epoch}, step {step}"
        width = max(len(self.framework), len("here")) + 1
        rows = ((self.framework, self.theirs[number]), ("here", self.ours[number]))
        return "\n".join([head, *(f"  {who + ':':<{width}} {_samples(batch)}" for who, batch in rows)])

    def __str__(self) -> str:
        same = f"The next {len(self.ours)} batches are the same, sample for sample."
        shown = [self.show(number) for number in range(len(self.ours))]
        head = f"Adopted in epoch {self.epoch} after {self.step} batches, by {self.by}."
        return "\n".join([head, *shown, same, _RANDOM])


def _samples(batch: tuple[int, ...]) -> str:
    more = f" ... ({len(batch)} samples)" if len(batch) > _SHOWN else ""
    return " ".join(map(str, batch[:_SHOWN])) + more
