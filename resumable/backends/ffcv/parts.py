"""Runs consecutive steps on parts of a batch, with one thread per worker of the Loader.

FFCV runs one operation after another on the whole batch, each in parallel. Here, a thread takes a few samples through
all operations while they are in the processor's cache, and then the next few. Code without parallel loops compiles in
half the time, and is the same for any number of workers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from ffcv.fields.bytes import BytesDecoder
from ffcv.pipeline.graph import DecoderNode, RefNode
from ffcv.transforms import LabelMixup
from numba import prange

from resumable._randomness.keyed import derive
from resumable.backends.ffcv.compiling import compile_function
from resumable.backends.ffcv.keyed import (
    draws_few,
    is_ffcvs,
    mixed,
    per_batch,
    per_batch_decoder,
    per_sample,
    per_sample_decoder,
    seed_generator,
)
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ffcv.pipeline.graph import Graph
    from ffcv.pipeline.operation import Operation
    from ffcv.transforms import ImageMixup

    from resumable.backends.ffcv.keyed import Mode


__all__ = ["Place", "Segment", "Step", "Team", "make_step", "mixup", "places", "result_of"]


_PARTS_PER_THREAD = 4
_PART = 4  # minimum number of samples
_SALT = np.uint64(0x6D69787570000001)  # the same for images and labels


class Segment:
    """Steps that can run on parts of a batch; each takes the result of a step in this segment or before it.

    The first samples show whether a step returns its input or its memory.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self._keeps_input: dict[int, bool] = {}

    def run(
        self,
        team: Team,
        count: int,
        results: dict[int, Any],
        memory: dict[int, Any],
        arguments: Callable[[Step, slice], Sequence[Any]],
    ) -> None:
        """Run the steps.

        Args:
            team: threads.
            count: number of samples.
            results: of the earlier steps; the results of these steps are added.
            memory: arrays for each step.
            arguments: returns the arguments of a step for a part of the batch.
        """
        first = 0
        if len(self._keeps_input) < len(self.steps):
            first = 1
            for step in self.steps:
                given = arguments(step, slice(0, 1))
                self._keeps_input[step.node] = _keeps_input(step, given, step.call(*given))
                self._note(step, results, memory)
        else:
            for step in self.steps:
                self._note(step, results, memory)

        def work(part: slice) -> None:
            part = slice(part.start + first, part.stop + first)
            for step in self.steps:
                step.call(*arguments(step, part))

        if count > first:
            team.run(work, count - first)

    def _note(self, step: Step, results: dict[int, Any], memory: dict[int, Any]) -> None:
        lent = memory[step.node]
        returned = lent[0] if isinstance(lent, tuple) else lent
        results[step.node] = results[_source(step)] if self._keeps_input[step.node] else returned


def _keeps_input(step: Step, given: Sequence[Any], result: Any) -> bool:
    source, lent = given[:2]
    for keeps, candidate in ((True, source), (False, lent[0] if isinstance(lent, tuple) else lent)):
        if candidate is not None and _is_row_of(result, candidate) and not (keeps and step.source is None):
            return keeps
    raise UnsupportedError(
        f"the operation {step.name} returns neither its input nor its memory, so its results for single samples would "
        f'be lost.\nPass keyed={{{step.name}: "batch"}} to source(), or let the operation write to one of the two and '
        "return that."
    )


def _source(step: Step) -> int:
    assert step.source is not None
    return step.source


def _is_row_of(result: Any, candidate: Any) -> bool:
    if not hasattr(result, "__array_interface__"):
        return False
    same_memory = result.__array_interface__["data"][0] == candidate.__array_interface__["data"][0]
    return bool(same_memory and result.shape == candidate.shape and result.dtype == candidate.dtype)


class Team:
    """Threads that work on parts of a batch: the calling thread, and `workers - 1` others.

    Args:
        workers: number of threads.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._others = ThreadPoolExecutor(workers - 1, "resumable-ffcv-part") if workers > 1 else None

    def run(self, work: Callable[[slice], None], count: int) -> None:
        """Call a function for parts of `0..count-1`, in any order."""
        if self._others is None:
            work(slice(0, count))
            return
        size = max(_PART, -(-count // (_PARTS_PER_THREAD * self._workers)))
        parts = iter([slice(start, min(start + size, count)) for start in range(0, count, size)])
        others = [self._others.submit(_work_off, work, parts) for _ in range(self._workers - 1)]
        try:
            _work_off(work, parts)
        finally:
            for other in others:
                other.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads."""
        if self._others is not None:
            self._others.shutdown()


def _work_off(work: Callable[[slice], None], parts: Iterator[slice]) -> None:
    for part in parts:
        work(part)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Args:
        name: of the operation.
        node: number of its node in FFCV's graph.
        source: number of the node whose result it takes; None for a decoder.
        field: name of a decoder's metadata.
        mode: see `plan_for`.
        call: the function.
        indices: whether the function takes the sample indices.
        divides: whether several threads can run it on parts of a batch.
        clears: whether it leaves part of its memory unwritten, as a decoder of bytes of any length does.
    """

    name: str
    node: int
    source: int | None
    field: str
    mode: Mode
    call: Callable[..., Any]
    indices: bool
    divides: bool
    clears: bool


class Place(NamedTuple):
    """The position of an operation: its node, and a number derived from its pipeline's name and position there."""

    node: Any
    operation: Operation
    salt: int


