"""FFCV: operations that draw few numbers get the same ones as if all of them had been made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ffcv import transforms
from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.state import State
from ffcv.transforms.utils.fast_crop import get_random_crop
from numba import njit

from resumable._randomness.keyed import derive, random_u64
from resumable.backends.ffcv import keyed as operations
from resumable.backends.ffcv.keyed import (
    FEW,
    draws_few,
    generator_words,
    per_sample,
    seed_generator,
    seed_generator_for_few,
    words_drawn,
)

pytestmark = pytest.mark.slow


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def few_of(key: Any, count: Any) -> Any:
    seed_generator_for_few(np.uint64(key))
    numbers = np.empty(count)
    for i in range(count):
        numbers[i] = np.random.random()
    return numbers, words_drawn()


def test_a_few_numbers_are_the_first_of_many() -> None:
    generator = np.random.MT19937()
    for key in (0, 1, 2**32, 0x0123456789ABCDEF, 2**64 - 1):
        generator.state = {
            "bit_generator": "MT19937",
            "state": {"key": generator_words(key).astype(np.uint32), "pos": 0},
        }
        numbers, drawn = few_of(np.uint64(key), FEW // 2)
        assert np.array_equal(numbers, np.random.RandomState(generator).random_sample(FEW // 2))
        assert drawn == FEW
    assert few_of(np.uint64(1), 0)[1] == 0
    assert few_of(np.uint64(1), 3)[1] == 6


@njit  # type: ignore[untyped-decorator]  # Numba ships no types
def normals_of(key: Any, count: Any, all_words: Any) -> Any:
    if all_words:
        seed_generator(np.uint64(key))
    else:
        seed_generator_for_few(np.uint64(key))
    numbers = np.empty(count)
    for i in range(count):
        numbers[i] = np.random.normal()
    return numbers


@pytest.mark.parametrize("all_words", [False, True])
def test_second_normal_number_is_not_kept(*, all_words: bool) -> None:
    """The second of a pair of normal numbers is not left for the next sample.

    They are made in pairs, and the second one is kept in the generator.
    """
    pair = normals_of(np.uint64(7), 2, all_words)
    assert list(normals_of(np.uint64(7), 1, all_words)) == [pair[0]]
    assert list(normals_of(np.uint64(7), 2, all_words)) == list(pair)


FEW_OF = {
    "flip": transforms.RandomHorizontalFlip(),
    "cutout": transforms.Cutout(5),
    "translate": transforms.RandomTranslate(3),
    "crop": transforms.RandomResizedCrop((0.08, 1.0), (0.75, 4 / 3), 16),
    "brightness": transforms.RandomBrightness(0.5),
    "contrast": transforms.RandomContrast(0.5),
    "saturation": transforms.RandomSaturation(0.5),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name not in {"cutout", "crop"})) for name in FEW_OF]
)
def test_what_draws_few_numbers_does_the_same_as_with_all(name: str) -> None:
    """Numbers that a sample draws are a promise: seeding less changes none."""
    operation = FEW_OF[name]
    assert draws_few(operation)
    Compiler.set_num_threads(1)
    _, query = operation.declare_state_and_memory(State(True, torch.device("cpu"), (16, 16, 3), np.dtype("u1")))
    images = np.random.default_rng(0).integers(0, 256, (300, 16, 16, 3), np.uint8)
    keys = random_u64(derive(5, words=2, purpose=b"test"), np.arange(len(images)))
    results: list[Any] = []
    for few in (False, True):
        run = per_sample(operation.generate_code(), int(query is not None), 3, few=few)
        memory = None if query is None else np.zeros((len(images), *query.shape), np.uint8)
        given = images.copy()
        result = run(given, memory, keys, np.arange(len(images)))
        results.append((result.tobytes(), given, memory))
    assert results[0][0] == results[1][0]
    assert np.array_equal(results[0][1], results[1][1])
    assert np.array_equal(results[0][2], results[1][2])
    assert not np.array_equal(results[0][1], images) or not np.array_equal(results[0][2], images)


def test_a_crop_draws_44_words_at_most() -> None:
    @njit  # type: ignore[untyped-decorator]  # Numba ships no types
    def drawn(height: Any, width: Any, scale: Any, ratio: Any, key: Any) -> Any:
        seed_generator_for_few(np.uint64(key))
        get_random_crop(height, width, scale, ratio)
        return words_drawn()

    shapes = [(1, 1), (1, 500), (500, 1), (32, 32), (16, 400)]
    scales = [(0.08, 1.0), (1.0, 1.0), (2.0, 3.0)]  # the last one never fits
    taken = {
        drawn(*shape, np.array(scale), np.array([0.75, 4 / 3]), key)
        for shape in shapes for scale in scales for key in range(300)
    }  # fmt: skip
    assert {8, 40} <= taken
    assert max(taken) <= 44 < FEW


def test_more_numbers_than_are_known_are_no_numbers() -> None:
    def greedy(images: Any) -> Any:
        for i in range(len(images)):
            for _ in range(FEW // 2 + 1):
                images[i] += np.random.random()
        return images

    def call(images: Any, *_: Any) -> Any:
        return greedy_compiled(images)

    greedy_compiled = njit(greedy)
    keys, images = np.arange(2, dtype=np.uint64), np.zeros((2, 1))
    with pytest.raises(ValueError, match="more than 128 random words"):
        per_sample(call, 0, 1, few=True)(images, None, keys, keys)
    per_sample(call, 0, 1, few=False)(images, None, keys, keys)


def test_only_what_was_measured_is_seeded_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(transforms.Cutout):  # type: ignore[misc]  # FFCV ships no types
        pass

    assert draws_few(RandomResizedCropRGBImageDecoder((8, 8)))
    assert not draws_few(Changed(4))
    assert not draws_few(transforms.ImageMixup(0.5, same_lambda=True))
    monkeypatch.setattr(operations, "version", lambda _: "1.0.3")
    assert not draws_few(transforms.Cutout(5))
