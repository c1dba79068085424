"""What lives in a watched process beside its loaders: generators, optimizers and models.

Nothing is compared by it: it is looked at where a checkpoint or the weights differ, to say why; and to know whether
there is a model at all.
"""

from __future__ import annotations

import gc
import random
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._content import digest_of
from resumable.chaos.recorder.digest import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Updates", "count_trained", "generators"]


def generators() -> dict[str, str]:
    """Return a digest of each global generator."""
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002  # the global one
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state()
    return {name: digest_of(state) for name, state in states.items()}


def count_trained() -> int | None:
    """Count the elements of what torch trains in this process: parameters of models and of optimizers.

    Returns:
        Their number, which is 0 where another process holds them all; None where nothing is trained.
    """
    torch = sys.modules.get("torch")
    optim, nn = getattr(torch, "optim", None), getattr(torch, "nn", None)
    if optim is None or nn is None:
        return None
    found: dict[int, int] = {}
    kinds = (optim.Optimizer, nn.Module)
    for one in [one for one in gc.get_objects() if issubclass(type(one), kinds)]:
        with suppress(Exception):  # of parameters that are not made yet, or no tensors, nothing is known
            found |= {id(weight): weight.numel() for weight in _weights_of(one) if weight.requires_grad}
    return sum(found.values()) if found else None


def _weights_of(one: Any) -> list[Any]:
    if groups := getattr(one, "param_groups", None):
        return [weight for group in groups for weight in group["params"]]
    return [weight for weight in vars(one).get("_parameters", {}).values() if weight is not None]


class Updates:
    """Writes down the weights and the state of each optimizer of torch at its first step after a checkpoint.

    Args:
        write: a kind of event and its fields.
        stands: returns where each loader stands.
    """

    def __init__(self, write: Callable[..., None], stands: Callable[[], list[dict[str, Any]]]) -> None:
        self._write, self._stands = write, stands
        self._hooked = False
        self._after: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._seen: set[int] = set()

    def come_by(self, kind: str, fields: dict[str, Any]) -> None:
        """See an event: after those of checkpoints, optimizers are looked at."""
        if kind == "renamed":
            self._rename(fields["series"], fields["store"])
        if kind not in {"saved", "restored", "wrote"} or fields["step"] is None or fields.get("aside"):
            return
        if not self._hooked and "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  # it is loaded

            register_optimizer_step_pre_hook(self._step)
            self._hooked = True
        if self._seen:
            self._after, self._seen = [], set()
        after = "restored" if kind == "restored" else "saved"
        self._after.append({"after": after, "store": fields["store"], "step": fields["step"]})

    def _rename(self, old: str, new: str) -> None:
        for after in self._after:
            if after["after"] == "saved" and after["store"] == old:
                after["store"] = new

    def _step(self, optimizer: Any, *_: Any) -> None:
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        if number in self._seen:
            return
        self._seen.add(number)
        if self._after and (found := _look(optimizer)):
            for after in self._after:
                self._write("update", **after, optimizer=number, **found, stands=self._stands())


def _look(optimizer: Any) -> dict[str, Any]:
    """Return the parts of its weights and of its state; nothing where that could disturb a training on many ranks."""
    from torch.optim import Optimizer  # noqa: PLC0415  # it is loaded

    if type(optimizer).state_dict is not Optimizer.state_dict:
        return {}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    try:
        return {"weights": parts_of(weights), "optimizer_parts": parts_of(optimizer.state_dict())}
    except Exception:  # noqa: BLE001  # of tensors that are no plain ones, nothing is known
        return {}
