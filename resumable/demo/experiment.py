"""One source's experiment: a run without kills, a run with them, and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from resumable.demo.harness import Run, run_to_end
from resumable.demo.plan import plan_kills
from resumable.demo.verdict import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resumable.demo.attempt import Attempt
    from resumable.demo.catalogue import Source
    from resumable.demo.processes import Nursery
    from resumable.demo.verdict import Verdict

    Watch = Callable[[str, int, int | None], None]

__all__ = ["Comparison", "Experiment"]


class Comparison(NamedTuple):
    """What came out.

    Args:
        source: what was trained from.
        unharmed: the run without kills.
        attempts: the processes of the run with kills.
        verdict: whether the two runs are the same.
    """

    source: Source
    unharmed: Attempt
    attempts: list[Attempt]
    verdict: Verdict


@dataclass(frozen=True)
class Experiment:
    """A source's two runs.

    Args:
        source: what is trained from.
        data: file of the digits.
        directory: for the files of the runs.
        kills: how many.
        seed: chooses their moments.
    """

    source: Source
    data: Path
    directory: Path
    kills: int
    seed: int

    def run(self, nurseries: Sequence[Nursery], watch: Watch) -> Comparison:
        """Run both.

        Args:
            nurseries: start the processes, in turn.
            watch: is called with a few words, the count of batches, and how many there will be where that is known,
                whenever a process did something.
        """
        unharmed = self._run_unharmed(nurseries, watch)
        kills = plan_kills(unharmed, self.kills, f"{self.seed} {self.source.label}")

        def watch_killed(number: int, attempt: Attempt) -> None:
            doing = f"resumed after kill {number} of {self.kills}" if number else "run to be killed"
            watch(doing, attempt.last, unharmed.last)

        run = Run(self.source, self.data, self.directory / "killed", nurseries[::-1], watch_killed)
        attempts = run_to_end(run, kills)
        return Comparison(self.source, unharmed, attempts, compare(unharmed, attempts, len(kills)))

    def _run_unharmed(self, nurseries: Sequence[Nursery], watch: Watch) -> Attempt:
        def watch_unharmed(_: int, attempt: Attempt) -> None:
            watch("baseline run", attempt.last, None)

        run = Run(self.source, self.data, self.directory / "unharmed", nurseries, watch_unharmed)
        return run_to_end(run, [])[0]
