"""What Keras must not do with a Loader, or a Loader with Keras, and the messages that say so."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}

import keras
import numpy as np
import pytest
import tensorflow as tf

import resumable
from resumable.errors import (
    ConfigurationError,
    LoopError,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)
from resumable.integrations.keras import ResumableCallback, prepare

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

INPUTS = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")


def make(**options: Any) -> resumable.Loader[Any]:
    def stack(samples: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        batch = np.stack(samples)
        return batch, batch.sum(1, keepdims=True)

    return resumable.wrap(list(INPUTS), batch_size=3, collate=stack, seed=0, **options)


def compiled(units: int = 1) -> Any:
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(units)])
    model.compile("sgd", "mse")
    return model


class At(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Does something after a number of batches."""

    def __init__(self, batch: int, act: Any) -> None:
        super().__init__()
        self.batch, self.act, self.done = batch, act, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        if self.done == self.batch:
            self.act()


def test_a_bare_loader_is_rejected_by_keras() -> None:
    with pytest.raises(ValueError, match="Unrecognized data type"):
        compiled().fit(make(), verbose=0)


def test_fit_without_the_callback_is_rejected() -> None:
    data = prepare(make())
    with pytest.raises(LoopError, match="ResumableCallback"):
        compiled().fit(data, verbose=0)
    assert data.loader.global_step == 0


def test_the_data_of_the_training_cannot_be_validated_on() -> None:
    data = prepare(make())
    with pytest.raises(LoopError, match="for_evaluation"):
        compiled().fit(data, validation_data=data, callbacks=[ResumableCallback(data)], verbose=0)


def test_other_loops_over_the_loader_are_rejected() -> None:
    loader = make()
    data = prepare(loader)
    with pytest.raises(LoopError, match="prepare"):
        next(iter(loader))
    with pytest.raises(LoopError, match="prepare"):
        compiled().fit(data, callbacks=[At(2, lambda: next(iter(loader))), ResumableCallback(data)], verbose=0)


def test_a_loader_has_one_training() -> None:
    loader = make()
    prepare(loader)
    with pytest.raises(ConfigurationError, match="passed to two training runs"):
        prepare(loader)


def test_wrong_arguments_are_rejected() -> None:
    data = prepare(make())
    with pytest.raises(UnsupportedError, match="takes a Loader, but it was called with a list"):
        prepare([1])  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="KerasData"):
        ResumableCallback(prepare(make(evaluation=True)))
    for wrong in (0, True, "batch", 1.5):
        with pytest.raises(ConfigurationError, match="save_freq"):
            ResumableCallback(data, save_freq=wrong)  # type: ignore[arg-type]


def test_a_strategy_is_rejected() -> None:
    data = prepare(make())
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = compiled()
    with pytest.raises(UnsupportedError, match=r"tf\.distribute"):
        model.fit(data, callbacks=[ResumableCallback(data)], verbose=0)


def test_reading_ahead_is_rejected() -> None:
    data = prepare(make())

    def read() -> None:
        data.given += 1  # as if Keras had read two batches for one step

    with pytest.raises(UnsupportedError, match="1 batches in a step, but it had read 2"):
        compiled().fit(data, callbacks=[At(2, read), ResumableCallback(data)], verbose=0)


def stop(data: Any, folder: Path, **options: Any) -> None:
    model = compiled()
    with pytest.raises(FloatingPointError):
        model.fit(
            data,
            epochs=2,
            verbose=0,
            callbacks=[At(3, _fail), ResumableCallback(data, folder, save_freq=1)],
            **options,
        )


def _fail() -> None:
    raise FloatingPointError


def test_a_step_that_fails_does_not_count_and_is_repeated(tmp_path: Path) -> None:
    data = prepare(make())
    stop(data, tmp_path)
    assert data.loader.global_step == 2
    seen = list[int]()
    model = compiled()
    again = At(-1, None)
    again.on_train_batch_end = lambda batch, logs=None: seen.append(data.loader.global_step)  # type: ignore[method-assign]
    model.fit(data, epochs=2, verbose=0, callbacks=[ResumableCallback(data, tmp_path, save_freq=1), again])
    assert seen == [3, 4, 5, 6, 7, 8]


def test_other_steps_per_epoch_in_an_epoch_are_rejected(tmp_path: Path) -> None:
    stop(prepare(make()), tmp_path, steps_per_epoch=4)
    data = prepare(make())
    with pytest.raises(StateMismatchError, match=r"checkpoint: 4\n.*fit\(\):     5"):
        compiled().fit(data, steps_per_epoch=5, verbose=0, callbacks=[ResumableCallback(data, tmp_path)])


def test_another_model_is_rejected(tmp_path: Path) -> None:
    stop(prepare(make()), tmp_path)
    data = prepare(make())
    with pytest.raises(StateMismatchError, match="other shapes"):
        compiled(units=2).fit(data, verbose=0, callbacks=[ResumableCallback(data, tmp_path)])


def test_another_checkpoint_is_rejected(tmp_path: Path) -> None:
    resumable.CheckpointStore(tmp_path).save(1, {"model": 1})
    data = prepare(make())
    with pytest.raises(StateFormatError, match="ResumableCallback"):
        compiled().fit(data, verbose=0, callbacks=[ResumableCallback(data, tmp_path)])


def test_evaluate_and_predict_read_everything() -> None:
    data = prepare(make(evaluation=True))
    model = compiled()
    assert model.predict(data, verbose=0).shape == (12, 1)
    expected = np.mean((model.predict(INPUTS, verbose=0) - INPUTS.sum(1, keepdims=True)) ** 2)
    for _ in range(2):
        assert model.evaluate(data, verbose=0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_variables_of_half_precision_are_saved(dtype: str, tmp_path: Path) -> None:
    keras.config.set_dtype_policy(dtype)
    try:
        stop(prepare(make()), tmp_path)
        data, model = prepare(make()), compiled()
        before = resumable.CheckpointStore(tmp_path).latest()
        model.fit(data, epochs=0, verbose=0, callbacks=[ResumableCallback(data, tmp_path)])
        kernel = model.weights[0].value.numpy().astype("float32")
        assert before is not None
        assert (kernel == before["keras"]["variables"][0].float().numpy()).all()
    finally:
        keras.config.set_dtype_policy("float32")


def test_another_backend_is_rejected() -> None:
    script = (
        "import resumable, keras; keras.backend.backend = lambda: 'jax'\n"
        "from resumable.integrations.keras import prepare\nprepare(resumable.wrap([1, 2]))"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "the backend of Keras is jax" in child.stderr
