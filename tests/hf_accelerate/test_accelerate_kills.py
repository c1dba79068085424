"""Trainings by Accelerate, killed by SIGKILL and resumed in other processes: equal to the baseline, bit for bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import accelerate_run
import pytest
from accelerate_run import BATCH, EPOCHS, SAMPLES
from killed_runs import KILLED, Bench, attempts, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("accelerated"), accelerate_run.__file__, every=10**9)
    yield found
    found.close()


def check(folder: Path, whole: Path, rank: int = 0) -> None:
    """Each process went on after the last optimizer step that was saved before, and did what the baseline did."""
    expected = lines(whole, rank)
    trained = [line for line in expected if line[0] == "train"]
    end = [line for line in lines(folder, rank) if line[0] == "end"]
    assert end, said(folder)
    assert end[-1] == expected[-1]
    for attempt in attempts(folder, rank):
        start = attempt[0][1]
        did = [line for line in attempt if line[0] == "train"]
        assert did == trained[start : start + len(did)]
        assert start == 0 or trained[start - 1][-1], "it went on within an accumulation"


def saved(whole: Path, count: int) -> int:
    """How many micro-batches are in the weights after so many."""
    trained = [line for line in lines(whole) if line[0] == "train"]
    return max((number for number in range(1, count + 1) if trained[number - 1][-1]), default=0)


def killed_and_resumed(bench: Bench, kills: list[int], **options: Any) -> None:
    """Kill a training after so many micro-batches of each process, and let the last one come to its end."""
    every = options.pop("every", 1)
    world = options.get("world", 1)
    whole, folder = bench.whole(**options), bench.new()
    done = 0
    for kill in kills:
        assert bench.run(folder, every=every, die_at=kill, **options) == [KILLED] * world, said(folder)
        assert attempts(folder)[-1][0] == ["start", done]
        done = saved(whole, done + kill // every * every)
    assert bench.run(folder, every=every, **options) == [0] * world, said(folder)
    assert attempts(folder)[-1][0] == ["start", done]
    for rank in range(world):
        check(folder, whole, rank)


STEPS = SAMPLES // BATCH * EPOCHS


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize(
    ("loader", "every"),
    [
        ("indexed", 1),
        pytest.param("indexed", 2, marks=pytest.mark.long),
        pytest.param("stream", 1, marks=pytest.mark.long),
        pytest.param("stream", 2, marks=pytest.mark.long),
    ],
)
def test_killed_after_saves_and_resumed(bench: Bench, loader: str, every: int, accumulate: int) -> None:
    """Saved at every micro-batch, or every second one; the last kill is after an epoch's last batch."""
    kills = [4, 5, 6] if accumulate == 3 else [3, 7]
    killed_and_resumed(bench, kills, loader=loader, every=every, accumulate=accumulate)


LAST = SAMPLES // BATCH  # of the first epoch
AFTER = [LAST if kill == LAST else pytest.param(kill, marks=pytest.mark.long) for kill in range(1, STEPS + 1)]


@pytest.mark.parametrize("kill", AFTER)
def test_killed_after_each_micro_batch(bench: Bench, kill: int) -> None:
    for accumulate in (1, 2, 3):
        for loader in ("indexed", "stream"):
            if kill == LAST or accumulate > 1:
                killed_and_resumed(bench, [kill], loader=loader, accumulate=accumulate)


