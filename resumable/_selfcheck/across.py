"""Compares the runs of this process with those of fresh ones."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from resumable._selfcheck import causes
from resumable._selfcheck.fresh import Job, Process
from resumable._selfcheck.report import Trial
from resumable._selfcheck.streams import carried
from resumable._selfcheck.trials import compared

if TYPE_CHECKING:
    from resumable._selfcheck.batches import Batch
    from resumable._selfcheck.fresh import Read
    from resumable._selfcheck.streams import Clock, Recorded

__all__ = ["Across"]

_MOST = 24  # batches that a fresh process reads of a loader, from the beginning and from the state each
_SAME = "a fresh process reads the same"
_RESUMED = "a fresh process resumes after {} batches"
_NO_SPEC = "A fresh process cannot find the function: it is inside of another one, or in no file."
_DIFFERS = "Two runs of this process differ already."


class Across:
    """A fresh process with another PYTHONHASHSEED, which reads the beginnings of the loaders and goes on from a state.

    Args:
        spec: where it finds the function; None where it cannot.
        generators: state of the global generators that it gets; None for its own.
        runs: the uninterrupted ones, by the key of the loader.
        clock: of the check.
    """

    def __init__(self, spec: str | None, generators: Any, runs: dict[str, list[Recorded]], clock: Clock) -> None:
        self._spec, self._generators, self._clock = spec, generators, clock
        self._runs = {key: some[0] for key, some in runs.items()}
        self._after = {key: _middle(run) for key, run in self._runs.items()}
        self._process = None if spec is None else self._start(spec)
        self._found: dict[str, Read] | str | None = None

    def trials(self, key: str, before: list[Trial]) -> list[Trial]:
        """Return what comes out for a loader, after what was tried in this process."""
        if before[0].kept is False:
            return [Trial(_SAME, None, cause=_DIFFERS)]
        if self._process is None:
            return [Trial(_SAME, None, cause=_NO_SPEC)]
        if self._found is None:
            self._found = self._process.result()
        if isinstance(self._found, str):
            return [Trial(_SAME, None, cause=self._found)]
        return self._compare(key, self._found[key])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()

    def _start(self, spec: str) -> Process:
        jobs = []
        for key, run in self._runs.items():
            after = self._after[key]
            state = None if after is None else pickle.dumps(carried(run.states[after]))
            jobs.append(Job(key, min(len(run.batches), _MOST), state))
        return Process(spec, jobs, self._generators, self._clock.seconds)

    def _compare(self, key: str, found: Read) -> list[Trial]:
        run, after = self._runs[key].batches, self._after[key]
        same = compared(_SAME, run[: len(found.beginning)], found.beginning, cut_short=True)
        if same.kept is False:
            return [causes.add(same, causes.of_processes(found.beginning, self._another(key), run[:_MOST]))]
        if after is None or same.kept is None:
            return [same]
        return [same, self._compare_rest(_RESUMED.format(after), key, after, found.rest)]

    def _compare_rest(self, name: str, key: str, after: int, rest: list[Batch] | str) -> Trial:
        run = self._runs[key]
        if isinstance(rest, str):
            return Trial(name, False, cause=rest)
        trial = compared(name, run.batches[after:][: len(rest)], rest, cut_short=True)
        if trial.kept is not False:
            return trial
        snapshot = bool(run.states[after].get("source_state"))
        return causes.add(trial, causes.of_cut(run.batches, after, rest, has_snapshot=snapshot))

    def _another(self, key: str) -> list[Batch] | None:
        """Return what one more process reads, with the PYTHONHASHSEED of the first one."""
        assert self._spec is not None
        self.close()
        self._process = self._start(self._spec)
        found = self._process.result()
        return None if isinstance(found, str) else found[key].beginning


def _middle(run: Recorded) -> int | None:
    """Return after how many batches the fresh process resumes; None where there is no state to resume from."""
    some = [done for done in run.states if done < len(run.batches)]
    return min(some, key=lambda done: abs(2 * done - min(len(run.batches), 2 * _MOST)), default=None)
