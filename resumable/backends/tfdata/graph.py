"""The graph of a pipeline: its operations, those in its functions, and their constants; and which cannot be resumed.

TensorFlow writes it for an existing dataset. No data is read and no iterator is made for it.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.python.framework import op_def_registry

from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = [
    "Graph",
    "Operation",
    "buffers",
    "check_pipeline",
    "plain_name",
    "python_operations",
    "repeats",
    "repeats_shuffle",
    "reshuffles",
    "runs_generators",
    "unknown_operations",
]


_IGNORE_STATE = 1  # the external_state_policy that also writes the graph of stateful operations


class Graph:
    """The graph of a dataset.

    Args:
        dataset: a `tf.data.Dataset`.

    Raises:
        UnsupportedError: TensorFlow cannot write it.
    """

    def __init__(self, dataset: Any) -> None:
        self._endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        definition = tf.compat.v1.GraphDef.FromString(_serialized(dataset))
        self.top = {node.name: node for node in definition.node}
        self.root = definition.node[-1].input[0]
        self.functions = {function.signature.name: function for function in definition.library.function}

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations, starting with those at the top."""
        inside = [Operation(node, name) for name, function in self.functions.items() for node in function.node_def]
        return [Operation(node, "") for node in self.top.values()] + inside

    @cached_property
    def datasets(self) -> list[Operation]:
        """The operations that make datasets, at the top and in functions."""
        return [operation for operation in self.operations if operation.is_dataset]

    def has(self, *ops: str) -> bool:
        """Return whether one of these operations is anywhere."""
        return any(operation.node.op in ops for operation in self.operations)

    def inputs(self, operation: Operation) -> dict[str, str]:
        """Return the inputs of an operation by argument name; the first input if an argument has several."""
        known = op_def_registry.get(operation.node.op)
        named, place = dict[str, str](), 0
        for argument in known.input_arg if known is not None else ():
            count = _count(argument, operation.node)
            if count and place < len(operation.node.input):
                named[argument.name] = operation.node.input[place]
            place += count
        return named

    def listed(self, node: Any) -> set[int]:
        """Return the positions of inputs with a list of types: elements, and values captured by functions."""
        known = op_def_registry.get(node.op)
        places, place = set[int](), 0
        for argument in known.input_arg if known is not None else ():
            count = _count(argument, node)
            if argument.type_list_attr:
                places |= set(range(place, place + count))
            place += count
        return places

    def constant(self, operation: Operation, argument: str) -> Any:
        """Return the value of an argument as a NumPy array; None if it is not a constant, or is an array of texts."""
        reference = self.inputs(operation).get(argument)
        if reference is None:
            return None
        node = self._nodes(operation.function).get(reference.split(":", maxsplit=1)[0])
        if node is None or node.op != "Const":
            return None
        tensor = node.attr["value"].tensor
        texts = tensor.dtype == tf.string.as_datatype_enum and tensor.tensor_shape.dim
        if texts or tensor.dtype in {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}:
            return None
        return tf.make_ndarray(tensor)

    def counter(self, node: Any) -> tuple[str, str, str] | None:
        """Return the names of a dataset's two seeds and of the counter of its passes; None if it has none."""
        inputs = self.inputs(Operation(node, ""))
        name = inputs.get("seed_generator", "")
        handles = self.top[name].attr["value"].tensor.resource_handle_val if name in self.top else ()
        if not any("SeedGenerator" in handle.maybe_type_name for handle in handles):
            return None
        return inputs["seed"], inputs["seed2"], name

    def after(self, operation: Operation) -> Iterator[Operation]:
        """Yield the operations at the top that an operation depends on, nearest first."""
        waiting, seen = list(operation.node.input), set[str]()
        while waiting:
            name = waiting.pop(0).split(":", maxsplit=1)[0].lstrip("^")
            if name in self.top and name not in seen:
                seen.add(name)
                yield Operation(self.top[name], "")
                waiting += self.top[name].input

    def passed_on(self, name: str) -> bool:
        """Return whether an endless dataset at the top makes the complete dataset endless."""
        return self._endless or name not in self.top

    def _nodes(self, function: str) -> dict[str, Any]:
        if not function:
            return self.top
        return {node.name: node for node in self.functions[function].node_def}


class Operation(NamedTuple):
    """An operation and its location.

    Args:
        node: the `NodeDef`.
        function: name of the function that it is in; empty at the top.
    """

    node: Any
    function: str

    @property
    def is_dataset(self) -> bool:
        """Whether it makes a dataset, such as `ShuffleDatasetV3`."""
        return "Dataset" in self.node.op


def plain_name(op: str) -> str:
    """Return the name of a dataset's operation as users know it: `Shuffle` for `ShuffleDatasetV3`.

    A parallel map is a `Map`: both yield the same stream, and each can restore the state of the other.
    """
    name = op.partition("Dataset")[0] or op
    return "Map" if name == "ParallelMap" else name


