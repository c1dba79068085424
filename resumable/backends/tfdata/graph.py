"""The graph of a pipeline: its operations, those inside its functions, and their constants.

TensorFlow writes it for a dataset that exists. Nothing is read and no iterator is made for it.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Graph", "Operation", "plain_name"]

_IGNORE_STATE = 1  # the external_state_policy that writes the graph of stateful operations, too


class Operation(NamedTuple):
    """An operation and where it stands.

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

    A parallel map is a `Map`: both give the same stream, and each restores the state of the other.
    """
    name = op.partition("Dataset")[0] or op
    return "Map" if name == "ParallelMap" else name


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
        """All operations, first those at the top."""
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
        """Return the inputs of an operation by the names of its arguments; of several for one argument, the first."""
        known = op_def_registry.get(operation.node.op)
        named, place = dict[str, str](), 0
        for argument in known.input_arg if known is not None else ():
            count = _count(argument, operation.node)
            if count and place < len(operation.node.input):
                named[argument.name] = operation.node.input[place]
            place += count
        return named

    def listed(self, node: Any) -> set[int]:
        """Return the places of the inputs that a list of types belongs to: elements, and what functions captured."""
        known = op_def_registry.get(node.op)
        places, place = set[int](), 0
        for argument in known.input_arg if known is not None else ():
            count = _count(argument, node)
            if argument.type_list_attr:
                places |= set(range(place, place + count))
            place += count
        return places

    def constant(self, operation: Operation, argument: str) -> Any:
        """Return the value of an argument as a NumPy array; None where it is no constant, or an array of texts."""
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
        """Return the names of a dataset's two seeds and of the counter of its passes; None where it has none."""
        inputs = self.inputs(Operation(node, ""))
        name = inputs.get("seed_generator", "")
        handles = self.top[name].attr["value"].tensor.resource_handle_val if name in self.top else ()
        if not any("SeedGenerator" in handle.maybe_type_name for handle in handles):
            return None
        return inputs["seed"], inputs["seed2"], name

    def after(self, operation: Operation) -> Iterator[Operation]:
        """Yield the operations at the top that feed another one at the top, nearest first."""
        waiting, seen = list(operation.node.input), set[str]()
        while waiting:
            name = waiting.pop(0).split(":", maxsplit=1)[0].lstrip("^")
            if name in self.top and name not in seen:
                seen.add(name)
                yield Operation(self.top[name], "")
                waiting += self.top[name].input

    def passed_on(self, name: str) -> bool:
        """Return whether a dataset at the top that has no end gives one that has none."""
        return self._endless or name not in self.top

    def _nodes(self, function: str) -> dict[str, Any]:
        if not function:
            return self.top
        return {node.name: node for node in self.functions[function].node_def}


def _count(argument: Any, node: Any) -> int:
    if argument.number_attr:
        return int(node.attr[argument.number_attr].i)
    return len(node.attr[argument.type_list_attr].list.type) if argument.type_list_attr else 1


def _serialized(dataset: Any) -> bytes:
    try:
        written = tf.raw_ops.DatasetToGraphV2(
            input_dataset=dataset._variant_tensor,  # noqa: SLF001  # there is no public name for what the op takes
            external_state_policy=_IGNORE_STATE,
            strip_device_assignment=True,
        )
    except tf.errors.OpError as error:
        reason = str(error.message).rpartition("}} ")[2]
        raise UnsupportedError(
            f"TensorFlow cannot write down this tf.data pipeline: {reason}\n"
            "Whether a state belongs to it, and whether it is random, is not known then. Wrap the dataset before it is "
            "copied to a device or distributed; give large arrays as files, or as indices that a map reads by."
        ) from error
    graph: bytes = written.numpy()
    return graph
