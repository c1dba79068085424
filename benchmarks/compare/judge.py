"""Names for the outcome of a comparison with an uninterrupted run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

from benchmarks.compare.job import EPOCHS

if TYPE_CHECKING:
    from benchmarks.compare.processes import Batch, Failure, Run

__all__ = ["Grade", "Verdict", "compare", "failed", "same_draws"]

# How good an outcome is: exact; an error; different data, of which nothing tells; not a question for this library.
Grade = Literal["good", "error", "silent", "none"]
WORDS = 4  # of a message that explains an error


class Verdict(NamedTuple):
    """The outcome of a situation, and how good it is."""

    text: str
    grade: Grade


def failed(failure: Failure, *, wanted: bool = False) -> Verdict:
    """Return what an error means: it is `wanted` where the states of two runs do not belong together."""
    if failure.kind == "TimeoutError":
        return Verdict("hangs", "error")
    message = failure.message.rpartition(f"\n{failure.kind}: ")[2]  # after the traceback of a worker, if one raised
    if wanted and len(message.split()) >= WORDS:
        return Verdict(f"rejected: `{failure.kind}`", "good")
    return Verdict(f"fails: `{failure.kind}`" if failure.kind != "a crash" else "crashes", "error")


def compare(expected: Run, read: int, found: Run) -> Verdict:
    """Compare what a run read after `read` batches with what an uninterrupted run read.

    Args:
        expected: all that the uninterrupted run has read.
        read: batches before the interruption.
        found: what was read after it.
    """
    due, got = _ids(expected.batches[read:]), _ids(found.batches)
    if got == due:
        return Verdict("exact", "good")
    length = len(expected.batches) // EPOCHS
    begin = read - read % length
    left = length - (read - begin) if read % length else 0
    seen = Counter(_flat(_ids(expected.batches[begin:read])))
    rest = _rest(found, left)
    whole = Counter(_flat(_ids(expected.batches[begin : begin + length])))
    if left:
        have = seen + Counter(_flat(rest))
        lost, again = (whole - have).total(), sum(count - 1 for count in have.values())
        if lost or again:
            parts = [f"repeats {again}"] * bool(again) + [f"loses {lost}"] * bool(lost)
            return Verdict(", ".join(parts), "silent")
        if rest != due[:left]:
            return Verdict("different order", "silent")
    return Verdict(_later(due[left:], got[len(rest) :], length), "silent")


def _later(due: list[list[float]], got: list[list[float]], length: int) -> str:
    """Name the difference in the epochs after the interrupted one."""
    if got[: len(due)] == due:
        return "an epoch too many" if len(got) == len(due) + length else "batches too many"
    if got == due[length:]:
        return "skips an epoch"
    if got == due[: len(got)]:
        return "an epoch too few"
    if len(got) > len(due):
        return "an epoch too many"
    return "later epochs differ"


def _rest(found: Run, left: int) -> list[list[float]]:
    """Return what was read of the interrupted epoch: the first loop, or of a single loop as much as was left."""
    if not left:
        return []
    if len(found.loops) == 1:
        return _ids(found.batches[:left])
    return _ids(found.loops[0])


def same_draws(expected: Run, read: int, found: Run, column: slice) -> bool:
    """Return whether the samples after the interruption got the same numbers from some generators."""
    due, got = expected.batches[read:], found.batches
    return [[sample[column] for sample in batch] for batch in due] == [
        [sample[column] for sample in batch] for batch in got
    ]


def _ids(batches: list[Batch]) -> list[list[float]]:
    return [[sample[0] for sample in batch] for batch in batches]


def _flat(batches: list[list[float]]) -> list[float]:
    return [number for batch in batches for number in batch]
