"""The data, and the sources that the demo trains from."""

from __future__ import annotations

import json
import random
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from demo.catalogue import SOURCES, find_source
from demo.digits import Digits, load_digits, read_digits, write_digits
from demo.model import images_and_labels
from demo.streams import DigitsReader, StatefulDigitsStream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def digits(number: int = 50) -> Digits:
    images = np.random.default_rng(0).random((number, 8, 8), dtype=np.float32)
    return Digits(images, np.arange(number, dtype=np.int64) % 10)


def test_the_digits_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    written = load_digits()
    write_digits(written, tmp_path / "digits.npz")
    training, held_out = read_digits(tmp_path / "digits.npz")
    assert (len(training.labels), len(held_out.labels)) == (1500, 297)
    assert np.array_equal(np.concatenate([training.images, held_out.images]), written.images)
    assert (written.images.min(), written.images.max()) == (0.0, 1.0)


@pytest.mark.slow
def test_every_source_can_be_made() -> None:
    for source in SOURCES.values():
        module, _, function = source.make.partition(":")
        loader = getattr(import_module(module), function)(digits(200))
        images, classes = images_and_labels(next(iter(loader)))
        assert (images.shape, classes.shape) == ((64, 1, 8, 8), (64,))


def test_the_users_own_source_is_taken_by_its_path() -> None:
    assert find_source("my.module:make").make == "my.module:make"


def labels(samples: Iterator[Any]) -> list[int]:
    return [label for _, label in samples]


@pytest.mark.parametrize("make", [StatefulDigitsStream, DigitsReader])
def test_a_reader_with_a_state_goes_on_from_every_place(make: Any) -> None:
    random.seed(0)
    whole = make(digits())
    samples, states = iter(whole), [whole.state_dict()]
    drawn: list[int] = []
    coins = [random.getstate()]
    for _, label in samples:
        drawn.append(label)
        states.append(json.loads(json.dumps(whole.state_dict())))
        coins.append(random.getstate())
    assert sorted(drawn) == sorted(digits().labels.tolist())
    for place in range(1, len(drawn)):
        resumed = make(digits())
        resumed.load_state_dict(states[place])
        random.setstate(coins[place])
        assert labels(iter(resumed)) == drawn[place:]
