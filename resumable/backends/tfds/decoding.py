"""Decodes records to a sample or a batch. TensorFlow is imported only if it is needed."""

from __future__ import annotations

import importlib.util
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.backends.tfds import forks
from resumable.errors import ConfigurationError, DataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Decode = Callable[[bytes], dict[str, Any]]


__all__ = ["Decoding", "batches_by_rows", "choose_decoder", "stack"]


_LIBRARIES = {"cv2": ("cv2", "opencv-python-headless"), "pil": ("PIL", "pillow"), "tf": ("tensorflow", "tensorflow")}
_CHANNELS = 3


def choose_decoder(decode: str | None, *, tf: bool) -> str:
    """Return the decoder's name, which is part of the data's identity because decoders produce different pixels.

    Raises:
        ConfigurationError: there is no such decoder.
        MissingDependencyError: its library is not installed.
    """
    known = ("tf",) if tf else ("cv2", "pil", "none")
    if decode is None:
        decode = next((name for name in known[:2] if importlib.util.find_spec(_LIBRARIES[name][0])), known[:2][-1])
    if decode not in known:
        raise ConfigurationError(
            f"decode must be one of {', '.join(known)} with this reader, but it is {decode!r}.\n"
            'A different decoder would be used. Use decode="tf" with reader="tf", and the others with readers that do '
            "not use TensorFlow."
        )
    module, package = _LIBRARIES.get(decode, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingDependencyError(
            f'decode="{decode}" needs {module}, which is not installed.\nInstall it: pip install {package}'
        )
    return decode


class Decoding:
    """Makes samples from records. The features are read from `features.json` when the first record is decoded.

    Args:
        folder: of the prepared dataset.
        decode: "cv2", "pil", "none" (images stay encoded, as in the file) or "tf".
        fields: the top-level features to decode; None for all.
        structure: the structure of a sample: nested tuples and dicts of feature names; None for a dict of all fields.
    """

    def __init__(self, folder: str, decode: str, fields: list[str] | None, structure: Any) -> None:
        self._folder, self._decode, self._fields, self._structure = folder, decode, fields, structure
        self._function: Callable[[bytes], Any] | None = None
        self._whole: Callable[[list[bytes]], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_function": None, "_whole": None}

    def __call__(self, record: bytes) -> Any:
        """Decode a record."""
        if self._decode == "tf":
            forks.check_tensorflow()
        values = (self._function or self.prepare())(record)
        return values if self._structure is None else _arrange(values, self._structure)

    @property
    def makes_batches(self) -> bool:
        """Whether records can be decoded together: TensorFlow or OpenCV is used, and images have the same shapes."""
        return self._whole is not None

    def batch(self, records: list[bytes]) -> Any:
        """Decode records to a stacked batch; only if `makes_batches`, after `prepare`."""
        if self._decode == "tf":
            forks.check_tensorflow()
        assert self._whole is not None
        values = self._whole(records)
        return values if self._structure is None else _arrange(values, self._structure)

    def prepare(self) -> Callable[[bytes], Any]:
        """Make the function that decodes a record."""
        if self._function is None:
            self._function = self._make()
        return self._function

    def _make(self) -> Callable[[bytes], Any]:
        from tensorflow_datasets.core import features  # noqa: PLC0415  # takes a second, and workers import this too

        everything = features.FeaturesDict.from_config(self._folder)
        wanted = sorted(everything) if self._fields is None else self._fields
        chosen = features.FeaturesDict({name: everything[name] for name in wanted})
        if self._decode == "tf":
            function = _tensorflow_function(chosen)
            self._whole = _batch_function(function)
            return lambda record: _nested(_plain, function(record))
        for image in _images(chosen, features.Image):
            _set_decoder(image, self._decode)
        decode: Callable[[bytes], Any] = chosen.deserialize_example_np
        if self._decode == "cv2":
            self._whole = batches_by_rows(chosen, features.Image, decode)
        return decode


def _arrange(values: Any, structure: Any) -> Any:
    if isinstance(structure, (tuple, list)):
        return tuple(_arrange(values, part) for part in structure)
    if isinstance(structure, dict):
        return {name: _arrange(values, part) for name, part in structure.items()}
    return values[structure]


def _images(feature: Any, kind: type) -> Iterator[Any]:
    """Find the images among features, including those in sequences and nested datasets."""
    if isinstance(feature, kind):
        yield feature
    elif hasattr(feature, "feature"):
        yield from _images(feature.feature, kind)
    elif hasattr(feature, "values"):
        for part in feature.values():
            yield from _images(part, kind)


def _set_decoder(image: Any, decode: str) -> None:
    """Set the library that decodes an image; the default depends on what is installed."""
    if decode == "none":
        image.decode_example_np = _unchanged
    else:
        name = {"cv2": "decode_example_np_with_opencv", "pil": "decode_example_np_with_pil"}[decode]
        image.decode_example_np = partial(getattr(image, name), num_channels=image.shape[-1])


def _unchanged(value: Any) -> Any:
    return value


def _tensorflow_function(features: Any) -> Any:
    """Return a function that decodes as `as_dataset` does: the same operations, in a graph that is built once.

    If TensorFlow was not imported in this process before, it does not use the GPUs, which the training needs.
    """
    ours = "tensorflow" not in sys.modules
    import tensorflow as tf  # noqa: PLC0415  # takes seconds; only this decoder needs it

    if ours:
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(1)  # samples are already read in parallel
    return tf.function(features.deserialize_example, input_signature=[tf.TensorSpec((), tf.string)])


def _batch_function(function: Any) -> Callable[[list[bytes]], Any] | None:
    """Return the same for many records per call, as a call takes longer than decoding an image of 224 x 224."""
    import tensorflow as tf  # noqa: PLC0415  # as above

    sample = function.get_concrete_function().structured_outputs
    parts = tf.nest.flatten(sample)
    if not all(isinstance(part, tf.Tensor) and part.shape.is_fully_defined() for part in parts):
        return None
    sample = tf.nest.map_structure(tf.TensorSpec.from_tensor, sample)
    every = tf.function(
        lambda records: tf.map_fn(function, records, fn_output_signature=sample),
        input_signature=[tf.TensorSpec((None,), tf.string)],
    )
    return lambda records: _nested(_column, every(tf.constant(records, tf.string)))


def _nested(function: Callable[[Any], Any], values: Any) -> Any:
    return sys.modules["tensorflow"].nest.map_structure(function, values)


def _plain(tensor: Any) -> Any:
    return tensor.numpy()


def _column(tensor: Any) -> Any:
    array = tensor.__array__()  # nothing else refers to TensorFlow's memory; `numpy()` would copy it
    return array.tolist() if array.dtype == object and array.ndim == 1 else array


def batches_by_rows(features: Mapping[str, Any], kind: type, decode: Decode) -> Callable[[list[bytes]], Any] | None:
    """Return a function that decodes records together; None if no feature is an image with a known shape.

    Args:
        features: of a record, from name to feature. Their image decoders are replaced with decoders that work as before
            whenever no row is lent.
        kind: the class of images.
        decode: decodes a record with these features.

    Returns:
        A function of records that returns their stacked samples. Any number of threads may call it.
    """
    rows = {name: _Row(one) for name, one in features.items() if type(one) is kind and _has_fixed_shape(one)}
    return _RowBatches(rows, features, decode) if rows else None


class _RowBatches:
    """Decodes images of one shape with OpenCV, directly into the rows of a batch.

    TensorFlow Datasets decodes an image, reorders its channels in a new array, and then stacks these arrays to a batch.
    Reordering the channels directly in the row of the batch produces the same bytes in two thirds of the time. Features
    other than images are also parsed here if they are scalars and text. If the first record shows any difference,
    TensorFlow Datasets parses them.
    """

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
        """Use the fast way if it returns the same for a record."""
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
            if sample[name] is not row:  # a different decoder made it
                _fill(row, sample[name])
        return sample


def _has_fixed_shape(image: Any) -> bool:
    shape = image.shape
    return len(shape) == _CHANNELS and None not in shape and shape[-1] == _CHANNELS and image.np_dtype == np.uint8


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and np.array_equal(one, other)


def _scalars_and_text(features: Mapping[str, Any]) -> Decode | None:
    """Return a function that parses a record of single values; None if a feature has more than that."""
    from tensorflow_datasets.proto import tf_example_pb2  # noqa: PLC0415  # an extra, needed only here

    specs = features.get_serialized_info()  # type: ignore[attr-defined]  # of a FeaturesDict
    if any(getattr(spec, "shape", None) != () for spec in specs.values()):
        return None
    parts = [(name, np.dtype(spec.np_dtype), features[name].decode_example_np) for name, spec in sorted(specs.items())]
    parse = tf_example_pb2.Example.FromString

    def decode(record: bytes) -> dict[str, Any]:
        found = parse(record).features.feature
        return {name: convert(_only_value(found[name], dtype)) for name, dtype, convert in parts}

    return decode


def _only_value(feature: Any, dtype: np.dtype[Any]) -> Any:
    """Return the only value of a feature.

    Raises:
        ValueError: there is none, or there are several.
    """
    (value,) = feature.bytes_list.value or feature.int64_list.value or feature.float_list.value
    return np.array([value], dtype).item()  # as TensorFlow Datasets does


class _Row:
    """The decoder of an image, which writes to the row that was lent to this thread.

    Args:
        image: the feature.
    """

    def __init__(self, image: Any) -> None:
        import cv2  # noqa: PLC0415  # an extra, needed only here

        self._cv2, self._decode, self.shape = cv2, image.decode_example_np, image.shape
        self._here = threading.local()
        image.decode_example_np = self

    def lend(self, row: Any) -> None:
        """Make this thread decode into a row; None for a new array."""
        self._here.row = row

    def __call__(self, value: Any) -> Any:
        row = getattr(self._here, "row", None)
        if row is None:
            return self._decode(value)
        image: Any = self._cv2.imdecode(np.frombuffer(value, np.uint8), self._cv2.IMREAD_UNCHANGED)
        fits = image is not None and image.shape == row.shape and image.dtype == row.dtype  # not with greyscale
        if not fits or self._cv2.cvtColor(image, self._cv2.COLOR_BGR2RGB, dst=row) is not row:
            _fill(row, self._decode(value))
        return row


def _fill(row: Any, image: Any) -> None:
    """Copy an image of the same shape and type; stacking would reject any other as well.

    Raises:
        ValueError: shape or type differ; reading each sample separately then shows which one it is.
    """
    if image.shape != row.shape or image.dtype != row.dtype:
        raise ValueError(f"an image is {image.dtype} of shape {image.shape}, but the batch needs shape {row.shape}")
    row[...] = image


def stack(samples: list[Any], where: str = "") -> Any:
    """Stack samples along a new first axis.

    Args:
        samples: nested dicts and tuples of arrays and numbers, all with the same structure. Strings and bytes become
            lists.
        where: name of the part, for messages.

    Raises:
        DataError: the shape of a part differs between samples.
    """
    first = samples[0]
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples], f"{where}/{name}".strip("/")) for name in first}
    if isinstance(first, tuple):
        return tuple(
            stack(list(part), f"{where}/{number}".strip("/")) for number, part in enumerate(zip(*samples, strict=True))
        )
    if isinstance(first, (str, bytes)):
        return samples
    arrays = [np.asarray(sample) for sample in samples]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"the samples of a batch have different shapes in {where or 'their only part'}: "
            f"{', '.join(map(str, sorted(shapes)[:4]))}.\nThey cannot be stacked. Pass wrap(..., transform=...) to "
            "make the shapes equal, or collate=list to get lists of samples."
        )
    return np.stack(arrays)
