"""The operations of a Loader as steps, compiled and keyed. FFCV's own objects are not modified."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler

from resumable._randomness.keyed import Words, derive, random_u64
from resumable._randomness.keys import states
from resumable.backends.ffcv.identity import warn_of_batch
from resumable.backends.ffcv.keyed import Plan, draws, plan_for
from resumable.backends.ffcv.parts import Place, Segment, Step, Team, make_step, places, result_of
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ffcv.loader import Loader

    from resumable.backends.ffcv.keyed import Mode
    from resumable.protocols import Request


__all__ = ["Job", "Memory", "Pipeline", "Planned"]


_ALL = slice(None)
_DRAWS_LATE = (
    "{} is compiled and uses random numbers, but runs where the batch is delivered.\nCompiled code cannot be seeded "
    'there, so a resumed run would get different augmentations. Do not declare it as "late"; or pass '
    'wrap(..., randomness="off") to reproduce only the order.'
)
_ALIGNMENT = 64


class Pipeline:
    """Turns requests into batches.

    Args:
        loader: FFCV's.
        told: from type of operation to mode, as the user passed it; None to leave all randomness to FFCV.

    Attributes:
        watched: names of late operations, by node; a warning is shown when one of them first uses random numbers.
    """

    def __init__(self, loader: Loader, told: Mapping[type, Mode] | None) -> None:
        self._loader, self._told = loader, told
        self.watched: dict[int, str] = {}
        self._outputs = [result_of(node) for node in loader.graph.leaf_nodes.values()]
        self._generate()

    def _generate(self) -> None:
        Compiler.set_num_threads(self._loader.num_workers)  # the generated code depends on it; FFCV does the same
        queries, code = _requirements(self._loader)
        self.planned = self._plan(code)
        workers = self._loader.num_workers
        steps = [
            make_step(
                each.place, each.function, each.plan.mode, queries["operation"][each.place.node.id],
                workers=workers,
            )
            for each in self.planned
        ]  # fmt: skip
        self._early = list(_segments([step for step in steps if step.mode != "late"]))
        self._late = [step for step in steps if step.mode == "late"]

    def _plan(self, code: Any) -> list[Planned]:
        planned: list[Planned] = []
        late: set[int] = set()
        for place in places(self._loader.graph):
            node, operation = place.node, place.operation
            if code["shared"][node.id] is not None:
                raise UnsupportedError(
                    f"the operation {type(operation).__qualname__} uses memory that is shared between pipelines.\n"
                    "Its content would be undefined after a resume. Use an operation without shared memory."
                )
            function, plan = code["operation"][node.id], Plan("plain")
            if self._told is not None:
                plan = plan_for(node, operation, function, self._told)
            if node.parent is not None and result_of(node.parent) in late:
                plan = plan._replace(mode="late")
            if self._told is not None and plan.mode == "late" and node.is_jitted and draws(function):
                raise UnsupportedError(_DRAWS_LATE.format(type(operation).__qualname__))
            if plan.mode == "late":
                late.add(node.id)
            planned.append(Planned(place, function, plan))
        return planned

    @property
    def has_late_steps(self) -> bool:
        """Whether steps are left to run where a batch is delivered."""
        return bool(self._late)

    def begin_epoch(self, **options: Any) -> dict[int, Any]:
        """Return the memory of all steps, by node. The operations are asked again, as image sizes may have changed."""
        if self._loader.recompile:
            self._generate()
        queries, _ = _requirements(self._loader)
        return {node: make_memory(query, **options) for node, query in queries["operation"].items()}

    def make(self, request: Request, storage: Any, memory: dict[int, Any], team: Team) -> Job:
        """Run the early steps of a batch."""
        keys = request.keys
        keys = np.array(keys) if len(keys) else _keys_of_batch(request)
        job = Job(request, np.array(request.indices, np.uint64), keys, storage, {})
        count = len(job.indices)
        for unit in self._early:
            if isinstance(unit, Step):
                self._run(unit, job, memory)
                continue
            lent = {step.node: _lend(memory[step.node], count, clear=step.clears) for step in unit.steps}
            unit.run(team, count, job.results, lent, partial(self._arguments, job, lent))
        return job

    def finish(self, job: Job, memory: dict[int, Any]) -> None:
        """Run the late steps of a batch."""
        for step in self._late:
            name = self.watched.get(step.node)
            before = None if name is None else states()
            self._run(step, job, memory)
            if name is not None and states() != before:
                warn_of_batch(name, "late")
                del self.watched[step.node]

    def outputs(self, job: Job) -> tuple[Any, ...]:
        """Return the batch as FFCV does: one part for each field."""
        return tuple(job.results[number] for number in self._outputs)

    def _run(self, step: Step, job: Job, memory: dict[int, Any]) -> None:
        lent = {step.node: _lend(memory[step.node], len(job.indices), clear=step.clears)}
        job.results[step.node] = step.call(*self._arguments(job, lent, step))

    def _arguments(self, job: Job, lent: dict[int, Any], step: Step, part: slice = _ALL) -> list[Any]:
        """Return the arguments of a step for a part of the batch."""
        source = job.indices if step.source is None else job.results[step.source]
        memory = lent[step.node]
        if part is not _ALL:
            source = source[part]
            memory = _part_of(memory, part)
        arguments = [source, memory]
        if step.mode == "sample":
            arguments.append(job.keys[part])
        elif step.mode in {"batch", "mixup"}:
            arguments.append(np.uint64(job.request.batch_key))
        if step.indices:
            arguments.append(job.indices[part])
        if step.source is None:
            arguments += [self._loader.reader.metadata[step.field], job.storage]
        return arguments


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation, its generated code, and how its randomness is handled."""

    place: Place
    function: Any
    plan: Plan


