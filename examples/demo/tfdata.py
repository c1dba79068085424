"""The digits in a `tf.data` pipeline with a shuffle buffer, parallel augmentation, batches and a prefetch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ |= {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}  # silences TensorFlow

import tensorflow as tf

import resumable
from resumable.backends.tfdata import source

from .digits import BATCH_SIZE

if TYPE_CHECKING:
    from resumable.loader import Loader

    from .digits import Digits

__all__ = ["make_tfdata"]


def make_tfdata(digits: Digits) -> Loader:
    """Wrap a pipeline, which resumes from TensorFlow's state."""
    data = tf.data.Dataset
    shuffled = data.from_tensor_slices((digits.images, digits.labels)).shuffle(500, seed=1)
    numbers = data.random(seed=2, rerandomize_each_iteration=True).batch(2)
    batches = data.zip((shuffled, numbers)).map(_augmented, num_parallel_calls=2).batch(BATCH_SIZE).prefetch(2)
    return resumable.wrap(source(batches, convert="torch"))


def _augmented(digit: tuple[Any, Any], seed: Any) -> tuple[Any, Any]:
    return (digit[0] + tf.random.stateless_normal((8, 8), seed, stddev=0.05))[None], digit[1]
