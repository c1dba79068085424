"""Trainings that evaluate on their training data, killed by SIGKILL at every event and resumed in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import evaluated_run
import pytest
from evaluated_run import EPOCHS
from killed_runs import KILLED, Bench, attempts, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

BATCHES = 5
EVENTS = EPOCHS * (BATCHES + 2)  # each epoch has a start and an end


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("evaluated"), evaluated_run.__file__)
    yield found
    found.close()


def trained(folder: Path) -> list[list[Any]]:
    return [line for line in lines(folder) if line[0] not in {"evaluated", "start"}]


KINDS = ["indexed", "replay"]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_on_the_training_data_changes_nothing(bench: Bench, kind: str, accumulate: int) -> None:
    options: dict[str, Any] = {"kind": kind, "accumulate": accumulate}
    whole, without = bench.whole(**options), bench.whole(evaluates=False, **options)
    assert trained(whole) == trained(without)
    passes = [line[1] for line in lines(whole) if line[0] == "evaluated"]
    assert len(passes) == EPOCHS * (BATCHES + 1)
    assert all(one == passes[0] for one in passes), "each is a pass over epoch 0"


OFTEN = {BATCHES + 1, BATCHES + 2, BATCHES + 3, EVENTS - 1}  # around an epoch's end, and before the last one


@pytest.mark.parametrize(
    "kill", [kill if kill in OFTEN else pytest.param(kill, marks=pytest.mark.long) for kill in range(1, EVENTS)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_an_event_and_resumed(bench: Bench, kind: str, kill: int) -> None:
    whole, folder = bench.whole(kind=kind), bench.new()
    assert bench.run(folder, kind=kind, die_at=kill) == [KILLED], said(folder)
    assert bench.run(folder, kind=kind) == [0], said(folder)
    first, second = attempts(folder)
    rest = second[1:]
    assert [line for line in first[1:] if line[0] != "evaluated"] == trained(whole)[:kill]
    assert rest == lines(whole)[len(lines(whole)) - len(rest) :]
    steps = sum(line[0] == "train" for line in first)
    assert sum(line[0] == "train" for line in rest) in {EPOCHS * BATCHES - steps, EPOCHS * BATCHES - steps + 1}
