"""Trainings by transformers' Trainer, killed by SIGKILL and resumed in other processes: equal to the baseline."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from killed_runs import KILLED, Bench, attempts, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ON_TOP = Path(sys.prefix) / "transformers/bin/python"  # what make sets up beside the environment of the tests
PYTHON = (
    ON_TOP if ON_TOP.exists() else Path(sys.executable)
)  # `make test-matrix` installs everything in one environment
PROGRAM = str(Path(__file__).with_name("trainer_run.py"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("trainer"), PROGRAM, PYTHON)
    yield found
    found.close()


def steps(story: list[list[Any]]) -> dict[int, list[Any]]:
    """The micro-batches and losses of each optimizer step."""
    found: dict[int, list[Any]] = {}
    for kind, *rest in story:
        if kind == "train":
            found.setdefault(rest[0], []).append(rest[1:])
    return found


def check(folder: Path, whole: Path, rank: int = 0) -> None:
    """Each process began at an optimizer step, did what the baseline did, and the last one came to the same end."""
    baseline = steps(lines(whole, rank))
    for attempt in attempts(folder, rank):
        did = steps(attempt)
        for number, (step, micro_batches) in enumerate(did.items(), 1):
            known = baseline[step] if number < len(did) else baseline[step][: len(micro_batches)]
            assert micro_batches == known, f"step {step}"
    expected, found = lines(whole, rank)[-1], lines(folder, rank)[-1]
    assert found[0] == "end", said(folder)
    for part, value in expected[1].items():
        assert found[1][part] == value, part


def killed_and_resumed(bench: Bench, kills: list[dict[str, Any]], **options: Any) -> None:
    """Kill a training at each of these moments, one process after the other, and let the last one come to its end."""
    whole, folder, world = bench.whole(**options), bench.new(), options.get("world", 1)
    for kill in kills:
        assert KILLED in bench.run(folder, **options, **kill), said(folder)
    assert bench.run(folder, **options) == [0] * world, said(folder)
    for rank in range(world):
        check(folder, whole, rank)


def arguments(**values: Any) -> dict[str, Any]:
    return {"arguments": values}


EVERY_EPOCH = {"save_strategy": "epoch", "eval_strategy": "epoch", "logging_strategy": "epoch"}
STOPPING = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "load_best_model_at_end": True}
STOPPING |= {"restore_callback_states_from_checkpoint": True, "learning_rate": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated by 2, saved every second step": arguments(gradient_accumulation_steps=2, save_steps=2),
    "accumulated by 3": arguments(gradient_accumulation_steps=3, eval_strategy="epoch"),
    "everything per epoch": arguments(gradient_accumulation_steps=2, **EVERY_EPOCH),
    "so many steps": arguments(eval_strategy="steps", eval_steps=3, save_steps=2, max_steps=15),
    "one and a half epochs": arguments(num_train_epochs=1.5, save_steps=3, dataloader_drop_last=True),
    "by length": arguments(train_sampling_strategy="group_by_length", gradient_accumulation_steps=2),
    "in order": arguments(train_sampling_strategy="sequential", data_seed=3),
    "workers": arguments(dataloader_num_workers=2, save_steps=2, dataloader_persistent_workers=True),
    "plateau": arguments(
        lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", metric_for_best_model="loss", eval_steps=2
    ),
    "one kept": arguments(save_total_limit=1, load_best_model_at_end=True, eval_strategy="steps", eval_steps=1),
    "early stopping": {"patience": 2, **arguments(**STOPPING)},
    "a loader that was given": {"data": "loader", **arguments(gradient_accumulation_steps=3, eval_strategy="epoch")},
    "a stream": {"data": "elements", **arguments(max_steps=15, gradient_accumulation_steps=2)},
    "a stream from workers": {"data": "elements", **arguments(max_steps=9, dataloader_num_workers=2)},
    "a table of datasets": {
        "data": "table",
        "options": {"randomness": "batch"},
        **arguments(gradient_accumulation_steps=2, remove_unused_columns=False),
    },
    "a stream of datasets": {"data": "parquet", **arguments(max_steps=15, gradient_accumulation_steps=2)},
    "a stream of datasets from workers": {"data": "parquet", **arguments(max_steps=15, dataloader_num_workers=2)},
    "a shuffled stream of datasets": {
        "data": "shuffled parquet",
        "options": {"resume": "replay"},
        **arguments(max_steps=15, remove_unused_columns=True),
    },
    "2 ranks, a stream of datasets": {
        "world": 2,
        "data": "parquet",
        "options": {"shard": True},
        **arguments(max_steps=11),
    },
    "SFTTrainer": {"data": "sentences", **arguments(gradient_accumulation_steps=2, eval_strategy="epoch")},
    "SFTTrainer, packed": {
        "data": "sentences",
        **arguments(packing=True, packing_strategy="wrapped", max_length=8, save_steps=2),
    },
    "SFTTrainer, a stream": {"data": "stream of sentences", **arguments(max_steps=15, gradient_accumulation_steps=2)},
    "2 ranks, SFTTrainer": {"world": 2, "data": "sentences", **arguments(gradient_accumulation_steps=3)},
    "2 ranks": {"world": 2, **arguments(gradient_accumulation_steps=2, dataloader_drop_last=True)},
    "2 ranks, evaluated": {
        "world": 2,
        **arguments(per_device_train_batch_size=4, gradient_accumulation_steps=3, eval_strategy="epoch"),
    },
    "2 ranks, a stream each": {"world": 2, "data": "streams", **arguments(max_steps=18)},
}
KILLS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"die_at": 5}, {"die_at": 9}, {"die_after_save": 3}],
    "accumulated by 3": [{"die_at": 2}, {"die_at": 5}, {"die_after_save": 2}],
    "everything per epoch": [{"die_at": 13}, {"die_after_save": 1}],
    "so many steps": [{"die_at": 4}, {"die_after_save": 5}],
    "by length": [{"die_at": 7}],
    "early stopping": [{"die_at": 2}, {"die_after_save": 2}],
    "a loader that was given": [{"die_at": 7}],
    "a stream": [{"die_at": 15}],
    "a table of datasets": [{"die_at": 15}],
    "a stream of datasets": [{"die_at": 7}, {"die_at": 11}],
    "a stream of datasets from workers": [{"die_at": 9}],
    "a shuffled stream of datasets": [{"die_at": 13}],
    "2 ranks, a stream of datasets": [{"die_at": 7}],
    "SFTTrainer": [{"die_at": 7}, {"die_at": 3}],
    "SFTTrainer, packed": [{"die_at": 6}],
    "SFTTrainer, a stream": [{"die_at": 9}],
    "2 ranks, SFTTrainer": [{"die_at": 5}],
    "2 ranks": [{"die_at": 3}],
    "2 ranks, evaluated": [{"die_after_save": 1}],
    "2 ranks, a stream each": [{"die_at": 12}],
}


RARELY = {"SFTTrainer, packed", "SFTTrainer, a stream", "a stream of datasets from workers"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case in RARELY else []) for case in KILLS]
)
def test_killed_and_resumed(bench: Bench, case: str) -> None:
    killed_and_resumed(bench, KILLS[case], **CASES[case])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
@pytest.mark.parametrize(
    "case", [case if case == "plateau" else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_killed_at_a_random_moment(bench: Bench, case: str, seed: int) -> None:
    whole = bench.whole(**CASES[case])
    count = sum(line[0] == "train" for line in lines(whole))
    at = random.Random(f"{case} {seed}")
    killed_and_resumed(bench, [{"die_at": at.randint(1, count)}], **CASES[case])


# ---------------------------------------------------------------------- evaluation on the train data

EVALUATED: dict[str, dict[str, Any]] = {
    "samples": arguments(gradient_accumulation_steps=2),
    "loader": {"data": "loader", **arguments(gradient_accumulation_steps=3, eval_strategy="epoch")},
    "elements": {"data": "elements", **arguments(max_steps=15)},
    "2 ranks": {"world": 2, **arguments(gradient_accumulation_steps=2, dataloader_drop_last=True)},
}


@pytest.mark.parametrize("case", EVALUATED)
def test_an_evaluation_on_the_train_data_changes_nothing(bench: Bench, case: str) -> None:
    """After each step and each epoch, and in runs that are killed; the last kill is after an epoch's last batch."""
    options = EVALUATED[case]
    without, evaluated = bench.whole(**options), bench.whole(evaluates=True, **options)
    for rank in range(options.get("world", 1)):
        ran, expected = (
            [line for line in lines(folder, rank) if line[0] != "evaluated"] for folder in (evaluated, without)
        )
        assert ran == expected
        passes = [line[1] for line in lines(evaluated, rank) if line[0] == "evaluated"]
        assert len(passes) >= len(steps(expected))
        assert all(one == passes[0] for one in passes)
    count = len(passes[0])
    assert 1 < count < sum(line[0] == "train" for line in expected)
    killed_and_resumed(bench, [{"die_at": 3}, {"die_at": count}], evaluates=True, **options)


