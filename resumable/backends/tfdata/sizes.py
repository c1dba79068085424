"""What an explicit state of a pipeline would hold beyond a symbolic one, estimated from the graph.

Both hold the elements of shuffle buffers. An explicit state has what prefetches, parallel maps and parallel batches
hold, too: as many elements as fit, of the size that their shapes tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from resumable.backends.tfdata.graph import plain_name

if TYPE_CHECKING:
    from resumable.backends.tfdata.graph import Graph, Operation

__all__ = ["elements_per_step", "extra_bytes"]

_TUNED = 8  # elements that are assumed to be ahead where TensorFlow decides by itself
_AS_TEXT = 4 / 3  # a state is base64
_BATCHES = ("Batch", "PaddedBatch", "ParallelBatch")
_HELD = {"Prefetch": "buffer_size", "ParallelMap": "num_parallel_calls", "ParallelBatch": "num_parallel_calls"}


def extra_bytes(graph: Graph) -> int | None:
    """Return how many bytes an explicit state may have beyond a symbolic one; None where a size is unknown."""
    found = [_held(graph, one) for one in graph.datasets if not one.function]
    known = [size for size in found if size is not None]
    return int(sum(known) * _AS_TEXT) if len(known) == len(found) else None


def elements_per_step(graph: Graph) -> int:
    """Return how many elements are put together into one that is delivered."""
    return math.prod(_batch_size(graph, one) or 1 for one in graph.datasets if not one.function)


def _held(graph: Graph, operation: Operation) -> int | None:
    """Return the bytes that a dataset holds ahead of what it gave."""
    op = operation.node.op
    argument = next((_HELD[name] for name in _HELD if op.startswith(f"{name}Dataset")), None)
    if plain_name(op) == "Unbatch":
        return max((_element(graph, one) or 0 for one in graph.after(operation) if one.is_dataset), default=0) or None
    if argument is None:
        return 0
    count = graph.constant(operation, argument)
    size = _element(graph, operation)
    return None if size is None else size * (_TUNED if count is None or count < 0 else int(count))


def _element(graph: Graph, operation: Operation) -> int | None:
    """Return the bytes of an element; the number of rows of a batch that may be the last one is that of the others."""
    attributes = operation.node.attr
    shapes, types = attributes["output_shapes"].list.shape, attributes["output_types"].list.type
    rows = next((size for one in [operation, *graph.after(operation)] if (size := _batch_size(graph, one))), None)
    sizes = [_tensor(shape, kind, rows) for shape, kind in zip(shapes, types, strict=True)]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _tensor(shape: Any, kind: int, rows: int | None) -> int | None:
    dtype = tf.dtypes.as_dtype(kind)
    dims = [int(dim.size) for dim in shape.dim]
    if rows is not None and dims and dims[0] < 0:
        dims[0] = rows
    if shape.unknown_rank or min(dims, default=0) < 0 or dtype in {tf.string, tf.variant, tf.resource}:
        return None
    return math.prod(dims) * int(dtype.size)


def _batch_size(graph: Graph, operation: Operation) -> int | None:
    if not operation.is_dataset or plain_name(operation.node.op) not in _BATCHES:
        return None
    size = graph.constant(operation, "batch_size")
    return None if size is None else int(size)
