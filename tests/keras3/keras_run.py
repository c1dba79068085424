"""A training run with Keras' `model.fit`, killed at a chosen point or run to its end.

Run as a script it is a server, as `run_server.py` says. An environment variable sets the Keras backend.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}

import keras
import numpy as np
import tensorflow as tf
import torch
from run_server import Log, serve
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable.integrations.keras import ResumableCallback, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES, BATCH, EPOCHS = 27, 3, 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """Settings of a run.

    Args:
        folder: of the checkpoints, and of what the run writes down.
        loader: name of the Loader, in `LOADERS`.
        steps_per_epoch: of `fit`.
        steps_per_execution: of `compile`.
        save_freq: of the callback.
        seed: for the model and the global generators; a resumed run takes all from the checkpoint.
        die_at: the process kills itself after so many batches, and after what was saved then.
        die_after_epoch: it kills itself at the end of that epoch, after what was saved then.
        die_before_save: that, and before.
        stop_at: a callback ends the training after so many batches.
        port: unused.
    """

    folder: str
    loader: str = "indexed"
    steps_per_epoch: int | None = None
    steps_per_execution: int = 1
    save_freq: int | str = 1
    seed: int = 0
    die_at: int | None = None
    die_after_epoch: int | None = None
    die_before_save: bool = False
    stop_at: int | None = None
    port: int = 0


INPUTS = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
TARGETS = INPUTS.sum(1, keepdims=True)


class Augmented(Dataset[Any]):
    """Samples with noise from the global generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = np.random.normal() + random.random() + torch.rand(()).item()
        return torch.from_numpy(INPUTS[index]) + noise, torch.from_numpy(TARGETS[index])


def indexed() -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(Augmented(), batch_size=BATCH, shuffle=True), seed=0)


def stream() -> resumable.Loader[Any]:
    def batches() -> Iterator[Any]:
        for start in range(0, SAMPLES, BATCH):
            yield INPUTS[start : start + BATCH] + np.random.normal(), TARGETS[start : start + BATCH]

    return resumable.wrap(batches, seed=0, identity="arrays")


def tfdata() -> resumable.Loader[Any]:
    tf.random.set_seed(0)  # it is a part of the pipeline
    dataset = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS))
    return resumable.wrap(dataset.shuffle(10, seed=1).batch(BATCH).prefetch(1))


LOADERS: dict[str, Callable[[], resumable.Loader[Any]]] = {"indexed": indexed, "stream": stream, "tfdata": tfdata}


class Noise(keras.layers.Layer):  # type: ignore[misc]  # untyped
    """A layer whose random numbers have no seed."""

    def call(self, inputs: Any, *, training: bool = False) -> Any:
        return inputs + keras.random.normal((4,)) if training else inputs


def compiled(run: Run) -> Any:
    layers = [Noise(), keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    options = {} if run.steps_per_execution == 1 else {"steps_per_execution": run.steps_per_execution}
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


class Recorder(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Writes down what was trained; changes the learning rate, and ends or kills the run before a save."""

    def __init__(self, run: Run, log: Log, loader: resumable.Loader[Any]) -> None:
        super().__init__()
        self.run, self.log, self.loader, self.epoch, self.done = run, log, loader, 0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.log.write("start")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        drawn = [random.random(), np.random.normal()]
        self.log.write("train", self.epoch, {name: float(value) for name, value in logs.items()}, drawn)
        if self.done == self.run.stop_at:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        stopped = self.run.stop_at is not None and self.done == self.run.stop_at
        if stopped and self.done % (self.run.steps_per_epoch or SAMPLES // BATCH):
            return  # in the middle of the epoch, which the next run continues
        self.log.write("end of epoch", epoch, {name: float(value) for name, value in logs.items()})
        self.model.optimizer.learning_rate.assign(0.01 / (epoch + 2))
        if self.run.die_after_epoch == epoch and self.run.die_before_save:
            os.kill(os.getpid(), signal.SIGKILL)


class Killer(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Kills the run after a save."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.done = run, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        if self.done == self.run.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.run.die_after_epoch == epoch:
            os.kill(os.getpid(), signal.SIGKILL)


def digest(variables: Any) -> str:
    values = [one.value.detach() if isinstance(one.value, torch.Tensor) else one.value for one in variables]
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()


def train(run: Run, _: int) -> None:
    """Train from the newest checkpoint, if there is one."""
    keras.utils.set_random_seed(run.seed)
    log = Log(Path(run.folder, "log-0"))
    model, loader = compiled(run), LOADERS[run.loader]()
    data = prepare(loader)
    callbacks = [
        Recorder(run, log, loader),
        ResumableCallback(data, Path(run.folder, "checkpoints"), save_freq=run.save_freq),  # type: ignore[arg-type]
        Killer(run),
    ]
    test = None if run.loader == "tfdata" else prepare(loader.for_evaluation())
    options = {"steps_per_epoch": run.steps_per_epoch, "validation_data": test, "validation_steps": 4 if test else None}
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks, **options)
    if run.stop_at is None:
        seeds = [layer.seed_generator.state for layer in model.layers if hasattr(layer, "seed_generator")]
        state = digest([*model.weights, *model.optimizer.variables, *seeds])
        log.write("end", state, str(loader.acknowledged), loader.global_step, [random.random(), np.random.normal()])


if __name__ == "__main__":
    serve(Run, train, lambda _: 1)
