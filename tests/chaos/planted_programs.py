"""The programs of `scripts/planted_loop.py`, each with a bug that scripts have, and what a chaos run says of them.

`python tests/chaos/planted_programs.py docs/reference/chaos-results.md` runs all of them, and writes the table of that page.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.campaign import survey
from resumable.chaos.launch.preload import Preload
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import Case, Fault, Launch
from resumable.chaos.report import Outcome
from resumable.chaos.verify.checks import check
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOP = str(Path(__file__).parent / "scripts" / "planted_loop.py")
TORCH = ["torch", "torch._dynamo"]


class Bug(NamedTuple):
    """What was planted.

    Args:
        cause: the name of the cause that is to be found.
        what: in words.
        in_resume: the script is right until it resumes.
    """

    cause: str
    what: str
    in_resume: bool = False


TWO = "scheduler not restored, optimizer not restored"
BUGS = {
    TWO: Bug("optimizer not restored", "a resume loads neither the scheduler nor the optimizer", True),
    "optimizer not restored": Bug("optimizer not restored", "a resume loads no state of the optimizer", True),
    "scheduler not restored": Bug("scheduler not restored", "a resume loads no state of the scheduler", True),
    "scaler not restored": Bug("GradScaler not restored", "a resume loads no state of the GradScaler", True),
    "torch not restored": Bug("generators not restored", "a resume leaves torch's generator as it is", True),
    "numpy not restored": Bug("generators not restored", "a resume leaves NumPy's generator as it is", True),
    "python not restored": Bug("generators not restored", "a resume leaves Python's generator as it is", True),
    "step not restored": Bug("step counter not restored", "a resume counts steps from 0", True),
    "model not restored": Bug("model not restored", "a resume loads no weights", True),
    "average not restored": Bug("a part not restored", "a resume loads no average of the weights", True),
    "loader not loaded": Bug("loader not loaded", "a resume does not load the state of the loader", True),
    "unsorted after a crash": Bug("order of the source", "a resume lists the files in another order", True),
    "saved before the step": Bug("saved before the step", "it saves between backward and the optimizer's step"),
    "old copy": Bug("saved before the step", "the weights that it saves were copied before the step"),
    "one batch early": Bug("loader one batch early", "the loader's state that it saves is of the step before"),
    "one batch late": Bug("loader one batch late", "it fetches a batch ahead, and saves the loader after that"),
    "average not saved": Bug("in no checkpoint", "an average of the weights is in no checkpoint"),
    "loader not saved": Bug("loader not saved", "the loader is in no checkpoint"),
    "evaluation skipped": Bug("evaluation skipped", "it saves at an epoch's end, before the evaluation"),
    "saved amid gradients": Bug("gradients lost", "it saves amid the gradients of three batches, which it adds up"),
    "counted reads": Bug("memory of the dataset", "a sample depends on how many were read before it"),
    "counts backwards": Bug("step counter not restored", "a resume saves under the number 0 again"),
}
UNSORTED = "unsorted files"
REFUSED = {  # as their two baseline runs differ, so that there is no case
    UNSORTED: "each run lists the files in another order",
    "unseeded replay": "a generator, which is replayed in a resume, shuffles without a seed",
}


@contextmanager
def programs(root: Path) -> Iterator[Callable[[str], Outcome]]:
    """Give what runs a bug once, killed after the fourth checkpoint; bugs in the resume share a baseline run."""
    with Preload(TORCH) as preload:

        def command(bug: str) -> Command:
            return Command((sys.executable, LOOP, "--bug", bug), preload=preload)

        @cache
        def baseline(bug: str) -> Any:
            return survey(command(bug), root / f"baseline {bug}", (1,))

        @cache
        def run_one(bug: str) -> Outcome:
            attempt, seen, notes = baseline("" if not bug or (bug in BUGS and BUGS[bug].in_resume) else bug)
            assert not notes
            place = root / f"case {bug}"
            case = Case((Launch(Fault("kill", seen.saved[3] + 2 * (bug != "evaluation skipped"))), Launch()))
            attempts = run_case(command(bug), case, place)
            return Outcome.of(case, place, attempts, check(case, attempt, attempts), attempt)

        yield run_one
    shutil.rmtree(root)


# ---------------------------------------------------------------------- the table

BEGIN = "<!-- begin: written by tests/chaos/planted_programs.py -->"
END = "<!-- end: written by tests/chaos/planted_programs.py -->"
HEAD = "| program | what is planted | caught | what the report says | cases | seconds |"


def main(page: Path) -> int:
    """Run all programs, and put the table between the marks of a page; return 1 if one was judged wrongly, else 0."""
    rows, wrong = [], 0
    with programs(Path(tempfile.mkdtemp())) as run:
        for bug in ("", *BUGS, *REFUSED):
            began = time.monotonic()
            cells = judge(bug, run)
            wrong += cells[2] != ("refused" if bug in REFUSED else "yes" if bug else "–")  # noqa: RUF001  # a dash
            rows.append(f"| {' | '.join([*cells, f'{time.monotonic() - began:.0f}'])} |")
            print(rows[-1], flush=True)  # noqa: T201  # it takes minutes
    table = "\n".join((HEAD, "| --- | --- | --- | --- | ---: | ---: |", *rows))
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return int(wrong > 0)


def judge(bug: str, run: Callable[[str], Outcome]) -> list[str]:
    """Return the name of a program, what was planted, whether that was caught, what was said, and the cases."""
    if bug in REFUSED:
        try:
            run(bug)
        except ConfigurationError as refusal:
            said = " ".join(str(refusal).splitlines())
            return [f"`{bug}`", REFUSED[bug], "refused", said, "0"]
    found = run(bug)
    text = "; tried: ".join(filter(None, (found.diagnosis.text, found.diagnosis.trial)))
    caught = "no" if found.ok else "yes"
    if not bug:
        return ["right", "nothing", "–" if found.ok else "**blamed**", text, "1"]  # noqa: RUF001  # a dash
    return [f"`{bug}`", BUGS[bug].what, caught, text, "1"]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
