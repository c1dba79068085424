"""Hugging Face transformers: a `Trainer` whose `resume_from_checkpoint` is exact, to the micro-batch."""

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
    """Prepare a Trainer, so that `train(resume_from_checkpoint=...)` goes on at the exact micro-batch.

        trainer = prepare(Trainer(model, args, train_dataset=dataset))
        trainer.train(resume_from_checkpoint=True)

    Its batches come from a Loader, whose place is in `trainer_state.json` of every checkpoint, together with what the
    log has not said yet. A batch counts as trained on at the optimizer's step. `resume_from_checkpoint=True` takes the
    newest checkpoint that was written to its end.

    Args:
        trainer: a `transformers.Trainer`, or of a class that inherits from it.
        loader: what it trains from; by default, what the Trainer makes of its `train_dataset`, wrapped. Evaluation
            stays the Trainer's.
        **options: of `resumable.wrap`, where the Loader is made here. The seed is `data_seed`, or `seed`, of its
            arguments; on several ranks the last batch is filled up, as Accelerate does.

    Returns:
        The same Trainer.

    Raises:
        UnsupportedError: it is no Trainer; or a setting does not fit: `ignore_data_skip`, `save_only_model`,
            `enable_jit_checkpoint`, `split_batches`, `dispatch_batches`, or a way of distributing the model that was
            not tried.
        ConfigurationError: it was prepared before; or there are options for a Loader that was given.
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
            "the Trainer was prepared before.\nTwo Loaders would be saved under one name. Call prepare() once."
        )
    Session(trainer, loader, options).install()
    return trainer
