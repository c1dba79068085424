"""The data: scikit-learn's handwritten digits, 1797 images of 8 x 8 pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BATCH_SIZE", "Digits", "load_digits", "read_digits", "write_digits"]

BATCH_SIZE = 64
_TRAINING = 1500  # images to train on: 23 full batches and a partial one; the other 297 are for the evaluation
_BRIGHTEST = 16.0


class Digits(NamedTuple):
    """Images, float32 in 0..1 with shape `(N, 8, 8)`, and labels, int64 with shape `(N,)`."""

    images: np.ndarray[Any, np.dtype[np.float32]]
    labels: np.ndarray[Any, np.dtype[np.int64]]


def load_digits() -> Digits:
    """Load the dataset that comes with scikit-learn."""
    from sklearn import datasets  # noqa: PLC0415  # a second of imports, which the training processes do without

    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    scaled = (images / _BRIGHTEST).astype(np.float32).reshape(-1, 8, 8)
    return Digits(scaled[order], labels.astype(np.int64)[order])


def write_digits(digits: Digits, path: Path, training: int = _TRAINING) -> None:
    """Write the data to a file for the training processes.

    Args:
        digits: all digits.
        path: of the file.
        training: how many are trained on, from the first; the others are held out.
    """
    np.savez(path, images=digits.images, labels=digits.labels, training=training)


def read_digits(path: Path) -> tuple[Digits, Digits]:
    """Read the data, divided into training data and data held out for the evaluation."""
    with np.load(path) as file:
        images, labels, training = file["images"], file["labels"], int(file["training"])
    return Digits(images[:training], labels[:training]), Digits(images[training:], labels[training:])
