"""The prepared Loaders of one Accelerator: which of their batches are in the weights, and what a checkpoint says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from resumable import rng
from resumable.integrations._buffers import Buffers
from resumable.integrations.accelerate import private
from resumable.integrations.accelerate.boundary import Boundary, go_to, put_back
from resumable.integrations.accelerate.checkpoints import go_on_counting, unmark
from resumable.integrations.accelerate.ranks import exchange_with_buffers
from resumable.integrations.accelerate.saved import Saved
from resumable.integrations.accelerate.steps import Steps

if TYPE_CHECKING:
    from pathlib import Path

    from resumable.integrations.accelerate.prepared import PreparedLoader
    from resumable.loader import Loader

__all__ = ["Session", "session_of"]


class Session:
    """What `save_state` and `load_state` know of the prepared Loaders, all of them together.

    Args:
        accelerator: with which they are prepared.

    Attributes:
        prepared: the Loaders to train from, in the order in which they were prepared.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.prepared: list[PreparedLoader] = []
        self._steps = Steps(accelerator)
        self._models: list[Any] = []
        self._buffers: list[Buffers] = []
        self._boundary: Boundary | None = None
        self._ever: WeakSet[Loader] = WeakSet()  # also those before free_memory()
        self._memory = private.memory(accelerator)
        private.call_before_saves(accelerator, self._begin_save)
        accelerator.register_for_checkpointing(self)

    def _begin_save(self, folder: Path) -> None:
        if private.writes(self.accelerator):
            unmark(folder, len(private.objects(self.accelerator)))

    # ------------------------------------------------------------------ what is prepared

    def take(self, one: PreparedLoader) -> None:
        """Take a Loader in, whose place is saved from now on.

        Raises:
            ConfigurationError: another training has it, such as that of another Accelerator.
            UnsupportedError: it has to go back, and its source cannot.
        """
        loader = one.loader
        if loader in self._ever:
            loader.progress.rewind()  # gradients of what waits are gone with the memory
        else:
            loader.drive("resumable.integrations.accelerate.prepare()")
        self._ever.add(loader)
        self.prepared.append(one)

    def renew(self) -> None:
        """Forget what was prepared before `accelerator.free_memory()`, if that was called since."""
        memory = private.memory(self.accelerator)
        if memory is not self._memory:
            self._memory, self._boundary = memory, None
            self._models, self._buffers = [], []
            self.prepared.clear()
            self._steps.renew()

    # ------------------------------------------------------------------ training

    @property
    def waiting(self) -> bool:
        """Whether batches were delivered that no optimizer step covers yet."""
        return any(one.loader.progress.in_flight for one in self.prepared)

    def settle(self) -> None:
        """Count all that was delivered as trained on, if an optimizer has stepped since."""
        self._steps.watch()
        if self.waiting and self._steps.taken:
            self._steps.compare(min(count for one in self.prepared if (count := one.loader.progress.in_flight)))
            for one in self.prepared:
                one.loader.ack(one.loader.progress.in_flight)
            self._steps.forget()

    def note_boundary(self) -> None:
        """A batch is about to be delivered: keep this moment, if nothing waits for an optimizer step."""
        if not self.waiting:
            self._steps.forget()
            self._boundary = self._now()

    def go_back(self) -> None:
        """Go to after the last optimizer step: what was delivered since is delivered again, and trained on again.

        Raises:
            ConfigurationError: something was prepared since.
            UnsupportedError: a source cannot go back.
        """
        if self._boundary is not None:
            self._boundary.check(self.accelerator)
        for one in self.prepared:
            one.loader.progress.rewind()
        if self._boundary is not None:
            rng.restore(self._boundary.generators())
            go_to(self.accelerator, self._boundary.as_dict())
        self._steps.forget()

    def _now(self) -> Boundary:
        models = list(private.models(self.accelerator))
        if models != self._models:
            self._models, self._buffers = models, [Buffers(model) for model in models]
        return Boundary.now(self.accelerator, self._buffers)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks go on from: the last optimizer step. All of them have to call it.

        Raises:
            StateMismatchError: they stand at different batches.
            ConfigurationError: something was prepared since the last optimizer step.
        """
        self.settle()
        amid = self.waiting
        boundary = self._boundary if amid and self._boundary is not None else self._now()
        boundary.check(self.accelerator)
        states = [one.loader.state_dict() for one in self.prepared]
        own = {"loaders": states, "generators": boundary.generators()}
        ranks = exchange_with_buffers(own, boundary, self.accelerator.num_processes)
        since, number = boundary.as_dict() if amid else None, private.save_number(self.accelerator)
        of_step = int(self.accelerator.gradient_accumulation_steps)
        return Saved(ranks, boundary.step, since, number, of_step).as_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where a state was taken. Accelerate has loaded all else before, which some of it corrects.

        Raises:
            StateError: it is no such state, or of other Loaders, data or ranks.
        """
        accelerator, saved = self.accelerator, Saved.from_dict(state_dict)
        own = saved.of_rank(accelerator.process_index, accelerator.num_processes, len(self.prepared))
        for one, state in zip(self.prepared, own["loaders"], strict=True):
            one.load(state)
        if saved.since is not None:
            go_to(accelerator, saved.since)
        else:
            accelerator.step = saved.step
            private.drop_gradients(accelerator)
        if saved.of_step not in {None, accelerator.gradient_accumulation_steps}:
            accelerator.step = (
                0  # the old count would let the first step end after fewer batches, at a fraction of them
            )
        if own["buffers"] is not None:
            put_back(accelerator, own["buffers"])
        self._steps.forget()
        self._boundary = None
        go_on_counting(accelerator, saved.number)
        rng.restore(own["generators"])
        rng.warn_of_devices(own["generators"])


def session_of(accelerator: Any) -> Session:
    """Return the session of an Accelerator, and register one where there is none."""
    found = next((one for one in private.objects(accelerator) if isinstance(one, Session)), None)
    if found is None:
        return Session(accelerator)
    found.renew()
    return found
