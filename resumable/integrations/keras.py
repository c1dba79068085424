"""Keras 3: `model.fit` trains from a Loader, and a checkpoint after any batch resumes bit for bit.

Keras reads ahead from whatever it knows: two batches of a generator to see their shapes, and more in a
thread for TensorFlow. It has no position inside an epoch. So `prepare` makes a data adapter that delivers
one batch when Keras asks for it, in the main thread, and `ResumableCallback` counts it after the training step.

Keras's private names that are used here: `DataAdapter`, of which `fit` accepts an instance;
`Trainer._initial_epoch`, which `BackupAndRestore` also sets; `Trainer._symbolic_build`, which makes the variables of a
model before its first step; and the generator of seeds for random operations without one.
Source: Keras 3.8 to 3.15, `trainers/epoch_iterator.py`, and `fit` in `backend/tensorflow` and `backend/torch`.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from resumable import rng
from resumable._distribution import UPGRADE, pip_install
from resumable._requirements import check_version, tested_with
from resumable.checkpoint import CheckpointStore
from resumable.errors import (
    ConfigurationError,
    LoopError,
    MissingDependencyError,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)
from resumable.loader.iterators import Delivery
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn, Self

__all__ = ["KerasData", "ResumableCallback", "prepare"]

_DRIVER = "resumable.integrations.keras.prepare()"
_ENDLESS = sys.maxsize  # batches: the data itself says where an epoch ends
_TRIED = tested_with("keras")
_RAN_OUT = "Your input ran out of data"


def _from_keras(module: str, name: str) -> Any:
    """Return a name of Keras.

    Raises:
        MissingDependencyError: Keras is not installed, or too old.
        UnsupportedError: this version of Keras has no such name.
    """
    try:
        import_module("keras")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"Keras is not installed.\nInstall it: {pip_install('keras')}") from error
    check_version("keras")
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UnsupportedError(
            f"this version of Keras has no {module}.{name}.\n"
            "fit() would not take a Loader, or a checkpoint would be incomplete. Use "
            f"{_TRIED}, or a newer version of this package: {UPGRADE}"
        ) from error


_Adapter: Any = _from_keras("keras.src.trainers.data_adapters.data_adapter", "DataAdapter")
_Callback: Any = _from_keras("keras.callbacks", "Callback")
_global_seeds: Any = _from_keras("keras.src.random.seed_generator", "global_seed_generator")
_get_global: Any = _from_keras("keras.src.backend.common.global_state", "get_global_attribute")


def prepare(loader: Loader[Any]) -> KerasData:
    """Return a Loader in the form that `fit`, `evaluate` and `predict` of Keras take as `x` or `validation_data`.

        data = prepare(loader)
        model.fit(data, epochs=10, callbacks=[ResumableCallback(data, "runs/digits")])

    From now on, Keras drives the Loader: other loops over it raise `LoopError`. Its batches have the form that Keras
    trains on: `(inputs, targets)`, or `(inputs, targets, sample_weights)`. A Loader for evaluation, such as
    `loader.for_evaluation()`, needs no callback.

    Raises:
        UnsupportedError: it is not a Loader, or the backend of Keras is neither TensorFlow nor PyTorch.
        ConfigurationError: another training drives the Loader.
    """
    if not isinstance(loader, Loader):
        raise UnsupportedError(
            f"prepare() takes a Loader, but it was called with a {type(loader).__qualname__}.\n"
            "That has no position to save. Wrap it first: prepare(resumable.wrap(...))."
        )
    if (backend := _keras().backend.backend()) not in {"tensorflow", "torch"}:
        raise UnsupportedError(
            f"the backend of Keras is {backend}, but prepare() supports only tensorflow and torch.\n"
            "Other backends read ahead, so a checkpoint would skip batches. Set KERAS_BACKEND."
        )
    if not loader.evaluation:
        loader.drive(_DRIVER, "To train, pass the object that prepare() returned to fit().")
    return KerasData(loader)


class KerasData(_Adapter):  # type: ignore[misc]  # its base is found at import
    """A Loader as Keras reads it; made by `prepare`.

    Args:
        loader: delivers the batches.

    Attributes:
        loader: the same.
    """

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader
        self._source: Any = None  # the loop over epochs() or steps() of the Loader; None outside of fit()
        self._per_epoch: int | None = None  # batches of an epoch of Keras; None where it is an epoch of the Loader
        self._epoch: Any = None  # of the Loader, which Keras is in
        self._limit = math.inf  # batches until the end of a resumed epoch
        self.is_open = False  # fit() trains now
        self.given = 0  # batches since the training step started
        self.done = 0  # batches of this epoch in the weights

    def __repr__(self) -> str:
        return f"<KerasData of {self.loader!r}>"

    # ------------------------------------------------------------------ what Keras asks

    @property
    def num_batches(self) -> int | None:
        """Number of batches of a pass for evaluation, if known. For training, each epoch ends without it."""
        if self.loader.evaluation:
            return len(self.loader) if self.loader.is_sized else None
        return _ENDLESS

    @property
    def batch_size(self) -> None:
        """Not known to Keras."""

    def get_tf_dataset(self) -> _Batches:
        """Return what Keras iterates over with TensorFlow: no `tf.data.Dataset`, whose threads would read ahead."""
        return _Batches(self)

    def get_torch_dataloader(self) -> _Batches:
        """Return what Keras iterates over with PyTorch."""
        return _Batches(self)

    def read(self) -> Iterator[Any]:
        """Return the batches up to the end of the epoch.

        Raises:
            LoopError: something else than `fit` with its callback reads batches of the training.
        """
        if self.loader.evaluation:
            yield from self.loader
            return
        if not self.is_open:
            yield self.loader.peek()  # Keras builds a model with it
            raise LoopError(
                "batches of prepare(loader) were requested outside of the training steps of fit(), or without its "
                "ResumableCallback.\nNothing would count them. To train, add callbacks=[ResumableCallback(data, ...)] "
                "to fit(). To evaluate on the same data, use prepare(loader.for_evaluation())."
            )
        batches = iter(self._source if self._epoch is None else self._epoch)
        while self.done + self.given < self._limit and (batch := next(batches, self)) is not self:
            self.given += 1
            yield batch

    # ------------------------------------------------------------------ what the callback tells

    def start(self, per_epoch: int | None) -> None:
        """Start `fit`, with a number of batches per epoch of Keras, or with the epochs of the Loader."""
        self.loader.progress.rewind()  # back to what is in the weights, if an earlier fit() failed
        delivery: _Driven = _Driven(self.loader)
        self._per_epoch, self._limit = per_epoch, math.inf
        if per_epoch is None:
            self._source = self.loader.epochs_of(delivery, math.inf)
        else:
            self._source = self.loader.steps_of(delivery, math.inf)

    def begin_epoch(self, done: int) -> None:
        """Start an epoch of Keras, of which some batches were done before a resume."""
        self.done, self.given, self.is_open = done, 0, True
        if self._per_epoch is None:
            self._epoch = next(self._source)
        else:
            self._limit = self._per_epoch if done else math.inf  # Keras itself ends the others

    def count(self) -> None:
        """Count the batches of a training step."""
        self.loader.ack(self.loader.progress.in_flight)
        self.done, self.given = self.done + self.given, 0

    def is_over(self) -> bool:
        """Return whether no batch of the epoch of Keras is left."""
        if self._per_epoch is not None:
            return self.done >= self._per_epoch
        progress = self.loader.progress
        return bool(progress.delivered.epoch > int(self._epoch) or progress.is_last())

    def end_epoch(self) -> None:
        """End an epoch of Keras all of whose batches are done."""
        self.is_open = False
        if self._per_epoch is None:
            self.loader.end_epoch()

    def stop(self) -> None:
        """End `fit`."""
        if self._source is not None:
            self._source.close()
        self._source = self._epoch = None
        self.is_open = False


class _Driven(Delivery[Any]):
    """Reads a Loader that Keras drives."""

    def check(self) -> None:
        """Allow the loop: it is the one of the driver."""


class _Batches:
    """What Keras iterates over, once per epoch."""

    def __init__(self, data: KerasData) -> None:
        self._data = data

    def __iter__(self) -> _Reader:
        return _Reader(self._data)

    def __getattr__(self, name: str) -> NoReturn:
        raise UnsupportedError(
            f"TensorFlow asked prepare(loader) for {name!r} of a tf.data.Dataset.\n"
            "It does so if the model has a tf.distribute strategy, which reads ahead: a checkpoint would skip batches. "
            "Train the model without a strategy."
        )


class _Reader:
    """An iterator over the batches of one epoch, as tensors of the backend."""

    def __init__(self, data: KerasData) -> None:
        self._data, self._batches = data, data.read()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        keras = _keras()
        try:
            return keras.tree.map_structure(_as_tensor, next(self._batches))
        except StopIteration:
            if self._data.given or keras.backend.backend() != "tensorflow":
                raise
            # An error of tf.data. A step that has some of the batches of steps_per_execution ends without an error.
            raise import_module("tensorflow").errors.OutOfRangeError(None, None, "the epoch is over") from None


def _keras() -> Any:
    return import_module("keras")


def _as_tensor(leaf: Any) -> Any:
    keras = _keras()
    if leaf is None or (keras.backend.backend() == "tensorflow" and keras.ops.is_tensor(leaf)):
        return leaf  # ragged and sparse tensors stay what they are
    return keras.ops.convert_to_tensor(leaf)


class ResumableCallback(_Callback):  # type: ignore[misc]  # its base is found at import
    """Counts the batches that `fit` has trained on, and saves and restores the training: put it last among callbacks.

    When `fit` starts, it loads the newest checkpoint, if there is one: variables of model, optimizer and metrics, the
    position of the Loader, and the global random generators. Training continues with the next batch. The first epoch
    then has only the batches that are left. Other callbacks, such as `EarlyStopping`, start with an empty memory.

    Args:
        data: what `prepare` returned, and `fit` gets.
        store: a `CheckpointStore`, or the folder for one that keeps two checkpoints; None to count only.
        save_freq: "epoch" saves at the end of each epoch; a number saves after so many batches, and at the end of the
            training. A training that a callback stops in the middle of an epoch is saved there.

    Raises:
        ConfigurationError: `save_freq` is something else.
        UnsupportedError: `data` is not from `prepare`, or is for evaluation.
    """

    def __init__(
        self,
        data: KerasData,
        store: CheckpointStore | str | os.PathLike[str] | None = None,
        *,
        save_freq: int | Literal["epoch"] = "epoch",
    ) -> None:
        super().__init__()
        if not isinstance(data, KerasData) or data.loader.evaluation:
            raise UnsupportedError(
                f"ResumableCallback() takes what prepare() returned for the train loader, but got {data!r}.\n"
                "It would count nothing. Use data = prepare(loader), fit(data, callbacks=[ResumableCallback(data)])."
            )
        if save_freq != "epoch" and (type(save_freq) is not int or save_freq < 1):
            raise ConfigurationError(
                f'save_freq is "epoch" or a number of batches from 1 on, but it is {save_freq!r}.\n'
                "Nothing would be saved. For example, save_freq=100 saves after every 100 batches."
            )
        self._data, self._save_freq = data, save_freq
        self._store = CheckpointStore(store, keep=2) if isinstance(store, str | os.PathLike) else store
        self._steps: int | None = None  # the argument of fit()
        self._epoch = 0
        self._first = 0  # index of the first batch of a training step
        self._due = False  # a checkpoint
        self._resumed: Mapping[str, Any] | None = None  # until its epoch starts
        self._quiet = ExitStack()

    def set_params(self, params: dict[str, Any]) -> None:
        """Note how many batches an epoch has, and tell the progress bar where the data decides it."""
        steps = params.get("steps")
        self._steps = None if steps == _ENDLESS else steps
        if steps == _ENDLESS:
            params["steps"] = len(self._data.loader) if self._data.loader.is_sized else None
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """Load the newest checkpoint, if there is one."""
        self._data.stop()  # an earlier fit() may have failed
        saved = None if self._store is None else self._store.latest()
        self._due, self._resumed = False, None
        if saved is not None:
            self._load(saved)
        per_execution = self.model.steps_per_execution
        # Keras completes the last execution of an epoch.
        self._data.start(None if self._steps is None else math.ceil(self._steps / per_execution) * per_execution)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """Start the epoch, or the rest of it."""
        resumed, self._resumed, self._epoch = self._resumed, None, epoch
        self._data.begin_epoch(0 if resumed is None else resumed["batches"])
        if resumed is not None and resumed["batches"]:
            _assign(self.model.metrics_variables, resumed["metrics"], "metrics")  # Keras has just reset them
        self._quiet.close()
        self._quiet.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", _RAN_OUT)  # Keras's, of each epoch that the data ends

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """Note the batch at which the training step starts."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """Count the batches of the step, and save if it is time."""
        data, before = self._data, self._data.loader.global_step
        if data.given > batch - self._first + 1:
            raise UnsupportedError(
                f"Keras trained on {batch - self._first + 1} batches in a step, but it had read {data.given}.\n"
                f"A checkpoint would skip the others. Use {_TRIED}, or a newer version of this package: {UPGRADE}"
            )
        data.count()
        if self._save_freq != "epoch":
            self._due |= data.loader.global_step // self._save_freq > before // self._save_freq
        if (self._due or self.model.stop_training) and not data.is_over():  # its end is saved after all callbacks
            self._save(self._epoch, data.done)

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """End reading for the training: what `fit` validates on is something else."""
        self._data.is_open = False
        self._quiet.close()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """Count the epoch as done, unless a callback stopped it, and save if it is time."""
        self._quiet.close()
        if not self._data.is_over():
            return  # it was saved when it was stopped
        self._data.end_epoch()
        last = self.model.stop_training or epoch + 1 == self.params["epochs"]
        if self._due or last or self._save_freq == "epoch":
            self._save(epoch + 1, 0)

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002  # Keras passes it
        """Leave the Loader where the training ended."""
        self._data.stop()
        self.model._initial_epoch = None  # noqa: SLF001  # else the next fit() would start there

    # ------------------------------------------------------------------ the checkpoint

    def _save(self, epoch: int, batches: int) -> None:
        self._due = False
        if self._store is None:
            return
        loader, model = self._data.loader, self.model
        seeds = _get_global("global_seed_generator")
        content = {
            "keras": {
                "epoch": epoch,
                "batches": batches,
                "steps_per_epoch": self._steps,
                "variables": _values([*model.variables, *model.optimizer.variables]),
                "metrics": _values(model.metrics_variables),
                "seeds": _values([] if seeds is None else [seeds.state]),
            },
            "loader": loader.state_dict(),
            "generators": rng.state_dict(),
        }
        self._store.save(loader.global_step, content)

    def _load(self, saved: Mapping[str, Any]) -> None:
        if not isinstance(saved, dict) or not {"keras", "loader", "generators"} <= saved.keys():
            raise StateFormatError(
                f"the newest checkpoint in {self._store} was not saved by ResumableCallback.\n"
                "It does not contain the position of this run. Use a separate folder for each run."
            )
        model, loader, state = self.model, self._data.loader, saved["keras"]
        if state["batches"] and state["steps_per_epoch"] != self._steps:
            raise StateMismatchError(
                "the checkpoint was saved in the middle of an epoch, and epochs have a different length now.\n"
                f"  steps_per_epoch in the checkpoint: {state['steps_per_epoch']}\n"
                f"  steps_per_epoch of this fit():     {self._steps}\n"
                "The epoch would end at another batch. Resume with the same number; change it at the end of an epoch."
            )
        if not hasattr(model, "_initial_epoch") or not hasattr(model, "_symbolic_build"):
            raise UnsupportedError(
                "this version of Keras has no _initial_epoch and _symbolic_build in its models.\n"
                "Training cannot continue at the epoch of the checkpoint. Use "
                f"{_TRIED}, or a newer version of this package: {UPGRADE}"
            )
        model._symbolic_build(data_batch=next(iter(_Batches(self._data))))  # noqa: SLF001  # variables of a new model
        loader.load_state_dict(saved["loader"])
        _assign([*model.variables, *model.optimizer.variables], state["variables"], "model and optimizer")
        _assign([_global_seeds().state] if state["seeds"] else [], state["seeds"], "seeds")
        rng.load_state_dict(saved["generators"])
        model._initial_epoch = state["epoch"]  # noqa: SLF001  # as BackupAndRestore does
        self._resumed = state


def _values(variables: Sequence[Any]) -> list[Any]:
    """Return copies of variables as tensors of PyTorch, which a `CheckpointStore` saves."""
    import torch  # noqa: PLC0415  # a part of the import that takes long

    values = []
    for variable in variables:
        if isinstance(variable.value, torch.Tensor):
            values.append(variable.value.detach().cpu().clone())
            continue
        array = np.array(variable.value.numpy())
        is_bfloat16 = array.dtype.name == "bfloat16"  # PyTorch does not know NumPy's
        values.append(
            torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if is_bfloat16 else torch.from_numpy(array)
        )
    return values


def _assign(variables: Sequence[Any], values: Sequence[Any], what: str) -> None:
    """Set variables to saved values.

    Raises:
        StateMismatchError: there are others, or they have other shapes. Nothing was changed.
    """
    import torch  # noqa: PLC0415  # a part of the import that takes long

    shapes = [tuple(value.shape) for value in values]
    expected = [tuple(variable.shape) for variable in variables]
    if shapes != expected:
        raise StateMismatchError(
            f"the variables of {what} have other shapes than in the checkpoint.\n"
            f"  checkpoint: {len(shapes)} variables, {shapes}\n  now:        {len(expected)} variables, {expected}\n"
            "They cannot be loaded. Compile the same model with the same optimizer and metrics, or use a new folder."
        )
    for variable, value in zip(variables, values, strict=True):
        if isinstance(variable.value, torch.Tensor):
            variable.assign(value)
        elif value.dtype == torch.bfloat16:
            variable.assign(value.view(torch.int16).numpy().view(np.dtype("bfloat16")))
        else:
            variable.assign(value.numpy())
