"""The four loops that people have, as the examples show them: killed by SIGKILL at every step, and run again.

A resumed process does exactly what the baseline did after the last save: the same batches in the weights, the same
weights after each step bit by bit, the same learning rates computed from an index, validations, output, and states of
the loader with their `global_step`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import loops_run
import pytest
from killed_runs import KILLED, Bench, attempts, said

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = {name: FOLDER / f"loop_{name}.py" for name in ("train_function", "in_main", "fetch_ahead", "until_step")}
Event = list[Any]


class Change(NamedTuple):
    """A change of an example's text."""

    loop: str
    old: str
    new: str


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("loops"), loops_run.__file__)
    yield found
    found.close()


def changed(change: Change, folder: Path) -> str:
    text = EXAMPLES[change.loop].read_text(encoding="utf-8")
    assert change.old in text, change
    path = folder / "changed.py"
    path.write_text(text.replace(change.old, change.new), encoding="utf-8")
    return str(path)


def baseline(bench: Bench, script: str) -> list[Event]:
    (events,) = attempts(bench.whole(script=script))
    return events[1:]


def killed_and_resumed(bench: Bench, script: str, kills: list[int]) -> None:
    """Kill a process after so many events, the next one in the same way, and let the last one end."""
    expected, folder, done = baseline(bench, script), bench.new(), 0
    for kill in [*kills, None]:
        assert bench.run(folder, script=script, kill_at=kill) == [KILLED if kill else 0], said(folder)
        events = attempts(folder)[-1][1:]
        assert events == expected[done:][:kill], f"kills after {kills} events"
        saved = [number for number, event in enumerate(events, start=1) if event[0] == "saved"]
        done += saved[-1] if saved else 0


def numbers_of(events: list[Event], which: str) -> list[int]:
    """Return after how many events to kill: after each optimizer step, around validations, or after any event."""
    before = zip([[""], *events], events, strict=False)
    begun = [number for number, (last, event) in enumerate(before) if event[0] == "validate" != last[0]]
    ended = [number for number, event in enumerate(events, start=1) if event[0] == "print"]
    return {
        "steps": [number + 1 for number, event in enumerate(events) if event[0] == "step"],
        "validations": [number for first in begun for number in (first, first + 1) if number] + ended,
        "all": list(range(1, len(events) + 1)),
    }[which]


@pytest.mark.parametrize("which", ["steps", "validations", pytest.param("all", marks=pytest.mark.long)])
@pytest.mark.parametrize("loop", EXAMPLES)
def test_killed_once(bench: Bench, loop: str, which: str) -> None:
    script = str(EXAMPLES[loop])
    numbers = numbers_of(baseline(bench, script), which)
    assert len(numbers) >= 8
    for number in numbers:
        killed_and_resumed(bench, script, [number])


@pytest.mark.parametrize("loop", EXAMPLES)
def test_no_process_comes_further_than_its_first_save(bench: Bench, loop: str) -> None:
    script = str(EXAMPLES[loop])
    saved = [number for number, event in enumerate(baseline(bench, script), start=1) if event[0] == "saved"]
    kills = [number - before for before, number in zip([0, *saved], saved, strict=False)]
    killed_and_resumed(bench, script, kills)


OTHER_FORMS = {
    "train() loops over the loader": Change(
        "train_function",
        "for i, (inputs, targets) in epoch.enumerate():",
        "for i, (inputs, targets) in enumerate(loader, start=loader.cursor.step):",
    ),
    "the training data are evaluated": Change(
        "train_function",
        "test(model, DataLoader(held_out, batch_size=8), epoch)",
        "test(model, loader.for_evaluation(), epoch)",
    ),
    "not every step is saved": Change(
        "in_main",
        "            store.save(",
        "            if loader.global_step % 3 == 0:\n                store.save(",
    ),
    "an epoch is left by break": Change(
        "in_main",
        "            optimizer.zero_grad()\n",
        "            if i == 2:\n                loader.end_epoch()\n                break\n"
        "            optimizer.zero_grad()\n",
    ),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_another_form_of_a_loop_killed_once(bench: Bench, tmp_path: Path, form: str) -> None:
    script = changed(OTHER_FORMS[form], tmp_path)
    for number in numbers_of(baseline(bench, script), "all")[4::11]:
        killed_and_resumed(bench, script, [number])


FAULTS = {
    "the index starts again": Change("train_function", "epoch.enumerate()", "enumerate(epoch)"),
    "the index starts again in main()": Change("in_main", "epoch.enumerate()", "enumerate(epoch)"),
    "the index is counted by the loop": Change(
        "until_step",
        "        step = loader.global_step  #",
        "        step = globals()['STEP'] = globals().get('STEP', 0) + 1  #",
    ),
    "the save is before the ack": Change(
        "fetch_ahead",
        "        loader.ack(ACCUMULATE)",
        "        store.save(step + 1, {name: part.state_dict() for name, part in parts.items()})\n"
        "        loader.ack(ACCUMULATE)\n        continue",
    ),
    "what was fetched ahead counts": Change(
        "fetch_ahead", ', ack="manual")', ")\n    loader.ack = lambda batches: None"
    ),
    "a step is saved before its validation": Change(
        "until_step",
        "        if step % 3 == 0:",
        "        store.save(step, {name: part.state_dict() for name, part in parts.items()})\n"
        "        if step % 3 == 0:",
    ),
    "an epoch is saved before its validation": Change(
        "in_main",
        "        model.eval()\n",
        "        last = {name: part.state_dict() for name, part in parts.items()}\n"
        '        store.save(loader.global_step, {"best": best, **last})\n'
        "        model.eval()\n",
    ),
    "the loader's state is forgotten": Change("until_step", ', "loader": loader, "rng"', ', "rng"'),
    "the dropout is forgotten": Change("in_main", ', "rng": resumable.rng', ""),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.every_cell
def test_a_planted_fault_is_found(bench: Bench, tmp_path: Path, fault: str) -> None:
    script = changed(FAULTS[fault], tmp_path)
    for number in numbers_of(baseline(bench, script), "all")[6::4]:
        try:
            killed_and_resumed(bench, script, [number])
        except AssertionError:
            return
    pytest.fail("every kill was survived")


@pytest.mark.parametrize(
    "change",
    [
        Change("train_function", "DataLoader(held_out, batch_size=8), epoch)", "loader, epoch)"),
        Change("in_main", "in validation)", "in loader)"),
        Change("fetch_ahead", "loader.for_evaluation()", "loader"),
        Change("until_step", "in validation)", "in loader)"),
    ],
    ids=EXAMPLES,
)
def test_an_evaluation_with_the_train_loader_raises(bench: Bench, tmp_path: Path, change: Change) -> None:
    folder = bench.new()
    assert bench.run(folder, script=changed(change, tmp_path)) == [1]
    _, error, message = attempts(folder)[0][-1]
    assert error == "LoopError"
    assert "loader.for_evaluation()" in message