def _count(argument: Any, node: Any) -> int:
    if argument.number_attr:
        return int(node.attr[argument.number_attr].i)
    return len(node.attr[argument.type_list_attr].list.type) if argument.type_list_attr else 1


def _serialized(dataset: Any) -> bytes:
    try:
        written = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor,  # noqa: SLF001  # the op needs it, and it has no public name
            external_state_policy=_IGNORE_STATE,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        reason = str(error.message).rpartition("}} ")[2]
        raise UnsupportedError(
            f"TensorFlow cannot serialize this tf.data pipeline: {reason}\n"
            "Without that, its states cannot be checked, and random operations cannot be found. Wrap the dataset "
            "before it is copied to a device or distributed. Read large arrays from files, or by index in map()."
        ) from error
    graph: bytes = written.numpy()
    return graph


# TensorFlow saves and restores many of these without an error, but continues with a different stream. So they are
# searched for in the graph before anything is read.

_RANDOM = re.compile(
    "Random(?!Dataset)|^Truncated|^Parameterized|^Multinomial|^Stateful(Uniform|Standard|Trunc)|Distorted|^Rng|Sampler"
)


_WRITES = re.compile("^(Assign|ResourceScatter|ResourceApply|Scatter|LookupTableInsert|LookupTableRemove)")
_PYTHON = ("PyFunc", "EagerPyFunc")
_LOOKUPS = ("LookupTableFindV2", "LookupTableSizeV2")
_MUTABLE = ("MutableHashTableV2", "MutableDenseHashTableV2", "MutableHashTableOfTensorsV2")
_FILES = ("SnapshotDataset", "SnapshotDatasetV2", "SaveDataset", "SaveDatasetV2", "SnapshotDatasetReader")
# TensorFlow calls these stateful, but their results depend only on their arguments. Some of them are just containers.
_HARMLESS = {"Assert", "CheckNumerics", "CheckNumericsV2", "DummySeedGenerator", "Print", "PrintV2"} | {
    *("Case", "If", "While", "PartitionedCall", "StatefulPartitionedCall", "RemoteCall", "_Retval")
}
_TIME = ("it returns the time", "Remove it from the pipeline.")
_SERVICE = ("it reads from a tf.data service, whose position is unknown here", "Read the data in this process.")
_WRITTEN = (
    "it changes a variable or a table, which the pipeline's state does not include",
    "Use values that belong to the element, such as an index that is zipped to it.",
)
_CUT = (
    (
        "it repeats a shuffle forever, and something after it ends the pass, so the order of the next pass depends on "
        "how far TensorFlow has read ahead"
    ),
    "Remove what ends it, and count the steps yourself; or remove repeat().",
)
_RANDOM_NUMBERS = (
    "it uses a random generator that the pipeline's state does not include, even with a seed",
    (
        "Use tf.random.stateless_* or tf.image.stateless_random_* with a seed from a dataset that is zipped in: "
        "tf.data.Dataset.counter(), or tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True).batch(2)."
    ),
)
_OWN_FILES = (
    "it writes its own files, and their content when a run is killed determines what the next run reads",
    (
        "Use cache() without a file name, or prepare the data separately with dataset.save(path) and read it with "
        "tf.data.Dataset.load(path)."
    ),
)
_CACHED_ORDER = (
    "it keeps the order of the preceding shuffle for all epochs, and a new process would have a different one",
    "Put cache() before shuffle(), or use shuffle(..., reshuffle_each_iteration=False).",
)
_UNSEEDED = (
    "it has no seed",
    (
        "Set one, such as shuffle(1000, seed=1), list_files(pattern, seed=1), sample_from_datasets(..., seed=1), "
        "or tfds.ReadConfig(shuffle_seed=1); or call tf.random.set_seed before the pipeline is built."
    ),
)
_UNORDERED = (
    "it yields its elements in the order in which they are ready (deterministic=False)",
    (
        "Remove deterministic=False, also in tf.data.Options. With TFDS, pass tfds.ReadConfig(shuffle_seed=1), or "
        "options with deterministic=True."
    ),
)


def check_pipeline(graph: Graph) -> None:
    """Check that a pipeline yields the same stream each time.

    Raises:
        UnsupportedError: it does not; the message says which operation is at fault and how to fix it.
    """
    for operation in graph.operations:
        reason = _reason(graph, operation)
        if reason is not None:
            place = f" in {operation.function}" if operation.function else ""
            raise UnsupportedError(
                f"this tf.data pipeline cannot be resumed because of {operation.node.op}{place}: {reason[0]}.\n"
                f"A resumed run would continue with different samples than the original run. {reason[1]}"
            )


