"""One source's experiment: a run without kills, a run with them, and the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .harness import Run, run_to_end
from .plan import plan_kills
from .verdict import compare

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable.chaos.launch.preload import Preload

    from .attempt import Attempt
    from .catalogue import Source
    from .verdict import Verdict

    Watch = Callable[[str, int, int | None], None]

__all__ = ["Comparison", "Experiment"]


class Comparison(NamedTuple):
    """The result of an experiment.

    Args:
        source: the source.
        baseline: the run without kills.
        attempts: the processes of the run with kills.
        verdict: whether the two runs are the same.
    """

    source: Source
    baseline: Attempt
    attempts: list[Attempt]
    verdict: Verdict


@dataclass(frozen=True)
class Experiment:
    """The two runs of a source.

    Args:
        source: the source.
        data: file of the digits.
        directory: for the files of the runs.
        kills: number of kills.
        seed: chooses their times.
    """

    source: Source
    data: Path
    directory: Path
    kills: int
    seed: int

    def run(self, preload: Preload, watch: Watch) -> Comparison:
        """Run both.

        Args:
            preload: forks the processes.
            watch: called whenever a process makes progress, with a few words, the count of batches, and the expected
                total if it is known.
        """
        baseline = self._run_baseline(preload, watch)
        kills = plan_kills(baseline, self.kills, f"{self.seed} {self.source.label}")

        def watch_killed(number: int, attempt: Attempt) -> None:
            doing = f"resumed after kill {number} of {self.kills}" if number else "run to be killed"
            watch(doing, attempt.last, baseline.last)

        run = Run(self.source, self.data, self.directory / "killed", preload, 1, watch_killed)
        attempts = run_to_end(run, kills)
        return Comparison(self.source, baseline, attempts, compare(baseline, attempts, len(kills)))

    def _run_baseline(self, preload: Preload, watch: Watch) -> Attempt:
        def watch_baseline(_: int, attempt: Attempt) -> None:
            watch("baseline run", attempt.last, None)

        run = Run(self.source, self.data, self.directory / "baseline", preload, 0, watch_baseline)
        return run_to_end(run, [])[0]
