"""From the bytes of a record to a sample. TensorFlow is imported only where it is asked for."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable.backends.tfds import forks
from resumable.backends.tfds.backend import batches_by_rows
from resumable.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Decoding", "choose_decoder"]

_LIBRARIES = {"cv2": ("cv2", "opencv-python-headless"), "pil": ("PIL", "pillow"), "tf": ("tensorflow", "tensorflow")}


def choose_decoder(decode: str | None, *, tf: bool) -> str:
    """Return the decoder's name, which belongs to the identity of the data: decoders differ in the pixels.

    Raises:
        ConfigurationError: there is none of that name.
        MissingDependencyError: its library is not installed.
    """
    known = ("tf",) if tf else ("cv2", "pil", "none")
    if decode is None:
        decode = next((name for name in known[:2] if importlib.util.find_spec(_LIBRARIES[name][0])), known[:2][-1])
    if decode not in known:
        raise ConfigurationError(
            f"decode must be one of {', '.join(known)} with this reader, but it is {decode!r}.\n"
            'The images would be decoded by something else. decode="tf" goes with reader="tf", the others go with '
            "readers that do without TensorFlow."
        )
    module, package = _LIBRARIES.get(decode, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise MissingDependencyError(f'decode="{decode}" needs {module}.\nInstall it: pip install {package}')
    return decode


class Decoding:
    """Makes samples of records; the features are read from `features.json` where the first record is decoded.

    Args:
        folder: of the prepared dataset.
        decode: "cv2", "pil", "none" (images stay as they are in the file) or "tf".
        fields: the top-level features to decode; None: all.
        structure: what a sample is made of: nested tuples and dicts with names of features; None: a dict of all fields.
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
        """Whether records can be decoded together: where TensorFlow or OpenCV gives images of the same shapes."""
        return self._whole is not None

    def batch(self, records: list[bytes]) -> Any:
        """Decode records into what stacking their samples would give; only where `makes_batches`, once prepared."""
        if self._decode == "tf":
            forks.check_tensorflow()
        assert self._whole is not None
        values = self._whole(records)
        return values if self._structure is None else _arrange(values, self._structure)

    def prepare(self) -> Callable[[bytes], Any]:
        """Make what decodes."""
        if self._function is None:
            self._function = self._make()
        return self._function

    def _make(self) -> Callable[[bytes], Any]:
        from tensorflow_datasets.core import features  # noqa: PLC0415  # takes a second, and workers import it, too

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
    """Find the images among features, also those in sequences and nested datasets."""
    if isinstance(feature, kind):
        yield feature
    elif hasattr(feature, "feature"):
        yield from _images(feature.feature, kind)
    elif hasattr(feature, "values"):
        for part in feature.values():
            yield from _images(part, kind)


def _set_decoder(image: Any, decode: str) -> None:
    """Fix by which library an image is decoded; left alone, it is the one that happens to be installed."""
    if decode == "none":
        image.decode_example_np = _unchanged
    else:
        name = {"cv2": "decode_example_np_with_opencv", "pil": "decode_example_np_with_pil"}[decode]
        image.decode_example_np = partial(getattr(image, name), num_channels=image.shape[-1])


def _unchanged(value: Any) -> Any:
    return value


def _tensorflow_function(features: Any) -> Any:
    """Return what decodes as `as_dataset` does: the same operations, in a graph that is made once.

    A process in which TensorFlow was not imported before leaves the GPUs alone, which belong to the training.
    """
    ours = "tensorflow" not in sys.modules
    import tensorflow as tf  # noqa: PLC0415  # takes seconds, and only this decoder needs it

    if ours:
        tf.config.set_visible_devices([], "GPU")
        tf.config.threading.set_intra_op_parallelism_threads(1)  # the samples are what is read side by side
    return tf.function(features.deserialize_example, input_signature=[tf.TensorSpec((), tf.string)])


def _batch_function(function: Any) -> Callable[[list[bytes]], Any] | None:
    """Return the same for many records in one call, as a call takes longer than decoding an image of 224 x 224."""
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
    array = tensor.__array__()  # TensorFlow's memory, which nothing else refers to; `numpy()` would copy it
    return array.tolist() if array.dtype == object and array.ndim == 1 else array
