"""The prepared Loaders of one Accelerator: which of their batches are in the weights, and what a checkpoint says."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from resumable import rng
from resumable._warn import warn
from resumable.errors import ConfigurationError, LoopWarning, UnsupportedError
from resumable.integrations._buffers import Buffers, put_back
from resumable.integrations._library import check_given
from resumable.integrations._saved import gather, gather_at_step
from resumable.integrations.accelerate import private
from resumable.integrations.accelerate.accelerate_state import AccelerateState, go_on_counting, unmark
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from resumable.integrations._buffers import KeptBuffers

__all__ = [
    "Session",
    "check",
    "check_engine",
    "check_settings",
    "check_types",
    "check_world",
    "session_of",
    "to_device",
]


class Session:
    """What `save_state` and `load_state` know of the prepared Loaders, all of them together.

    Args:
        accelerator: with which they are prepared.

    Attributes:
        prepared: the Loaders to train from, in the order in which they were prepared, with what the loops read.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.prepared: dict[Loader, Any] = {}
        self._steps = OptimizerSteps(accelerator)
        self._models: list[Any] = []
        self._buffers: list[Buffers] = []
        self._boundary: StepBoundary | None = None
        self._ever: WeakSet[Loader] = WeakSet()  # also those before free_memory()
        self._memory = private.memory(accelerator)
        private.call_before_saves(accelerator, self._begin_save)
        accelerator.register_for_checkpointing(self)

    def _begin_save(self, folder: Path) -> None:
        if private.writes(self.accelerator):
            unmark(folder, len(private.objects(self.accelerator)))

    # ------------------------------------------------------------------ what is prepared

    def take(self, loader: Loader, prepared: Any) -> None:
        """Take a Loader in, whose place is saved from now on.

        Raises:
            ConfigurationError: another training has it, such as that of another Accelerator.
            UnsupportedError: it has to go back, and its source cannot.
        """
        if loader in self._ever:
            loader.progress.rewind()  # gradients of what waits are gone with the memory
        else:
            loader.drive("resumable.integrations.accelerate.prepare()")
        self._ever.add(loader)
        self.prepared[loader] = prepared

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
        return any(loader.progress.in_flight for loader in self.prepared)

    def settle(self) -> None:
        """Count all that was delivered as trained on, if an optimizer has stepped since."""
        self._steps.watch()
        if self.waiting and self._steps.taken:
            self._steps.compare(min(count for loader in self.prepared if (count := loader.progress.in_flight)))
            for loader in self.prepared:
                loader.ack(loader.progress.in_flight)
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
        for loader in self.prepared:
            loader.progress.rewind()
        if self._boundary is not None:
            rng.restore(self._boundary.generators())
            go_to(self.accelerator, self._boundary.as_dict())
        self._steps.forget()

    def _now(self) -> StepBoundary:
        models = list(private.models(self.accelerator))
        if models != self._models:
            self._models, self._buffers = models, [Buffers(model) for model in models]
        return StepBoundary.now(self.accelerator, self._buffers)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks go on from: the last optimizer step. All of them have to call it.

        Raises:
            StateMismatchError: they stand at different batches.
            ConfigurationError: something was prepared since the last optimizer step.
        """
        self.settle()
        amid, rank, size = self.waiting, self.accelerator.process_index, self.accelerator.num_processes
        boundary = self._boundary if amid and self._boundary is not None else self._now()
        boundary.check(self.accelerator)
        own = {"loaders": [loader.state_dict() for loader in self.prepared], "generators": boundary.generators()}
        ranks, differ = gather_at_step(own, boundary.buffers, size)
        # Accelerate saves the buffers of the main process.
        buffers = gather(boundary.copies() if differ[rank] else None, size) if any(differ) else [None] * size
        return AccelerateState(
            [{**one, "buffers": copies} for one, copies in zip(ranks, buffers, strict=True)],
            boundary.step,
            boundary.as_dict() if amid else None,
            private.save_number(self.accelerator),
            int(self.accelerator.gradient_accumulation_steps),
        ).as_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where a state was taken. Accelerate has loaded all else before, which some of it corrects.

        Raises:
            StateError: it is no such state, or of other Loaders, data or ranks.
        """
        accelerator, saved = self.accelerator, AccelerateState.from_dict(state_dict)
        own = saved.of_rank(accelerator.process_index, accelerator.num_processes, len(self.prepared))
        for loader, state in zip(self.prepared, own["loaders"], strict=True):
            loader.load_state_dict(state)
        if saved.since is not None:
            go_to(accelerator, saved.since)
        else:
            accelerator.step = saved.step
            private.drop_gradients(accelerator)
        if saved.of_step not in {None, accelerator.gradient_accumulation_steps}:
            # The old count would let the first step end after fewer batches, at a fraction of them.
            accelerator.step = 0
        if own["buffers"] is not None:
            _put_all_back(accelerator, own["buffers"])
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


