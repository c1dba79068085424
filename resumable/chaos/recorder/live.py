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
        self._after: dict[str, Any] = {}
        self._numbers: dict[int, int] = {}
        self._due: set[int] | None = None

    def come_by(self, kind: str, fields: dict[str, Any]) -> None:
        """See an event: after one of a checkpoint, optimizers are looked at."""
        if kind not in {"saved", "restored"}:
            return
        if not self._hooked and "torch" in sys.modules:
            from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  # it is loaded

            register_optimizer_step_pre_hook(self._step)
            self._hooked = True
        self._after = {"after": kind, "store": fields["store"], "step": fields["step"]}
        self._due = None

    def _step(self, optimizer: Any, *_: Any) -> None:
        number = self._numbers.setdefault(id(optimizer), len(self._numbers))
        if not self._after or (self._due is not None and number in self._due):
            return
        self._due = (self._due or set()) | {number}
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        parts = {"weights": parts_of(weights), "optimizer_parts": parts_of(optimizer.state_dict())}
        self._write("update", **self._after, optimizer=number, **parts, stands=self._stands())
