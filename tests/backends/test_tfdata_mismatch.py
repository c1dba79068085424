"""States of other pipelines: every one is refused, in processes of their own, as TensorFlow may crash on them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf
from tfdata_pipelines import DATA, NATIVE, doubled

import resumable
from resumable.backends import tfdata
from resumable.backends.tfdata.fingerprint import Fingerprint
from resumable.backends.tfdata.graph import Graph
from resumable.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow


def tripled(x: Any) -> Any:
    return x * 3


def minus(x: Any) -> Any:
    return x - x * x


def minus_turned(x: Any) -> Any:
    return x * x - x


def base(
    length: int = 40, size: int = 10, seed: int = 1, batch: int = 3, function: Any = doubled, **options: Any
) -> Any:
    dataset = DATA.range(options.get("start", 0), length).shuffle(size, seed=seed)
    if options.get("take"):
        dataset = dataset.take(options["take"])
    dataset = dataset.map(function, num_parallel_calls=options.get("calls", 2))
    dataset = dataset.batch(batch)
    return dataset.prefetch(options.get("prefetch", 2)) if options.get("prefetch", 2) else dataset


CHANGED: dict[str, dict[str, Any]] = {
    "bigger batch": {"batch": 4},
    "smaller buffer": {"size": 5},
    "bigger buffer": {"size": 20},
    "other seed": {"seed": 2},
    "longer": {"length": 50},
    "shorter": {"length": 30},
    "other function": {"function": tripled},
    "no prefetch": {"prefetch": 0},
    "take": {"take": 30},
}
SAME = {
    "another prefetch": {"prefetch": 7},
    "more calls": {"calls": 4},
    "as many calls as fit": {"calls": tf.data.AUTOTUNE},
    "no parallel map": {"calls": None},
}

CHILD = """
import os, pickle, sys, warnings
from test_tfdata_mismatch import base, CHANGED
import resumable
from resumable.backends import tfdata
from resumable.errors import StateMismatchError
warnings.simplefilter("ignore")
for name, change in CHANGED.items():
    for strategy in ("symbolic", "explicit"):
        for strict in (True, False):
            loader = resumable.wrap(tfdata.source(base(**change), strategy=strategy))
            try:
                loader.load_state_dict(pickle.load(open(strategy, "rb")), strict=strict)
                next(iter(loader))
            except StateMismatchError as error:
                both = "in the checkpoint" in str(error) and "in this run" in str(error)
                print(name, strategy, strict, "refused" if both else "without values", flush=True)
            else:
                print(name, strategy, strict, "accepted", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    for strategy in ("symbolic", "explicit"):
        (folder / strategy).write_bytes(pickle.dumps(state_of(strategy)))
    return folder


def state_of(strategy: str) -> dict[str, Any]:
    loader = resumable.wrap(tfdata.source(base(), strategy=strategy))  # type: ignore[arg-type]  # one of the two
    for _, _ in zip(range(4), loader, strict=False):
        pass
    return loader.state_dict()


def test_each_change_is_refused_and_none_crashes(folder: Path) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD], cwd=folder, capture_output=True, text=True, check=False)
    assert child.returncode == 0, f"{child.returncode}: {child.stderr[-2000:]}"
    said = dict(line.rsplit(" ", 1) for line in child.stdout.splitlines())
    assert len(said) == 4 * len(CHANGED)
    # Without strict, what TensorFlow can bear is accepted with a warning: another function, or other seeds.
    accepted = {name for name, what in said.items() if what == "accepted"}
    assert {name.split(" ", 2)[0] for name in accepted} <= {"other"}, accepted
    assert all(name.endswith("False") for name in accepted)
    assert set(said.values()) <= {"refused", "accepted"}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("strategy", ["symbolic", "explicit"])
