"""The result of a check as values, JSON and text, and the likely causes of differences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from resumable._selfcheck.streams import first_difference, order_differs

if TYPE_CHECKING:
    from resumable._selfcheck.streams import Batch, BatchDifference

__all__ = [
    "ALIAS",
    "MOVED",
    "CheckReport",
    "LoaderReport",
    "Trial",
    "of_cut",
    "of_processes",
    "of_runs",
]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of `resumable.check`. It is true if every check passed. Printed, the verdict comes first.

    Args:
        loaders: one report per loader.
        notes: warnings of this package, each once.
        seconds: how long the check took.
        complete: False if the time ran out before everything was tried.
    """

    loaders: tuple[LoaderReport, ...]
    notes: tuple[str, ...]
    seconds: float
    complete: bool

    @property
    def ok(self) -> bool:
        """Whether every loader was checked, and no check failed."""
        return all(one.kept for one in self.loaders)

    @property
    def status(self) -> int:
        """The exit status: 0 passed, 1 failed, 2 if a loader could not be checked."""
        found = [one.kept for one in self.loaders]
        return 1 if False in found else 2 if None in found or not found else 0

    def __bool__(self) -> bool:
        return self.ok

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for JSON."""
        loaders = [{"kept": one.kept, **asdict(one)} for one in self.loaders]
        head = {"ok": self.ok, "status": self.status, "seconds": round(self.seconds, 3), "complete": self.complete}
        return {**head, "loaders": loaders, "notes": list(self.notes)}

    def __str__(self) -> str:
        notes = [f"WARNING {note}" for note in self.notes]
        return "\n\n".join([self.verdict("seconds="), *map(str, self.loaders), *notes])

    def verdict(self, option: str) -> str:
        """Return the result in one or two sentences.

        Args:
            option: the option that allows more time, as the caller writes it.
        """
        if self.status == 2:  # noqa: PLR2004  # an exit status
            return f"SKIPPED: no resume was compared in {self.seconds:.1f} s. Allow more time with {option}."
        trials = [trial for one in self.loaders for trial in one.trials]
        failed, skipped = (sum(trial.kept is kept for trial in trials) for kept in (False, None))
        result = f"FAILED: {failed} of {len(trials)} checks" if failed else f"PASSED: {len(trials) - skipped} checks"
        said = f"{result}{f', {skipped} skipped' if skipped else ''}, in {self.seconds:.1f} s."
        more = f" The time ran out before everything was tried. Allow more with {option}."
        return said if self.complete else said + more


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """The results for one loader.

    Args:
        name: its key among the loaders, such as "['train']"; empty if there is only one.
        source: its source.
        read: which batches were read, in words.
        trials: the trials, in order.
    """

    name: str
    source: str
    read: str
    trials: tuple[Trial, ...]

    @property
    def kept(self) -> bool | None:
        """Whether every promise was kept; None if nothing was compared, or time ran out before the first resume."""
        found = [trial.kept for trial in self.trials]
        cuts = [trial.kept for trial in self.trials if trial.is_cut]
        return False if False in found else (True if True in (cuts or found) else None)

    def __str__(self) -> str:
        lines, known = [self.head], ""
        for trial in self.trials:
            lines.append(trial.shown(known))
            known = trial.cause or known
        return "\n".join(lines)

    @property
    def head(self) -> str:
        """Which loader it is, and what was read, in two lines."""
        return f"{self.name}: {self.source}\n  {self.read}" if self.name else f"{self.source}\n  {self.read}"


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a check.

    Args:
        name: what was tried.
        kept: whether the promise was kept; None if it could not be tried.
        compared: how many batches were compared with the uninterrupted run.
        difference: the first batch that differs, if any.
        cause: the likely cause if it is broken, or why it could not be tried; empty if it was kept.
        is_cut: whether a run was interrupted in this process, and resumed.
    """

    name: str
    kept: bool | None
    compared: int = 0
    difference: BatchDifference | None = None
    cause: str = ""
    is_cut: bool = False

    def __str__(self) -> str:
        return self.shown("")

    def shown(self, known: str, loader: str = "") -> str:
        """Return its lines.

        Args:
            known: the cause that was printed last, which is not repeated.
            loader: the loader's key, if there are several.
        """
        count = f" ({self.compared} compared)" if self.compared else ""
        lines = [f"{_WORDS[self.kept]:<7} {f'{loader} ' if loader else ''}{self.name}{count}"]
        if (found := self.difference) is not None:
            part = f"{found.part} differs" if found.part else "differs"
            lines += [
                f"  epoch {found.epoch}, step {found.step}: {part}",
                f"    uninterrupted: {found.expected}",
                f"    here:          {found.found}",
            ]
        cause = self.cause
        if cause == known and cause:
            cause = "Probably the same cause." if self.kept is False else ""
        return "\n".join([*lines, *(f"  {line}" for line in cause.splitlines())])


