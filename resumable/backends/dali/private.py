"""Undocumented names of DALI's iterators, used only in this file; a test pins them.

DALI loads a checkpoint into a new pipeline only. To keep references to the iterator and its pipelines valid, both are
initialised again in place: a pipeline with its public constructor and `deserialize_and_build`, an iterator with the
constructor of its base class.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from nvidia.dali import Pipeline
from nvidia.dali.plugin.base_iterator import _DaliBaseIterator as BaseIterator

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "BaseIterator",
    "Blueprint",
    "Operator",
    "at_end",
    "callbacks",
    "checkpoints_itself",
    "functions_of",
    "has_eaten_an_end",
    "is_consumed",
    "is_fed",
    "is_read_by_hand",
    "operators",
    "pipelines_of",
    "place_of",
    "rebuild",
    "resets_itself",
    "settings_of",
    "texts_of",
    "was_rebuilt",
]


_OPTIONS = (
    "num_threads", "device_id", "seed", "exec_pipelined", "prefetch_queue_depth", "exec_async", "set_affinity",
    "enable_memory_stats", "exec_dynamic", "stream_policy", "concurrency",
)  # fmt: skip


_rebuilt: WeakSet[Any] = WeakSet()


class Blueprint:
    """Everything needed to rebuild a pipeline: its definition and the options of its constructor.

    Args:
        pipeline: made in Python; a deserialized pipeline cannot be serialized again.

    Raises:
        RuntimeError: an operator cannot be serialized; DALI says which.
    """

    def __init__(self, pipeline: Any) -> None:
        self._definition = pipeline.serialize()
        self._options = {"batch_size": pipeline.max_batch_size} | {name: getattr(pipeline, name) for name in _OPTIONS}

    def build(self, pipeline: Any, checkpoint: bytes | None) -> None:
        """Initialise a pipeline again, in place, at a checkpoint or at its start."""
        Pipeline.__init__(pipeline, **self._options, enable_checkpointing=True, checkpoint=checkpoint)
        pipeline.deserialize_and_build(self._definition)


class Operator(NamedTuple):
    """An operator of a pipeline.

    Args:
        name: of the instance, as in checkpoints.
        schema: its kind, such as `readers__File`.
        text: inputs, outputs and arguments, one per line.
        arguments: of the Python call.
        texts: names of the arguments that DALI declares as text or a list of text.
    """

    name: str
    schema: str
    text: str
    arguments: dict[str, Any]
    texts: frozenset[str] = frozenset()


class Settings(NamedTuple):
    """How an iterator divides the data into epochs.

    Args:
        reader: name of the reader that determines the length of an epoch, or None.
        size: samples per epoch and pipeline, padded by DALI's rules; below 0 if the pipeline itself ends the epoch.
        policy: name of the last-batch policy.
        padded: whether the reader repeats its last sample instead of reading on into the next epoch.
        outputs: names of the outputs.
    """

    reader: str | None
    size: int
    policy: str
    padded: bool
    outputs: list[str]


def pipelines_of(iterator: Any) -> list[Any]:
    """Return the pipelines of an iterator."""
    pipelines: list[Any] = iterator._pipes
    return pipelines


def settings_of(iterator: Any) -> Settings:
    """Return how an iterator divides the data into epochs."""
    policy, padded = iterator._last_batch_policy.name, bool(iterator._last_batch_padded)
    outputs = list(map(str, getattr(iterator, "output_map", [])))
    return Settings(iterator._reader_name or None, int(iterator._size), policy, padded, outputs)


def checkpoints_itself(iterator: Any) -> bool:
    """Return whether the pipelines were made with `enable_checkpointing=True`."""
    return bool(iterator._enable_checkpointing)


def is_consumed(iterator: Any) -> bool:
    """Return whether a batch was taken from an iterator, not counting the first batch that it prepares itself."""
    return bool(iterator._ever_consumed)


def resets_itself(iterator: Any) -> bool:
    """Return whether an iterator was made with `auto_reset`."""
    return bool(iterator._auto_reset == "yes")


def at_end(iterator: Any) -> bool | None:
    """Return whether an iterator has no batch left in its epoch; None if that is unknown until the next call."""
    if iterator._size < 0:
        return None
    if getattr(iterator, "_first_batch", None) is not None:
        return False
    over = iterator._counter >= iterator._size
    return bool(over or iterator._advance_and_check_drop_last(dry_run=True, end_iteration=False))


def place_of(iterator: Any) -> tuple[int, bool]:
    """Return values that change with every batch taken from the iterator, whether the loader or other code takes it."""
    return int(iterator._counter), getattr(iterator, "_first_batch", None) is None


def was_rebuilt(iterator: Any) -> bool:
    """Return whether `rebuild` has rebuilt the pipelines of an iterator."""
    return iterator in _rebuilt


def has_eaten_an_end(iterator: Any) -> bool:
    """Return whether a new iterator, made at a checkpoint, passed an epoch's end when it prepared its first batch.

    The checkpoint was taken after the epoch's last batch, and the iterator starts the next epoch without saying so.
    """
    prepared = iterator._prepare_first_batch and getattr(iterator, "_first_batch", None) is None
    return bool(prepared and resets_itself(iterator))


def callbacks(pipeline: Any) -> list[tuple[str, bool]]:
    """Return for each Python source of a pipeline what it is, and whether DALI can restore its position."""
    groups = pipeline._input_callbacks or []
    return [_described(group.source_desc.kind.name, has_argument=group.source_desc.has_inputs) for group in groups]


def _described(kind: str, *, has_argument: bool) -> tuple[str, bool]:
    if kind == "CALLABLE":
        return ("function of one argument", True) if has_argument else ("function without arguments", False)
    return ("generator function" if kind == "GENERATOR_FUNC" else kind.lower()), False


def functions_of(pipeline: Any) -> dict[str, Any]:
    """Return a dict from operator to the user's Python function that it calls in a pipeline."""
    groups = [group for group in pipeline._input_callbacks or [] if group.source_desc.kind.name == "CALLABLE"]
    found = {group.instances[0].name: group.source_desc.source for group in groups}
    calling = [one for one in pipeline._ops or [] if operator_kind(one).endswith("PythonFunction")]
    return found | {one.name: _given(getattr(one._op, "function", None)) for one in calling}


