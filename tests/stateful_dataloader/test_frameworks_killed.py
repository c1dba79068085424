"""Trainings by Accelerate and on streams of `datasets`, killed by SIGKILL and resumed in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killed_runs import KILLED, Bench, lines, said

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

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
        assert found.pop(kill + 1) == ["start"]
        assert found == whole, kill
