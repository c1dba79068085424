"""`resumable.check`: interrupts a user's loaders at several points, resumes them, and compares every batch."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from resumable._fetch import IndexedFetcher
from resumable._selfcheck import fresh
from resumable._selfcheck.fresh import Function, Job, Process, Read
from resumable._selfcheck.report import (
    ALIAS,
    MOVED,
    CheckReport,
    LoaderReport,
    Trial,
    of_cut,
    of_processes,
    of_runs,
)
from resumable._selfcheck.scripts import Maker, check_callable, hearing, living_workers, raised, spec_of
from resumable._selfcheck.streams import (
    BatchDifference,
    Clock,
    Generators,
    borders_of,
    carried,
    first_difference,
    read,
    recorded,
    take_apart,
)
from resumable.errors import ConfigurationError, OnePassError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resumable._selfcheck.fresh import Target
    from resumable._selfcheck.scripts import Makes
    from resumable._selfcheck.streams import Batch, Recorded
    from resumable.loader.loader import Loader

__all__ = ["Heard", "Tell", "check", "check_all"]

_SHARE = 0.08  # of the time, for the uninterrupted run, which is read about ten times
_INSIDE = (
    "check() was called while a check was loading the script.\nEach check would start a further one. Call it below "
    '`if __name__ == "__main__":`.'
)


class Heard(NamedTuple):
    """A part of the report, as soon as it is known.

    Args:
        loader: the loader's key; empty if there is only one.
        what: the loader, still without trials, or one of its trials.
    """

    loader: str
    what: LoaderReport | Trial


def _ignore(_: Heard) -> None:
    """Tell no one."""


def check(
    make: Callable[[], Any], *, seconds: float = 30.0, spec: str | None = None, tell: Tell = _ignore
) -> CheckReport:
    """Check that your own loader resumes at the exact batch: interrupt it, resume it, and compare all batches.

        report = resumable.check(make_loader)
        print(report)
        assert report

    The check reads a bounded part of the data: two epochs if they are short, else the first batches, and the
    end of the first epoch if the loader can seek there. The global RNGs are restored before each call of `make`, and
    after the check.

    Args:
        make: returns a fresh loader each time: a Loader, anything that `wrap` takes, a dict or list of these, or a
            LightningDataModule, whose `train_dataloader()` is checked.
        seconds: time limit for new trials. Your code is not interrupted, so the check ends shortly after. The report
            says what was left out.
        spec: the function as a fresh process finds it, such as "train.py:make_loader"; by default it is detected.
        tell: called with each part of the report as soon as it is known.

    Raises:
        ConfigurationError: `make` needs arguments, or it or the uninterrupted run raised; the message contains the
            traceback.
        UnsupportedError: it returns something that cannot be wrapped.
    """
    if fresh.is_fresh():
        raise ConfigurationError(_INSIDE)
    if not seconds > 0:
        raise ConfigurationError(f"seconds must be above 0, but it is {seconds!r}.\nNothing would be checked.")
    check_callable(make, getattr(make, "__qualname__", repr(make)))
    generators, clock = Generators(), Clock(seconds)
    inherited = None if spec else generators.state  # a script sets them itself, possibly outside `make`
    found = spec or spec_of(make)
    try:
        with hearing() as said, contextlib.redirect_stdout(sys.stderr):
            target = None if found is None else Function(found, inherited)
            return check_all(Maker(make, generators), target, clock, said, tell)
    finally:
        generators.put_back()


def check_all(maker: Makes, target: Target | None, clock: Clock, said: list[str], tell: Tell) -> CheckReport:
    """Check all loaders, while a fresh process reads.

    Args:
        maker: makes the loaders.
        target: starts the fresh process; None if it cannot find the loaders.
        clock: the time limit.
        said: the warnings of this package so far.
        tell: called with each part of the report as soon as it is known.
    """
    loaders = _Check(maker, target, clock, tell).run()
    return CheckReport(loaders, tuple(said), clock.seconds - clock.left, not clock.was_short)


class _Check:
    def __init__(self, maker: Makes, target: Target | None, clock: Clock, tell: Tell) -> None:
        self._maker, self._target, self._clock, self._tell = maker, target, clock, tell
        self._found: dict[str, list[Trial]] = {}

    def run(self) -> tuple[LoaderReport, ...]:
        loaders = self._maker.all()
        parts = {key: parts_of(loader) for key, loader in loaders.items()}
        sources = {key: repr(loader).strip("<>").partition(", at ")[0] for key, loader in loaders.items()}
        share = _SHARE / sum(map(len, parts.values()))
        runs: dict[str, list[Recorded]] = {}
        heads: dict[str, LoaderReport] = {}
        for key, some in parts.items():
            runs[key] = [self._record(key, part, share) for part in some]
            heads[key] = LoaderReport(key, sources[key], "; ".join(map(_in_words, runs[key])), ())
            self._tell(Heard(key, heads[key]))
        with contextlib.closing(Across(self._target, runs, self._clock, apart=self._maker.is_limited)) as across:
            tried = {
                key: [
                    Trials(self._maker, key, part, run, self._clock) for part, run in zip(some, runs[key], strict=True)
                ]
                for key, some in parts.items()
            }
            if self._maker.is_limited:
                for key in runs:
                    self._note(key, [tried[key][0].generators()])
                return self._reports(heads, across)
            for key, ran in runs.items():
                self._note(key, self._first(tried[key][0], ran[0]))
            for key, ran in runs.items():
                self._note(key, self._rest(tried[key], ran, differs=self._found[key][0].kept is False))
            return self._reports(heads, across)

    def _reports(self, heads: dict[str, LoaderReport], across: Across) -> tuple[LoaderReport, ...]:
        """Wait for the fresh processes, and return the reports."""
        for key in heads:
            self._note(key, across.trials(key, self._found[key]))
        return tuple(replace(heads[key], trials=tuple(self._found[key])) for key in heads)

    def _note(self, key: str, trials: Iterable[Trial]) -> None:
        for trial in trials:
            self._found.setdefault(key, []).append(trial)
            self._tell(Heard(key, trial))

    def _record(self, key: str, part: Part, share: float) -> Recorded:
        def run() -> Recorded:
            try:
                with self._maker.loader(key, seek=part.seek) as loader:
                    return recorded(loader, part.length, self._clock, share)
            except ResumableError:
                raise
            except Exception as error:
                raise ConfigurationError(raised(f"reading the loader{f' {key}' if key else ''}", error)) from error

        return self._maker.apart(run)

    def _first(self, trials: Trials, run: Recorded) -> Iterable[Trial]:
        """Try the most informative checks first."""
        yield (found := trials.repeatable())
        if run.states and found.kept is not False:
            yield trials.middle()

    def _rest(self, trials: list[Trials], runs: list[Recorded], *, differs: bool) -> Iterable[Trial]:
        first = trials[0]
        if not differs:
            yield first.generators()
        yield first.closes()
        if differs:
            return
        for one, run in zip(trials, runs, strict=True):
            if run.states:
                yield from one.cuts()
            if run.states and one is first:
                yield one.used()
                yield one.twice()
                yield one.states()


def _in_words(run: Recorded) -> str:
    if not run.batches:
        return "no batch was read"
    first, last = run.batches[0], run.batches[-1]
    return f"{len(run.batches)} batches, from {first.place} to {last.place}"


_MOST = 200  # batches of a part
_FEW = 32  # batches from the start of a long epoch
_AROUND = 3  # batches before and after the end of a long epoch


def parts_of(loader: Loader) -> list[Part]:
    """Return what to read: slightly more than two epochs if they are short, else both ends of the first."""
    if loader.evaluation or not loader.is_sized:
        return [Part(_MOST)]
    epoch = loader.epoch
    length = loader.total_steps(epoch)
    if 2 * length + 2 <= _MOST:
        return [Part(2 * length + 2)]
    fetcher = loader._fetcher  # noqa: SLF001  # nothing public says whether it can seek
    if isinstance(fetcher, IndexedFetcher) and not fetcher.remembers:
        return [Part(_FEW), Part(2 * _AROUND, (epoch, length - _AROUND))]
    return [Part(_MOST)]


class Part(NamedTuple):
    """A part of the stream.

    Args:
        length: number of batches.
        seek: epoch and step of its first batch; None for epoch 0, step 0.
    """

    length: int
    seek: tuple[int, int] | None = None


def cuts_of(run: Recorded, part: Part) -> list[Cut]:
    """Return where a part is interrupted: at its start, in its middle, and around the ends of epochs."""
    batches, cuts = run.batches, list[Cut]()
    if part.seek is None:
        cuts += [Cut("stopped before the first batch", 0), Cut("stopped after the first batch", 1)]
        middle = middle_of(run)
        cuts.append(Cut(f"stopped after {middle} batches", middle))
    for number in borders_of(batches):
        epoch = batches[number - 1].epoch
        cuts += [
            Cut(f"stopped before the last batch of epoch {epoch}", number - 1),
            Cut(f"stopped after the last batch of epoch {epoch}", number),
            Cut(f"stopped after the first batch of epoch {epoch + 1}", number + 1),
        ]
    found: dict[int, Cut] = {}
    for cut in cuts:
        if cut.after in run.states and cut.after < len(batches):
            found.setdefault(cut.after, cut)
    return list(found.values())


class Cut(NamedTuple):
    """A point at which a run is interrupted.

    Args:
        where: in words.
        after: number of batches of the part before it.
    """

    where: str
    after: int


def middle_of(run: Recorded) -> int:
    """Return after how many batches a run is interrupted in its middle."""
    most = len(run.batches)
    return min((done for done in run.states if done < most), key=lambda done: abs(2 * done - most))


NO_TIME = "Time ran out."
_END = "the end of the run"


class Trials:
    """Tries one part of the stream of a loader.

    Args:
        maker: makes fresh loaders.
        key: of the loader.
        part: of the stream.
        run: the uninterrupted run over it.
        clock: the time limit.
    """

    def __init__(self, maker: Makes, key: str, part: Part, run: Recorded, clock: Clock) -> None:
        self._maker, self._key, self._part, self._run, self._clock = maker, key, part, run, clock

    def repeatable(self) -> Trial:
        """Run it again, without saving states and with a trainer that uses the global RNGs."""
        name = "two runs of fresh loaders are the same"
        trial, again = self._try(name, lambda: self._read(draw=True), self._run.batches)
        if trial.kept is not False or not again:
            return trial
        third = self._maker.apart(self._read)
        return replace(trial, cause=of_runs(self._run.batches, again, third))

    def generators(self) -> Trial:
        """Check whether the loader leaves the trainer's RNGs unchanged."""
        name = "the global RNGs are unchanged"
        if self._randomness() == "off":
            return Trial(name, None, cause='With randomness="off", the dataset may change them.')
        if (moved := self._run.moved) is None:
            return Trial(name, True)
        return Trial(name, False, cause=MOVED.format(moved.place))

    def states(self) -> Trial:
        """Check whether a state stays the same, while its run continues and after it is loaded and saved again."""
        name = "a saved state stays unchanged"
        if self._run.changed is not None:
            return Trial(name, False, cause=ALIAS.format(self._run.changed))
        cause = self._maker.apart(self._saved_again)
        return Trial(name, not cause, cause=cause)

    def _saved_again(self) -> str:
        """Return how a state differs after it was loaded and saved again; empty if none does."""
        for done, state in self._run.states.items():
            if self._clock.is_over():
                break
            with self._maker.loader(self._key, carried(state)) as loader:
                again = loader.state_dict()
            if (found := first_difference(_as_run(carried(state)), _as_run(carried(again)))) is not None:
                text = (
                    f"the state after {done} batches has {found.part} {found.expected}, but {found.found} after a load"
                )
                return f"Saved again after a load, it differs: {text}."
        return ""

    def cuts(self) -> Iterable[Trial]:
        """Interrupt at each point except the middle of the first part, resume a fresh loader, and compare the rest."""
        for cut in cuts_of(self._run, self._part):
            if self._part.seek is not None or cut.after != middle_of(self._run):
                yield self._cut(cut)

    def middle(self) -> Trial:
        """Do the same in the middle."""
        cuts = {cut.after: cut for cut in cuts_of(self._run, self._part)}
        return self._cut(cuts[middle_of(self._run)])

    def used(self) -> Trial:
        """Load a state into a used loader that has read further, and whose workers have prefetched."""
        middle = middle_of(self._run)
        name = f"stopped after {middle}, loaded into a used loader"

        def resumed() -> list[Batch]:
            with self._maker.loader(self._key) as loader:
                read(loader, 2, self._clock)
                loader.load_state_dict(carried(self._run.states[middle]))
                return read(loader, len(self._run.batches) - middle, self._clock)

        trial = self._resumed(name, middle, resumed)
        return replace(trial, kept=None) if trial.cause.startswith(OnePassError.__name__) else trial

    def twice(self) -> Trial:
        """Interrupt a run that was already resumed."""
        first = middle_of(self._run)
        name = f"stopped after {first} batches, and again after {first + 1}"

        def begun() -> tuple[list[Batch], Any]:
            with self._maker.loader(self._key, carried(self._run.states[first])) as loader:
                return read(loader, 1, self._clock), carried(loader.state_dict())

        def resumed() -> list[Batch]:
            batches, state = self._maker.apart(begun)
            with self._maker.loader(self._key, state) as loader:
                return batches + read(loader, len(self._run.batches) - first - 1, self._clock)

        return self._resumed(name, first, resumed)

    def closes(self) -> Trial:
        """Check whether close() leaves workers running."""
        name = "close() leaves no workers"
        if self._clock.is_over():
            return Trial(name, None, cause=NO_TIME)

        def closed() -> list[str]:
            before = {one.pid for one in multiprocessing.active_children()}
            with self._maker.loader(self._key) as loader:
                read(loader, 1, self._clock)
            return living_workers(before)

        left = self._maker.apart(closed)
        return Trial(name, not left, cause=f"Still running: {', '.join(left)}." if left else "")

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
        return replace(trial, cause=of_cut(self._run.batches, after, found, has_snapshot=_has_snapshot(state)))

    def _try(self, name: str, run: Callable[[], list[Batch]], expected: list[Batch]) -> tuple[Trial, list[Batch]]:
        if self._clock.is_over():
            return Trial(name, None, cause=NO_TIME), []

        def tried() -> list[Batch] | str:
            try:
                return run()
            except ResumableError as error:
                return f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001  # from the user's code; the first run had none
                return f"It raised {type(error).__name__}: {error}"

        found = self._maker.apart(tried)
        if isinstance(found, str):
            return Trial(name, False, cause=found), []
        cut_short = len(found) < len(expected) and self._clock.is_over()  # as a copy of the program saw
        return compared(name, expected, found, cut_short=cut_short), found

    def _randomness(self) -> Any:
        states = list(self._run.states.values())
        return states[0]["randomness"].get("mode") if states else None


