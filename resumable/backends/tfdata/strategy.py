"""How a pipeline is resumed: with one of TensorFlow's two native states, or by building it again and skipping.

symbolic   small: the progress of each dataset, and the elements in shuffle buffers; the rest is computed again.
           TensorFlow must record each element for it, even if no state is saved
explicit   large: every element in every buffer, in decoded form; costs nothing until it is saved
replay     a count; the pipeline is read again up to the saved position

If both native states work, "auto" estimates the cost of each per step, and uses the cheaper one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import tensorflow as tf

from resumable.backends.tfdata.graph import (
    plain_name,
    python_operations,
    repeats_shuffle,
    reshuffles,
    runs_generators,
    unknown_operations,
)
from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from resumable.backends.tfdata.graph import Graph, Operation


__all__ = ["Choice", "Plan", "check_choice", "plan"]


Choice = Literal["auto", "symbolic", "explicit", "replay"]
# The datasets with a symbolic state that was exact after every element in tests. A parallel interleave is not among
# them: at some positions, TensorFlow (2.21) restores it into a pipeline that waits for itself forever.
_SYMBOLIC = {
    *("AssertCardinality", "Batch", "Concatenate", "DirectedInterleave", "Filter", "FlatMap", "Interleave", "Map"),
    *("Model", "Options", "PaddedBatch", "ParallelBatch", "Prefetch", "Random", "Range", "Repeat", "Scan", "Shard"),
    *("Shuffle", "Skip", "TFRecord", "Take", "TakeWhile", "Tensor", "TensorSlice", "TextLine", "Unbatch", "Zip"),
}
# The other datasets with an explicit state that was exact after every element in tests, which try all that TensorFlow
# has. The rest is replayed: CSV loses rows, MatchingFiles
# repeats them, and some were never tried.
_EXPLICIT = {
    *("Cache", "DenseToSparseBatch", "ExperimentalGroupByReducer", "FixedLengthRecord", "GroupByWindow"),
    *("IgnoreErrors", "LegacyParallelInterleave", "Load", "MapAndBatch", "ParallelInterleave", "ParseExample"),
    *("Rebatch", "Sql", "Unique", "Window"),
}
# After these, a repeated shuffle kept its count in the symbolic state in tests, wherever the state was taken.
_KEEPING = {"Batch", "FlatMap", "Interleave", "Map", "Options", "Prefetch", "Range", "Repeat", "Shuffle"} | {
    *("Tensor", "TensorSlice")
}
_NOTING = 15e-6  # seconds per element for a symbolic state, even if none is saved; 6 to 60 µs were measured
_WRITING = 20e-3  # seconds per MB of a state, to take and encode it
_MOST = 16 * 2**20  # bytes; checkpoints must not become large for the sake of speed
_TUNED = 8  # elements assumed to be ahead if TensorFlow decides
_AS_TEXT = 4 / 3  # states are base64
_BATCHES = ("Batch", "PaddedBatch", "ParallelBatch")
_AHEAD_BY = {"Prefetch": "buffer_size", "ParallelMap": "num_parallel_calls", "ParallelBatch": "num_parallel_calls"}


def check_choice(choice: str) -> None:
    """Check the name of a strategy.

    Raises:
        ConfigurationError: it is unknown.
    """
    if choice not in get_args(Choice):
        raise ConfigurationError(
            f"strategy must be one of {', '.join(get_args(Choice))}, but it is {choice!r}.\n"
            'Remove it to use "auto", the cheapest strategy that works for the pipeline.'
        )


def plan(graph: Graph, choice: Choice, *, assume_pure: bool, every: int = 1000) -> Plan:
    """Choose how to resume a pipeline that `check_pipeline` has passed.

    Args:
        graph: of the pipeline.
        choice: the strategy that the user passed.
        assume_pure: whether the user says that its Python functions, tables and variables always return the same.
        every: steps from one state to the next.

    Raises:
        UnsupportedError: the chosen strategy does not work, or none does.
    """
    unknown = [] if assume_pure else unknown_operations(graph)
    if unknown:
        raise UnsupportedError(
            f"this tf.data pipeline cannot be resumed because of {', '.join(unknown)}: TensorFlow considers it "
            "stateful, but does not include its state in the pipeline's.\nA resumed run could read different samples. "
            "If it always returns the same for the same element, declare that: "
            "wrap(tfdata.source(dataset, assume_pure=True))."
        )
    found = _exact_strategy(graph, assume_pure=assume_pure)
    if choice == "auto":
        chosen = _cheaper(graph, found, every) if found.strategy == "symbolic" else found
    else:
        chosen = found if choice == found.strategy else _asked(graph, choice, found)
    if chosen.strategy != "replay":
        _check_repeats(graph, chosen)
    return chosen


class Plan(NamedTuple):
    """The chosen strategy.

    Args:
        strategy: "symbolic", "explicit" or "replay".
        reason: why, for people.
        python: operations that run Python and were not declared pure.
        also: other strategies that would work, for states that need them.
    """

    strategy: str
    reason: str
    python: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def _exact_strategy(graph: Graph, *, assume_pure: bool) -> Plan:
    python = python_operations(graph)
    doubtful = () if assume_pure else tuple(python)
    if runs_generators(graph):
        return Plan("replay", "TensorFlow cannot save the position of a Python generator (from_generator)", doubtful)
    if doubtful:
        return Plan("replay", f"{', '.join(python)} may have its own state, which cannot be checked", doubtful)
    other = _not_symbolic(graph)
    if lost := sorted(set(other) - _EXPLICIT):
        return Plan("replay", f"TensorFlow may lose elements when it restores the state of {', '.join(lost)}", doubtful)
    if other:
        return Plan("explicit", f"{', '.join(other)} may not restore a symbolic state correctly")
    return Plan("symbolic", "every operation has a symbolic state")


def _cheaper(graph: Graph, symbolic: Plan, every: int) -> Plan:
    """Use an explicit state if it works as well and costs less in the long run."""
    alone = _against_explicit(graph)
    if alone:
        return symbolic._replace(reason=f"{symbolic.reason}, and {alone}")
    extra = _extra_bytes(graph)
    if extra is None:
        return symbolic._replace(
            reason=f"{symbolic.reason}, and an explicit state would contain elements of unknown size",
            also=("explicit",),
        )
    noting, writing = _elements_per_step(graph) * _NOTING, extra / 2**20 * _WRITING / every
    reason = (
        f"an explicit state may be {extra / 2**20:.1f} MB larger, about {writing * 1e6:.0f} µs per step with one every "
        f"{every} steps; a symbolic one costs about {noting * 1e6:.0f} µs per step"
    )
    if extra > _MOST or writing > noting:
        return symbolic._replace(reason=reason, also=("explicit",))
    return Plan("explicit", reason, also=("symbolic",))


def _against_explicit(graph: Graph) -> str:
    """Return the reason against an explicit state; empty if there is none."""
    if repeats_shuffle(graph):
        return "an explicit state can lose how often a shuffle was repeated"
    stateful = [*python_operations(graph), *unknown_operations(graph)]
    if stateful:
        return f"an explicit state was not tested with {', '.join(stateful)}"
    return ""


def _asked(graph: Graph, choice: Choice, found: Plan) -> Plan:
    if choice == "replay":
        return Plan("replay", "requested", found.python)
    if found.strategy == "replay":
        raise UnsupportedError(
            f'strategy="{choice}" was requested, but {found.reason}.\nA resumed run could read different samples. '
            "Remove strategy. Or, if this is about functions that always return the same for the same arguments, pass "
            "assume_pure=True (which does not help with from_generator)."
        )
    if choice == "symbolic":
        raise UnsupportedError(
            f'strategy="symbolic" was requested, but {", ".join(_not_symbolic(graph))} may not restore such a state '
            "correctly.\nSaving could fail, or the resumed run could wait forever. Remove strategy."
        )
    return Plan("explicit", "requested")


def _not_symbolic(graph: Graph) -> list[str]:
    names = {plain_name(one.node.op) for one in graph.datasets}
    return sorted(names - _SYMBOLIC)


def _check_repeats(graph: Graph, chosen: Plan) -> None:
    """Reject a repeated shuffle, unless its number of repetitions is always part of the state."""
    before = repeats_shuffle(graph)
    several = sum(reshuffles(graph, one) for one in before) > 1
    others = sorted({plain_name(one.node.op) for one in before} - _KEEPING)
    if before and (several or others or chosen.strategy == "explicit"):
        why = "several shuffles" if several else f"{', '.join(others)} before repeat()" if others else "this state"
        raise UnsupportedError(
            f"this tf.data pipeline repeats a shuffle, and is resumed from TensorFlow's {chosen.strategy} state "
            f"({chosen.reason}).\nWith {why}, the state can lose how often a shuffle was repeated, and a resumed run "
            "would continue in the order of an earlier pass. Remove repeat(), as the loader starts each epoch itself; "
            "or use shuffle(..., reshuffle_each_iteration=False)."
        )


def _extra_bytes(graph: Graph) -> int | None:
    """Return how many bytes an explicit state may have in addition to a symbolic one; None if a size is unknown.

    Both contain the elements of shuffle buffers. An explicit state also contains the elements in prefetches, parallel
    maps and parallel batches: as many as fit, with the size that follows from their shapes.
    """
    found = [_bytes_ahead(graph, one) for one in graph.datasets if not one.function]
    known = [size for size in found if size is not None]
    return int(sum(known) * _AS_TEXT) if len(known) == len(found) else None


def _elements_per_step(graph: Graph) -> int:
    """Return how many elements are combined into one delivered element."""
    return math.prod(_batch_size(graph, one) or 1 for one in graph.datasets if not one.function)


def _bytes_ahead(graph: Graph, operation: Operation) -> int | None:
    """Return the bytes that a dataset holds ahead of what it has yielded."""
    op = operation.node.op
    argument = next((_AHEAD_BY[name] for name in _AHEAD_BY if op.startswith(f"{name}Dataset")), None)
    if plain_name(op) == "Unbatch":
        return (
            max((_element_bytes(graph, one) or 0 for one in graph.after(operation) if one.is_dataset), default=0)
            or None
        )
    if argument is None:
        return 0
    count = graph.constant(operation, argument)
    size = _element_bytes(graph, operation)
    return None if size is None else size * (_TUNED if count is None or count < 0 else int(count))


def _element_bytes(graph: Graph, operation: Operation) -> int | None:
    """Return the bytes of an element; if a batch has an unknown number of rows, it counts as a full batch."""
    attributes = operation.node.attr
    shapes, types = attributes["output_shapes"].list.shape, attributes["output_types"].list.type
    rows = next((size for one in [operation, *graph.after(operation)] if (size := _batch_size(graph, one))), None)
    sizes = [_tensor_bytes(shape, kind, rows) for shape, kind in zip(shapes, types, strict=True)]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _tensor_bytes(shape: Any, kind: int, rows: int | None) -> int | None:
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
