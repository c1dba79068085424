"""The prepared Loaders of one Accelerator: which of their batches are in the weights, saving and loading."""

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
    """The prepared Loaders of an Accelerator, saved and loaded together by `save_state` and `load_state`.

    Args:
        accelerator: the Accelerator.

    Attributes:
        prepared: the Loaders to train from, in order of preparation, with their `PreparedLoader`s.
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

    # ------------------------------------------------------------------ prepared Loaders

    def take(self, loader: Loader, prepared: Any) -> None:
        """Add a Loader. Its position is saved from now on.

        Raises:
            ConfigurationError: a different training run uses the Loader, for example with a different Accelerator.
            UnsupportedError: the Loader must go back, and its source cannot.
        """
        if loader in self._ever:
            loader.progress.rewind()  # free_memory() has dropped the gradients of batches in flight
        else:
            loader.drive("resumable.integrations.accelerate.prepare()")
        self._ever.add(loader)
        self.prepared[loader] = prepared

    def renew(self) -> None:
        """Forget everything that was prepared before a call of `accelerator.free_memory()`."""
        memory = private.memory(self.accelerator)
        if memory is not self._memory:
            self._memory, self._boundary = memory, None
            self._models, self._buffers = [], []
            self.prepared.clear()
            self._steps.renew()

    # ------------------------------------------------------------------ training

    @property
    def waiting(self) -> bool:
        """Whether delivered batches are still waiting for an optimizer step."""
        return any(loader.progress.in_flight for loader in self.prepared)

    def settle(self) -> None:
        """Acknowledge all delivered batches if an optimizer has stepped since."""
        self._steps.watch()
        if self.waiting and self._steps.taken:
            self._steps.compare(min(count for loader in self.prepared if (count := loader.progress.in_flight)))
            for loader in self.prepared:
                loader.ack(loader.progress.in_flight)
            self._steps.forget()

    def note_boundary(self) -> None:
        """Note the current state before a batch is delivered, unless batches are waiting for an optimizer step."""
        if not self.waiting:
            self._steps.forget()
            self._boundary = self._now()

    def go_back(self) -> None:
        """Go back to the last optimizer step. Later batches are delivered again, and trained on again.

        Raises:
            ConfigurationError: models, optimizers or schedulers were prepared since.
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
        """Return the states of all ranks at the last optimizer step. All ranks must call it.

        Raises:
            StateMismatchError: the ranks are at different batches.
            ConfigurationError: models, optimizers or schedulers were prepared since that step.
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
        """Go to the position of a state. Accelerate has already loaded the rest, and this corrects parts of it.

        Raises:
            StateError: the state is invalid, or belongs to different Loaders, data or ranks.
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
            # With the old count, the first step would take fewer batches than gradient_accumulation_steps.
            accelerator.step = 0
        if own["buffers"] is not None:
            _put_all_back(accelerator, own["buffers"])
        self._steps.forget()
        self._boundary = None
        go_on_counting(accelerator, saved.number)
        rng.restore(own["generators"])
        rng.warn_of_devices(own["generators"])