def compared(name: str, expected: list[Batch], found: list[Batch], *, cut_short: bool) -> Trial:
    """Compare two runs."""
    difference = first_difference(expected, found)
    same = min(len(expected), len(found))
    if difference is None and len(found) < len(expected) and not cut_short:
        missing = expected[len(found)]
        difference = BatchDifference(missing.epoch, missing.step, "", "a batch", _END)
    if difference is not None:
        return Trial(name, False, same, difference)
    return Trial(name, True, same) if found else Trial(name, None, cause=NO_TIME)


def _has_snapshot(state: Any) -> bool:
    return bool(state.get("source_state"))


def _as_run(state: Any) -> list[Batch]:
    return [take_apart(state, 0, 0)]


_MOST_OF_FRESH = 24  # batches that a fresh process reads from a loader, both new and resumed
_SAME = "a fresh process reads the same"
_RESUMED = "a fresh process resumes after {} batches"
_NO_SPEC = "A fresh process cannot import the function: it is nested in a function, or not in a file."
_DIFFERS = "Two runs of this process already differ."


class Across:
    """A fresh process with a different PYTHONHASHSEED, which reads the first batches and continues from a state.

    If a process can read only once, there are two: one for each.

    Args:
        target: starts it; None if it cannot find the loaders.
        runs: the uninterrupted runs, by key of the loader.
        clock: of the check.
        apart: whether a process can read only once.
    """

    def __init__(
        self, target: Target | None, runs: dict[str, list[Recorded]], clock: Clock, *, apart: bool = False
    ) -> None:
        self._target, self._clock, self._apart = target, clock, apart
        self._runs = {key: some[0] for key, some in runs.items()}
        self._after = {key: _middle_of_fresh(run) for key, run in self._runs.items()}
        self._processes = [] if target is None else self._start(target)
        self._found: dict[str, Read] | str | None = None

    def trials(self, key: str, before: list[Trial]) -> list[Trial]:
        """Return all trials of a loader, with the ones that this process ran."""
        if before[0].kept is False and not self._apart:
            return [Trial(_SAME, None, cause=_DIFFERS)]
        if not self._processes:
            return [Trial(_SAME, None, cause=_NO_SPEC)]
        if self._found is None:
            self._found = _joined([process.result() for process in self._processes])
        if isinstance(self._found, str):
            return [Trial(_SAME, None, cause=self._found)]
        return self._compare(key, self._found[key])

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()

    def _start(self, target: Target) -> list[Process]:
        jobs = []
        for key, run in self._runs.items():
            after, count = self._after[key], min(len(run.batches), _MOST_OF_FRESH)
            state = None if after is None else pickle.dumps(carried(run.states[after]))
            jobs.append(Job(key, count, count * (state is not None), state))
        if self._apart:
            groups = [[job._replace(rest=0) for job in jobs], [job._replace(first=0) for job in jobs if job.rest]]
        else:
            groups = [jobs]
        return [Process(target, group, self._clock.seconds) for group in groups if group]

    def _compare(self, key: str, found: Read) -> list[Trial]:
        run, after = self._runs[key].batches, self._after[key]
        same = compared(_SAME, run[: len(found.beginning)], found.beginning, cut_short=True)
        if same.kept is False:
            return [replace(same, cause=of_processes(found.beginning, self._another(key), run[:_MOST_OF_FRESH]))]
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
        return replace(trial, cause=of_cut(run.batches, after, rest, has_snapshot=snapshot))

    def _another(self, key: str) -> list[Batch] | None:
        """Return what another process with the same PYTHONHASHSEED reads."""
        assert self._target is not None
        self.close()
        self._processes = self._start(self._target)
        found = self._processes[0].result()
        return None if isinstance(found, str) else found[key].beginning


def _joined(found: list[dict[str, Read] | str]) -> dict[str, Read] | str:
    """Return what the first process read, with what the second one read from a state."""
    joined: dict[str, Read] = {}
    for one in found:
        if isinstance(one, str):
            return one
        for key, read_now in one.items():
            joined[key] = Read(joined[key].beginning, read_now.rest) if key in joined else read_now
    return joined


def _middle_of_fresh(run: Recorded) -> int | None:
    """Return after how many batches the fresh process resumes; None without a state to resume from."""
    some = [done for done in run.states if done < len(run.batches)]
    return min(some, key=lambda done: abs(2 * done - min(len(run.batches), 2 * _MOST_OF_FRESH)), default=None)


Tell: TypeAlias = "Callable[[Heard], None]"
