"""Runs consecutive steps on parts of a batch, by as many threads as the Loader has workers.

FFCV runs one operation after the other on the whole batch, each in parallel. Here a thread takes a few samples through
all operations, while they are in the processor's cache, and then the next few. Compiled code without parallel loops is
made in half of the time, and is the same for any number of workers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable.backends.ffcv.steps import Step

__all__ = ["Segment", "Team"]

_PARTS_PER_THREAD = 4
_PART = 4  # samples at least


class Team:
    """Threads that take parts of a batch: the one that asks, and `workers - 1` others.

    Args:
        workers: number of threads.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._others = ThreadPoolExecutor(workers - 1, "resumable-ffcv-part") if workers > 1 else None

    def run(self, work: Callable[[slice], None], count: int) -> None:
        """Call a function for parts of `0..count-1`, in any order."""
        if self._others is None:
            work(slice(0, count))
            return
        size = max(_PART, -(-count // (_PARTS_PER_THREAD * self._workers)))
        parts = iter([slice(start, min(start + size, count)) for start in range(0, count, size)])
        others = [self._others.submit(_work_off, work, parts) for _ in range(self._workers - 1)]
        try:
            _work_off(work, parts)
        finally:
            for other in others:
                other.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the threads."""
        if self._others is not None:
            self._others.shutdown()


def _work_off(work: Callable[[slice], None], parts: Iterator[slice]) -> None:
    for part in parts:
        work(part)


class Segment:
    """Steps that can be given parts of a batch, each with its source in this segment or before it.

    Whether a step returns its input or its memory is found out with the first samples.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self._keeps_input: dict[int, bool] = {}

    def run(
        self,
        team: Team,
        count: int,
        results: dict[int, Any],
        memory: dict[int, Any],
        arguments: Callable[[Step, slice], Sequence[Any]],
    ) -> None:
        """Run the steps.

        Args:
            team: threads.
            count: number of samples.
            results: of the steps before; those of these steps are added.
            memory: arrays for each step.
            arguments: return what a step is called with for a part of the batch.
        """
        first = 0
        if len(self._keeps_input) < len(self.steps):
            first = 1
            for step in self.steps:
                given = arguments(step, slice(0, 1))
                self._keeps_input[step.node] = _keeps_input(step, given, step.call(*given))
                self._note(step, results, memory)
        else:
            for step in self.steps:
                self._note(step, results, memory)

        def work(part: slice) -> None:
            part = slice(part.start + first, part.stop + first)
            for step in self.steps:
                step.call(*arguments(step, part))

        if count > first:
            team.run(work, count - first)

    def _note(self, step: Step, results: dict[int, Any], memory: dict[int, Any]) -> None:
        lent = memory[step.node]
        returned = lent[0] if isinstance(lent, tuple) else lent
        results[step.node] = results[_source(step)] if self._keeps_input[step.node] else returned


def _keeps_input(step: Step, given: Sequence[Any], result: Any) -> bool:
    source, lent = given[:2]
    for keeps, candidate in ((True, source), (False, lent[0] if isinstance(lent, tuple) else lent)):
        if candidate is not None and _is_row_of(result, candidate) and not (keeps and step.source is None):
            return keeps
    raise UnsupportedError(
        f"the operation {step.name} returns neither its input nor its memory, so its results for single samples would "
        'be lost.\nSay keyed={TheOperation: "batch"} for it, or let it write to one of the two and return that.'
    )


def _source(step: Step) -> int:
    assert step.source is not None
    return step.source


def _is_row_of(result: Any, candidate: Any) -> bool:
    if not hasattr(result, "__array_interface__"):
        return False
    same_memory = result.__array_interface__["data"][0] == candidate.__array_interface__["data"][0]
    return bool(same_memory and result.shape == candidate.shape and result.dtype == candidate.dtype)