def _reason(graph: Graph, operation: Operation) -> tuple[str, str] | None:
    op = operation.node.op
    own_order = op.startswith("CacheDataset") and any(reshuffles(graph, one) for one in graph.after(operation))
    found = {
        _TIME: bool(operation.function) and op == "Timestamp",
        _RANDOM_NUMBERS: bool(operation.function) and _is_stateful(op) and _RANDOM.search(op) is not None,
        _WRITTEN: bool(operation.function) and _WRITES.search(op) is not None,
        _OWN_FILES: op.startswith(_FILES) or (op.startswith("CacheDataset") and _is_text(graph, operation)),
        _SERVICE: "DataService" in op,
        _CACHED_ORDER: own_order,
        _UNSEEDED: _is_unseeded(graph, operation),
        _UNORDERED: _is_unordered(graph, operation),
        _CUT: _is_cut_repeat(graph, operation),
    }
    return next((reason for reason, applies in found.items() if applies), None)


def reshuffles(graph: Graph, operation: Operation) -> bool:
    """Return whether an operation has a different order in each pass, based on a count of the passes in its state."""
    op, attributes = operation.node.op, operation.node.attr
    if op.startswith(("ShuffleDataset", "ShuffleAndRepeatDataset")):
        again = graph.constant(operation, "reshuffle_each_iteration")
        return bool(attributes["reshuffle_each_iteration"].b if again is None else again)
    return op == "RandomDatasetV2" and graph.constant(operation, "rerandomize_each_iteration") is not False


def repeats(graph: Graph) -> list[int]:
    """Return how often each repeat() at the top repeats; -1 means forever."""
    counts = (graph.constant(repeat, "count") for repeat in _repeats(graph))
    return [-1 if count is None else int(count) for count in counts]


def repeats_shuffle(graph: Graph) -> list[Operation]:
    """Return the datasets before a repeat() that repeats a counting shuffle; empty if there is none."""
    found = ([repeat, *graph.after(repeat)] for repeat in _repeats(graph))
    repeated = [some for some in found if any(reshuffles(graph, one) for one in some)]
    return [one for some in repeated for one in some if one.is_dataset]


def _repeats(graph: Graph) -> list[Operation]:
    return [one for one in graph.datasets if not one.function and "Repeat" in plain_name(one.node.op)]


def buffers(graph: Graph) -> list[str]:
    """Return the buffers whose elements are part of a state, such as `Shuffle(1000)`, for messages."""
    sizes = [(plain_name(one.node.op), graph.constant(one, "buffer_size")) for one in graph.datasets]
    kept = [f"{name}({int(size)})" for name, size in sizes if name.startswith("Shuffle") and size is not None]
    return kept + [name for name, _ in sizes if name in {"Cache", "Unique", "GroupByWindow"}]


def runs_generators(graph: Graph) -> bool:
    """Return whether the pipeline has a Python generator (`from_generator`), whose position TensorFlow cannot save."""
    return graph.has("GeneratorDataset")


def python_operations(graph: Graph) -> list[str]:
    """Return the operations that run Python, which cannot be inspected."""
    return sorted({one.node.op for one in graph.operations if one.function and one.node.op in _PYTHON})


def unknown_operations(graph: Graph) -> list[str]:
    """Return the other operations that TensorFlow calls stateful, except those known to be harmless."""
    harmless = _HARMLESS | set(() if graph.has(*_MUTABLE) else _LOOKUPS) | set(_PYTHON)
    inside = {one.node.op for one in graph.operations if one.function and not one.is_dataset}
    tables = set(_LOOKUPS) if graph.has(*_MUTABLE) else set[str]()
    return sorted(op for op in inside if (_is_stateful(op) and op not in harmless) or op in tables)


def _is_stateful(op: str) -> bool:
    known: Any = op_def_registry.get(op)
    return known is not None and bool(known.is_stateful)


def _is_unseeded(graph: Graph, operation: Operation) -> bool:
    if not operation.is_dataset or not {"seed", "seed2"} <= set(graph.inputs(operation)):
        return False
    seeds = [graph.constant(operation, name) for name in ("seed", "seed2")]
    size = graph.constant(operation, "buffer_size")
    return size != 1 and all(seed is not None and not seed.any() for seed in seeds)


def _is_unordered(graph: Graph, operation: Operation) -> bool:
    attributes = operation.node.attr
    if operation.node.op == "OptionsDataset":
        options = dataset_options_pb2.Options.FromString(attributes["serialized_options"].s)
        return options.HasField("deterministic") and not options.deterministic
    if operation.is_dataset and "deterministic" in attributes and attributes["deterministic"].s == b"false":
        return True
    return operation.is_dataset and bool(
        attributes["sloppy"].b if "sloppy" in attributes else _sloppy(graph, operation)
    )


def _sloppy(graph: Graph, operation: Operation) -> bool:
    value = graph.constant(operation, "sloppy")
    return value is not None and bool(value)


def _is_text(graph: Graph, operation: Operation) -> bool:
    name = graph.constant(operation, "filename")
    return name is not None and bool(name.item())


def _is_cut_repeat(graph: Graph, operation: Operation) -> bool:
    if not operation.is_dataset or "Repeat" not in operation.node.op or graph.constant(operation, "count") != -1:
        return False
    endless = graph.passed_on(operation.node.name)
    return not endless and any(reshuffles(graph, one) for one in [operation, *graph.after(operation)])
