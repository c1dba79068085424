"""Images that OpenCV decodes into the rows of a batch are, byte for byte, those that stacking the samples gives."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tensorflow_datasets.core import features
from tensorflow_datasets.proto import tf_example_pb2

from resumable.backends.tfds.decoding import batches_by_rows, stack

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (12, 12, 3)


def picture(number: int, shape: tuple[int, ...] = SHAPE, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(number).integers(0, np.iinfo(dtype).max, shape, dtype)


def encoded(image: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image, mode).save(file, kind, **options)
    return file.getvalue()


def turned(number: int) -> bytes:
    """An image whose header says that it is to be shown on its side, which TensorFlow Datasets does not heed."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(number), "jpeg", exif=exif)


def printed(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(number)).convert("CMYK").save(file, "jpeg")
    return file.getvalue()


def palette(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(number)).convert("P").save(file, "png")
    return file.getvalue()


IMAGES = {
    "jpeg": lambda number: encoded(picture(number), "jpeg"),
    "progressive": lambda number: encoded(picture(number), "jpeg", progressive=True, subsampling=0),
    "grey jpeg": lambda number: encoded(picture(number, (12, 12)), "jpeg"),
    "turned": turned,
    "for print": printed,
    "png": lambda number: encoded(picture(number), "png"),
    "grey png": lambda number: encoded(picture(number, (12, 12)), "png"),
    "16 bits": lambda number: encoded(picture(number, (12, 12), np.uint16), "png"),
    "palette": palette,
}


def made(meet: Callable[[], object] = int, **more: Any) -> tuple[Any, Any, Any]:
    """Return features, how to decode a record alone, and how to decode several; the slow way meets before and after."""

    def build() -> Any:
        image = features.Image(shape=SHAPE)
        chosen = features.FeaturesDict(
            {
                "image": image,
                "label": np.int64,
                "name": features.Text(),
                **{name: make() for name, make in more.items()},
            }
        )
        for one in chosen.values():
            if type(one) is features.Image:
                one.decode_example_np = lambda value, one=one: one.decode_example_np_with_opencv(value, one.shape[-1])
        return chosen

    alone, together = build(), build()

    def slow(record: bytes) -> Any:
        meet()
        sample = together.deserialize_example_np(record)
        meet()
        return sample

    return (
        alone,
        alone.deserialize_example_np,
        batches_by_rows(together, features.Image, slow),
    )


def record(chosen: Any, **values: Any) -> bytes:
    serialized: bytes = chosen.serialize_example(chosen.encode_example(values))
    return serialized


