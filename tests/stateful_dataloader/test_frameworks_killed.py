"""Trainings by Accelerate, by Lightning and on streams of `datasets`, killed and resumed in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killed_runs import KILLED, Bench, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

STEPS = 5  # of an epoch
PROGRAM = str(Path(__file__).with_name("framework_run.py"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(tmp_path_factory.mktemp("frameworks"), PROGRAM)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("kind", "workers", "kills"),
    [
        ("accelerate", 0, [1, 5, 6]),
        ("accelerate", 2, [3, 5]),
        ("accelerate, a stream", 0, [3, 5]),
        ("accelerate, a stream", 2, [5, 6]),
        ("datasets", 0, [1, 4, 5, 6, 10, 14]),
        ("datasets", 2, [5, 6]),
        ("lightning", 0, [3, 5, 6]),
        ("lightning", 2, [5, 7]),
        ("lightning, epochs", 0, [1]),
        ("lightning, alone", 0, [3, 5, 6]),
        ("lightning, alone", 2, [5, 7]),
    ],
)
def test_a_killed_training_continues_exactly(bench: Bench, kind: str, workers: int, kills: list[int]) -> None:
    """Each step has the batch of the baseline, augmentations included, and the weights end the same."""
    whole = lines(bench.whole(kind=kind, workers=workers))
    for kill in kills:
        folder = bench.new()
        assert bench.run(folder, kind=kind, workers=workers, die_at=kill) == [KILLED], said(folder)
        assert bench.run(folder, kind=kind, workers=workers) == [0], said(folder)
        found = lines(folder)
        assert found.pop(kill * (STEPS if "epochs" in kind else 1) + 1) == ["start"]
        assert found == whole, kill


def test_lightning_alone_does_not_load_the_state_of_an_epochs_end(bench: Bench) -> None:
    """The page says so: without the callback, the next epoch is in a different order, though each sample once."""
    kind = "lightning, alone, epochs"
    whole, folder = lines(bench.whole(kind=kind)), bench.new()
    assert bench.run(folder, kind=kind, die_at=1) == [KILLED], said(folder)
    assert bench.run(folder, kind=kind) == [0], said(folder)
    found = lines(folder)
    second, expected = (run[first : first + STEPS] for run, first in ((found, STEPS + 2), (whole, STEPS + 1)))
    assert second != expected
    for epoch in (second, expected):
        assert sorted(index for _, _, batch in epoch for index, _ in batch) == list(range(STEPS * 4))
