"""Hugging Face transformers: makes `resume_from_checkpoint` of a `Trainer` exact to the micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from resumable._options import refuse_unknown
from resumable.errors import ConfigurationError
from resumable.integrations.transformers import private
from resumable.integrations.transformers.refusals import check_settings_of, check_types, refuse_options
from resumable.integrations.transformers.train_loader import TrainLoader
from resumable.integrations.transformers.transformers_state import last_whole_checkpoint

if TYPE_CHECKING:
    from resumable.loader.loader import Loader

__all__ = ["TrainLoader", "last_whole_checkpoint", "prepare"]

T = TypeVar("T")


def prepare(trainer: T, loader: Loader[Any] | None = None, **options: Any) -> T:
    """Prepare a Trainer to resume at the exact micro-batch with `train(resume_from_checkpoint=...)`.

        trainer = prepare(Trainer(model, args, train_dataset=dataset))
        trainer.train(resume_from_checkpoint=True)

    The Trainer then reads its batches from a Loader. Every checkpoint has the Loader's position in
    `trainer_state.json`, with the losses and counts that were not logged yet. Batches are acknowledged when the
    optimizer steps. `resume_from_checkpoint=True` uses the newest complete checkpoint.

    Args:
        trainer: a `transformers.Trainer`, or an instance of a subclass.
        loader: the Loader to train from. By default, the train dataloader that the Trainer makes is wrapped. Evaluation
            is not changed.
        **options: for `resumable.wrap`, if no `loader` is passed. The default seed is `data_seed` or `seed` of the
            Trainer's arguments. On several ranks the last batch is padded by default, as Accelerate does.

    Returns:
        The same Trainer.

    Raises:
        UnsupportedError: `trainer` is not a Trainer, or it uses `ignore_data_skip`, `save_only_model`,
            `enable_jit_checkpoint`, `split_batches`, `dispatch_batches`, or a way of distributing the model that was
            not tested.
        ConfigurationError: the Trainer was prepared before, or both a Loader and options were passed.
        MissingDependencyError: transformers is not installed.
    """
    check_types(trainer, loader)
    private.check_names(trainer)
    if loader is not None:
        refuse_options(options)
    refuse_unknown(options)
    check_settings_of(trainer, loader)
    from resumable.integrations.transformers.session import Session  # noqa: PLC0415  # it imports transformers

    if any(type(one).__name__ == "ResumableState" for one in private.callbacks(trainer)):
        raise ConfigurationError(
            "prepare() was already called for this Trainer.\nThe states of two Loaders would have the same name in a "
            "checkpoint. Call prepare() only once."
        )
    Session(trainer, loader, options).install()
    return trainer