def places(graph: Graph) -> Iterator[Place]:
    """Yield the nodes of a graph, each after the node whose result it takes."""
    waiting, done = list(_in_pipelines(graph)), set[int]()
    while waiting:
        ready = [place for place in waiting if place.node.parent is None or result_of(place.node.parent) in done]
        waiting = [place for place in waiting if place not in ready]
        done.update(place.node.id for place in ready)
        yield from ready


def _in_pipelines(graph: Graph) -> Iterator[Place]:
    nodes = iter(graph.nodes)
    for name, spec in graph.pipeline_specs.items():
        for number, node in enumerate(islice(nodes, 1 + len(spec.transforms))):
            if not isinstance(node, RefNode):
                operation = node.decoder if isinstance(node, DecoderNode) else node.operation
                yield Place(node, operation, int(derive(name, number, words=1, purpose=b"ffcv")[0]))


def result_of(node: Any) -> int:
    """Return the number of the node that computes a node's result."""
    return result_of(node.parent) if isinstance(node, RefNode) else int(node.id)


def make_step(place: Place, function: Any, mode: Mode, query: Any, *, workers: int) -> Step:
    """Compile an operation, with the seeding of its mode."""
    node, operation = place.node, place.operation
    decodes = isinstance(node, DecoderNode)
    divides = node.is_jitted and (mode == "sample" or (mode == "plain" and is_ffcvs(operation)))
    buffers = len(query) if isinstance(query, (tuple, list)) else int(query is not None)
    parallel = workers > 1 and getattr(function, "is_parallel", False) and not divides
    make = _decoder if decodes else _transform
    return Step(
        name=type(operation).__qualname__,
        node=int(node.id),
        source=None if decodes else result_of(node.parent),
        field=f"f{node.f_ix}" if decodes else "",
        mode=mode,
        call=make(place, function, mode, buffers, parallel=parallel),
        indices=not decodes and (mode in {"sample", "batch", "mixup"} or getattr(function, "with_indices", False)),
        divides=divides,
        clears=isinstance(operation, BytesDecoder),
    )


def _decoder(place: Place, function: Any, mode: Mode, buffers: int, *, parallel: bool) -> Any:
    if mode == "sample":
        return per_sample_decoder(function, buffers, place.salt, few=draws_few(place.operation))
    return per_batch_decoder(function, place.salt) if mode == "batch" else compile_function(function, parallel=parallel)


def _transform(place: Place, function: Any, mode: Mode, buffers: int, *, parallel: bool) -> Any:
    if mode == "sample":
        return per_sample(function, buffers, place.salt, few=draws_few(place.operation))
    if mode == "batch":
        return per_batch(function, place.salt)
    if mode == "mixup":
        return mixup(place.operation, parallel=parallel)
    return compile_function(function, parallel=parallel) if place.node.is_jitted else function


def mixup(operation: ImageMixup | LabelMixup, *, parallel: bool) -> Any:
    """Return a function of `(input, memory, batch key, indices)` that does the same as a mixup operation.

    The batch's key determines its proportions, which are the same for images and labels.

    FFCV itself seeds the generator with the last index of the batch. So if the same sample comes last, the proportions
    are the same in every epoch and with every seed. It also generates them in a parallel loop, and each thread has its
    own generator, so with several workers, images and labels get different proportions.
    """
    proportions = compile_function(_proportions(operation))

    def of_images(images: Any, memory: Any, key: Any, indices: Any) -> Any:  # noqa: ARG001  # the signature of a batch
        shares = proportions(key, len(images))
        for i in prange(len(images)):
            memory[i] = shares[i] * images[i] + (1 - shares[i]) * images[i - 1]
        return memory

    def of_labels(labels: Any, memory: Any, key: Any, indices: Any) -> Any:  # noqa: ARG001  # the signature of a batch
        shares = proportions(key, len(labels))
        for i in range(len(labels)):
            memory[i, 0] = labels[i][0]
            memory[i, 1] = labels[i - 1][0]
            memory[i, 2] = shares[i]
        return memory

    if isinstance(operation, LabelMixup):
        return compile_function(of_labels)
    return compile_function(of_images, parallel=parallel)


def _proportions(operation: ImageMixup | LabelMixup) -> Any:
    alpha, same, salt = float(operation.alpha), bool(operation.same_lambda), _SALT

    def proportions(key: Any, count: Any) -> Any:
        seed_generator(mixed(key, salt))
        shares = np.empty(count)
        if same:
            shares[:] = np.random.beta(alpha, alpha)  # noqa: NPY002  # the generator of compiled code
        else:
            for i in range(count):
                shares[i] = np.random.beta(alpha, alpha)  # noqa: NPY002  # the same
        return shares

    return proportions
