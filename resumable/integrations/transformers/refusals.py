"""Settings of a Trainer that do not fit a Loader, refused when it is prepared or when its run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError, UnsupportedError
from resumable.integrations._library import check_given
from resumable.integrations.accelerate.session import check_engine, check_settings, check_world
from resumable.integrations.transformers import private
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable.integrations.transformers.train_loader import TrainLoader

__all__ = ["check_epochs", "check_loader", "check_settings_of", "check_types", "refuse_options"]

_TRL = {"SFTTrainer"}  # whose runs were killed and resumed
_MANY = 1000  # epochs that are looked at


def check_types(trainer: Any, loader: Any) -> None:
    """Refuse anything but a Trainer, and a Loader to train from or none.

    Raises:
        MissingDependencyError: transformers is not installed.
        UnsupportedError: they are something else, or the other way round; or it is a Trainer of TRL that was not tried.
    """
    advice = "or leave it out, so that what the Trainer makes of its train_dataset is wrapped"
    usage = ["prepare(trainer)", "prepare(trainer, loader)"]
    check_given(trainer, loader, "transformers.Trainer", (Loader, type(None)), usage=usage, advice=advice)
    _check_tried(trainer)
    if loader is not None and loader.evaluation:
        raise UnsupportedError(
            "prepare() was given a Loader with evaluation=True, which has no place.\n"
            "A resumed run would begin at its beginning. Wrap the source without evaluation=True."
        )


def _check_tried(trainer: Any) -> None:
    """Refuse Trainers of TRL that were not tried: some keep samples over steps, and no checkpoint has them.

    Raises:
        UnsupportedError: the message names it.
    """
    name = private.trl_name(trainer)
    if name is not None and name not in _TRL:
        raise UnsupportedError(
            f"prepare() was given a {name} of TRL, for which exact resumes have not been tried.\n"
            "It may keep over optimizer steps what no checkpoint has, such as samples that it has generated. Of TRL's "
            f"Trainers, use {', '.join(sorted(_TRL))}; train with this one without prepare()."
        )


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse options of `wrap` beside a Loader, which is wrapped already.

    Raises:
        ConfigurationError: there are some; the message has their names.
    """
    if options:
        raise ConfigurationError(
            f"prepare() was given a Loader and the options {', '.join(sorted(options))}, which are those of wrap().\n"
            "They would be without effect. Give them to wrap()."
        )


def check_settings_of(trainer: Any, loader: Loader[Any] | None) -> None:
    """Refuse settings of the Trainer that do not fit.

    Raises:
        UnsupportedError: the message says which one, and why.
    """
    args = trainer.args
    check_engine(trainer.accelerator)
    check_settings(trainer.accelerator)
    if args.ignore_data_skip:
        raise UnsupportedError(
            "the Trainer has ignore_data_skip=True: it would count the micro-batches of a resumed epoch from its "
            "beginning.\n"
            "Gradients would be added up across two optimizer steps. Leave it out: nothing is read to be skipped, the "
            "Loader goes to its place."
        )
    if args.save_only_model:
        raise UnsupportedError(
            "the Trainer has save_only_model=True: its checkpoints have no optimizer and no generators.\n"
            "No run could go on from them as if it had not been interrupted. Leave it out."
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise UnsupportedError(
            "the Trainer has enable_jit_checkpoint=True: it saves within an optimizer step, where buffers and "
            "generators have seen batches that are not in the weights.\nA resumed run would see them twice. Leave it "
            "out, and save at the end of a step, by a callback that sets control.should_save."
        )
    if loader is not None and args.auto_find_batch_size:
        raise UnsupportedError(
            "the Trainer has auto_find_batch_size=True, and a Loader that was given has its own batch size.\n"
            f"  batch_size of the Loader: {loader.batch_size}\n"
            "It would stay as it is, whatever the Trainer finds. Leave the Loader out, so that what the Trainer makes "
            "of its train_dataset is wrapped, or leave auto_find_batch_size out."
        )
    if args.train_sampling_strategy == "batch_rebalance" and args.world_size > 1 and loader is None:
        raise UnsupportedError(
            'the Trainer has train_sampling_strategy="batch_rebalance", which deals the batches out to the ranks '
            "itself.\n"
            "They would be divided among the ranks once more. Use another strategy, or a Loader of your own."
        )


def check_loader(trainer: Any, loader: Loader[Any]) -> None:
    """Refuse a Loader that has other ranks than the Trainer.

    Raises:
        ConfigurationError: the message has both.
    """
    check_world(trainer.accelerator, loader)


def check_epochs(loader: TrainLoader, epochs: int) -> None:
    """Refuse a Loader whose epochs have different lengths, as the Trainer takes the first one's for all.

    Raises:
        UnsupportedError: the message has two of them.
    """
    if not loader.loader.is_sized:
        return
    first = len(loader)
    start = loader.loader.progress.following.epoch
    for epoch in range(start, min(epochs, start + _MANY)):
        if (steps := loader.loader.total_steps(epoch)) != first:
            raise UnsupportedError(
                f"epoch {start} has {first} batches and epoch {epoch} has {steps}, and the Trainer takes the first "
                'number for all epochs.\nSome batches would be left out. Wrap with tail="drop", "pad" or "partial".'
            )