# ---------------------------------------------------------------------- within a save

PARTS = ["_save_optimizer_and_scheduler", "_save_rng_state", "save_to_json"]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    "part", [part if part == "save_to_json" else pytest.param(part, marks=pytest.mark.long) for part in PARTS]
)
def test_killed_within_a_save_it_resumes_from_the_one_before(bench: Bench, part: str, world: int) -> None:
    """The newest folder is torn, and `resume_from_checkpoint=True` passes over it."""
    options = {"world": world, **arguments(gradient_accumulation_steps=2, dataloader_drop_last=True)}
    whole, folder = bench.whole(**options), bench.new()
    assert bench.run(folder, die_in=[3, part], **options)[0] == KILLED
    assert (folder / "out/checkpoint-3").is_dir()
    assert bench.run(folder, **options) == [0] * world, said(folder)
    assert min(steps(attempts(folder)[-1])) == 2
    for rank in range(world):
        check(folder, whole, rank)


def test_killed_within_the_first_save(bench: Bench) -> None:
    """Killed within the first save, it says that nothing can be resumed."""
    folder = bench.new()
    assert bench.run(folder, die_in=[1, "save_to_json"]) == [KILLED]
    assert bench.run(folder) == [1]
    kind, message = lines(folder)[-1][1:]
    assert kind == "CheckpointNotFoundError"
    assert "none can be resumed" in message


