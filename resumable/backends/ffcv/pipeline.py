"""The operations of a Loader as steps, compiled and keyed. FFCV's own objects are left as they are."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from ffcv.pipeline.compiler import Compiler

from resumable._randomness.keyed import Words, derive, random_u64
from resumable._randomness.keys import states
from resumable.backends.ffcv.memory import make_memory
from resumable.backends.ffcv.operations import Plan, draws, plan_for
from resumable.backends.ffcv.parts import Segment, Team
from resumable.backends.ffcv.steps import Place, Step, make_step, places, result_of
from resumable.backends.ffcv.warn import warn_of_batch
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ffcv.loader import Loader

    from resumable.backends.ffcv.operations import Mode
    from resumable.protocols import Request

_ALL = slice(None)
_DRAWS_LATE = (
    "{} is compiled and draws random numbers, and is to run where the batch is delivered.\nNo key reaches compiled "
    'code there, so a resumed run would get other augmentations. Do not say that it is "late"; or give '
    'wrap(..., randomness="off") for the exact order alone.'
)

__all__ = ["Job", "Pipeline", "Planned"]


@dataclass(frozen=True, slots=True)
class Planned:
    """An operation, the code that it generates, and what is done about its randomness."""

    place: Place
    function: Any
    plan: Plan


@dataclass(slots=True)
class Job:
    """A batch in the making: its request, and the results of the steps so far."""

    request: Request
    indices: Any
    keys: Words
    storage: Any
    results: dict[int, Any]


class Pipeline:
    """Turns requests into batches.

    Args:
        loader: FFCV's.
        told: modes of operations by their type, from the user; None to leave all randomness to FFCV.

    Attributes:
        watched: names of late operations, by their nodes, of which is told once that they draw random numbers.
    """

    def __init__(self, loader: Loader, told: Mapping[type, Mode] | None) -> None:
        self._loader, self._told = loader, told
        self.watched: dict[int, str] = {}
        self._outputs = [result_of(node) for node in loader.graph.leaf_nodes.values()]
        self._generate()

    def _generate(self) -> None:
        Compiler.set_num_threads(self._loader.num_workers)  # the code is generated for as many; FFCV does so, too
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
                    f"the operation {type(operation).__qualname__} keeps memory that it shares between pipelines.\n"
                    "What is in it when a run is resumed could be anything. Use an operation without it."
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
        """Whether something is left to do where a batch is delivered."""
        return bool(self._late)

    def begin_epoch(self, **options: Any) -> dict[int, Any]:
        """Return the memory of all steps, by node; the operations are asked again, as image sizes may have changed."""
        if self._loader.recompile:
            self._generate()
        queries, _ = _requirements(self._loader)
        return {node: make_memory(query, **options) for node, query in queries["operation"].items()}

    def make(self, request: Request, storage: Any, memory: dict[int, Any], team: Team) -> Job:
        """Do the early steps of a batch."""
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
        """Do the late steps of a batch."""
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
        """Return what a step is called with for a part of the batch."""
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


def _requirements(loader: Loader) -> tuple[Any, Any]:
    """Ask the operations what memory they need, and for their code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of torch modules; FFCV has said it when the Loader was made
        queries, code = loader.graph.collect_requirements()
    return queries, code


def _segments(steps: list[Step]) -> Iterator[Segment | Step]:
    """Order the steps: as many as can be given parts of a batch together, then those that take all of it, and so on."""
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
    """Derive keys of the samples from that of the batch, for randomness="batch"."""
    return random_u64(derive(request.batch_key, words=2, purpose=b"ffcv"), np.arange(request.size))
