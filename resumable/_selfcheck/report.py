"""What a check found: as values, as JSON and as text, and the likely causes of what differs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from resumable._selfcheck.streams import first_difference, order_differs

if TYPE_CHECKING:
    from resumable._selfcheck.streams import Batch, Difference

__all__ = [
    "ALIAS",
    "MOVED",
    "WIDTH",
    "CheckReport",
    "LoaderReport",
    "Trial",
    "indented",
    "of_cut",
    "of_processes",
    "of_runs",
]

WIDTH = 60  # columns
_WORDS = {True: "kept", False: "BROKEN", None: "not checked"}


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried.

    Args:
        name: of what was tried.
        kept: whether the promise was kept; None where it could not be tried.
        compared: how many batches were compared with those of the uninterrupted run.
        difference: the first batch that differs, if one does.
        cause: why it is broken, as far as that shows, or why it could not be tried; empty where it was kept.
        is_cut: whether a run was cut in this process, and resumed.
    """

    name: str
    kept: bool | None
    compared: int = 0
    difference: Difference | None = None
    cause: str = ""
    is_cut: bool = False

    def __str__(self) -> str:
        return self.shown("")

    def shown(self, known: str) -> str:
        """Return its lines, without the cause where that is known already."""
        lines = [f"{_WORDS[self.kept]:<11} {self.compared or '':>4}  {self.name}"]
        if (found := self.difference) is not None:
            part = f"{found.part} differs" if found.part else "differs"
            lines += [
                f"  epoch {found.epoch}, step {found.step}: {part}",
                f"    uninterrupted: {found.expected}",
                f"    here:          {found.found}",
            ]
        cause = self.cause
        if cause == known and cause:
            cause = "Likely as above." if self.kept is False else ""
        return "\n".join([*lines, *indented(cause, "  ")])


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """What was found of one loader.

    Args:
        name: its key among the loaders, such as "['train']"; empty where there is one.
        source: what it reads.
        read: which batches were read, in words.
        trials: what was tried, in this order.
    """

    name: str
    source: str
    read: str
    trials: tuple[Trial, ...]

    @property
    def kept(self) -> bool | None:
        """Whether all was kept; None where nothing was compared, or no cut where there were some to try."""
        found = [trial.kept for trial in self.trials]
        cuts = [trial.kept for trial in self.trials if trial.is_cut]
        return False if False in found else (True if True in (cuts or found) else None)

    def __str__(self) -> str:
        head = f"{self.name}: {self.source}" if self.name else self.source
        lines, known = [head, *indented(self.read, "  "), "", f"{'':11} {'n':>4}  (n batches are compared)"], ""
        for trial in self.trials:
            lines.append(trial.shown(known))
            known = trial.cause or known
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `resumable.check` found. It is true where every promise was kept; printed, it is a table.

    Args:
        loaders: one report per loader.
        notes: warnings of this package that came up, each once.
        seconds: how long it took.
        complete: False where the time was over before all was tried.
    """

    loaders: tuple[LoaderReport, ...]
    notes: tuple[str, ...]
    seconds: float
    complete: bool

    @property
    def ok(self) -> bool:
        """Whether each loader was checked, and no promise is broken."""
        return all(one.kept for one in self.loaders)

    @property
    def status(self) -> int:
        """The exit status: 0 kept, 1 broken, 2 where a loader could not be checked."""
        found = [one.kept for one in self.loaders]
        return 1 if False in found else 2 if None in found or not found else 0

    def __bool__(self) -> bool:
        return self.ok

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        loaders = [{"kept": one.kept, **asdict(one)} for one in self.loaders]
        head = {"ok": self.ok, "status": self.status, "seconds": round(self.seconds, 3), "complete": self.complete}
        return {**head, "loaders": loaders, "notes": list(self.notes)}

    def __str__(self) -> str:
        return self.shown("seconds=")

    def shown(self, option: str) -> str:
        """Return the table.

        Args:
            option: what gives more time, where the check was called.
        """
        notes = ["\n".join(indented(f"note: {note}", "")) for note in self.notes]
        return "\n\n".join([*map(str, self.loaders), *notes, "\n".join(indented(self.verdict(option), ""))])

    def verdict(self, option: str) -> str:
        """Return what came out, in a sentence or two.

        Args:
            option: what gives more time, where the check was called.
        """
        if self.status == 2:  # noqa: PLR2004  # an exit status
            return f"Not checked: no cut was compared in {self.seconds:.1f} s; give more by {option}."
        trials = [trial for one in self.loaders for trial in one.trials if trial.kept is not None]
        kept = sum(trial.kept is True for trial in trials)
        said = f"{'Broken' if self.status else 'Kept'}: {kept} of {len(trials)} checks kept, in {self.seconds:.1f} s."
        more = f" The time was over before all was tried; give more by {option}."
        return said if self.complete else said + more


def indented(text: str, by: str) -> list[str]:
    """Return the lines of a text in the width of a narrow terminal; those that begin with spaces stay as they are."""
    lines: list[str] = []
    for line in text.splitlines():
        whole = line[:1] == " " or len(line) + len(by) <= WIDTH
        lines += [by + line] if whole else textwrap.wrap(line, WIDTH, initial_indent=by, subsequent_indent=by)
    return lines


MOVED = (
    "After the batch of {} they stand elsewhere, so dropout and the like draw other numbers than without the loader. "
    "Does the source seed them, or draw from them outside of its samples?"
)
ALIAS = (
    "The state after {} batches is another one now that its run went on: the source's state_dict() gives its own lists "
    "or dicts. Let it return copies."
)
_ORDER = "The same samples come in another order: "
_VALUES = "Its values differ between two uninterrupted runs: "
_UNSEEDED = (
    "it draws without a key, as from os.urandom or from numpy's default_rng() in __getitem__, or it counts or "
    "remembers outside of the function that makes the loader. Draw from random, numpy.random or torch, which are "
    "seeded per sample."
)
_UNSEEDED_ORDER = "it is drawn without a seed, or the function that makes the loader gives the data in another order."
_TRAINERS = (
    "It changes with what the trainer draws from the global generators, so a resumed run gets other values: the source "
    'draws from them outside of its samples, or randomness="off" was given.'
)
_STATE_TAKEN = "Taking states changes the stream: the source's state_dict() moves it, or draws."
_HASH = (
    "It depends on PYTHONHASHSEED, which is another number in each process: on the order of a set, or on hash() of "
    "texts. Sort what comes out of a set; use hashlib for texts."
)
_PROCESS = (
    "It is the same in this process, and another one in each new process: a generator is seeded by the system, as "
    "random and numpy.random are, or it depends on the time or the process. Seed it in the script."
)
_MOVED_STATE = "The resumed run {}: the source's state_dict() leaves out {}."
_BUFFER = (
    "The source's state_dict() leaves out something that the next elements depend on, such as a buffer, a generator "
    'or a counter. Let it say all, or give wrap(..., resume="replay").'
)
_REMEMBERS = (
    "It depends on what was read before in the process: a counter of the dataset's own, or an iterator that goes on "
    "from sample to sample. Let a sample depend on its index, and draw from random, numpy.random or torch, which are "
    "seeded per sample."
)


def of_runs(first: list[Batch], second: list[Batch], third: list[Batch]) -> str:
    """Return why two uninterrupted runs differ.

    Args:
        first: states were taken.
        second: the trainer drew from the global generators.
        third: neither.
    """
    if not _differ(first, third):
        return _TRAINERS
    if not _differ(second, third):
        return _STATE_TAKEN
    return _ORDER + _UNSEEDED_ORDER if order_differs(first, second) else _VALUES + _UNSEEDED


def of_cut(run: list[Batch], after: int, found: list[Batch], *, has_snapshot: bool) -> str:
    """Return why a resumed run differs.

    Args:
        run: the uninterrupted one.
        after: how many batches of it the run was cut.
        found: the resumed one.
        has_snapshot: the source was brought back by its own state.
    """
    content = [batch.parts for batch in run]
    elsewhere = content.index(found[0].parts) if found[0].parts in content else after
    if has_snapshot and elsewhere != after and content.count(found[0].parts) == 1:
        count = abs(elsewhere - after)
        plural = "es" * (count > 1)
        gone = f"leaves {count} batch{plural} out" if elsewhere > after else f"repeats {count} batch{plural}"
        return _MOVED_STATE.format(gone, "its place" if elsewhere < after else "a buffer, or what it read ahead")
    return _BUFFER if has_snapshot else _REMEMBERS


def of_processes(other: list[Batch], another: list[Batch] | None, run: list[Batch]) -> str:
    """Return why the stream of another process differs.

    Args:
        other: with another PYTHONHASHSEED.
        another: of one more process with the same one; None where that failed.
        run: of this process.
    """
    order = _ORDER if order_differs(run, other) else ""
    if another is None or _differ(other, another):
        return order + _PROCESS
    return order + _HASH


def _differ(one: list[Batch], other: list[Batch]) -> bool:
    return first_difference(one, other) is not None