# ---------------------------------------------------------------------- longer runs


def test_a_run_that_came_to_its_end_goes_on_for_more_epochs(bench: Bench) -> None:
    """The schedule is constant, as another one would be that of the longer run from the beginning."""
    for more in ({"num_train_epochs": 2}, {"max_steps": 15}):
        constant = {"lr_scheduler_type": "constant", "eval_strategy": "epoch"}
        whole, folder = bench.whole(**arguments(**constant, **more)), bench.new()
        less = {"num_train_epochs": 1} if "num_train_epochs" in more else {"max_steps": 5}
        assert bench.run(folder, **arguments(**constant, **less)) == [0], said(folder)
        assert bench.run(folder, **arguments(**constant, **more)) == [0], said(folder)
        last = attempts(folder)[-1]
        assert min(steps(last)) == (11 if "num_train_epochs" in more else 5)
        assert steps(last) == {step: did for step, did in steps(lines(whole)).items() if step in steps(last)}
        assert last[-1][1]["weights"] == lines(whole)[-1][1]["weights"]


def test_resumed_after_its_end_nothing_is_trained(bench: Bench) -> None:
    """The Trainer alone trains one step more, where its last step is within an epoch."""
    options = arguments(max_steps=5)
    whole, folder = bench.whole(**options), bench.new()
    for _ in range(3):
        assert bench.run(folder, **options) == [0], said(folder)
    assert [len(steps(attempt)) for attempt in attempts(folder)] == [5, 0, 0]
    check(folder, whole)


# ---------------------------------------------------------------------- what it does alone


def test_alone_the_trainer_augments_otherwise(bench: Bench) -> None:
    """Alone, the Trainer gives other augmentations after a resume."""
    options = {"alone": True, **arguments(gradient_accumulation_steps=3)}
    whole, folder = bench.whole(**options), bench.new()
    assert bench.run(folder, die_at=7, **options) == [KILLED]
    assert bench.run(folder, **options) == [0], said(folder)
    found, expected = steps(attempts(folder)[-1]), steps(lines(whole))
    inputs = [(a[0], b[0]) for step in found for a, b in zip(found[step], expected[step], strict=True)]
    assert sum(a != b for a, b in inputs) > len(inputs) // 2
    assert lines(folder)[-1][1]["weights"] != lines(whole)[-1][1]["weights"]


def test_alone_the_trainer_trains_on_after_its_last_step(bench: Bench) -> None:
    folder, options = bench.new(), {"alone": True, **arguments(max_steps=5)}
    for _ in range(2):
        assert bench.run(folder, **options) == [0], said(folder)
    assert [len(steps(attempt)) for attempt in attempts(folder)] == [5, 1]


def test_alone_the_trainer_skips_an_evaluation(bench: Bench) -> None:
    """Without the library, the Trainer leaves out an evaluation after a kill before it."""
    folder, options = bench.new(), {"alone": True, **arguments(eval_strategy="epoch")}
    assert bench.run(folder, die_after_save=11, **options) == [KILLED]
    assert bench.run(folder, **options) == [0], said(folder)
    evaluated = [line["epoch"] for line in lines(folder)[-1][1]["logs"] if "eval_loss" in line]
    assert evaluated == [2.0]


def test_alone_the_trainer_takes_a_torn_checkpoint(bench: Bench) -> None:
    folder, options = bench.new(), {"alone": True}
    assert bench.run(folder, die_in=[3, "save_to_json"], **options) == [KILLED]
    assert bench.run(folder, **options) == [1]
    assert lines(folder)[-1][1] == "JSONDecodeError"
