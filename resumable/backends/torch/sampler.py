"""ResumableSampler: the order alone, for a stock PyTorch `DataLoader`, with a state that can be saved."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import DistributedSampler

from resumable._fetch.indexed import SamplerResolution, by_epoch
from resumable._introspection import ask, has, qualname_of, shorten
from resumable._options import check_count
from resumable._order.cursor import Cursor
from resumable._order.plan import Schedule, share
from resumable._order.world import World, find
from resumable._requirements import check_version
from resumable._state import check_fields, check_same, damaged, newer
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError
from resumable.loader.registry import refuse_hidden_epochs, refuse_hidden_order
from resumable.loader.startup_checks import warn_of_environment
from resumable.samplers import Sequential, Shuffle
from resumable.samplers.base import check_length
from resumable.samplers.simple import check_data_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sized

    from resumable._randomness.keyed import IntArray
    from resumable.samplers import Sampler


__all__ = ["FORMAT", "ResumableSampler", "parse"]


FORMAT = 1
_BLOCK = 4096  # positions per chunk
_LARGEST = 1 << 30  # more than any run has
_WAYS_OUT = "num_replicas=1 and rank=0 to read everything, or the detected values if the variables are correct."


class ResumableSampler(DistributedSampler[int]):
    """Yields sample indices for a stock `DataLoader`, like `DistributedSampler`, and can be saved and resumed.

        sampler = ResumableSampler(dataset, batch_size=64, seed=0)
        loader = DataLoader(dataset, batch_size=64, sampler=sampler)
        for epoch in range(sampler.epoch, 10):
            sampler.set_epoch(epoch)
            for done, batch in enumerate(loader, start=1):
                ...
                saved = sampler.state_dict(batches_done=done)

    The order is the same as with `resumable.wrap`: computed from the number of samples, the seed and the epoch, in O(1)
    memory. Each epoch is split into global batches of `batch_size * num_replicas` positions, and each rank gets a
    contiguous part of each.

    **Counting.** A sampler only sees which indices are *requested*, not which are trained on. With
    `num_workers > 0`, the `DataLoader` requests up to `num_workers * prefetch_factor` batches ahead. A plain
    `state_dict()` counts those as done, so they would be lost on resume. Pass the number of batches trained on,
    `state_dict(batches_done=...)`, or wrap the `DataLoader` with `resumable.wrap`, which counts them for you.

    **Passes.** Each `iter()` is one pass, which starts at its first `next()`. The first pass after `load_state_dict`
    yields the rest of the epoch. A pass that was abandoned (`break`) is repeated from its start. After a complete pass,
    the next one yields the next epoch in full; unlike `DistributedSampler`, this needs no `set_epoch`.

    Args:
        dataset_or_length: the dataset, or its number of samples.
        num_replicas: number of ranks; by default, detected with `World.detect()`.
        rank: number of this process; by default, detected with `World.detect()`.
        shuffle: use a new order in every epoch; otherwise, the order of the dataset.
        seed: determines the order, together with the epoch.
        drop_last: drop the positions at the end of an epoch that do not fill a global batch. Otherwise, the last global
            batch is filled up with samples from the start of the epoch, so each rank gets the same number.
        batch_size: the batch size of the `DataLoader`. With it, a state can be loaded on a different number of ranks,
            and the global batches stay the same as long as `batch_size * num_replicas` does.
        sampler: a sampler from `resumable.samplers` to use instead of `shuffle` and `seed`.

    Raises:
        ConfigurationError: the options cannot work, such as a rank without a number of ranks, or `drop_last` with a
            global batch larger than the data. Also if the dataset carries its own order, as a mixture does, or contains
            a dataset that does.

    Attributes:
        epoch: the epoch of the current pass; after a load, the epoch at which the resumed loop must start.
        given: the sampler from `resumable.samplers` that determines the order.
        detected: whether rank and number of ranks were detected rather than passed.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # same as DistributedSampler
        self,
        dataset_or_length: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        batch_size: int = 1,
        sampler: Sampler | None = None,
    ) -> None:
        check_version("torch")
        dataset: Any = dataset_or_length if has(dataset_or_length, "__len__") else None
        length = check_length(dataset_or_length if dataset is None else len(dataset), "the length of the data")
        self._world, self.detected = _find_world(num_replicas, rank), num_replicas is None and rank is None
        super().__init__(
            range(length) if dataset is None else dataset,  # type: ignore[arg-type]  # only its length is used
            self._world.size,
            self._world.rank,
            shuffle,
            seed,
            drop_last,
        )
        refuse_hidden_epochs(dataset, "the dataset of this ResumableSampler")
        if dataset is not None and sampler is None:
            _refuse_carried_order(dataset)
        self.given = _choose_order(length, shuffle, seed, sampler)
        self._per_rank = check_count("batch_size", batch_size, "It counts samples per rank and step.")
        global_batch = self._per_rank * self._world.size
        self._resolution = SamplerResolution(by_epoch(self.given, dataset), partial(int, global_batch))
        self._fit(global_batch)
        self._pass = _Pass(Cursor())
        if sampler is not None and ask(type(dataset), "resumable_order") is not None:
            dataset.is_ordered = True

    def _fit(self, global_batch: int) -> None:
        """Divide the order, whose length may depend on the global batch, into steps."""
        self._schedule = Schedule(self.order.length, global_batch, "drop" if self.drop_last else "pad")
        self.num_samples = self._schedule.total(Cursor()) * self._per_rank
        self.total_size = self.num_samples * self._world.size

    @property
    def order(self) -> Sampler:
        """The sampler from `resumable.samplers` that determines the order, fitted to the batch size."""
        return self._resolution.sampler

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's sample indices: the whole epoch, or the rest of it after a load."""
        current = self._begin()
        for index in islice(self._indices(current.start), current.within, None):
            current.requested += 1
            yield index

    def __len__(self) -> int:
        """Return the number of this rank's indices per epoch, including those already done; the same on every rank."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. Setting the current epoch keeps a loaded position.

        If a state was saved after the last index of an epoch, nothing of that epoch is left, and setting it again makes
        the pass empty. Start the loop at `sampler.epoch`, which is then the next epoch.

        Args:
            epoch: counted from 0.

        Raises:
            ConfigurationError: the epoch is negative.
        """
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ConfigurationError(
                f"set_epoch({epoch}) was called, but epochs are counted from 0.\nStart with set_epoch(0)."
            )
        if epoch != self._pass.start.epoch or (self._pass.begun and self._is_over(self._pass)):
            self._pass = _Pass(Cursor(epoch))
        self._pass.chosen = True
        self.epoch = epoch

    def state_dict(self, batches_done: int | None = None) -> dict[str, Any]:
        """Return the position in the order, as new plain values that are the same on all ranks.

        Args:
            batches_done: how many batches of the current pass were trained on. By default, every requested batch
                counts, which is too many if a `DataLoader` with workers reads ahead.

        Raises:
            ConfigurationError: fewer batches were requested in this pass.
        """
        cursor, within = self._place(self._pass, self._requested(batches_done))
        return {
            "format": FORMAT,
            "sampler": {**self.order.spec(), "drop_last": self.drop_last},
            "cursor": cursor.as_dict(),
            "within_batch": within,
            "batch_size": self._per_rank,
            "world_size": self._world.size,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Continue from a saved position: the next pass yields the rest of its epoch.

        If the global batch size differs from the state's, the order stays the same and only the boundaries between
        batches move.

        Args:
            state_dict: what `state_dict()` returned; not modified.
            strict: raise an error if the length, seed, order or `drop_last` differ. With `strict=False`, differences
                only cause a warning, and the sampler continues at the saved position.

        Raises:
            StateFormatError: it is not a state of a `ResumableSampler`, or it is damaged.
            StateMismatchError: the state belongs to a different sampler; the message shows the field, both values and
                how to fix it.

        If an error is raised, the sampler is unchanged.
        """
        state = parse(state_dict)
        own = facts_of({**self._resolution.like(state).spec(), "drop_last": self.drop_last})
        check_same(state.fingerprint, own, strict=strict)
        self._check_within(state)
        self._resolution.adopt(state)
        self._fit(self._schedule.global_batch)
        self._pass = _Pass(state.cursor, state.within)
        self.epoch = state.cursor.epoch + self._schedule.finished(state.cursor)

    def __repr__(self) -> str:
        return (
            f"ResumableSampler({self.order!r}, num_replicas={self._world.size}, rank={self._world.rank}, "
            f"batch_size={self._per_rank}, drop_last={self.drop_last})"
        )

    def _begin(self) -> _Pass:
        self._check_world()
        self._resolution.open(self._schedule.global_batch)
        current = self._pass
        if current.begun and not self._is_over(current):
            current = _Pass(current.start, current.within)
        elif current.begun or (not current.chosen and self._is_over(current)):
            current = _Pass(self._schedule.following(current.start))
        current.begun = True
        self._pass, self.epoch = current, current.start.epoch
        return current

    def _indices(self, start: Cursor) -> Iterator[int]:
        """Yield this rank's part of every global batch from `start` to the end of the epoch."""
        size = self._schedule.global_batch
        left = self._schedule.total(start) - start.step
        at_once = max(1, _BLOCK // size)
        runs = (
            self._run(start.epoch, start.position + first * size, min(at_once, left - first))
            for first in range(0, left, at_once)
        )
        return chain.from_iterable(run.tolist() for run in runs)

    def _run(self, epoch: int, position: int, batches: int) -> IntArray:
        """Compute this rank's part of consecutive global batches; shape `(batches * batch_size,)`."""
        size = self._schedule.global_batch
        first, last = share(0, size, self._world)
        if batches == 1:
            return self._select(epoch, position + first, position + last)
        rows = self._select(epoch, position, position + batches * size).reshape(batches, size)
        return rows[:, first:last].ravel()

    def _select(self, epoch: int, start: int, stop: int) -> IntArray:
        pieces = self._schedule.segments(epoch, start, stop)
        return np.concatenate([self.order.indices(piece.epoch, piece.start, piece.stop) for piece in pieces])

    def _place(self, current: _Pass, requested: int) -> tuple[Cursor, int]:
        """Return the position after a number of this rank's indices: the cursor, and the indices after it."""
        batches, within = divmod(current.within + requested, self._per_rank)
        start = current.start
        position = start.position + batches * self._schedule.global_batch
        return Cursor(start.epoch, position, start.step + batches), within

    def _is_over(self, current: _Pass) -> bool:
        return self._schedule.finished(self._place(current, current.requested)[0])

    def _requested(self, batches_done: int | None) -> int:
        if batches_done is None:
            return self._pass.requested
        indices = operator.index(batches_done) * self._per_rank
        if not 0 <= indices <= self._pass.requested:
            raise ConfigurationError(
                f"state_dict(batches_done={batches_done}) was called, but this pass has requested "
                f"{self._pass.requested} indices, which is {self._pass.requested // self._per_rank} batches of "
                f"{self._per_rank}.\n"
                "The state would be ahead of the data. Count batches from 0 in each pass, even after a load, and pass "
                "the DataLoader's batch_size to the sampler."
            )
        return indices

    def _check_world(self) -> None:
        """Raise an error if the ranks were detected before the process group was initialised."""
        now = World.detect() if self.detected else self._world
        if now != self._world:
            raise ConfigurationError(
                "the process group was initialised after the sampler was created: the sampler is for rank "
                f"{self._world.rank} of {self._world.size}, but this process is now rank {now.rank} of {now.size}.\n"
                "Ranks would read the same samples. Create the sampler after init_process_group()."
            )
        if self.detected:
            warn_of_environment(find(), "this sampler", _WAYS_OUT)

    def _check_within(self, state: SamplerState) -> None:
        stored, own = (state.batch_size, state.world_size), (self._per_rank, self._world.size)
        if state.within and stored != own:
            raise StateMismatchError(
                f"the state was saved in the middle of a batch, after {state.within} of its indices, and the batch "
                "size has changed since. Samples would be lost or repeated.\n"
                f"  in the checkpoint: batch_size={stored[0]} on {stored[1]} ranks\n"
                f"  in this run:       batch_size={own[0]} on {own[1]} ranks\n"
                "Use the checkpoint's values, or pass the DataLoader's batch_size to the sampler and save between "
                "batches."
            )


@dataclass(slots=True)
class _Pass:
    """One pass through an epoch, or through the rest of one.

    Args:
        start: its first position.
        within: this rank's indices after `start` that were already delivered.
        requested: indices that were requested in this pass.
        begun: whether the pass has started.
        chosen: whether `set_epoch` set its epoch.
    """

    start: Cursor
    within: int = 0
    requested: int = 0
    begun: bool = False
    chosen: bool = False


def _find_world(size: int | None, rank: int | None) -> World:
    if size is not None and rank is not None:
        return World(rank, size)
    found = find()
    if size not in {None, found.size} or rank not in {None, found.rank}:
        raise ConfigurationError(
            f"num_replicas={size} and rank={rank} were passed, but this process is rank {found.rank} of "
            f"{found.size} ({found.by}).\n"
            "Ranks would read the same samples, or some samples would be skipped. Pass both, or neither."
        )
    return found.world


def _refuse_carried_order(dataset: Any) -> None:
    if ask(type(dataset), "resumable_order") is not None:
        raise ConfigurationError(
            f"a ResumableSampler was created for a {qualname_of(type(dataset))}, which carries its own order.\n"
            "Its proportions would be lost. Use resumable.wrap(DataLoader(dataset, ...)) without shuffle and sampler: "
            "it keeps the proportions in each batch."
        )
    refuse_hidden_order(dataset, "the dataset of this ResumableSampler")


def _choose_order(length: int, shuffle: bool, seed: int, sampler: Sampler | None) -> Sampler:
    if sampler is None:
        return Shuffle(length, seed=seed) if shuffle else Sequential(length)
    if seed != 0 or not shuffle:
        raise ConfigurationError(
            f"sampler={sampler!r} was passed together with seed={seed!r} and shuffle={shuffle!r}.\n"
            "Seed and shuffle would be ignored, because the sampler determines the order. Pass the seed to the sampler."
        )
    check_data_length(sampler, length)
    return sampler


@dataclass(frozen=True, slots=True)
class SamplerState:
    """A parsed state. The values in `fingerprint` must be the same in both runs."""

    fingerprint: dict[str, Any]
    cursor: Cursor
    within: int
    batch_size: int
    world_size: int


def parse(values: Any) -> SamplerState:
    """Parse what `ResumableSampler.state_dict()` returned.

    Raises:
        StateFormatError: it is not such a state, or it is damaged.
    """
    version = values.get("format") if hasattr(values, "get") else None
    if type(version) is int and version > FORMAT and "within_batch" in values:
        raise newer(f"it is a ResumableSampler's, of format {shorten(version)}; this version reads only {FORMAT}")
    if type(version) is not int or version != FORMAT or "within_batch" not in values:
        raise StateFormatError(
            f"this is not a state of a ResumableSampler (format {FORMAT}): {shorten(values)}.\n"
            "Nothing was loaded. Pass what sampler.state_dict() returned. To load a Loader's state, use the Loader."
        )
    try:
        return _read(values)
    except StateFormatError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(values, error) from error


def _read(values: Mapping[str, Any]) -> SamplerState:
    numbers = {name: values[name] for name in ("within_batch", "batch_size", "world_size")}
    for name, number in numbers.items():
        least = 0 if name == "within_batch" else 1
        if type(number) is not int or not least <= number <= _LARGEST:
            raise ValueError(f"{name} must be an integer from {least} to {_LARGEST}, but it is {shorten(number)}")
    cursor = Cursor.from_dict(values["cursor"])
    spec = dict(values["sampler"])
    check_fields(values, ("format", "sampler", "cursor", *numbers))
    check_fields(values["cursor"], cursor.as_dict(), "its cursor")
    end = spec["length"] + numbers["batch_size"] * numbers["world_size"]
    if cursor.position > end or numbers["within_batch"] >= numbers["batch_size"]:
        raise ValueError(f"{cursor} and {numbers['within_batch']} indices are outside an epoch of {spec['length']}")
    return SamplerState(facts_of(spec), cursor, *numbers.values())


def facts_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a sampler's spec that must be the same in both runs."""
    return {f"sampler.{name}": value for name, value in spec.items()}
