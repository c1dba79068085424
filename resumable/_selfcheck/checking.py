"""`resumable.check`: cuts a user's own loaders in several places, resumes them, and compares every batch."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from resumable._selfcheck import fresh
from resumable._selfcheck.across import Across
from resumable._selfcheck.calling import raised
from resumable._selfcheck.making import Maker, hearing
from resumable._selfcheck.parts import parts_of
from resumable._selfcheck.report import CheckReport, LoaderReport
from resumable._selfcheck.scripts import check_callable, spec_of
from resumable._selfcheck.streams import Clock, Generators, recorded
from resumable._selfcheck.trials import Trials
from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._selfcheck.parts import Part
    from resumable._selfcheck.report import Trial
    from resumable._selfcheck.streams import Recorded

__all__ = ["check"]

_SHARE = 0.08  # of the time, for the uninterrupted run: it is read about ten times
_INSIDE = (
    "check() was called while a script was loaded for a check.\nEach would begin another one. Call it below "
    '`if __name__ == "__main__":`.'
)


def check(make: Callable[[], Any], *, seconds: float = 30.0, spec: str | None = None) -> CheckReport:
    """Check that your own loader resumes at the exact batch: cut it, resume it, and compare every batch by content.

        report = resumable.check(make_loader)
        print(report)
        assert report

    A bounded part of the data is read: two epochs where they are short, else the beginning, and the end of the first
    epoch where going there reads nothing before it. The global generators are put back before each call of `make`,
    and after the check.

    Args:
        make: returns a fresh loader each time: a Loader, anything that `wrap` takes, a dict or list of these, or a
            LightningDataModule, whose `train_dataloader()` is checked.
        seconds: after which nothing more is tried: it ends soon after, as your code is not interrupted. What was left
            out is told.
        spec: where a fresh process finds the function, as in "train.py:make_loader"; by default found out.

    Raises:
        ConfigurationError: `make` needs arguments, or it or the uninterrupted run raised; the message has the
            traceback.
        UnsupportedError: it returns something that cannot be wrapped.
    """
    if fresh.is_fresh():
        raise ConfigurationError(_INSIDE)
    if not seconds > 0:
        raise ConfigurationError(f"seconds must be above 0, but it is {seconds!r}.\nNothing would be checked.")
    check_callable(make, getattr(make, "__qualname__", repr(make)))
    generators, clock = Generators(), Clock(seconds)
    inherited = None if spec else generators.state  # a script that is run sets them itself, maybe outside of `make`
    try:
        with hearing() as said, contextlib.redirect_stdout(sys.stderr):
            check_all = _Check(Maker(make, generators), clock, spec or spec_of(make), inherited)
            loaders = check_all.run()
    finally:
        generators.put_back()
    return CheckReport(loaders, tuple(said), clock.seconds - clock.left, not clock.was_short)


class _Check:
    def __init__(self, maker: Maker, clock: Clock, spec: str | None, inherited: Any) -> None:
        self._maker, self._clock, self._spec, self._inherited = maker, clock, spec, inherited

    def run(self) -> tuple[LoaderReport, ...]:
        """Check each loader; the fresh process reads meanwhile."""
        parts = {key: parts_of(loader) for key, loader in self._maker.all().items()}
        share = _SHARE / sum(map(len, parts.values()))
        runs = {key: [self._record(key, part, share) for part in some] for key, some in parts.items()}
        with contextlib.closing(Across(self._spec, self._inherited, runs, self._clock)) as across:
            tried = {key: self._trials(key, parts[key], some) for key, some in runs.items()}
            first = {key: self._try_first(some[0], runs[key][0]) for key, some in tried.items()}
            trials = {key: first[key] + self._try_rest(first[key], tried[key], runs[key]) for key in runs}
            found = {key: some + across.trials(key, some) for key, some in trials.items()}
        return tuple(self._report(key, runs[key], found[key]) for key in parts)

    def _record(self, key: str, part: Part, share: float) -> Recorded:
        try:
            with self._maker.loader(key, seek=part.seek) as loader:
                return recorded(loader, part.length, self._clock, share)
        except ResumableError:
            raise
        except Exception as error:
            raise ConfigurationError(raised(f"reading the loader{f' {key}' if key else ''}", error)) from error

    def _trials(self, key: str, parts: list[Part], runs: list[Recorded]) -> list[Trials]:
        return [Trials(self._maker, key, part, run, self._clock) for part, run in zip(parts, runs, strict=True)]

    def _try_first(self, trials: Trials, run: Recorded) -> list[Trial]:
        """Try what tells most, while there is time."""
        found = trials.repeatable()
        return [found, trials.middle()] if run.states and found.kept is not False else [found]

    def _try_rest(self, before: list[Trial], trials: list[Trials], runs: list[Recorded]) -> list[Trial]:
        first = trials[0]
        if before[0].kept is False:
            return [first.closes()]
        found = [first.generators(), first.closes()]
        for one, run in zip(trials, runs, strict=True):
            found += one.cuts() if run.states else []
            if run.states and one is first:
                found += [one.used(), one.twice(), one.states()]
        return found

    def _report(self, key: str, runs: list[Recorded], trials: list[Trial]) -> LoaderReport:
        loader = self._maker.all()[key]
        read = map(_in_words, runs)
        return LoaderReport(key, repr(loader).strip("<>").partition(", at ")[0], "; ".join(read), tuple(trials))


def _in_words(run: Recorded) -> str:
    if not run.batches:
        return "no batch was read"
    first, last = run.batches[0], run.batches[-1]
    return f"{len(run.batches)} batches, from {first.place} to {last.place}"
