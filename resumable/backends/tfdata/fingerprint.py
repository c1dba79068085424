"""The fingerprint of a pipeline, the same in any process: names, constants, functions and data, each separately.

TensorFlow numbers the names of nodes, functions and resources, and writes nodes in an arbitrary order. So each node is
identified only through operation, attributes and inputs.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from resumable.backends.tfdata.graph import Operation, plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable.backends.tfdata.graph import Graph

__all__ = ["Fingerprint", "short"]

_WIDTH = 150
# They change the speed, but not the stream or the state.
_TUNING = {
    "num_parallel_calls",
    "metadata",
    "use_inter_op_parallelism",
    "use_unbounded_threadpool",
    "parallel_copy",
} | {*("force_synchronous", "sloppy", "deterministic", "replicate_on_split")}
# Derived from the rest, or about how it runs.
_DERIVED = {
    "token",
    "output_types",
    "output_shapes",
    "Toutput_types",
    "Targuments",
    "config",
    "config_proto",
    "executor_type",
}
_SEEDS = {"seed", "seed2"}


def short(text: str) -> str:
    """Return a text of at most 150 characters; if it is longer, it is shortened and ends with its digest."""
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 20]}... {_digest([text])}"


class Fingerprint:
    """The fingerprint of a pipeline.

    Args:
        graph: the pipeline's graph.
        dataset: the dataset itself.

    Attributes:
        elements: the structure of its elements.
        operations: the datasets that it consists of, and how they are connected.
        parameters: their numbers, such as batch sizes and seeds.
        functions: digest of its functions, such as the function of map().
        data: digest of the text and arrays in it, such as file names.
        structure: digest of everything that TensorFlow relies on, but does not check, when it restores a state.
    """

    def __init__(self, graph: Graph, dataset: Any) -> None:
        self._graph = graph
        self._known: dict[str, str] = {}
        self._data: list[bytes] = []
        self._order: list[Operation] = []
        functions = sorted(self._function(name) for name in graph.functions)
        operations = self._chain(graph.root)
        parameters = [self._parameters(one, seeds=True) for one in self._order]
        bare = [self._parameters(one, seeds=False) for one in self._order]
        nested = sorted(self._function(one.function) for one in graph.datasets if one.function)
        self.elements = short(str(dataset.element_spec).replace("tf.", "").replace("TensorSpec", ""))
        self.operations = short(operations)
        self.parameters = short("; ".join(filter(None, parameters)))
        self.functions = _digest(functions)
        self.data = _digest([self._content_behind(graph.root, {}), *sorted(self._texts())])
        self.structure = _digest([str(dataset.element_spec), operations, *bare, *nested])

    def _chain(self, reference: str) -> str:
        """Return how datasets are connected: `Range > Shuffle > Batch`, with brackets around several inputs."""
        node = self._graph.top[_node_of(reference)]
        inputs = [one for one in node.input if "Dataset" in self._graph.top[_node_of(one)].op]
        chains = [self._chain(one) for one in inputs]
        if node.op in {"OptionsDataset", "ModelDataset", "PrefetchDataset"} and chains:
            return chains[0] + (" > Prefetch" if node.op == "PrefetchDataset" else "")
        self._order.append(Operation(node, ""))
        before = f"({', '.join(chains)})" if len(chains) > 1 else "".join(chains)
        return f"{before} > {plain_name(node.op)}" if before else plain_name(node.op)

    def _parameters(self, operation: Operation, *, seeds: bool) -> str:
        """Return the numbers of an operation at the top: `Batch 32 True`."""
        values = []
        for name in self._graph.inputs(operation):
            if name in _TUNING or (name in _SEEDS and not seeds):
                continue
            value = self._graph.constant(operation, name)
            if value is not None and not value.ndim and value.dtype.kind in "iub":
                values.append(str(value))
        values += [
            f"{name}={value.b}" for name, value in sorted(operation.node.attr.items()) if _is_switch(name, value)
        ]
        return " ".join([plain_name(operation.node.op), *values]) if values else ""

    def _content_behind(self, reference: str, known: dict[str, str], *, numbers: bool = False) -> str:
        """Return the digest of the constants that a node depends on, in the order of its inputs; empty without any.

        Args:
            reference: the node.
            known: digests of earlier nodes.
            numbers: whether a single integer is data: it is an element, or a function uses it.
        """
        node = self._graph.top[_node_of(reference)]
        if node.op == "Const":
            tensor = node.attr["value"].tensor
            return _digest([_content(tensor)]) if _is_data(tensor) or (numbers and _is_plain(tensor)) else ""
        if node.name not in known:
            lists = self._graph.listed(node)
            inputs = enumerate(_data_inputs(node))
            parts = [self._content_behind(one, known, numbers=place in lists) for place, one in inputs]
            found = [part for part in parts if part]
            # Inputs without data, such as options or a number of parallel calls, leave no trace.
            known[node.name] = _digest(found) if len(found) > 1 else "".join(found)
        return known[node.name]

    def _texts(self) -> Iterator[str]:
        """Yield a digest of each text in a function; its other constants are part of the function's digest."""
        for operation in self._graph.operations:
            if operation.function and operation.node.op == "Const":
                tensor = operation.node.attr["value"].tensor
                if tensor.dtype == tf.string.as_datatype_enum:
                    yield _digest([_content(tensor)])

    def _function(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = "itself"  # a function that calls itself
            self._known[name] = _Body(self._graph.functions[name], self).digest()
        return self._known[name]

    def attribute(self, value: Any) -> bytes | str:
        """Return the value of an attribute; for a function, its digest."""
        if value.HasField("func"):
            return self.function(value.func.name)
        if value.list.func:
            return ",".join(self.function(one.name) for one in value.list.func)
        if value.HasField("tensor"):
            return "text" if value.tensor.dtype == tf.string.as_datatype_enum else _content(value.tensor)
        content: bytes = value.SerializeToString(deterministic=True)
        return content

    def function(self, name: str) -> str:
        """Return the digest of a function; the name itself if it is not a function."""
        return self._function(name) if name in self._graph.functions else name


class _Body:
    """One function: its nodes, with operation and inputs."""

    def __init__(self, function: Any, whole: Fingerprint) -> None:
        self._function, self._whole = function, whole
        self._nodes = {node.name: node for node in function.node_def}
        self._known = {argument.name: f"argument {place}" for place, argument in enumerate(_arguments(function))}
        # TFDS passes the keys of an example in the order of a set, which differs between processes.
        self._unordered = any("Parse" in node.op and "Example" in node.op for node in function.node_def)

    def digest(self) -> str:
        """Return the digest of the whole function."""
        if self._unordered:
            return _digest(sorted(self._label(node, [str(len(node.input))]) for node in self._nodes.values()))
        ends = [self._function.ret[one.name] for one in self._function.signature.output_arg]
        self._visit([*ends, *self._nodes])
        effects = sorted(self._known[node.name] for node in self._nodes.values())
        return _digest([*(self._reference(end) for end in ends), *effects])

    def _visit(self, references: Iterable[str]) -> None:
        """Label all nodes, each after its inputs; without recursion, as functions are long."""
        waiting = [_node_of(one) for one in references]
        while waiting:
            name = waiting[-1]
            missing = (
                [one for one in map(_node_of, self._nodes[name].input) if one not in self._known]
                if (name not in self._known)
                else []
            )
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if name not in self._known:
                node = self._nodes[name]
                self._known[name] = self._label(node, [self._reference(one) for one in _data_inputs(node)])

    def _reference(self, reference: str) -> str:
        return f"{self._known[_node_of(reference)]}:{reference.partition(':')[2]}"

    def _label(self, node: Any, inputs: list[str]) -> str:
        parts: list[bytes | str] = [self._whole.function(node.op), *inputs]
        for name in sorted(node.attr):
            if name not in _DERIVED | _TUNING and not name.startswith("_") and not (self._unordered and _keys(name)):
                parts += [name, self._whole.attribute(node.attr[name])]
        return _digest(parts)


def _arguments(function: Any) -> Any:
    return function.signature.input_arg


def _keys(name: str) -> bool:
    return name in {"dense_keys", "dense_shapes", "sparse_keys", "sparse_types", "Tdense", "ragged_keys"}


def _node_of(reference: str) -> str:
    return reference.split(":", maxsplit=1)[0].lstrip("^")


def _data_inputs(node: Any) -> list[str]:
    return [one for one in node.input if not one.startswith("^")]


def _is_switch(name: str, value: Any) -> bool:
    return name not in _TUNING and not name.startswith("_") and value.WhichOneof("value") == "b"


def _is_data(tensor: Any) -> bool:
    text = tensor.dtype == tf.string.as_datatype_enum
    return bool(text or (_is_plain(tensor) and (tensor.tensor_shape.dim or tf.as_dtype(tensor.dtype).is_floating)))


def _is_plain(tensor: Any) -> bool:
    """Return whether a constant is a value rather than a handle of this process."""
    return tensor.dtype not in {tf.resource.as_datatype_enum, tf.variant.as_datatype_enum}


def _content(tensor: Any) -> bytes:
    """Return the bytes of a constant, without the name that a resource has in this process."""
    if tensor.dtype == tf.resource.as_datatype_enum:
        return b"resource"
    content: bytes = tensor.SerializeToString(deterministic=True)
    return content


def _digest(parts: Iterable[bytes | str]) -> str:
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(f"{len(data)}:".encode())
        state.update(data)
    return state.hexdigest()
