"""Images of one shape, decoded by OpenCV straight into the rows of a batch.

TensorFlow Datasets decodes an image, turns its channels into a new array, and a batch is then stacked of these. Turning
the channels into the row of the batch gives the same bytes in two thirds of the time. What stands beside the images is
parsed here as well where it is scalars and text; if the first record shows any difference, by TensorFlow Datasets.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.backends.tfds.stacking import stack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Decode = Callable[[bytes], dict[str, Any]]

__all__ = ["batches_by_rows"]

_CHANNELS = 3


def batches_by_rows(features: Mapping[str, Any], kind: type, decode: Decode) -> Callable[[list[bytes]], Any] | None:
    """Make what decodes records together; None where no feature is an image whose shape is known.

    Args:
        features: of a record, by name; the decoders of images among them are replaced by ones that do as before
            wherever no row is lent.
        kind: the class of images.
        decode: decodes a record by these features.

    Returns:
        A function of records that returns what stacking their samples gives. Any number of threads may call it.
    """
    rows = {name: _Row(one) for name, one in features.items() if type(one) is kind and _is_fixed(one)}
    return _Batches(rows, features, decode) if rows else None


class _Batches:
    def __init__(self, rows: dict[str, _Row], features: Mapping[str, Any], decode: Decode) -> None:
        self._rows, self._slow, self._quick = rows, decode, _scalars_and_text(features)
        self._decode: Decode | None = None

    def __call__(self, records: list[bytes]) -> Any:
        decode = self._decode or self._choose(records[0])
        made = {name: np.empty((len(records), *row.shape), np.uint8) for name, row in self._rows.items()}
        samples = [self._decoded(decode, record, made, at) for at, record in enumerate(records)]
        names = [name for name in samples[0] if name not in made]
        return {**samples[0], **made, **{name: stack([one[name] for one in samples], name) for name in names}}

    def _choose(self, record: bytes) -> Decode:
        """Take the quick way if it gives the same for a record."""
        slow, self._decode = self._slow(record), self._slow
        if self._quick is not None:
            quick = self._quick(record)
            if list(slow) == list(quick) and all(_is_same(slow[name], quick[name]) for name in slow):
                self._decode = self._quick
        return self._decode

    def _decoded(self, decode: Decode, record: bytes, made: dict[str, Any], at: int) -> dict[str, Any]:
        lent = {name: array[at] for name, array in made.items()}
        for name, row in self._rows.items():
            row.lend(lent[name])
        try:
            sample = decode(record)
        finally:
            for row in self._rows.values():
                row.lend(None)
        for name, row in lent.items():
            if sample[name] is not row:  # decoded by something else
                _fill(row, sample[name])
        return sample


def _is_fixed(image: Any) -> bool:
    shape = image.shape
    return len(shape) == _CHANNELS and None not in shape and shape[-1] == _CHANNELS and image.np_dtype == np.uint8


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and np.array_equal(one, other)


def _scalars_and_text(features: Mapping[str, Any]) -> Decode | None:
    """Make what parses a record of nothing but single values; None where a feature is more than that."""
    from tensorflow_datasets.proto import tf_example_pb2  # noqa: PLC0415  # an extra, and only where it decodes

    specs = features.get_serialized_info()  # type: ignore[attr-defined]  # of a FeaturesDict
    if any(getattr(spec, "shape", None) != () for spec in specs.values()):
        return None
    parts = [(name, np.dtype(spec.np_dtype), features[name].decode_example_np) for name, spec in sorted(specs.items())]
    parse = tf_example_pb2.Example.FromString

    def decode(record: bytes) -> dict[str, Any]:
        found = parse(record).features.feature
        return {name: convert(_value(found[name], dtype)) for name, dtype, convert in parts}

    return decode


def _value(feature: Any, dtype: np.dtype[Any]) -> Any:
    """Return the only value of a feature.

    Raises:
        ValueError: it has none, or several.
    """
    (value,) = feature.bytes_list.value or feature.int64_list.value or feature.float_list.value
    return np.array([value], dtype).item()  # as TensorFlow Datasets makes it


class _Row:
    """The decoder of an image, which writes to the row that this thread lent it.

    Args:
        image: the feature.
    """

    def __init__(self, image: Any) -> None:
        import cv2  # noqa: PLC0415  # an extra, and only where it decodes

        self._cv2, self._decode, self.shape = cv2, image.decode_example_np, image.shape
        self._here = threading.local()
        image.decode_example_np = self

    def lend(self, row: Any) -> None:
        """Let this thread decode into a row; None: into a new array."""
        self._here.row = row

    def __call__(self, value: Any) -> Any:
        row = getattr(self._here, "row", None)
        if row is None:
            return self._decode(value)
        image: Any = self._cv2.imdecode(np.frombuffer(value, np.uint8), self._cv2.IMREAD_UNCHANGED)
        fits = image is not None and image.shape == row.shape and image.dtype == row.dtype  # unlike shades of grey
        if not fits or self._cv2.cvtColor(image, self._cv2.COLOR_BGR2RGB, dst=row) is not row:
            _fill(row, self._decode(value))
        return row


def _fill(row: Any, image: Any) -> None:
    """Copy an image of the same shape and type, as stacking would have no other, either.

    Raises:
        ValueError: it is of another one; whose sample it is is found out by reading them one by one.
    """
    if image.shape != row.shape or image.dtype != row.dtype:
        raise ValueError(f"an image is {image.dtype} of shape {image.shape} in a batch of shape {row.shape}")
    row[...] = image