_WORDS = {True: "PASSED", False: "FAILED", None: "SKIPPED"}


def of_runs(first: list[Batch], second: list[Batch], third: list[Batch]) -> str:
    """Return why two uninterrupted runs differ.

    Args:
        first: with saved states.
        second: with a trainer that uses the global RNGs.
        third: with neither.
    """
    if not _differ(first, third):
        return _TRAINERS
    if not _differ(second, third):
        return _STATE_TAKEN
    return _ORDER + _UNSEEDED_ORDER if order_differs(first, second) else _VALUES + _UNSEEDED


def of_cut(run: list[Batch], after: int, found: list[Batch], *, has_snapshot: bool) -> str:
    """Return why a resumed run differs.

    Args:
        run: the uninterrupted run.
        after: after how many batches it was interrupted.
        found: the resumed run.
        has_snapshot: whether the source was restored from its own state.
    """
    content = [batch.parts for batch in run]
    elsewhere = content.index(found[0].parts) if found[0].parts in content else after
    if has_snapshot and elsewhere != after and content.count(found[0].parts) == 1:
        count = abs(elsewhere - after)
        plural = "es" * (count > 1)
        gone = f"skips {count} batch{plural}" if elsewhere > after else f"repeats {count} batch{plural}"
        return _MOVED_STATE.format(gone, "its position" if elsewhere < after else "a buffer, or prefetched elements")
    return _BUFFER if has_snapshot else _REMEMBERS


def of_processes(other: list[Batch], another: list[Batch] | None, run: list[Batch]) -> str:
    """Return why the stream of a new process differs.

    Args:
        other: from a process with a different PYTHONHASHSEED.
        another: from one more process with the same PYTHONHASHSEED as that process; None if it failed.
        run: from this process.
    """
    order = _ORDER if order_differs(run, other) else ""
    if another is None or _differ(other, another):
        return order + _PROCESS
    return order + _HASH


def _differ(one: list[Batch], other: list[Batch]) -> bool:
    return first_difference(one, other) is not None


MOVED = (
    "They have a different state after the batch of {}, so dropout and the like differ from a run without the loader. "
    "Check whether the source seeds them, or uses them outside its samples."
)
ALIAS = (
    "The state after {} batches changed while its run continued: the source's state_dict() returns its internal lists "
    "or dicts. Return copies."
)
_ORDER = "The same samples arrive in a different order: "
_VALUES = "Its values differ between two uninterrupted runs: "
_UNSEEDED = (
    "its samples use an unseeded RNG, such as os.urandom or numpy's default_rng() in __getitem__, or depend on a "
    "counter or cache outside the function that creates the loader. Use random, numpy.random or torch, which are "
    "seeded per sample."
)
_UNSEEDED_ORDER = (
    "it is shuffled without a seed, or the function that creates the loader reorders the data on each call."
)
_TRAINERS = (
    "It depends on the random numbers that the trainer uses, so a resumed run differs. The source uses the global "
    'RNGs outside its samples, or the loader has randomness="off".'
)
_STATE_TAKEN = (
    "Saving a state changes the stream: the source's state_dict() moves the source, or uses random numbers. Or samples "
    "depend on earlier reads, in an object outside the function that creates the loader."
)
_HASH = (
    "It depends on PYTHONHASHSEED, which differs between processes: on the order of a set, or on hash() of a string. "
    "Sort sets before use, and use hashlib for strings."
)
_PROCESS = (
    "It is the same within this process, but differs in each new process: the system seeds an RNG, as random "
    "and numpy.random are, or the data depends on the time or the process. Seed the RNG in the script."
)
_MOVED_STATE = "The resumed run {}: the source's state_dict() leaves out {}."
_BUFFER = (
    "The source's state_dict() leaves out something that the next elements depend on, such as a buffer, an RNG or a "
    'counter. Include it, or pass wrap(..., resume="replay").'
)
_REMEMBERS = (
    "It depends on earlier reads in the same process: on a counter of the dataset, or an iterator shared by several "
    "samples. Make each sample depend only on its index, and use random, numpy.random or torch, which are seeded per "
    "sample."
)
