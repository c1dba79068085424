"""Keras's model.fit fails in an epoch, and continues as if it had not: python examples/keras_fit.py."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # else it is talkative when imported

import keras
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.integrations.keras import ResumableCallback, prepare

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read three times on purpose, to compare
IMAGES, LABELS = load_digits(return_X_y=True)
DIGITS = TensorDataset(torch.from_numpy(IMAGES.astype("float32") / 16), torch.from_numpy(LABELS))


class Fail(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Fails after a number of batches."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:  # noqa: ARG002  # Keras passes both
        """Count a batch."""
        self.left -= 1
        if self.left == 0:
            raise FloatingPointError


def train(folder: str, fail_at: int = 0) -> tuple[list[np.ndarray], list[float]]:
    """Train three epochs, from the last checkpoint if there is one; return the weights and the losses."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dropout(0.2), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    loader = resumable.wrap(DataLoader(DIGITS, batch_size=32, shuffle=True), seed=0)
    data, test = prepare(loader), prepare(loader.for_evaluation())
    saving = ResumableCallback(data, folder, save_freq=25)
    history = model.fit(data, validation_data=test, epochs=3, verbose=0, callbacks=[Fail(fail_at), saving])
    return model.get_weights(), history.history["loss"]


with tempfile.TemporaryDirectory() as temporary:
    weights, losses = train(f"{temporary}/baseline")
    print("losses of the baseline:", *(f"{loss:.6f}" for loss in losses))
    with contextlib.suppress(FloatingPointError):
        train(f"{temporary}/failed", fail_at=85)
    resumed, losses = train(f"{temporary}/failed")
    print("failed in epoch 1 after 85 batches, resumed after 75:", *(f"{loss:.6f}" for loss in losses))
    print("The same weights, bit for bit:", all(map(np.array_equal, weights, resumed)))
