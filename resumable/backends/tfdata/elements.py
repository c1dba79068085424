"""What a pipeline's elements become: NumPy arrays, as TensorFlow's own `as_numpy_iterator` gives them, or tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import tensorflow as tf

from resumable._distribution import pip_install
from resumable.errors import ConfigurationError, MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Convert", "check_elements", "converter"]

Convert = Literal["numpy", "torch"]

_WAYS = {
    "RaggedTensorSpec": "Make it dense in the pipeline: .map(lambda x: x.to_tensor()), or padded_batch.",
    "SparseTensorSpec": "Make it dense in the pipeline: .map(tf.sparse.to_dense).",
    "DatasetSpec": "Take the datasets apart in the pipeline: .flat_map(lambda window: window.batch(3)).",
}


def check_elements(spec: Any, convert: Convert) -> None:
    """Refuse elements that cannot be delivered.

    Args:
        spec: the `element_spec` of a dataset.
        convert: what they are to become.

    Raises:
        ConfigurationError: `convert` is none of the two.
        UnsupportedError: a part is no tensor, or of a type that torch does not have.
    """
    if convert not in get_args(Convert):
        raise ConfigurationError(f'convert must be "numpy" or "torch", but it is {convert!r}.')
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or part.dtype in {tf.variant, tf.resource}:
            way = _WAYS.get(type(part).__name__, "Leave it out of the elements, by a map.")
            raise UnsupportedError(
                f"the elements of this tf.data pipeline have a part that is no plain tensor: {part}.\n"
                f"It would be no array in a batch. {way}"
            )
        if convert == "torch" and part.dtype == tf.string:
            raise UnsupportedError(
                f'convert="torch" was asked for, but the elements have text: {part}.\n'
                "torch has no tensors of text. Leave it out by a map, turn it into numbers, or use NumPy arrays "
                "(without convert)."
            )


def converter(convert: Convert) -> Callable[[Any], Any]:
    """Return the function that makes an element of what `as_numpy_iterator` gives."""
    if convert == "numpy":
        return lambda element: element
    try:
        import torch  # noqa: PLC0415  # an extra, and only where it was asked for
    except ImportError as error:
        raise MissingDependencyError(
            f'convert="torch" needs torch, which cannot be imported here.\nInstall it: {pip_install("torch")}'
        ) from error

    def to_tensor(value: Any) -> Any:
        # A copy: TensorFlow's memory may belong to a cache or a constant, and torch works in place.
        array = np.array(value)
        if array.dtype.name == "bfloat16":  # NumPy has it by an extension that torch does not read
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return lambda element: tf.nest.map_structure(to_tensor, element)
