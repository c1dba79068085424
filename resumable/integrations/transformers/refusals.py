"""Settings of a Trainer that do not fit a Loader, refused when it is prepared or when its run begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError, MissingDependencyError, UnsupportedError
from resumable.integrations.accelerate.refusals import check_engine, check_settings, check_world
from resumable.loader import Loader

if TYPE_CHECKING:
    from resumable.integrations.transformers.train_loader import TrainLoader

__all__ = ["check_driver", "check_epochs", "check_loader", "check_settings_of", "check_types"]

_MANY = 1000  # epochs that are looked at


def check_types(trainer: Any, loader: Any) -> None:
    """Refuse anything but a Trainer, and a Loader to train from or none.

    Raises:
        MissingDependencyError: transformers is not installed.
        UnsupportedError: they are something else, or the other way round.
    """
    try:
        from transformers import Trainer  # noqa: PLC0415  # only who uses it pays for it
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            'transformers is not installed.\nInstall it: pip install "resumable-data[transformers]"'
        ) from error
    if not isinstance(trainer, Trainer):
        raise UnsupportedError(
            f"prepare() was given a {type(trainer).__qualname__} in place of a Trainer.\n"
            "Nothing was prepared. Use prepare(trainer), or prepare(trainer, loader)."
        )
    if loader is not None and not isinstance(loader, Loader):
        raise UnsupportedError(
            f"prepare() was given a {type(loader).__qualname__}, which is no Loader.\n"
            "It has no place that could be saved. Wrap it before: prepare(trainer, resumable.wrap(...)); or leave it "
            "out, so that what the Trainer makes of its train_dataset is wrapped."
        )
    if loader is not None and loader.evaluation:
        raise UnsupportedError(
            "prepare() was given a Loader with evaluation=True, which has no place.\n"
            "A resumed run would begin at its beginning. Wrap the source without evaluation=True."
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


def check_driver(loader: Loader[Any]) -> None:
    """Refuse a Loader that another loop drives.

    Raises:
        ConfigurationError: it was prepared before.
    """
    if loader.driver:
        raise ConfigurationError(
            f"the Loader was given to {loader.driver} before.\n"
            "Its batches would count at the optimizer steps of both. Wrap the source again for this Trainer."
        )


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