# Accumulated by 1, 2 and 3; saved at every micro-batch, every second one, and at the end of each epoch.
RANDOM: dict[str, dict[str, Any]] = {
    f"{world} ranks, {loader}, accumulated by {accumulate}, {when}": {
        "world": world,
        "loader": loader,
        "accumulate": accumulate,
        "every": every or SAMPLES // BATCH // (world if loader == "indexed" else 1),
    }
    for world in (1, 2)
    for loader in ("indexed", "stream")
    for accumulate in (1, 2, 3)
    for every, when in ((1, "every step"), (2, "every second"), (0, "every epoch"))
}
OFTEN = "1 ranks, stream, accumulated by 3, every second"


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
@pytest.mark.parametrize(
    "case", [case if case == OFTEN else pytest.param(case, marks=pytest.mark.long) for case in RANDOM]
)
def test_killed_at_random_moments(bench: Bench, case: str, seed: int) -> None:
    """One to three times; samples and model draw random numbers in each case."""
    at, options = random.Random(f"{case} {seed}"), dict(RANDOM[case])
    whole = bench.whole(**{name: value for name, value in options.items() if name != "every"})
    total, every = sum(line[0] == "train" for line in lines(whole)), options["every"]
    kills, done = list[int](), 0
    for _ in range(at.randint(1, 3)):
        if done < total:
            kills.append(at.randint(1, total - done))
            done = saved(whole, done + kills[-1] // every * every)
    killed_and_resumed(bench, kills, **options)


def test_the_baseline_steps_where_a_dataloader_does(bench: Bench) -> None:
    """Also at the end of an epoch, whose last micro-batches make no whole step."""
    trained = [line for line in lines(bench.whole(loader="indexed", accumulate=3)) if line[0] == "train"]
    assert [number for number, line in enumerate(trained, 1) if line[-1]] == [3, 6, 9, 10, 13, 16, 19, 20]


# ---------------------------------------------------------------------- evaluation on the train data


def trained_of(folder: Path, rank: int = 0) -> list[list[Any]]:
    """What was trained on, and the outcome."""
    return [line for line in lines(folder, rank) if line[0] in {"train", "end"}]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("loader", ["indexed", "stream"])
def test_an_evaluation_on_the_train_data_changes_nothing(
    bench: Bench, loader: str, accumulate: int, world: int
) -> None:
    """In the middle of an epoch and at its end, also within an accumulation; each pass is that of epoch 0."""
    options: dict[str, Any] = {"loader": loader, "accumulate": accumulate, "world": world}
    without, evaluated = bench.whole(**options), bench.whole(evaluates=True, **options)
    for rank in range(world):
        assert trained_of(evaluated, rank) == trained_of(without, rank)
        passes = [line[1] for line in lines(evaluated, rank) if line[0] == "evaluated"]
        assert len(passes) == 2 * EPOCHS
        assert all(one == passes[0] for one in passes)
        assert len({number for batch in passes[0] for number in batch}) == SAMPLES * (
            world if loader == "stream" else 1
        )


@pytest.mark.parametrize(
    "kill",
    [kill if kill in {LAST, LAST + 3} else pytest.param(kill, marks=pytest.mark.long) for kill in range(1, STEPS)],
)
def test_killed_with_evaluations_on_the_train_data(bench: Bench, kill: int) -> None:
    for accumulate, loader in ((1, "indexed"), (3, "stream")):
        killed_and_resumed(bench, [kill], loader=loader, accumulate=accumulate, evaluates=True)


@pytest.mark.parametrize("epoch", range(EPOCHS))
def test_killed_after_an_evaluation_at_an_epochs_end(bench: Bench, epoch: int) -> None:
    options: dict[str, Any] = {"loader": "indexed", "accumulate": 3, "evaluates": True}
    whole, folder = bench.whole(**options), bench.new()
    assert bench.run(folder, every=10**9, die_after_epoch=epoch, **options) == [KILLED], said(folder)
    assert bench.run(folder, **options) == [0], said(folder)
    assert attempts(folder)[-1][0] == ["start", LAST * (epoch + 1)]
    check(folder, whole)


# ---------------------------------------------------------------------- within a save

# That of the optimizer, of the scheduler, of the generators, and of the prepared Loaders; the model's is before them.
FILES = [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3]


@pytest.mark.parametrize("torn", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("file", FILES)
def test_killed_within_a_save_it_resumes_from_the_one_before(bench: Bench, file: int, torn: bool) -> None:
    options = {"loader": "indexed", "accumulate": 2}
    whole, folder = bench.whole(**options), bench.new()
    assert bench.run(folder, die_in=[5, file], torn=torn, **options) == [KILLED]
    assert (folder / "checkpoint_5").is_dir()
    assert bench.run(folder, **options) == [0], said(folder)
    assert attempts(folder)[-1][0] == ["start", saved(whole, 4)]
    check(folder, whole)


@pytest.mark.parametrize("torn", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("file", FILES)
def test_killed_while_a_checkpoint_is_replaced(bench: Bench, file: int, torn: bool) -> None:
    """Killed while a checkpoint is overwritten, a run loads nothing.

    Not the new weights with the old place.
    """
    folder = bench.new()
    assert bench.run(folder, in_place=True, die_in=[3, file], torn=torn) == [KILLED]
    assert bench.run(folder, in_place=True) == [1]
    kind, message = lines(folder)[-1][1:]
    assert kind in {"RuntimeError", "OSError"}
    assert torn or "Number of custom checkpoints" in message


def test_a_checkpoint_that_is_written_over_whole_resumes(bench: Bench) -> None:
    options = {"loader": "indexed", "in_place": True, "accumulate": 3}
    killed_and_resumed(bench, [5, 4], **options)


# ---------------------------------------------------------------------- steps by hand


@pytest.mark.parametrize("loader", ["indexed", pytest.param("stream", marks=pytest.mark.long)])
def test_steps_without_accumulate(bench: Bench, loader: str) -> None:
    """The loop steps at every third micro-batch of an epoch; the tenth one's gradients go on into the next epoch."""
    options = {"loader": loader, "accumulate": 3, "by_hand": True}
    whole, folder = bench.whole(**options), bench.new()
    trained = [line[:-1] for line in lines(whole) if line[0] == "train"]
    assert len(trained) == STEPS
    assert bench.run(folder, die_at=5, **options) == [KILLED]
    assert bench.run(folder, die_at=9, **options) == [KILLED]
    assert bench.run(folder, **options) == [0], said(folder)
    starts = [attempt[0][1] for attempt in attempts(folder)]
    assert starts == [0, 3, 9]
    for attempt, start in zip(attempts(folder), starts, strict=True):
        did = [line[:-1] for line in attempt if line[0] == "train"]
        assert did == trained[start : start + len(did)]
    assert lines(folder)[-1] == lines(whole)[-1]


# ---------------------------------------------------------------------- ranks


@pytest.mark.parametrize(
    ("loader", "accumulate", "kills"),
    [
        ("indexed", 2, [3]),
        ("indexed", 1, [STEPS // 2]),  # nothing is left to train: each rank has to have its own buffers again
        ("stream", 3, [4]),
        *(
            pytest.param(loader, accumulate, kills, marks=pytest.mark.long)
            for loader in ("indexed", "stream")
            for accumulate in (1, 2, 3)
            for kills in ([2, 3], [5], [6, 1])
        ),
    ],
)
def test_two_ranks_that_are_killed(bench: Bench, loader: str, accumulate: int, kills: list[int]) -> None:
    """One file has the states of both: their generators differ, and the streams of `shard=False`, too."""
    killed_and_resumed(bench, kills, loader=loader, accumulate=accumulate, world=2)


def test_metrics_of_two_ranks_have_no_padding(bench: Bench) -> None:
    whole = bench.whole(loader="indexed", accumulate=2, world=2)
    for rank in (0, 1):
        scores = [line[2] for line in lines(whole, rank) if line[0] == "end of epoch"]
        assert scores == [[[0, 1, 2, 3], [4, 5, 6]]] * EPOCHS


def test_notebook_launcher_resumes_other_saves(bench: Bench) -> None:
    """The ranks of `notebook_launcher` continue from the saves of others."""
    options = {"loader": "indexed", "accumulate": 2, "world": 2}
    whole, folder = bench.whole(**options), bench.new()
    assert bench.run(folder, die_at=3, **options) == [KILLED, KILLED]
    assert bench.run(folder, launched=True, **options) == [0], said(folder)
    for rank in (0, 1):
        assert attempts(folder, rank)[-1][0] == ["start", 2]
        check(folder, whole, rank)


@pytest.mark.parametrize("file", [3, pytest.param(0, marks=pytest.mark.long)])
def test_the_main_process_of_two_is_killed_within_a_save(bench: Bench, file: int) -> None:
    options = {"loader": "stream", "accumulate": 3, "world": 2}
    whole, folder = bench.whole(**options), bench.new()
    assert bench.run(folder, die_in=[5, file], **options)[0] == KILLED
    assert bench.run(folder, **options) == [0, 0], said(folder)
    for rank in (0, 1):
        assert attempts(folder, rank)[-1][0] == ["start", 3]
        check(folder, whole, rank)