def test_what_only_changes_the_speed_is_accepted(name: str, strategy: str) -> None:
    from resumable.testing import digest  # noqa: PLC0415  # as the child above imports this file

    state = state_of(strategy)
    rests = []
    for change in ({}, SAME[name]):
        loader = resumable.wrap(tfdata.source(base(**change), strategy=strategy))  # type: ignore[arg-type]  # as above
        loader.load_state_dict(state)
        rests.append([digest(batch) for epoch in loader.epochs(2) for batch in epoch])
    assert rests[0] == rests[1]


def test_another_version_and_another_strategy_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of("symbolic")
    for name, value in (("tensorflow", "1.15.0"), ("strategy", "explicit"), ("structure", "0" * 16)):
        source = state["source_state"]
        changed = {**state, "source_state": {**source, "snapshot": {**source["snapshot"], name: value}}, "digest": None}
        loader = resumable.wrap(base())
        loader.load_state_dict(changed)
        with pytest.raises(resumable.errors.StateMismatchError, match=f"the {name} of the tf.data pipeline differs"):
            next(iter(loader))
    monkeypatch.setattr(tf, "__version__", "1.15.0")
    with pytest.raises(resumable.errors.StateMismatchError, match=r"backend.tensorflow differs(.|\n)*2\.(.|\n)*1\.15"):
        resumable.wrap(base()).load_state_dict(state)


def fingerprint(dataset: Any) -> list[str]:
    found = Fingerprint(Graph(dataset), dataset)
    return [found.elements, found.operations, found.parameters, found.functions, found.data, found.structure]


def dataset_of(name: str) -> Any:
    made = NATIVE[name]()
    pipeline = getattr(made, "pipeline", made)
    return pipeline(0) if callable(pipeline) else pipeline


def examples() -> Any:
    def parse(text: Any) -> Any:
        keys = {"image", "label", "name", "height", "width"}  # the order of a set is another one in each process
        return tf.io.parse_single_example(text, {key: tf.io.FixedLenFeature((), tf.int64, 0) for key in keys})

    return DATA.from_tensor_slices(["a", "b"]).map(parse).shuffle(2, seed=1)


PRINT = """
import json, sys
from test_tfdata_mismatch import NATIVE, dataset_of, examples, fingerprint
print(json.dumps([fingerprint(dataset_of(name)) for name in NATIVE] + [fingerprint(examples())]))
"""


def test_fingerprints_are_the_same_in_every_process() -> None:
    prints = set()
    for seed in ("0", "1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        prints.add(child.stdout)
    assert len(prints) == 1


def test_fingerprints_tell_pipelines_apart() -> None:
    changes: list[dict[str, Any]] = [
        {},
        *CHANGED.values(),
        {"start": 1},
        {"function": minus},
        {"function": minus_turned},
    ]
    prints = {tuple(fingerprint(base(**change))) for change in changes}
    assert len(prints) == len(changes)
    others = {tuple(fingerprint(dataset_of(name))) for name in NATIVE if "explicit" not in name}
    assert len(others) == len([name for name in NATIVE if "explicit" not in name])


def zipped(*, swapped: bool) -> Any:
    parts = [tf.data.Dataset.from_tensor_slices([factor * number for number in range(8)]) for factor in (1, 10)]
    return tf.data.Dataset.zip(tuple(reversed(parts) if swapped else parts)).batch(2)


def captured(*, other: bool) -> Any:
    factor, offset = tf.constant(3, tf.int64), tf.constant(99 if other else 5, tf.int64)
    return tf.data.Dataset.range(8).map(lambda x: x * factor + offset).batch(2)


@pytest.mark.parametrize(
    "make", [lambda other: zipped(swapped=other), lambda other: captured(other=other)], ids=["zip", "captured number"]
)
def test_values_in_other_places_are_another_pipeline(make: Callable[[bool], Any]) -> None:
    loader = resumable.wrap(make(False), seed=1)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="data"):
        resumable.wrap(make(True), seed=1).load_state_dict(state)
    again = resumable.wrap(make(False), seed=1)
    again.load_state_dict(state)
    assert len(list(again)) == 3
