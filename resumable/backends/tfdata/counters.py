"""The counters by which shuffles know how often they were passed over, set to what an epoch needs.

A shuffle that gives another order in each pass counts its passes in a resource of the process. An iterator's state has
that count only while the shuffle is being read, and TensorFlow has no way to set it. But another dataset may use the
same resource, and the state of *its* iterator is nothing but the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import _VariantDataset

from resumable.backends.tfdata.guards import repeats

if TYPE_CHECKING:
    from resumable.backends.tfdata.graph import Graph

__all__ = ["Counters"]


class Counters:
    """The counters of a pipeline's shuffles.

    Args:
        graph: of the pipeline.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = [node for node in graph.top.values() if "Dataset" in node.op]
        counting = [one for one in (graph.counter(node) for node in nodes) if one is not None]
        self._counters = [_Counter(*tensors) for tensors in _constants(graph, counting)]
        self._per_pass = 1
        for count in repeats(graph):
            self._per_pass *= max(count, 1)

    def set_to(self, epoch: int) -> None:
        """Make the next pass that of an epoch, whatever was read before."""
        for counter in self._counters:
            counter.set_to(1 + epoch * self._per_pass)


class _Counter:
    """One counter.

    Args:
        seed: first seed of the shuffle.
        seed2: second seed.
        resource: handle of the counter.
    """

    def __init__(self, seed: Any, seed2: Any, resource: Any) -> None:
        self._seeds, self._resource = (seed, seed2), resource
        self._model: Any = None  # a counter of the same seeds that was counted up here
        self._count = 0

    def set_to(self, count: int) -> None:
        """Set it to a number of passes, at least 1: an iterator's state has the count after its own beginning."""
        if self._model is None or count < self._count:
            self._model = tf.raw_ops.AnonymousSeedGenerator(seed=self._seeds[0], seed2=self._seeds[1], reshuffle=True)
            self._count, self._state = 0, None
        while self._count < count:
            counted = self._iterator(self._model[0])
            self._count += 1
            self._state = counted.save() if self._count == count else None
        self._iterator(self._resource).restore(self._state)

    def _iterator(self, resource: Any) -> Any:
        shuffle = tf.raw_ops.ShuffleDatasetV3(
            input_dataset=tf.data.Dataset.range(1)._variant_tensor,  # noqa: SLF001  # what the op takes
            buffer_size=tf.constant(1, tf.int64),
            seed=self._seeds[0],
            seed2=self._seeds[1],
            seed_generator=resource,
            output_types=[tf.int64],
            output_shapes=[tf.TensorShape([])],
            reshuffle_each_iteration=True,
        )
        return _VariantDataset(shuffle, tf.TensorSpec((), tf.int64)).as_numpy_iterator()


def _constants(graph: Graph, names: list[tuple[str, str, str]]) -> list[tuple[Any, Any, Any]]:
    """Return constants of the graph as tensors; TensorFlow makes them of their definitions."""
    if not names:
        return []
    definition = tf.compat.v1.GraphDef()
    flat = [name for three in names for name in three]
    for name in dict.fromkeys(flat):
        definition.node.add().CopyFrom(graph.top[name])

    def imported() -> list[Any]:
        tensors: list[Any] = tf.graph_util.import_graph_def(definition, return_elements=[f"{name}:0" for name in flat])
        return tensors

    tensors = iter(tf.function(imported)())
    return list(zip(tensors, tensors, tensors, strict=True))