@dataclass(slots=True)
class Job:
    """A batch that is being made: its request, and the results of the steps so far."""

    request: Request
    indices: Any
    keys: Words
    storage: Any
    results: dict[int, Any]


def _requirements(loader: Loader) -> tuple[Any, Any]:
    """Return the memory that the operations need, and their code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # about PyTorch modules; shown when the Loader was made
        queries, code = loader.graph.collect_requirements()
    return queries, code


def _segments(steps: list[Step]) -> Iterator[Segment | Step]:
    """Order the steps: those that can run together on parts of a batch, then those that need all of it, and so on."""
    waiting, done = list(steps), set[int]()
    while waiting:
        divisible: list[Step] = []
        for step in waiting:
            if step.divides and (step.source is None or step.source in done):
                divisible.append(step)
                done.add(step.node)
        if divisible:
            yield Segment(divisible)
        waiting = [step for step in waiting if step.node not in done]
        for step in waiting:
            if not step.divides and (step.source is None or step.source in done):
                yield step
                done.add(step.node)
        waiting = [step for step in waiting if step.node not in done]


def _part_of(memory: Any, part: slice) -> Any:
    if memory is None:
        return None
    return tuple(each[part] for each in memory) if isinstance(memory, tuple) else memory[part]


def _lend(memory: Any, count: int, *, clear: bool) -> Any:
    if memory is None:
        return None
    if isinstance(memory, list):
        return tuple(_lend(part, count, clear=clear) for part in memory)
    lent = memory.lend(count)
    if clear:
        lent[...] = 0
    return lent


def _keys_of_batch(request: Request) -> Words:
    """Derive the keys of the samples from the key of the batch, for randomness="batch"."""
    return random_u64(derive(request.batch_key, words=2, purpose=b"ffcv"), np.arange(request.size))


def make_memory(
    query: AllocationQuery | Sequence[AllocationQuery] | None, **options: Any
) -> list[Memory] | Memory | None:
    """Make the memory that an operation needs: one, several, or none."""
    if query is None:
        return None
    if isinstance(query, AllocationQuery):
        return Memory(query, **options)
    return [Memory(part, **options) for part in query]


class Memory:
    """Buffers of one shape, lent one after another.

    A buffer is reused only if nothing refers to it, so a batch never changes. (FFCV returns views of a ring of buffers,
    and overwrites each batch a few batches later.) Each buffer is lent through a separate object, to which every array
    and tensor over it refers. When that object is gone, the memory is unreachable. A loop that drops each batch needs
    no extra memory and no copies.

    Args:
        query: the memory that an operation needs per sample.
        samples: largest number of samples.
        keep: how many buffers to keep at most; more are made while more are in use.
        pinned: whether to pin them, for copies to a GPU.
    """

    def __init__(self, query: AllocationQuery, samples: int, keep: int, *, pinned: bool) -> None:
        self._shape, self._samples, self._keep, self._pinned = tuple(map(int, query.shape)), samples, keep, pinned
        self._dtype = query.dtype if isinstance(query.dtype, torch.dtype) else np.dtype(query.dtype)
        self._device = torch.device(query.device or "cpu") if isinstance(self._dtype, torch.dtype) else None
        self._bytes = samples * int(np.prod(self._shape, dtype=np.int64)) * self._dtype.itemsize
        self._buffers: list[tuple[Any, Callable[[], Any]]] = []

    def lend(self, count: int) -> Any:
        """Return an array or tensor of the shape `(count, *shape)` with undefined content."""
        if self._device is not None and self._device.type != "cpu":
            return torch.empty((count, *self._shape), dtype=self._dtype, device=self._device)
        lent = np.frombuffer(memoryview(self._free()), np.uint8)
        self._buffers[-1] = self._buffers[-1][0], weakref.ref(lent)
        if isinstance(self._dtype, torch.dtype):
            return torch.from_numpy(lent).view(self._dtype).view(self._samples, *self._shape)[:count]
        return lent.view(self._dtype).reshape(self._samples, *self._shape)[:count]

    def _free(self) -> Any:
        """Return a buffer that nothing refers to, and move it to the end of the list."""
        number = next((number for number, (_, lent) in enumerate(self._buffers) if lent() is None), None)
        if number is None:
            buffer = self._make()
            del self._buffers[: max(0, len(self._buffers) + 1 - self._keep)]  # those in use stay alive
        else:
            buffer = self._buffers.pop(number)[0]
        self._buffers.append((buffer, _no_lender))
        return buffer

    def _make(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if self._pinned:
            pinned: np.ndarray[Any, np.dtype[np.uint8]] = (
                torch.empty(self._bytes, dtype=torch.uint8).pin_memory().numpy()
            )
            return pinned
        whole = np.empty(self._bytes + _ALIGNMENT, np.uint8)
        offset = -whole.ctypes.data % _ALIGNMENT
        return whole[offset : offset + self._bytes]


def _no_lender() -> None:
    return None