def same(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for name, part in one.items():
        if isinstance(part, np.ndarray):
            assert part.dtype == other[name].dtype, name
            assert part.shape == other[name].shape, name
            assert part.flags.c_contiguous
            assert part.flags.writeable
            assert part.tobytes() == other[name].tobytes(), name
        else:
            assert part == other[name], name


def records(chosen: Any, makers: Any, count: int = 6) -> list[bytes]:
    return [
        record(chosen, image=io.BytesIO(make(number)), label=number, name=f"sample {number}")
        for number, make in zip(range(count), [*makers] * count, strict=False)
    ]


@pytest.mark.parametrize("kind", IMAGES)
def test_every_kind_of_image_is_decoded_as_alone(kind: str) -> None:
    chosen, alone, together = made()
    some = records(chosen, [IMAGES[kind]])
    same(stack([alone(one) for one in some]), together(some))


def test_kinds_may_be_mixed_and_threads_share_nothing() -> None:
    chosen, alone, together = made()
    some = records(chosen, IMAGES.values(), 3 * len(IMAGES))
    expected = stack([alone(one) for one in some])
    with ThreadPoolExecutor(4) as pool:
        for batch in pool.map(together, [some] * 40):
            same(expected, batch)


def test_a_row_is_lent_to_the_thread_that_decodes_into_it() -> None:
    """Both threads have been lent a row each time that one of them decodes."""
    chosen, alone, together = made(
        Barrier(2, timeout=60).wait, pair=lambda: features.Tensor(shape=(2,), dtype=np.int64)
    )
    batches = [
        [record(chosen, image=picture(10 * one + number), label=number, name="", pair=[1, 2]) for number in range(4)]
        for one in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        for some, batch in zip(batches, pool.map(together, batches), strict=True):
            same(stack([alone(one) for one in some]), batch)


def test_two_images_of_a_sample_get_their_own_rows() -> None:
    chosen, alone, together = made(
        mask=lambda: features.Image(shape=(4, 5, 3)), depth=lambda: features.Image(shape=(6, 7, 1))
    )
    some = [
        record(
            chosen, image=picture(number), mask=picture(number + 50, (4, 5, 3)), depth=picture(number, (6, 7, 1)),
            label=number, name="",
        )
        for number in range(5)
    ]  # fmt: skip
    same(stack([alone(one) for one in some]), together(some))


def test_values_of_every_type_beside_an_image() -> None:
    types = {
        "small": np.uint8, "signed": np.int8, "whole": np.int64, "half": np.float16, "single": np.float32,
        "double": np.float64, "truth": np.bool_,
    }  # fmt: skip
    chosen, alone, together = made(
        **{name: (lambda dtype=dtype: features.Scalar(dtype)) for name, dtype in types.items()}
    )
    texts = [b"", b"ends with zeros\0\0", "\u00e4\u00f6".encode(), b"\xff\x00x"]
    some = [
        record(
            chosen, image=picture(number), label=-number, name=text, small=200 + number, signed=-number, whole=2**60,
            half=1 / 3, single=1 / 3, double=1 / 3, truth=number % 2 == 0,
        )
        for number, text in enumerate(texts)
    ]  # fmt: skip
    same(stack([alone(one) for one in some]), together(some))
    assert together._decode is together._quick


def test_larger_features_are_left_to_tfds() -> None:
    """TensorFlow Datasets parses features that are more than a value."""
    chosen, alone, together = made(vector=lambda: features.Tensor(shape=(2,), dtype=np.float32))
    some = [
        record(chosen, image=picture(number), label=number, name="x", vector=np.ones(2, np.float32) * number)
        for number in range(3)
    ]
    same(stack([alone(one) for one in some]), together(some))
    assert together._decode is together._slow


def test_difference_in_the_first_record() -> None:
    """The quick way is not taken if the first record shows a difference."""
    chosen, alone, together = made()
    quick = together._quick
    together._quick = lambda one: {**quick(one), "label": 7.0}
    some = records(chosen, [IMAGES["jpeg"]])
    same(stack([alone(one) for one in some]), together(some))
    assert together._decode is together._slow


def test_a_value_that_is_missing_or_there_twice_is_no_value() -> None:
    chosen, _, together = made()
    good = records(chosen, [IMAGES["jpeg"]], 2)
    together(good)
    for count in (0, 2):
        example = tf_example_pb2.Example.FromString(good[1])
        example.features.feature["label"].int64_list.value[:] = [1] * count
        with pytest.raises(ValueError, match="values to unpack"):
            together([good[0], example.SerializeToString()])


def test_an_image_of_another_shape_is_no_row() -> None:
    chosen, alone, together = made()
    other, *_ = made()
    bad = record(features.FeaturesDict({**dict(other), "image": features.Image(shape=(None, None, 3))}),
                 image=picture(1, (9, 9, 3)), label=1, name="")  # fmt: skip
    good = records(chosen, [IMAGES["jpeg"]], 2)
    with pytest.raises(ValueError, match=r"uint8 of shape \(9, 9, 3\), but the batch needs shape \(12, 12, 3\)"):
        together([*good, bad])
    same(stack([alone(one) for one in good]), together(good))  # nothing is left behind


@pytest.mark.parametrize(
    "image",
    [
        features.Image(shape=(None, None, 3)),
        features.Image(shape=(8, 8, 1)),
        features.Image(shape=(8, 8, 4)),
        features.Image(shape=(8, 8, 1), dtype=np.float32),
        features.LabeledImage(labels=3, shape=(8, 8, 1)),
    ],
)
def test_what_is_no_row_is_left_alone(image: Any) -> None:
    chosen = features.FeaturesDict({"image": image, "images": features.Sequence(features.Image(shape=SHAPE))})
    assert batches_by_rows(chosen, features.Image, chosen.deserialize_example_np) is None