def to_device(accelerator: Any, batch: Any) -> Any:
    """Move a batch to the device of an Accelerator."""
    from accelerate.utils import send_to_device  # noqa: PLC0415  # only who uses it pays for it

    return send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)


class OptimizerSteps:
    """Watches whether an optimizer of an Accelerator has stepped: what was delivered before that is in the weights.

    Args:
        accelerator: whose optimizers may be prepared at any time.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._watched: WeakSet[Any] = WeakSet()
        self._stepped = False
        self._backwards, self._warned = 0, False
        private.watch_backward(accelerator, self._count)

    def renew(self) -> None:
        """Forget the optimizers from before `accelerator.free_memory()`."""
        self._watched.clear()
        self.forget()

    def watch(self) -> None:
        """Watch the optimizers that were prepared since, too."""
        for optimizer in private.optimizers(self._accelerator):
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                optimizer.register_step_post_hook(self._note)

    def _count(self) -> None:
        self._backwards += 1

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def forget(self) -> None:
        """Look for a step from now on."""
        self._stepped, self._backwards = False, 0

    def compare(self, delivered: int) -> None:
        """Look, at a step, whether all batches had a backward pass, as far as `accelerator.backward` did them.

        Args:
            delivered: how many batches the step is about to count for.

        Warns:
            LoopWarning: some had none; once.
        """
        if 0 < self._backwards < delivered and not self._warned:
            self._warned = True
            warn(
                "a batch was delivered before an optimizer step, and accelerator.backward() was not called for it.\n"
                f"  delivered since the last step: {delivered}\n  calls of backward():           {self._backwards}\n"
                "It counts as trained on. If the loop left it out, that is right. If the loop fetches a batch ahead, a "
                "resumed run would lose it: fetch a batch after the step of the one before.",
                LoopWarning,
            )

    @property
    def taken(self) -> bool:
        """Whether one was taken since, or left out as the gradients overflowed.

        Without a prepared optimizer, what counts is that the gradients were synchronised.
        """
        accelerator = self._accelerator
        if self._stepped:
            return True
        if not self._watched:
            return bool(accelerator.sync_gradients)
        skipped = accelerator.scaler is not None and accelerator.optimizer_step_was_skipped
        return bool(skipped and accelerator.sync_gradients)


# ---------------------------------------------------------------------- between two steps


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """What a training loop changes between two optimizer steps, besides gradients, as it was at the last step.

    A checkpoint that is saved within an accumulation has the weights of the last step, and its batches are trained on
    again. So all that they changed since goes back to where it was: the accelerator's count, the generators, running
    means of normalisations, schedulers, and the learning rates that these set.

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
    def now(cls, accelerator: Any, buffers: Sequence[Buffers]) -> StepBoundary:
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
        return [kept.copies() for kept in self.buffers]


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
    _put_all_back(accelerator, boundary["buffers"])


def _put_all_back(accelerator: Any, copies: Sequence[Mapping[str, torch.Tensor]]) -> None:
    for model, saved in zip(private.models(accelerator), copies, strict=True):
        put_back(model, saved)


def _told(counts: Sequence[int]) -> str:
    return "{} models, {} optimizers, {} schedulers".format(*counts)


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}


# ---------------------------------------------------------------------- settings that do not fit

_TRIED = {"NO", "MULTI_CPU", "MULTI_GPU"}
_OURS = (
    "A Loader gives each rank its share of a global batch itself, and its state tells the place by that. Leave the "
    "setting out: DataLoaderConfiguration()."
)
_SETTINGS = {
    "split_batches": "every batch would have to be divided among the ranks, which wrap has done: batch_size is that of "
    "a rank",
    "dispatch_batches": "the main process would have to read the batches of all ranks, and each rank reads its own",
}


