"""The programs of `scripts/planted_loop.py`, each with a common bug, and the cause that a chaos run reports.

Programs that fetch a batch ahead are in `scripts/ahead_loop.py`, right ones as well.

`python tests/chaos/planted_programs.py docs/reference/chaos-results.md` runs them and writes the table of that page.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.campaign import survey
from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import Case, Fault, Launch
from resumable.chaos.report import Outcome
from resumable.chaos.verify.checks import check
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPTS = Path(__file__).parent / "scripts"
LOOP, AHEAD = str(SCRIPTS / "planted_loop.py"), str(SCRIPTS / "ahead_loop.py")
TORCH = ["torch", "torch._dynamo"]


class Bug(NamedTuple):
    """What was planted.

    Args:
        cause: the name of the cause that is to be found.
        what: in words.
        in_resume: the script is right until it resumes.
        after: number of checkpoints before the kill.
    """

    cause: str
    what: str
    in_resume: bool = False
    after: int = 4


TWO = "scheduler not restored, optimizer not restored"
BUGS = {
    TWO: Bug("optimizer not restored", "the resume loads neither scheduler nor optimizer", True),
    "optimizer not restored": Bug("optimizer not restored", "the resume does not load the optimizer", True),
    "scheduler not restored": Bug("scheduler not restored", "the resume does not load the scheduler", True),
    "scaler not restored": Bug("GradScaler not restored", "the resume does not load the GradScaler", True),
    "torch not restored": Bug("generators not restored", "the resume does not load PyTorch's RNG", True),
    "numpy not restored": Bug("generators not restored", "the resume does not load NumPy's RNG", True),
    "python not restored": Bug("generators not restored", "the resume does not load Python's RNG", True),
    "step not restored": Bug("step counter not restored", "the resume counts steps from 0", True),
    "model not restored": Bug("model not restored", "the resume does not load the weights", True),
    "average not restored": Bug("a part not restored", "the resume does not load the average of the weights", True),
    "loader not loaded": Bug("loader not loaded", "the resume does not load the loader's state", True),
    "unsorted after a crash": Bug("order of the source", "the resume lists the files in a different order", True),
    "saved before the step": Bug("saved before the step", "saves between backward() and the optimizer's step"),
    "old copy": Bug("saved before the step", "saves a copy of the weights from before the step"),
    "one batch early": Bug("loader one batch early", "saves the loader's state of the previous step"),
    "one batch late": Bug("loader one batch late", "fetches a batch ahead and saves the loader after that"),
    "average not saved": Bug("in no checkpoint", "does not save an average of the weights"),
    "own generator": Bug("in no checkpoint", "the loss uses a generator that is in no checkpoint"),
    "loader not saved": Bug("loader not saved", "does not save the loader"),
    "evaluation skipped": Bug("evaluation skipped", "saves at an epoch's end, before the evaluation"),
    "saved amid gradients": Bug("gradients lost", "saves in the middle of an accumulation over three batches"),
    "counted reads": Bug("memory of the dataset", "a sample depends on how many were read before it"),
    "one batch early with global_step": Bug(
        "loader one batch early", "saves the previous state, and numbers its saves with loader.global_step"
    ),
    "one batch early with global_step, without scheduler": Bug(
        "loader one batch early", "saves the previous state, and numbers its saves with loader.global_step"
    ),
    "one batch late with global_step": Bug(
        "loader one batch late", "fetches a batch ahead, and numbers its saves with loader.global_step"
    ),
    "one batch late with global_step, without scheduler": Bug(
        "loader one batch late", "fetches a batch ahead, and numbers its saves with loader.global_step"
    ),
    "one batch late, fetched before the save": Bug(
        "loader one batch late", "fetches the next batch between the optimizer's step and the save"
    ),
    "one batch late, fetched before the save with global_step, without scheduler": Bug(
        "loader one batch late", "fetches the next batch between the optimizer's step and the save"
    ),
    "enumerate": Bug("index restarts", "scales the loss with the index of enumerate(epoch)"),
    "second loop": Bug("second loop", "reads the same Loader in a second loop, without training"),
    "evaluates on a resume": Bug("evaluation repeated", "the resume evaluates, and adds the score", True),
    "saved before the scheduler": Bug("saved in the wrong order", "saves before scheduler.step()"),
    "counted after the save": Bug("saved in the wrong order", "adds 1 to its step counter after the save"),
    "saved before the average": Bug("a part not restored", "saves before the average of the weights is updated"),
    "counts backwards": Bug("step counter not restored", "the resume saves under the number 0 again"),
}
_AHEAD = "fetches ahead"  # programs of the other script
_LOADERS = ("", ", drop-in", ", without scheduler", ", drop-in, without scheduler")
RIGHT = ("", *(f"{_AHEAD}{loader}" for loader in _LOADERS))
BUGS |= {  # after 5 checkpoints, the first step of the resumed loop is an epoch's last one; after 3, an epoch ended
    f"{_AHEAD}{loader}, one batch {way}": Bug(
        f"loader one batch {way}", f"fetches a batch ahead and {what}", after=3 if "end" in loader else 5
    )
    for way, what, loaders in (
        ("early", "saves the loader's state of the previous step", _LOADERS),
        ("late", "saves the loader after that", (*_LOADERS, ", drop-in, at an epoch's end")),
    )
    for loader in (*loaders, ", with torch.save", ", drop-in, with torch.save")
}
UNSORTED = "unsorted files"
REFUSED = {  # as their two baseline runs differ, so that there is no case
    UNSORTED: "each run lists the files in a different order",
    "unseeded replay": "a replayed generator shuffles without a seed",
}
DIFFERENT = "the baseline runs differ"
EXPECTED = {  # for each program: its bug, and the reported cause
    **dict.fromkeys(RIGHT, ("none", "none")),
    **{name: (bug.what, f"`{bug.cause}`") for name, bug in BUGS.items()},
    **{name: (what, DIFFERENT) for name, what in REFUSED.items()},
}


@contextmanager
def programs(root: Path) -> Iterator[Callable[[str], Outcome]]:
    """Give what runs a bug once, killed and resumed; bugs in the resume share a baseline run."""
    with Preload(TORCH) as preload:

        def command(bug: str) -> Command:
            script = AHEAD if bug.startswith(_AHEAD) else LOOP
            return Command((sys.executable, script, "--bug", bug), preload=preload, mirror=Mirror(SCRIPTS))

        @cache
        def baseline(bug: str) -> Any:
            return survey(command(bug), root / f"baseline {bug}", (1,))

        @cache
        def run_one(bug: str) -> Outcome:
            attempt, seen, notes = baseline("" if not bug or (bug in BUGS and BUGS[bug].in_resume) else bug)
            assert not notes, notes
            place = root / f"case {bug}"
            written = [number for number, name in enumerate(seen.points, 1) if name == "torch.save.written"]
            last = (seen.saved or written)[BUGS.get(bug, Bug("", "")).after - 1]
            case = Case((Launch(Fault("kill", last + 2 * (bug != "evaluation skipped"))), Launch()))
            attempts = run_case(command(bug), case, place)
            return Outcome.of(case, place, attempts, check(case, attempt, attempts), attempt)

        yield run_one
    shutil.rmtree(root)


# ---------------------------------------------------------------------- the table

BEGIN = "<!-- begin: written by tests/chaos/planted_programs.py -->"
END = "<!-- end: written by tests/chaos/planted_programs.py -->"
HEAD = ("| bug | programs | reported cause |", "| --- | --- | --- |")


def main(page: Path) -> int:
    """Run all programs, and put the table between the marks of a page; return 1 if one was judged wrongly, else 0."""
    causes: dict[str, str] = {}
    with programs(Path(tempfile.mkdtemp())) as run:
        for name, (_, expected) in EXPECTED.items():
            causes[name] = judge(name, run)
            print(f"{name or 'right'}: {causes[name]}, expected: {expected}", flush=True)  # noqa: T201  # it takes minutes
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    table = "\n".join(tabulate(causes))
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return int(causes != {name: cause for name, (_, cause) in EXPECTED.items()})


def judge(name: str, run: Callable[[str], Outcome]) -> str:
    """Run a program, and return the cause that is reported."""
    try:
        found = run(name)
    except ConfigurationError:
        return DIFFERENT if name in REFUSED else "rejected"
    return "none" if found.ok else f"`{found.diagnosis.cause}`"


def tabulate(causes: dict[str, str]) -> list[str]:
    """Return the lines of a table with the causes of all programs, one line for all programs with the same bug."""
    bugs: dict[str, list[str]] = {}
    for name, cause in causes.items():
        bugs.setdefault(EXPECTED[name][0], []).append(cause)
    return [*HEAD, *(f"| {bug} | {len(all_)} | {', '.join(dict.fromkeys(all_))} |" for bug, all_ in bugs.items())]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
