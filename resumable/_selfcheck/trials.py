"""What is tried with one loader."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resumable._selfcheck import causes
from resumable._selfcheck.batches import Difference, first_difference, take_apart
from resumable._selfcheck.making import living_workers
from resumable._selfcheck.parts import cuts_of, middle_of
from resumable._selfcheck.report import Trial
from resumable._selfcheck.streams import carried, read
from resumable.errors import OnePassError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._selfcheck.batches import Batch
    from resumable._selfcheck.making import Maker
    from resumable._selfcheck.parts import Cut, Part
    from resumable._selfcheck.streams import Clock, Recorded

__all__ = ["NO_TIME", "Trials", "compared"]

NO_TIME = "The time was over before."
_END = "the end of the run"


class Trials:
    """Tries one part of the stream of a loader.

    Args:
        maker: makes fresh loaders.
        key: of the loader.
        part: of the stream.
        run: the uninterrupted run over it.
        clock: ends it.
    """

    def __init__(self, maker: Maker, key: str, part: Part, run: Recorded, clock: Clock) -> None:
        self._maker, self._key, self._part, self._run, self._clock = maker, key, part, run, clock

    def repeatable(self) -> Trial:
        """Another uninterrupted run: without states, and with a trainer that draws from the global generators."""
        name = "two runs of fresh loaders are the same"
        trial, again = self._try(name, lambda: self._read(draw=True), self._run.batches)
        if trial.kept is not False or not again:
            return trial
        third = self._read()
        return causes.add(trial, causes.of_runs(self._run.batches, again, third))

    def generators(self) -> Trial:
        """Whether the trainer's generators were left alone."""
        name = "the global generators are left alone"
        if self._randomness() == "off":
            return Trial(name, None, cause='randomness="off" leaves them to the dataset.')
        if (moved := self._run.moved) is None:
            return Trial(name, True)
        return Trial(name, False, cause=causes.MOVED.format(moved.place))

    def states(self) -> Trial:
        """Whether a state stays the same: while its run goes on, and where it is loaded and taken again."""
        name = "a state stays as it was taken"
        if self._run.changed is not None:
            return Trial(name, False, cause=causes.ALIAS.format(self._run.changed))
        for done, state in self._run.states.items():
            if self._clock.is_over():
                break
            with self._maker.loader(self._key, carried(state)) as loader:
                again = loader.state_dict()
            if (found := first_difference(_as_run(carried(state)), _as_run(carried(again)))) is not None:
                text = f"the state after {done} batches has {found.part} {found.expected}; loaded, {found.found}"
                return Trial(name, False, cause=f"Taken again after a load, it is another one: {text}.")
        return Trial(name, True)

    def cuts(self) -> list[Trial]:
        """Cut at each place but the middle of the first part, resume a fresh loader, and compare the rest."""
        cuts = cuts_of(self._run, self._part)
        return [self._cut(cut) for cut in cuts if self._part.seek is not None or cut.after != middle_of(self._run)]

    def middle(self) -> Trial:
        """Do so in the middle."""
        cuts = {cut.after: cut for cut in cuts_of(self._run, self._part)}
        return self._cut(cuts[middle_of(self._run)])

    def used(self) -> Trial:
        """Load a state into a loader that has read on elsewhere, whose workers read ahead."""
        middle = middle_of(self._run)
        name = f"cut after {middle}, loaded by a loader in use"

        def resumed() -> list[Batch]:
            with self._maker.loader(self._key) as loader:
                read(loader, 2, self._clock)
                loader.load_state_dict(carried(self._run.states[middle]))
                return read(loader, len(self._run.batches) - middle, self._clock)

        trial = self._resumed(name, middle, resumed)
        return replace(trial, kept=None) if trial.cause.startswith(OnePassError.__name__) else trial

    def twice(self) -> Trial:
        """Cut a run that was resumed already."""
        first = middle_of(self._run)
        name = f"cut after {first} batches, and again after {first + 1}"

        def resumed() -> list[Batch]:
            with self._maker.loader(self._key, carried(self._run.states[first])) as loader:
                batches = read(loader, 1, self._clock)
                state = carried(loader.state_dict())
            with self._maker.loader(self._key, state) as loader:
                return batches + read(loader, len(self._run.batches) - first - 1, self._clock)

        return self._resumed(name, first, resumed)

    def closes(self) -> Trial:
        """Whether close() leaves workers."""
        name, before = "close() leaves no workers", {one.pid for one in multiprocessing.active_children()}
        if self._clock.is_over():
            return Trial(name, None, cause=NO_TIME)
        with self._maker.loader(self._key) as loader:
            read(loader, 1, self._clock)
        left = living_workers(before)
        return Trial(name, not left, cause=f"These are left: {', '.join(left)}." if left else "")

    def _read(self, *, draw: bool = False) -> list[Batch]:
        with self._maker.loader(self._key, seek=self._part.seek) as loader:
            return read(loader, len(self._run.batches), self._clock, draw=draw)

    def _cut(self, cut: Cut) -> Trial:
        def resumed() -> list[Batch]:
            with self._maker.loader(self._key, carried(self._run.states[cut.after])) as loader:
                return read(loader, len(self._run.batches) - cut.after, self._clock)

        return self._resumed(cut.where, cut.after, resumed)

    def _resumed(self, name: str, after: int, resumed: Callable[[], list[Batch]]) -> Trial:
        trial, found = self._try(name, resumed, self._run.batches[after:])
        trial = replace(trial, is_cut=True)
        if trial.kept is not False or not found:
            return trial
        state = self._run.states[after]
        return causes.add(trial, causes.of_cut(self._run.batches, after, found, has_snapshot=_has_snapshot(state)))

    def _try(self, name: str, run: Callable[[], list[Batch]], expected: list[Batch]) -> tuple[Trial, list[Batch]]:
        if self._clock.is_over():
            return Trial(name, None, cause=NO_TIME), []
        try:
            found = run()
        except ResumableError as error:
            return Trial(name, False, cause=f"{type(error).__name__}: {error}"), []
        except Exception as error:  # noqa: BLE001  # of the user's code, where the run before had none
            return Trial(name, False, cause=f"It raised {type(error).__name__}: {error}"), []
        return compared(name, expected, found, cut_short=self._clock.was_short), found

    def _randomness(self) -> Any:
        states = list(self._run.states.values())
        return states[0]["randomness"].get("mode") if states else None


def compared(name: str, expected: list[Batch], found: list[Batch], *, cut_short: bool) -> Trial:
    """Compare two runs."""
    difference = first_difference(expected, found)
    same = min(len(expected), len(found))
    if difference is None and len(found) < len(expected) and not cut_short:
        missing = expected[len(found)]
        difference = Difference(missing.epoch, missing.step, "", "a batch", _END)
    if difference is not None:
        return Trial(name, False, same, difference)
    return Trial(name, True, same) if found else Trial(name, None, cause=NO_TIME)


def _has_snapshot(state: Any) -> bool:
    return bool(state.get("source_state"))


def _as_run(state: Any) -> list[Batch]:
    return [take_apart(state, 0, 0)]