def _given(function: Any) -> Any:
    """Return the user's function that a function of DALI's calls."""
    cells = getattr(function, "__closure__", None) or ()
    inside = dict(zip(function.__code__.co_freevars, cells, strict=True)) if cells else {}
    ours = getattr(function, "__module__", "").startswith("nvidia.dali")
    return inside["function"].cell_contents if ours and "function" in inside else function


def is_read_by_hand(thing: Any) -> str:
    """Return what a thing is, if users read batches from it without a DALI iterator; empty if it is something else."""
    dynamic = getattr(sys.modules.get("nvidia.dali.experimental.dynamic._ops"), "Reader", ())
    if issubclass(type(thing), dynamic):
        return "readers of DALI's dynamic mode"
    return "DALI pipelines" if issubclass(type(thing), Pipeline) else ""


def is_fed(pipeline: Any) -> list[str]:
    """Return the names of the external sources without a source, which need data from outside."""
    sourced = {instance.name for group in pipeline._input_callbacks or [] for instance in group.instances}
    known = [one for one in operators(pipeline) if one.schema == "ExternalSource"]
    return [one.name for one in known if one.name not in sourced]


def operators(pipeline: Any) -> list[Operator]:
    """Return the operators of a pipeline; none if it was deserialized instead of made in Python."""
    return [
        Operator(
            one.name,
            operator_kind(one),
            str(one.spec),
            {**getattr(one._op, "_init_args", {}), **getattr(one._op, "_call_args", {})},
            texts_of(getattr(one._op, "_schema", None)),
        )
        for one in pipeline._ops or []
    ]


def operator_kind(operator: Any) -> str:
    """Return the kind of an operator, such as `readers__File`."""
    return str(getattr(operator._op, "schema_name", type(operator._op).__name__))


def texts_of(schema: Any) -> frozenset[str]:
    """Return the names of the arguments that a DALI schema declares as text or a list of text."""
    names = () if schema is None else schema.GetArgumentNames()
    return frozenset(name for name in names if "STRING" in schema.GetArgumentType(name).name)


def rebuild(iterator: Any, blueprints: Sequence[Blueprint], checkpoints: Sequence[bytes | None]) -> None:
    """Initialise an iterator and its pipelines again, in place, at checkpoints or at the first batch.

    All old pipelines are shut down first, so a GPU never holds two of each in memory.
    """
    pipelines, reader = pipelines_of(iterator), iterator._reader_name
    iterator._first_batch = None
    _rebuilt.add(iterator)
    for pipeline in pipelines:
        pipeline._shutdown()
    for pipeline, blueprint, checkpoint in zip(pipelines, blueprints, checkpoints, strict=True):
        blueprint.build(pipeline, checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about size= without reader_name; shown when the user made the iterator
        BaseIterator.__init__(
            iterator,
            pipelines,
            size=-1 if reader else iterator._size,
            reader_name=reader,
            auto_reset=iterator._auto_reset,
            last_batch_padded=not reader and iterator._last_batch_padded,
            last_batch_policy=iterator._last_batch_policy,
            prepare_first_batch=False,  # only the derived classes prepare a first batch, and they are not called
        )