def session_of(accelerator: Any) -> Session:
    """Return the session of an Accelerator. Create and register one if there is none."""
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
    """Detects steps of an Accelerator's optimizers. Batches that were delivered before a step are in the weights.

    Args:
        accelerator: the Accelerator. Optimizers may be prepared at any time.
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
        """Also watch the optimizers that were prepared since the last call."""
        for optimizer in private.optimizers(self._accelerator):
            if optimizer not in self._watched:
                self._watched.add(optimizer)
                optimizer.register_step_post_hook(self._note)

    def _count(self) -> None:
        self._backwards += 1

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def forget(self) -> None:
        """Wait for a new step from now on."""
        self._stepped, self._backwards = False, 0

    def compare(self, delivered: int) -> None:
        """Check at a step that all batches had a backward pass, if any went through `accelerator.backward`.

        Args:
            delivered: number of batches that were delivered since the last step.

        Warns:
            LoopWarning: some batches had no backward pass. The warning is shown only once.
        """
        if 0 < self._backwards < delivered and not self._warned:
            self._warned = True
            warn(
                "an optimizer step followed more batches than calls of accelerator.backward().\n"
                f"  batches since the last step: {delivered}\n  calls of backward():         {self._backwards}\n"
                "All of these batches count as trained on. If the loop skips some on purpose, ignore this. If it "
                "fetches a batch ahead, a resumed run would skip that batch: fetch the next batch only after the "
                "optimizer step.",
                LoopWarning,
            )

    @property
    def taken(self) -> bool:
        """Whether an optimizer has stepped, or skipped its step because the gradients overflowed.

        Without a prepared optimizer, synchronized gradients count as a step.
        """
        accelerator = self._accelerator
        if self._stepped:
            return True
        if not self._watched:
            return bool(accelerator.sync_gradients)
        skipped = accelerator.scaler is not None and accelerator.optimizer_step_was_skipped
        return bool(skipped and accelerator.sync_gradients)


# ---------------------------------------------------------------------- saves within an accumulation


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """The state at the last optimizer step that a training loop changes before the next one, besides gradients.

    A checkpoint that is saved within an accumulation has the weights of the last step, and a resumed run trains on the
    later batches again. So everything that these batches changed is set back: the accelerator's count, the RNGs,
    running means of normalization layers, schedulers, and learning rates.

    Args:
        step: the accelerator's count of batches, which determines its next step.
        generators: creates the states of this rank's global RNGs.
        schedulers: states of the schedulers.
        groups: values of the parameter groups, per optimizer.
        buffers: of each model.
    """

    step: int
    generators: Callable[[], dict[str, Any]]
    schedulers: Sequence[Mapping[str, Any]]
    groups: Sequence[Sequence[Mapping[str, Any]]]
    buffers: Sequence[KeptBuffers]

    @classmethod
    def now(cls, accelerator: Any, buffers: Sequence[Buffers]) -> StepBoundary:
        """Note the current state."""
        return cls(
            int(accelerator.step),
            rng.capture(),
            [deepcopy(scheduler.state_dict()) for scheduler in private.schedulers(accelerator)],
            [[_values(group) for group in one.param_groups] for one in private.optimizers(accelerator)],
            [one.keep() for one in buffers],
        )

    def check(self, accelerator: Any) -> None:
        """Check that nothing was prepared since this step, because its state would be unknown.

        Raises:
            ConfigurationError: models, optimizers or schedulers were prepared since.
        """
        noted = [len(self.buffers), len(self.groups), len(self.schedulers)]
        now = [len(found(accelerator)) for found in (private.models, private.optimizers, private.schedulers)]
        if noted != now:
            raise ConfigurationError(
                "a model, optimizer or scheduler was prepared inside the loop, after the last optimizer step.\n"
                f"  before: {_described(noted)}\n  now:    {_described(now)}\n"
                "Its state at that step is unknown, so a resumed run would differ. Prepare models, optimizers and "
                "schedulers before the loop, or save after the next batch."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values and tensors, without the RNG states, which differ between ranks."""
        return {
            "step": self.step,
            "schedulers": list(self.schedulers),
            "groups": [list(groups) for groups in self.groups],
            "buffers": self.copies(),
        }

    def copies(self) -> list[dict[str, torch.Tensor]]:
        """Return the buffers of each model. They may differ between ranks."""
        return [kept.copies() for kept in self.buffers]


