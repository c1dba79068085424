"""Reads a group of the grid with a save at every step and at each epoch's end, or continues from every one of them.

python grid_run.py GROUP FOLDER save      reads each row, saves its states in the folder, and reads it without a save
python grid_run.py GROUP FOLDER resume    continues from each state, with a new source

Each row has a fork of a process that has only imported what the group needs. It prints wrong rows as JSON.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import sys
import traceback
import warnings
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grid_rows import ANOTHER, GROUPS, ROW_OF, TOGETHER

from resumable.errors import OnePassError, PromiseWarning, StateMismatchError, StateMismatchWarning, UnsupportedError
from resumable.loader import registry
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from grid_rows import Row

EPOCHS, CUT = 5, 2  # epochs of a run, and of its cuts: three whole ones follow each
FORK = get_context("fork")


class Recorded(dict[str, Any]):
    """Adapters of the registry, which notes those that are used."""

    def __init__(self, adapters: dict[str, Any]) -> None:
        super().__init__(adapters)
        self.used: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.used.append(name)
        return super().__getitem__(name)


def read(loader: Any, states: list[tuple[str, int, bytes]] | None = None) -> list[str]:
    """Read a run to its end; with a list for states, save at each epoch's start, at every step, and at its end."""
    run: list[str] = []

    def save(when: str) -> None:
        if states is not None:
            states.append((when, len(run), pickle.dumps(loader.state_dict())))

    for epoch in loader.epochs(EPOCHS):
        save(f"{epoch.number} start")
        for batch in epoch:
            run.append(f"{epoch.number} {digest(batch)}")
            save(f"{epoch.number} after {len(run)}")
        save(f"{epoch.number} end")
    loader.close()
    return run


def saved(row: Row) -> dict[str, Any]:
    """Return a run and its states, and the names of the registry that it needed; or why the source is rejected."""
    adapters = registry._adapters = Recorded(registry._adapters)
    parameters = registry._parameters = Recorded(registry._parameters)
    states: list[tuple[str, int, bytes]] = []
    try:
        loader = row.make()
    except UnsupportedError as error:
        return {"used": adapters.used + parameters.used, "told": ["rejected by wrap", str(error)]}
    run = read(loader, states)
    return {"used": adapters.used + parameters.used, "run": run, "states": states}


def resumed(row: Row, state: bytes) -> dict[str, Any]:
    """Return what follows a state, or the error, and all warnings since `wrap`."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = row.make()
        try:
            loader.load_state_dict(pickle.loads(state))  # noqa: S301  # saved here
            rest = read(loader)
        except (StateMismatchError, UnsupportedError, OnePassError) as error:
            return {"rejected": str(error)}
    promises = [one for one in told if issubclass(one.category, (PromiseWarning, StateMismatchWarning))]
    return {"rest": rest, "warned": [str(one.message) for one in promises]}


def apart(work: Callable[[], Any]) -> Any:
    """Do something in a fork of this process, and return its result."""
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_send, args=(work, theirs))
    child.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        result = {"failed": "it died"}
    child.join()
    return result


def _send(work: Callable[[], Any], connection: Any) -> None:
    connection.send(tried(work))


def tried(work: Callable[[], Any]) -> Any:
    """Do something, and return its result, or the traceback of its error."""
    try:
        return work()
    except Exception:  # noqa: BLE001  # whatever it is, the test shows it
        return {"failed": traceback.format_exc()}


def save(group: str, rows: dict[str, Row], path: Path, do: Callable[..., Any]) -> dict[str, Any]:
    """Save the states of all rows, and return which are read differently without a save, or not as the table says."""
    wrong, kept = dict[str, dict[str, Any]](), {}
    for name, row in rows.items():
        one = do(partial(saved, row))
        missing = {kind for kind, place in ROW_OF.items() if place == (group, name)} - set(one.get("used", ()))
        if "states" in one:
            plain = do(lambda row=row: {"run": read(row.make())})
            kept[name] = one["run"], one["states"]
            if plain != {"run": one["run"]} and not any(ANOTHER in what for what in row.outcomes):
                wrong[name] = {"without a save": str(plain)[-2000:]}
        else:
            told = one.get("told") or ["failed", one["failed"]]
            wrong[name] = unexpected(row, {"wrapped": told})
        if missing:
            wrong.setdefault(name, {})["not read by"] = sorted(missing)
    path.write_bytes(pickle.dumps(kept))
    return wrong


def resume(_: str, rows: dict[str, Row], path: Path, do: Callable[..., Any]) -> dict[str, Any]:
    """Continue from all states of the first epochs, and return what is not as its row says."""
    kept = pickle.loads(path.read_bytes())  # noqa: S301  # our own
    return {name: unexpected(rows[name], do(partial(outcomes, rows[name], *kept[name]))) for name in kept}


def outcomes(row: Row, run: list[str], states: list[tuple[str, int, bytes]]) -> dict[str, list[str]]:
    """Return what happened after each state, by when it was saved, and its message."""
    return {
        when: outcome(tried(partial(resumed, row, state)), run[done:], before=not done)
        for when, done, state in states
        if int(when.split()[0]) < CUT
    }


def outcome(one: dict[str, Any], run: list[str], *, before: bool) -> list[str]:
    """Return an outcome and its messages. A state from before the first batch has nothing to compare."""
    if "rest" not in one:
        return list(next(iter(one.items())))
    what = "exact" if one["rest"] == run else ANOTHER if before else "different"
    return [f"{what}, warned", "\n".join(one["warned"])] if one["warned"] else [what, ""]


def unexpected(row: Row, found: dict[str, list[str]]) -> dict[str, Any]:
    """Return what a row does not expect, or does not name."""
    wrong: dict[str, Any] = {
        when: [what, message[-2000:]]
        for when, (what, message) in found.items()
        if what not in row.outcomes or (message and not re.search(row.words or "$^", message))
    }
    seen = {what for what, _ in found.values()}
    return wrong if seen == set(row.outcomes) else {**wrong, "seen": sorted(seen)}


def main(group: str, folder: Path, phase: str) -> None:
    """Run a phase, and print what is wrong."""
    logging.getLogger("resumable").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    do = tried if group in TOGETHER else apart
    wrong = (save if phase == "save" else resume)(group, GROUPS[group](folder), folder / "states", do)
    sys.stdout.write("\n" + json.dumps({name: one for name, one in wrong.items() if one}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
