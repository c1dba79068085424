"""Every example runs by itself, from any directory, and without a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts_forked import run_script

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
OWN = {
    "ray_train": "distributed/test_ray.py",
    "torchtitan_loader": "distributed/test_titan.py",
    "transformers_trainer": "hf_transformers/test_trainer_alone.py",
    "trl_sft": "hf_transformers/test_trainer_alone.py",
}  # run in separate environments, by these tests

LONG = {"chaos_ranks", "elastic_torchrun"}


def name(example: Path) -> str:
    return example.stem


def marked(example: Path) -> object:
    """Leave out what takes a minute, as torchrun starts some times; what it shows has a test of its own."""
    return pytest.param(example, marks=[pytest.mark.long] if example.stem in LONG else [])


@pytest.mark.slow
@pytest.mark.every_cell
@pytest.mark.parametrize("example", [marked(one) for one in EXAMPLES if one.stem not in OWN], ids=lambda one: one.stem)
def test_an_example_runs_and_says_what_it_shows(example: Path, tmp_path: Path) -> None:
    child = run_script(example, tmp_path)
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout
    assert not child.stderr
    assert not list(tmp_path.iterdir()), "it left files behind"


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60


def test_the_others_are_there_and_have_a_test() -> None:
    assert OWN.keys() | LONG <= {example.stem for example in EXAMPLES}
    for example, test in OWN.items():
        assert example in (Path(__file__).parent / test).read_text(encoding="utf-8"), f"{test} does not run {example}"
