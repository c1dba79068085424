"""What lives in a watched process beside its loaders, and may be forgotten by a resume: generators and optimizers.

Nothing is compared by it: it is looked at where a checkpoint or the weights differ, to say why.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._parts import as_array, digest_values, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Updates", "generators"]


def generators() -> dict[str, str]:
    """Return a digest of each global generator."""
    name, *words = np.random.get_state(legacy=True)  # noqa: NPY002  # the global one is meant
    states: dict[str, Any] = {"python": random.getstate(), "numpy": [name, *words]}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = [as_array(torch.get_rng_state())]
    return {name: digest_values(state) for name, state in states.items()}


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
        if kind not in {"saved", "restored"}:
            return
        if not self._hooked and "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  # it is loaded

            register_optimizer_step_pre_hook(self._step)
            self._hooked = True
        if self._seen:
            self._after, self._seen = [], set()
        self._after.append({"after": kind, "store": fields["store"], "step": fields["step"]})

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
