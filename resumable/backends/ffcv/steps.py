"""The steps of a pipeline: one for each operation, in an order in which each finds the results that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ffcv.fields.bytes import BytesDecoder
from ffcv.pipeline.graph import DecoderNode, RefNode

from resumable._randomness.keyed import derive
from resumable.backends.ffcv.compiling import compile_function
from resumable.backends.ffcv.keyed import per_batch, per_batch_decoder, per_sample, per_sample_decoder
from resumable.backends.ffcv.mixing import mixup
from resumable.backends.ffcv.operations import draws_few, is_ffcvs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ffcv.pipeline.graph import Graph
    from ffcv.pipeline.operation import Operation

    from resumable.backends.ffcv.operations import Mode

__all__ = ["Place", "Step", "make_step", "places", "result_of"]


class Place(NamedTuple):
    """Where an operation stands: its node, and a number made of its pipeline's name and its place in that."""

    node: Any
    operation: Operation
    salt: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operation.

    Args:
        name: of the operation.
        node: number of its node in FFCV's graph.
        source: number of the node whose result it takes; None for a decoder.
        field: name of a decoder's metadata.
        mode: see `operations`.
        call: the function.
        indices: whether the function takes the sample indices.
        divides: whether parts of a batch can be given to it one by one, and by several threads.
        clears: whether it leaves a part of its memory unwritten, as a decoder of bytes of any length does.
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


def places(graph: Graph) -> Iterator[Place]:
    """Yield the places of a graph, each after the one whose result it takes."""
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
    """Return the number of the node whose result a node stands for."""
    return result_of(node.parent) if isinstance(node, RefNode) else int(node.id)


def make_step(place: Place, function: Any, mode: Mode, query: Any, *, workers: int) -> Step:
    """Compile an operation, keyed as its mode says."""
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
