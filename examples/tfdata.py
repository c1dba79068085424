"""A tf.data pipeline in a loop that crashes and resumes exactly: python examples/tfdata.py."""

from __future__ import annotations

import contextlib
import os
import tempfile

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # silences TensorFlow's import

import tensorflow as tf
import torch
from sklearn.datasets import load_digits

import resumable
from resumable.backends import tfdata

tf.config.set_visible_devices([], "GPU")  # TensorFlow would take the GPUs' memory from torch


def pipeline() -> tf.data.Dataset:
    """Shuffle, augment and batch; every random operation has a seed or is stateless."""
    images, labels = load_digits(return_X_y=True)
    digits = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels)).shuffle(500, seed=1)
    draws = tf.data.Dataset.random(seed=2, rerandomize_each_iteration=True).batch(2)

    def augment(digit: tuple[tf.Tensor, tf.Tensor], seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return digit[0] / 16 + tf.random.stateless_normal((64,), seed, stddev=0.1), digit[1]

    return tf.data.Dataset.zip((digits, draws)).map(augment, num_parallel_calls=2).batch(32).prefetch(2)


def train(folder: str, crash_at: int = -1) -> torch.Tensor:
    """Train two epochs, from the last checkpoint if there is one; return the weights."""
    store, weights = resumable.CheckpointStore(folder), torch.zeros(64, 10)
    loader = resumable.wrap(tfdata.source(pipeline(), convert="torch"))
    if (last := store.latest()) is not None:
        weights = last["weights"]
        loader.load_state_dict(last["loader"])
        print("  resumed:", loader)
    for epoch in loader.epochs(2):
        for inputs, labels in epoch:
            weights = weights + 0.1 * inputs.T @ (torch.eye(10)[labels] - (inputs @ weights).softmax(1)) / len(inputs)
            step = loader.global_step
            if step == crash_at:
                raise RuntimeError
            if step % 20 == 0:
                store.save(step, {"weights": weights, "loader": loader.state_dict()})
    return weights


with tempfile.TemporaryDirectory() as temporary:
    baseline = train(f"{temporary}/baseline")
    with contextlib.suppress(RuntimeError):
        train(f"{temporary}/crashed", crash_at=75)
    print("The same weights, bit for bit:", train(f"{temporary}/crashed").equal(baseline))
