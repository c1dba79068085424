"""How a pipeline is resumed: by one of TensorFlow's two native states, or by building it again and skipping.

symbolic   small: what each dataset has read, and the elements in shuffle buffers; the rest is computed again. For it,
           TensorFlow notes each element, whether a state is taken or not
explicit   large: every element in every buffer, decoded as it is; it costs nothing until it is taken
replay     a count; the pipeline is read again up to there

Where both native states work, "auto" estimates what each costs per step, and takes the cheaper one.
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
# The datasets whose symbolic state was seen to be exact after every element. A parallel interleave is none of them:
# TensorFlow (2.21) restores it into a pipeline that waits for itself, at some places and for ever.
_SYMBOLIC = {
    *("AssertCardinality", "Batch", "Concatenate", "DirectedInterleave", "Filter", "FlatMap", "Interleave", "Map"),
    *("Model", "Options", "PaddedBatch", "ParallelBatch", "Prefetch", "Random", "Range", "Repeat", "Scan", "Shard"),
    *("Shuffle", "Skip", "TFRecord", "Take", "TakeWhile", "Tensor", "TensorSlice", "TextLine", "Unbatch", "Zip"),
}
# After these, a shuffle that is repeated was seen to keep its count in the symbolic state, wherever it was taken.
_KEEPING = {"Batch", "FlatMap", "Interleave", "Map", "Options", "Prefetch", "Range", "Repeat", "Shuffle"} | {
    *("Tensor", "TensorSlice")
}
_NOTING = 15e-6  # seconds per element that a symbolic state takes while nothing is saved; 6 to 60 were measured
_WRITING = 20e-3  # seconds per MB of a state, to take it and to encode it
_MOST = 16 * 2**20  # bytes: a checkpoint is not to become large for speed
_TUNED = 8  # elements that are assumed to be ahead where TensorFlow decides by itself
_AS_TEXT = 4 / 3  # a state is base64
_BATCHES = ("Batch", "PaddedBatch", "ParallelBatch")
_AHEAD_BY = {"Prefetch": "buffer_size", "ParallelMap": "num_parallel_calls", "ParallelBatch": "num_parallel_calls"}


def check_choice(choice: str) -> None:
    """Refuse what is no strategy.

    Raises:
        ConfigurationError: it is none.
    """
    if choice not in get_args(Choice):
        raise ConfigurationError(
            f"strategy must be one of {', '.join(get_args(Choice))}, but it is {choice!r}.\n"
            'Leave it out: "auto" takes the cheapest that works for the pipeline.'
        )


def plan(graph: Graph, choice: Choice, *, assume_pure: bool, per_epoch: bool, every: int = 1000) -> Plan:
    """Choose how to resume a pipeline that `check_pipeline` has passed.

    Args:
        graph: of the pipeline.
        choice: what the user asked for.
        assume_pure: the user says that its Python functions, tables and variables give the same each time.
        per_epoch: it is built again for each epoch.
        every: steps from one state to the next.

    Raises:
        UnsupportedError: what was asked for does not work, or nothing does.
    """
    unknown = [] if assume_pure else unknown_operations(graph)
    if unknown:
        raise UnsupportedError(
            f"this tf.data pipeline cannot be resumed because of {', '.join(unknown)}: TensorFlow calls it stateful, "
            "and that state is no part of the pipeline's.\nA resumed run could go on with other samples. If it gives "
            "the same for the same element in every run, say so: wrap(tfdata.source(dataset, assume_pure=True))."
        )
    found = _exact_strategy(graph, assume_pure=assume_pure)
    if choice == "auto":
        chosen = _cheaper(graph, found, every) if found.strategy == "symbolic" else found
    else:
        chosen = found if choice == found.strategy else _asked(graph, choice, found)
    if chosen.strategy == "replay":
        _check_replay(graph, chosen, per_epoch=per_epoch)
    if chosen.strategy != "replay":
        _check_repeats(graph, chosen)
    return chosen


class Plan(NamedTuple):
    """What was chosen.

    Args:
        strategy: "symbolic", "explicit" or "replay".
        reason: why, for people.
        python: operations that run Python and were not said to be pure.
        also: other strategies that would do, which a state may ask for.
    """

    strategy: str
    reason: str
    python: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def _exact_strategy(graph: Graph, *, assume_pure: bool) -> Plan:
    python = python_operations(graph)
    doubtful = () if assume_pure else tuple(python)
    if runs_generators(graph):
        return Plan("replay", "TensorFlow cannot save the place of a Python generator (from_generator)", doubtful)
    if doubtful:
        return Plan("replay", f"whether {', '.join(python)} keeps a state of its own cannot be seen", doubtful)
    other = _not_symbolic(graph)
    if other:
        return Plan("explicit", f"{', '.join(other)} cannot be relied on to restore a symbolic state")
    return Plan("symbolic", "every operation has a symbolic state")


def _cheaper(graph: Graph, symbolic: Plan, every: int) -> Plan:
    """Take an explicit state where that works as well, and costs less in the long run."""
    alone = _against_explicit(graph)
    if alone:
        return symbolic._replace(reason=f"{symbolic.reason}, and {alone}")
    extra = _extra_bytes(graph)
    if extra is None:
        return symbolic._replace(
            reason=f"{symbolic.reason}, and the size of its elements, which an explicit one would hold, is unknown",
            also=("explicit",),
        )
    noting, writing = _elements_per_step(graph) * _NOTING, extra / 2**20 * _WRITING / every
    reason = (
        f"an explicit state may have {extra / 2**20:.1f} MB more, about {writing * 1e6:.0f} us per step with one every "
        f"{every} steps; a symbolic one takes about {noting * 1e6:.0f} us per step"
    )
    if extra > _MOST or writing > noting:
        return symbolic._replace(reason=reason, also=("explicit",))
    return Plan("explicit", reason, also=("symbolic",))


def _against_explicit(graph: Graph) -> str:
    """Say what stands against an explicit state; nothing where nothing does."""
    if repeats_shuffle(graph):
        return "an explicit one can lose how often a shuffle was repeated"
    stateful = [*python_operations(graph), *unknown_operations(graph)]
    if stateful:
        return f"whether an explicit one is exact with {', '.join(stateful)} was not tried"
    return ""


def _asked(graph: Graph, choice: Choice, found: Plan) -> Plan:
    if choice == "replay":
        return Plan("replay", "asked for", found.python)
    if found.strategy == "replay":
        raise UnsupportedError(
            f'strategy="{choice}" was asked for, but {found.reason}.\nA resumed run could go on with other samples. '
            "Leave strategy out; or, where the functions give the same for the same arguments, say assume_pure=True "
            "(which does not help with from_generator)."
        )
    if choice == "symbolic":
        raise UnsupportedError(
            f'strategy="symbolic" was asked for, but {", ".join(_not_symbolic(graph))} cannot be relied on to restore '
            "such a state.\nSaving could fail, or the resumed run could wait for ever. Leave strategy out."
        )
    return Plan("explicit", "asked for")


def _not_symbolic(graph: Graph) -> list[str]:
    names = {plain_name(one.node.op) for one in graph.datasets}
    return sorted(names - _SYMBOLIC)


def _check_replay(graph: Graph, chosen: Plan, *, per_epoch: bool) -> None:
    again = sorted({plain_name(one.node.op) for one in graph.datasets if not one.function and reshuffles(graph, one)})
    if again and not per_epoch:
        raise UnsupportedError(
            f"this tf.data pipeline is to be resumed by replay ({chosen.reason}), but {', '.join(again)} gives another "
            "order in each epoch, which TensorFlow counts.\nA replay would count from zero. Give a function that "
            "builds the pipeline for an epoch: wrap(tfdata.source(build)) with "
            "def build(epoch): ... .shuffle(1000, seed=epoch); or shuffle(..., reshuffle_each_iteration=False)."
        )


def _check_repeats(graph: Graph, chosen: Plan) -> None:
    """Refuse a repeated shuffle, unless its count of repetitions is in the state wherever it is taken."""
    before = repeats_shuffle(graph)
    several = sum(reshuffles(graph, one) for one in before) > 1
    others = sorted({plain_name(one.node.op) for one in before} - _KEEPING)
    if before and (several or others or chosen.strategy == "explicit"):
        why = "several shuffles" if several else f"{', '.join(others)} before repeat()" if others else "such a state"
        raise UnsupportedError(
            f"this tf.data pipeline repeats a shuffle, and is resumed by TensorFlow's {chosen.strategy} state "
            f"({chosen.reason}).\nWith {why}, that state can lose how often a shuffle was repeated, and a resumed run "
            "would go on with an order of an earlier pass. Leave repeat() out, as the loader goes from epoch to epoch "
            "by itself; or give shuffle(..., reshuffle_each_iteration=False)."
        )


def _extra_bytes(graph: Graph) -> int | None:
    """Return how many bytes an explicit state may have beyond a symbolic one; None where a size is unknown.

    Both hold the elements of shuffle buffers. An explicit state has what prefetches, parallel maps and parallel batches
    hold, too: as many elements as fit, of the size that their shapes tell.
    """
    found = [_bytes_ahead(graph, one) for one in graph.datasets if not one.function]
    known = [size for size in found if size is not None]
    return int(sum(known) * _AS_TEXT) if len(known) == len(found) else None


def _elements_per_step(graph: Graph) -> int:
    """Return how many elements are put together into one that is delivered."""
    return math.prod(_batch_size(graph, one) or 1 for one in graph.datasets if not one.function)


def _bytes_ahead(graph: Graph, operation: Operation) -> int | None:
    """Return the bytes that a dataset holds ahead of what it gave."""
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
    """Return the bytes of an element; the number of rows of a batch that may be the last one is that of the others."""
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