def go_to(accelerator: Any, boundary: Mapping[str, Any]) -> None:
    """Set everything but the weights back to an optimizer step.

    Args:
        accelerator: whose schedulers, optimizers and models to set. They already have that step's weights.
        boundary: the result of `StepBoundary.as_dict`.
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


def _described(counts: Sequence[int]) -> str:
    return "{} models, {} optimizers, {} schedulers".format(*counts)


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in group.items() if name != "params"}


# ---------------------------------------------------------------------- checks

_TRIED = {"NO", "MULTI_CPU", "MULTI_GPU"}
_SETTINGS = {
    "split_batches": "Accelerate would divide each batch among the ranks, but wrap() has already done that: batch_size "
    "is per rank",
    "dispatch_batches": "the main process would read the batches of all ranks, but each rank of a Loader reads its own",
}


def check_types(accelerator: Any, loader: Any, prepared: type) -> None:
    """Check that the arguments are an Accelerator and a Loader.

    Raises:
        MissingDependencyError: Accelerate is not installed.
        UnsupportedError: an argument has a different type, or the two are swapped.
    """
    advice = "pass models, optimizers and schedulers to accelerator.prepare()"
    usage = ["prepare(accelerator, loader)"]
    check_given(accelerator, loader, "accelerate.Accelerator", (Loader, prepared), usage=usage, advice=advice)


def check(accelerator: Any, loader: Loader) -> None:
    """Check that an Accelerator's settings fit a Loader.

    Raises:
        UnsupportedError: a setting or the way of distributing the model is not supported.
        ConfigurationError: the Loader's ranks differ, or the sizes of the last batches do.
    """
    check_engine(accelerator)
    check_settings(accelerator)
    seed = accelerator.dataloader_config.data_seed
    if seed is not None:
        raise UnsupportedError(
            f"the Accelerator has data_seed={seed}, but a Loader's order depends only on the seed of wrap().\n"
            f"  data_seed:   {seed}\n  loader.seed: {loader.seed}\n"
            "data_seed would have no effect. Remove it, and use wrap(..., seed=...)."
        )
    check_world(accelerator, loader)
    if accelerator.num_processes > 1:
        _check_even(accelerator, loader)


def check_settings(accelerator: Any) -> None:
    """Check that the accelerator does not divide batches, because the Loader already does.

    Raises:
        UnsupportedError: `split_batches` or `dispatch_batches` is set.
    """
    for name, why in _SETTINGS.items():
        if getattr(accelerator, name):
            raise UnsupportedError(
                f"the Accelerator has {name}=True: {why}.\nThe batches would be divided twice. Remove the setting from "
                "DataLoaderConfiguration()."
            )


def check_engine(accelerator: Any) -> None:
    """Check that exact resumes were tested for this way of distributing the model.

    Raises:
        UnsupportedError: they were not.
    """
    name = accelerator.distributed_type.name
    if name not in _TRIED:
        raise UnsupportedError(
            f"the Accelerator distributes the model with {name}, which has not been tested for exact resumes.\n"
            "The weights in a checkpoint might not match its position. Use a single process or DDP."
        )
    parallel = accelerator.parallelism_config
    if parallel is not None and parallel.non_data_parallel_size > 1:
        raise UnsupportedError(
            f"the Accelerator splits the model over {parallel.non_data_parallel_size} processes, which has not been "
            "tested for exact resumes.\nProcesses that need the same batch would get different ones. Use only data "
            "parallelism."
        )


def check_world(accelerator: Any, loader: Loader) -> None:
    """Check that the Loader and the accelerator have the same rank and world size.

    Raises:
        ConfigurationError: they differ.
    """
    world, rank, size = loader.progress.world, accelerator.process_index, accelerator.num_processes
    if (world.rank, world.size) != (rank, size):
        raise ConfigurationError(
            "the Loader and the Accelerator disagree about the ranks.\n"
            f"  the Loader:      rank {world.rank} of {world.size}\n  the Accelerator: rank {rank} of {size}\n"
            "Some samples would be trained on by several ranks, or by none. Remove world= from wrap()."
        )


def _check_even(accelerator: Any, loader: Loader) -> None:
    size, progress = accelerator.num_processes, loader.progress
    last, whole = progress.smallest(), loader.global_batch_size
    uneven = whole if whole % size else last
    if accelerator.even_batches and uneven is not None and uneven % size:
        raise ConfigurationError(
            f"a batch of this Loader has {uneven} samples, which {size} ranks cannot share evenly, and the Accelerator "
            "has even_batches=True (the default).\nWith batches of different sizes, gather() would wait forever. Use "
            'wrap(..., tail="pad_ranks") to pad such batches, tail="drop_ranks" or "drop" to drop samples, or '
            "DataLoaderConfiguration(even_batches=False) to allow different sizes."
        )
    if loader.evaluation and progress.strided and progress.last_padding() > 1:
        raise UnsupportedError(
            f"the last batch of this Loader is padded with {progress.last_padding()} samples, which its "
            "DistributedSampler spreads over as many ranks.\ngather_for_metrics() removes padding only at the end, so "
            "padding would enter the metrics. Remove the DistributedSampler from the DataLoader, and use "
            'wrap(..., tail="pad_ranks").'
        )