def check_types(accelerator: Any, loader: Any, prepared: type) -> None:
    """Refuse anything but an Accelerator and a Loader.

    Raises:
        MissingDependencyError: Accelerate is not installed.
        UnsupportedError: they are something else, or the other way round.
    """
    advice = "give models, optimizers and schedulers to accelerator.prepare()"
    usage = ["prepare(accelerator, loader)"]
    check_given(accelerator, loader, "accelerate.Accelerator", (Loader, prepared), usage=usage, advice=advice)


def check(accelerator: Any, loader: Loader) -> None:
    """Refuse what does not fit.

    Raises:
        UnsupportedError: a setting, or the way in which the model is distributed.
        ConfigurationError: ranks that are others than the Loader's, or uneven last batches.
    """
    check_engine(accelerator)
    check_settings(accelerator)
    seed = accelerator.dataloader_config.data_seed
    if seed is not None:
        raise UnsupportedError(
            f"the Accelerator has data_seed={seed}, and a Loader's order comes from the seed of wrap().\n"
            f"  data_seed:   {seed}\n  loader.seed: {loader.seed}\n"
            "The first would be without effect. Leave it out, and use wrap(..., seed=...)."
        )
    check_world(accelerator, loader)
    if accelerator.num_processes > 1:
        _check_even(accelerator, loader)


def check_settings(accelerator: Any) -> None:
    """Refuse settings by which the accelerator would divide batches that are divided already.

    Raises:
        UnsupportedError: the message says which one, and why.
    """
    for name, why in _SETTINGS.items():
        if getattr(accelerator, name):
            raise UnsupportedError(f"the Accelerator has {name}=True: {why}.\n{_OURS}")


def check_engine(accelerator: Any) -> None:
    """Refuse ways of distributing the model for which exact resumes were not tried.

    Raises:
        UnsupportedError: the message names it.
    """
    name = accelerator.distributed_type.name
    if name not in _TRIED:
        raise UnsupportedError(
            f"the Accelerator distributes the model by {name}, for which exact resumes have not been tried.\n"
            "A checkpoint could have other weights than its place says. Use a single process or DDP."
        )
    parallel = accelerator.parallelism_config
    if parallel is not None and parallel.non_data_parallel_size > 1:
        raise UnsupportedError(
            f"the Accelerator divides the model itself over {parallel.non_data_parallel_size} processes, for which "
            "exact resumes have not been tried.\nProcesses that need the same batch would get different ones. Use "
            "data parallelism only."
        )


def check_world(accelerator: Any, loader: Loader) -> None:
    """Refuse a Loader that has other ranks than the accelerator.

    Raises:
        ConfigurationError: the message has both.
    """
    world, rank, size = loader.progress.world, accelerator.process_index, accelerator.num_processes
    if (world.rank, world.size) != (rank, size):
        raise ConfigurationError(
            "the Loader and the Accelerator disagree about the ranks.\n"
            f"  the Loader:      rank {world.rank} of {world.size}\n  the Accelerator: rank {rank} of {size}\n"
            "Ranks would train on the same samples, or some samples on none. Leave world= out of wrap()."
        )


def _check_even(accelerator: Any, loader: Loader) -> None:
    size, progress = accelerator.num_processes, loader.progress
    last, whole = progress.smallest(), loader.global_batch_size
    uneven = whole if whole % size else last
    if accelerator.even_batches and uneven is not None and uneven % size:
        raise ConfigurationError(
            f"the Accelerator has even_batches=True, its default, and a batch of this Loader has {uneven} samples for "
            f"{size} ranks.\nThe ranks would get batches of different sizes, for which gather() waits forever. Fill "
            'them up, by wrap(..., tail="pad_ranks"), or leave them out, by tail="drop_ranks" or "drop"; or let them '
            "differ, by DataLoaderConfiguration(even_batches=False)."
        )
    if loader.evaluation and progress.strided and progress.last_padding() > 1:
        raise UnsupportedError(
            f"the last batch of this Loader is filled up with {progress.last_padding()} samples, which its "
            "DistributedSampler deals out to as many ranks.\nGathered, they would not stand at the end, where "
            "gather_for_metrics() leaves them out. Wrap the DataLoader without the DistributedSampler, with "
            'tail="pad_ranks".'
        )
