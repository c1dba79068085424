"""What a training loop changes between two optimizer steps, besides gradients, as it was at the last step.

A checkpoint that is saved within an accumulation has the weights of the last step, and its batches are trained on
again. So all that they changed since goes back to where it was: the accelerator's count, the generators, running means
of normalisations, schedulers, and the learning rates that these set.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from resumable import rng
from resumable.errors import ConfigurationError
from resumable.integrations.accelerate import private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resumable.integrations._buffers import Buffers, KeptBuffers

__all__ = ["Boundary", "go_to", "put_back"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A moment between two optimizer steps.

    Args:
        step: the accelerator's count of batches, by which it finds the next step.
        generators: makes the state of this rank's global generators.
        schedulers: states of the schedulers.
        groups: of each optimizer, the values of its parameter groups.
        buffers: of each model.
    """

    step: int
    generators: Callable[[], dict[str, Any]]
    schedulers: Sequence[Mapping[str, Any]]
    groups: Sequence[Sequence[Mapping[str, Any]]]
    buffers: Sequence[KeptBuffers]

    @classmethod
    def now(cls, accelerator: Any, buffers: Sequence[Buffers]) -> Boundary:
        """Note this moment."""
        return cls(
            int(accelerator.step),
            rng.capture(),
            [deepcopy(scheduler.state_dict()) for scheduler in private.schedulers(accelerator)],
            [[_values(group) for group in one.param_groups] for one in private.optimizers(accelerator)],
            [one.keep() for one in buffers],
        )

    def check(self, accelerator: Any) -> None:
        """Refuse to go back to this moment where more was prepared since, of which nothing was noted.

        Raises:
            ConfigurationError: the message says what.
        """
        noted = [len(self.buffers), len(self.groups), len(self.schedulers)]
        now = [len(found(accelerator)) for found in (private.models, private.optimizers, private.schedulers)]
        if noted != now:
            raise ConfigurationError(
                "something was prepared within the loop, before the first optimizer step that is known since.\n"
                f"  before: {_told(noted)}\n  now:    {_told(now)}\n"
                "What it was like at that step is unknown, so that a resumed run would differ. Prepare models, "
                "optimizers and schedulers before the loop, or save after the next batch."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, all but the generators, which each rank has of its own."""
        return {
            "step": self.step,
            "schedulers": list(self.schedulers),
            "groups": [list(groups) for groups in self.groups],
            "buffers": self.copies(),
        }

    def copies(self) -> list[dict[str, torch.Tensor]]:
        """Return the buffers of each model, which this rank alone may have."""
        return [{name: tensor.clone() for name, tensor in zip(*kept, strict=True)} for kept in self.buffers]


def go_to(accelerator: Any, boundary: Mapping[str, Any]) -> None:
    """Bring a training back to a boundary whose weights it has.

    Args:
        accelerator: whose schedulers, optimizers and models go there.
        boundary: what `as_dict` returned.
    """
    accelerator.step = boundary["step"]
    private.drop_gradients(accelerator)
    for scheduler, state in zip(private.schedulers(accelerator), boundary["schedulers"], strict=True):
        scheduler.load_state_dict(deepcopy(state))
    for optimizer, groups in zip(private.optimizers(accelerator), boundary["groups"], strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(deepcopy(values))
    put_back(accelerator, boundary["buffers"])


def put_back(accelerator: Any, copies: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Give the models their buffers again, as `Boundary.copies` returned them."""
    with torch.no_grad():
        for model, saved in zip(private.models(accelerator), copies, strict=True):
            buffers = dict(model.named_buffers(remove_duplicate=False))
            for name, tensor in saved.items():
                buffers[name].copy_(tensor)


def _told(counts: Sequence[int]) -> str:
    return "{} models, {} optimizers, {} schedulers".format(*counts)


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}
