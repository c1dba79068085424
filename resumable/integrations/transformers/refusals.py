"""Checks that a Trainer's settings fit a Loader, when it is prepared and when a run starts."""

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

_TRL = {"SFTTrainer"}  # tested with killed and resumed runs
_MANY = 1000  # epochs whose lengths are checked


def check_types(trainer: Any, loader: Any) -> None:
    """Check that the arguments are a Trainer, and a Loader for training or None.

    Raises:
        MissingDependencyError: transformers is not installed.
        UnsupportedError: an argument has a different type, the two are swapped, or the Trainer is of a TRL class that
            was not tested.
    """
    advice = "or pass no loader, and prepare() wraps the Trainer's own train dataloader"
    usage = ["prepare(trainer)", "prepare(trainer, loader)"]
    check_given(trainer, loader, "transformers.Trainer", (Loader, type(None)), usage=usage, advice=advice)
    _check_tried(trainer)
    if isinstance(getattr(trainer, "train_dataset", None), Loader):
        raise UnsupportedError(
            "the train_dataset of this Trainer is a Loader.\n"
            "The Trainer reads single samples by index, which a Loader does not have. Pass the plain dataset to the "
            "Trainer and the Loader to prepare(trainer, loader)."
        )
    if loader is not None and loader.evaluation:
        raise UnsupportedError(
            "the Loader was wrapped with evaluation=True, so it has no position to save.\n"
            "A resumed run would start at its first batch. Wrap the source without evaluation=True."
        )


def _check_tried(trainer: Any) -> None:
    """Check that a TRL Trainer was tested: some keep samples across steps, which are not in checkpoints.

    Raises:
        UnsupportedError: it was not.
    """
    name = private.trl_name(trainer)
    if name is not None and name not in _TRL:
        raise UnsupportedError(
            f"TRL's {name} has not been tested for exact resumes.\n"
            "It may keep data across optimizer steps that is not in checkpoints, such as generated samples. Use one of "
            f"the tested TRL Trainers ({', '.join(sorted(_TRL))}), or train without prepare()."
        )


def refuse_options(options: Mapping[str, Any]) -> None:
    """Check that `prepare` got no options of `wrap` with a Loader, which is already wrapped.

    Raises:
        ConfigurationError: there are some.
    """
    if options:
        raise ConfigurationError(
            f"prepare() got a Loader together with options of wrap(): {', '.join(sorted(options))}.\n"
            "They would have no effect, because the Loader is already wrapped. Pass them to wrap()."
        )


def check_settings_of(trainer: Any, loader: Loader[Any] | None) -> None:
    """Check that the Trainer's settings allow exact resumes.

    Raises:
        UnsupportedError: a setting does not. The message says which and why.
    """
    args = trainer.args
    check_engine(trainer.accelerator)
    check_settings(trainer.accelerator)
    if args.ignore_data_skip:
        raise UnsupportedError(
            "the Trainer has ignore_data_skip=True, so it would count a resumed epoch's micro-batches from 0 again.\n"
            "Gradients would be accumulated across two optimizer steps. Remove the setting: the Loader goes to its "
            "position directly, without reading the skipped batches."
        )
    if args.save_only_model:
        raise UnsupportedError(
            "the Trainer has save_only_model=True, so its checkpoints have no optimizer and no RNG states.\n"
            "A run could not resume exactly from them. Remove the setting."
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise UnsupportedError(
            "the Trainer has enable_jit_checkpoint=True, so it may save in the middle of an accumulation, when buffers "
            "and RNGs have already seen batches that are not in the weights.\nA resumed run would apply these batches "
            "to them twice. Remove the setting, and save at the end of a step with a callback that sets "
            "control.should_save."
        )
    if loader is not None and args.auto_find_batch_size:
        raise UnsupportedError(
            "the Trainer has auto_find_batch_size=True, but the Loader has a fixed batch size.\n"
            f"  batch_size of the Loader: {loader.batch_size}\n"
            "The batch size that the Trainer finds would have no effect. Pass no Loader, and prepare() wraps the "
            "Trainer's own train dataloader; or remove auto_find_batch_size."
        )
    if args.train_sampling_strategy == "batch_rebalance" and args.world_size > 1 and loader is None:
        raise UnsupportedError(
            'the Trainer has train_sampling_strategy="batch_rebalance", which distributes the batches across the ranks '
            "itself.\n"
            "prepare() would divide them a second time. Use a different strategy, or pass a Loader."
        )


def check_loader(trainer: Any, loader: Loader[Any]) -> None:
    """Check that the Loader and the Trainer have the same rank and world size.

    Raises:
        ConfigurationError: they differ.
    """
    check_world(trainer.accelerator, loader)


def check_epochs(loader: TrainLoader, epochs: int) -> None:
    """Check that all epochs have the same length, because the Trainer uses the first one's for all.

    Raises:
        UnsupportedError: two lengths differ.
    """
    if not loader.loader.is_sized:
        return
    first = len(loader)
    start = loader.loader.progress.following.epoch
    for epoch in range(start, min(epochs, start + _MANY)):
        if (steps := loader.loader.total_steps(epoch)) != first:
            raise UnsupportedError(
                f"epoch {start} has {first} batches and epoch {epoch} has {steps}, but the Trainer expects all epochs "
                f"to have {first}.\nSome batches would be skipped or missing. Wrap with "
                'tail="drop", "pad" or "partial".'
            )
