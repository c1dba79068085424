"""Trainings by `model.fit`, killed by SIGKILL and resumed in other processes: equal to the baseline, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras_run
import pytest
from keras_run import BATCH, EPOCHS, SAMPLES
from killed_runs import KILLED, Bench, attempts, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

OWN = SAMPLES // BATCH  # batches of an epoch of the Loader
BACKENDS = ["tensorflow", "torch"]


@pytest.fixture(scope="module", params=BACKENDS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", request.param)
        found = Bench(tmp_path_factory.mktemp(request.param), keras_run.__file__)
    yield found
    found.close()


def of_kind(found: list[list[Any]], kind: str) -> list[list[Any]]:
    return [line for line in found if line[0] == kind]


def check(folder: Path, whole: Path, starts: list[int]) -> None:
    """Each process continued where the last save was, and did what the baseline did."""
    expected = lines(whole)
    trained, ends = of_kind(expected, "train"), of_kind(expected, "end of epoch")
    assert lines(folder)[-1] == expected[-1], said(folder)
    found = attempts(folder)
    assert len(found) == len(starts)
    for attempt, start in zip(found, starts, strict=True):
        did = of_kind(attempt, "train")
        assert did == trained[start : start + len(did)]
        assert all(end in ends for end in of_kind(attempt, "end of epoch"))
    assert of_kind(found[-1], "end of epoch")[-1] == ends[-1]


def killed(bench: Bench, start: int, *, save_freq: int | str = 1, kill: dict[str, Any], **options: Any) -> None:
    """Kill a training run, and finish it in a second process.

    Args:
        bench: runs them.
        start: training steps in the last checkpoint of the first process.
        save_freq: for both processes.
        kill: the point at which the first process dies.
        options: for all runs, including the baseline.
    """
    whole, folder = bench.whole(save_freq="epoch", **options), bench.new()
    assert bench.run(folder, save_freq=save_freq, **kill, **options) == [KILLED], said(folder)
    assert bench.run(folder, save_freq=save_freq, seed=1, **options) == [0], said(folder)
    check(folder, whole, [0, start])


def saved(step: int, epoch: int) -> int:
    """Return how many of so many batches are saved with `save_freq=1`: an epoch's last one when the epoch is over."""
    return step - 1 if step % epoch == 0 else step


EVERY = [step if step == OWN else pytest.param(step, marks=pytest.mark.long) for step in range(1, 27)]


@pytest.mark.parametrize("step", EVERY)
@pytest.mark.parametrize("loader", ["indexed", "stream"])
def test_killed_after_each_batch(bench: Bench, loader: str, step: int) -> None:
    killed(bench, saved(step, OWN), kill={"die_at": step}, loader=loader)


SHORT = [step if step == 7 else pytest.param(step, marks=pytest.mark.long) for step in range(1, 21)]


@pytest.mark.parametrize("step", SHORT)
def test_killed_after_each_batch_of_epochs_by_steps(bench: Bench, step: int) -> None:
    """An epoch of Keras has seven batches, and one of the Loader nine."""
    killed(bench, saved(step, 7), kill={"die_at": step}, steps_per_epoch=7)


@pytest.mark.parametrize("epoch", range(EPOCHS - 1))
@pytest.mark.parametrize("steps", [None, *(pytest.param(steps, marks=pytest.mark.long) for steps in (7, OWN))])
def test_killed_at_the_end_of_an_epoch(bench: Bench, steps: int | None, epoch: int) -> None:
    for loader in ("indexed", "stream"):
        kill = {"die_after_epoch": epoch}
        killed(bench, (steps or OWN) * (epoch + 1), save_freq="epoch", kill=kill, loader=loader, steps_per_epoch=steps)


@pytest.mark.parametrize("steps", [None, pytest.param(7, marks=pytest.mark.long)])
def test_killed_between_the_last_batch_and_the_save(bench: Bench, steps: int | None) -> None:
    """After the validation and the other callbacks; so the epoch's last batches are trained again, and its end too."""
    kill = {"die_after_epoch": 1, "die_before_save": True}
    length = steps or OWN
    killed(bench, length * 2 - length * 2 % 4 or 4, save_freq=4, kill=kill, steps_per_epoch=steps)
    killed(bench, length, save_freq="epoch", kill=kill, steps_per_epoch=steps)


@pytest.mark.parametrize("steps", [None, pytest.param(7, marks=pytest.mark.long)])
def test_stopped_in_an_epoch_and_continued(bench: Bench, steps: int | None) -> None:
    """A callback sets `stop_training`, as on a signal before a preemption."""
    whole, folder = bench.whole(save_freq="epoch", steps_per_epoch=steps), bench.new()
    for stop in (4, 2):
        assert bench.run(folder, save_freq="epoch", steps_per_epoch=steps, stop_at=stop) == [0], said(folder)
    assert bench.run(folder, save_freq="epoch", steps_per_epoch=steps, seed=1) == [0], said(folder)
    check(folder, whole, [0, 4, 6])


@pytest.mark.parametrize("steps", [None, pytest.param(7, marks=pytest.mark.long)])
def test_stopped_at_the_last_batch_of_an_epoch_and_continued(bench: Bench, steps: int | None) -> None:
    whole, folder = bench.whole(save_freq="epoch", steps_per_epoch=steps), bench.new()
    assert bench.run(folder, save_freq="epoch", steps_per_epoch=steps, stop_at=steps or OWN) == [0], said(folder)
    assert bench.run(folder, save_freq="epoch", steps_per_epoch=steps, seed=1) == [0], said(folder)
    check(folder, whole, [0, steps or OWN])


def test_a_finished_training_does_nothing_more(bench: Bench) -> None:
    folder = bench.new()
    assert bench.run(folder, save_freq=4) == [0], said(folder)
    assert bench.run(folder, save_freq=4, seed=1) == [0], said(folder)
    first, second = (of_kind(attempt, "end")[0] for attempt in attempts(folder))
    assert first == second


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "tensorflow")
        found = Bench(tmp_path_factory.mktemp("only"), keras_run.__file__)
    yield found
    found.close()


@pytest.mark.parametrize("step", [OWN, pytest.param(12, marks=pytest.mark.long)])
def test_killed_with_tfdata(tensorflow: Bench, step: int) -> None:
    killed(tensorflow, saved(step, OWN), kill={"die_at": step}, loader="tfdata")
    killed(tensorflow, saved(step, 7), kill={"die_at": step}, loader="tfdata", steps_per_epoch=7)


@pytest.mark.parametrize("steps", [None, pytest.param(7, marks=pytest.mark.long)])
def test_killed_with_several_steps_per_execution(tensorflow: Bench, steps: int | None) -> None:
    """Each line of the log is an execution of two batches; an epoch of the Loader ends with one of a single batch."""
    per_epoch = -(-(steps or OWN) // 2)
    for kill in (1, 3, per_epoch, per_epoch + 2):
        killed(tensorflow, saved(kill, per_epoch), kill={"die_at": kill}, steps_per_epoch=steps, steps_per_execution=2)
