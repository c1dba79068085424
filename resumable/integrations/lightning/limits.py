"""What Lightning itself does not resume, said when a run begins: the callback brings the data to the exact batch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from resumable.errors import PromiseWarning
from resumable.integrations.lightning import private

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["warn_of_limits"]


def warn_of_limits(trainer: Any, module: Any) -> None:
    """Name what of this run no checkpoint of Lightning brings back."""
    for message in _limits(trainer, module):
        warnings.warn(message, PromiseWarning, stacklevel=1)


def _limits(trainer: Any, module: Any) -> Iterator[str]:
    if private.has_callback(trainer, "StochasticWeightAveraging"):
        yield (
            "StochasticWeightAveraging begins its averages at an epoch's start, and no checkpoint has a part of "
            "them.\nA run that is resumed in the middle of its epochs trains with another learning rate and "
            "average. Resume from checkpoints of its epochs' ends."
        )
    if private.has_callback(trainer, "BaseFinetuning"):  # BackboneFinetuning is one
        yield (
            "a BaseFinetuning callback, such as BackboneFinetuning, freezes layers when a run begins and unfreezes "
            "them at an epoch's start, which Lightning does not do again when it resumes.\nAfter that epoch, a "
            "resumed run leaves them frozen: their weights stay as they are. Resume from a checkpoint of before, or "
            "unfreeze them yourself in on_train_start."
        )
    narrow = sorted(_narrow(module)) if trainer.precision == "64-true" else []
    if narrow:
        yield (
            f"precision='64-true' makes the module's weights float64, and Lightning restores a checkpoint before: into "
            f"{', '.join(narrow)}.\nA resumed run goes on with weights that are rounded to that. Call model.double() "
            "before fit, which makes them float64 from the start."
        )


def _narrow(module: Any) -> set[str]:
    """Return the types of the weights that are to be made float64."""
    weights = (*module.parameters(), *module.buffers())
    types = {weight.dtype for weight in weights if weight.is_floating_point()}
    return {str(one).removeprefix("torch.") for one in types if str(one) != "torch.float64"}
