"""Checks a pipeline when it is wrapped: what it is, and whether and how it can be resumed; `source` has the options."""

from __future__ import annotations

import inspect
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import numpy as np
import tensorflow as tf

from resumable._distribution import pip_install
from resumable._options import check_count
from resumable.backends.tfdata.backend import Datasets, NativeBackend, ReplayBackend, check_counts, is_endless
from resumable.backends.tfdata.fingerprint import Fingerprint
from resumable.backends.tfdata.graph import Graph, check_pipeline
from resumable.backends.tfdata.strategy import check_choice, plan
from resumable.errors import ConfigurationError, MissingDependencyError, PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._options import Options
    from resumable.backends.tfdata.strategy import Choice, Plan


__all__ = ["Source", "adapt", "refuse_iterators", "source"]


Convert = Literal["numpy", "torch"]
_log = logging.getLogger("resumable")
_RARELY = 1000  # steps between two states if the program itself takes them
_WAYS = {
    "RaggedTensorSpec": "Make it dense in the pipeline: .map(lambda x: x.to_tensor()), or padded_batch.",
    "SparseTensorSpec": "Make it dense in the pipeline: .map(tf.sparse.to_dense).",
    "DatasetSpec": "Flatten the datasets in the pipeline: .flat_map(lambda window: window.batch(3)).",
}


def source(
    pipeline: Any | Callable[..., Any],
    *,
    strategy: Choice = "auto",
    assume_pure: bool = False,
    convert: Convert = "numpy",
    snapshot_every: int | None = None,
) -> Source:
    """Set options of a `tf.data` pipeline, for `wrap(source(...))`.

    Args:
        pipeline: a `tf.data.Dataset`, or a function that returns one. A function with a parameter `epoch` is called for
            each epoch, so no epoch depends on earlier ones; any other function is called once.
        strategy: how the pipeline is resumed: from TensorFlow's "symbolic" or "explicit" state, or by "replay", which
            reads it again up to the saved position. "auto" uses what works. If both states work, it uses the one with
            the lower estimated cost per step, or after a load, the one in the state.
        assume_pure: declares that the Python functions, variables and tables in the pipeline return the same for the
            same element in every run. This cannot be checked.
        convert: the type of the elements: "numpy" arrays, or "torch" tensors with their own memory.
        snapshot_every: steps between two states that are taken in advance (`ack="manual"`); by default 100.

    Returns:
        A source for `wrap`.

    Raises:
        ConfigurationError: `snapshot_every` is not an integer of at least 1.
    """
    if snapshot_every is not None:
        snapshot_every = check_count("snapshot_every", snapshot_every, "It counts steps.")
    return Source(pipeline, strategy, assume_pure, convert, snapshot_every)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A pipeline for `wrap`, made by `source`."""

    pipeline: Any
    strategy: Choice = "auto"
    assume_pure: bool = False
    convert: Convert = "numpy"
    snapshot_every: int | None = None


def adapt(pipeline: Any, options: Options) -> tuple[ReplayBackend, Options]:
    """Adapt a `tf.data.Dataset`, or a `Source`."""
    source = pipeline if isinstance(pipeline, Source) else Source(pipeline)
    check_choice(source.strategy)
    datasets, dataset = _datasets(source.pipeline)
    _check_elements(dataset.element_spec, source.convert)
    graph = Graph(dataset)
    check_pipeline(graph)
    _check_fresh(datasets, graph)
    if not datasets.per_epoch:
        check_counts(dataset, graph)
    every = source.snapshot_every or (NativeBackend.snapshot_every if options.ack == "manual" else _RARELY)
    chosen = plan(graph, source.strategy, assume_pure=source.assume_pure, every=every)
    if options.resume == "state" and chosen.strategy == "replay":
        options.refuse("this tf.data pipeline", resume=f"It can only be replayed: {chosen.reason}.")
    if options.replays and not datasets.per_epoch and is_endless(dataset):
        options.refuse("an endless tf.data pipeline", resume="Remove repeat(): the loader starts each epoch itself.")
    _announce(chosen)
    identity = _identity(Fingerprint(graph, dataset), options.identity)
    given = (datasets, identity, chosen.strategy, _converter(source.convert), _length(dataset))
    if chosen.strategy == "replay":
        return ReplayBackend(*given), options
    return NativeBackend(*given, also=chosen.also, snapshot_every=source.snapshot_every), options


def refuse_iterators(iterator: Any, options: Options) -> NoReturn:  # noqa: ARG001  # an adapter is called with both
    """Reject an iterator over a dataset, which lacks the information to resume it.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"this is not a tf.data.Dataset, but a {type(iterator).__qualname__} made from one.\n"
        "It could only be resumed by reading it again, and may not repeat the same elements. Wrap the dataset itself. "
        "With several ranks, use a separate dataset on each rank (dataset.shard) and pass shard=False."
    )


def _datasets(pipeline: Any) -> tuple[Datasets, Any]:
    """Return a `Datasets`, and the dataset of the first epoch."""
    if isinstance(pipeline, tf.data.Dataset):
        return Datasets(lambda _: pipeline, per_epoch=False), pipeline
    if not callable(pipeline):
        raise UnsupportedError(
            f"tfdata.source() takes a tf.data.Dataset or a function that returns one, but got {pipeline!r}.\n"
            "There would be no batches. Pass a dataset or such a function."
        )
    if _takes_epoch(pipeline):

        def build(epoch: int) -> Any:
            return _call(pipeline, {"epoch": epoch})

        return Datasets(build, per_epoch=True), build(0)
    dataset = _call(pipeline, {})
    return Datasets(lambda _: dataset, per_epoch=False), dataset


def _takes_epoch(build: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(build).parameters
        inspect.Signature([one for one in parameters.values() if one.name != "epoch"]).bind()
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"the function that builds the tf.data pipeline cannot be called without arguments: {error}.\n"
            "It is called with no argument but epoch (if it has that parameter). Pass a function that needs no other "
            "arguments, such as functools.partial(function, ...)."
        ) from error
    return "epoch" in parameters


def _call(build: Callable[..., Any], arguments: dict[str, int]) -> Any:
    dataset = build(**arguments)
    if not isinstance(dataset, tf.data.Dataset):
        raise UnsupportedError(
            f"the function that was passed to tfdata.source() returned a {type(dataset)}, not a tf.data.Dataset.\n"
            "There would be no batches. Return the dataset. Pass anything else directly to wrap()."
        )
    return dataset


def _check_elements(spec: Any, convert: Convert) -> None:
    """Check that the elements can be delivered.

    Args:
        spec: the `element_spec` of a dataset.
        convert: the type that they are converted to.

    Raises:
        ConfigurationError: `convert` is neither of the two.
        UnsupportedError: a part is not a tensor, or has a type that PyTorch does not support.
    """
    if convert not in get_args(Convert):
        raise ConfigurationError(f'convert must be "numpy" or "torch", but it is {convert!r}.')
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or part.dtype in {tf.variant, tf.resource}:
            way = _WAYS.get(type(part).__name__, "Remove it from the elements with map().")
            raise UnsupportedError(
                f"the elements of this tf.data pipeline contain a part that is not a plain tensor: {part}.\n"
                f"It cannot become an array in a batch. {way}"
            )
        if convert == "torch" and part.dtype == tf.string:
            raise UnsupportedError(
                f'convert="torch" was requested, but the elements contain text: {part}.\n'
                "PyTorch has no text tensors. Remove the text or turn it into numbers with map(), or use NumPy arrays "
                "(without convert)."
            )


def _check_fresh(datasets: Datasets, first: Graph) -> None:
    """Check that the datasets of different epochs share no shuffle, as that would count the passes of all of them."""
    if not datasets.per_epoch:
        return
    both = _resources(first) & _resources(Graph(datasets.of(0)))
    if both:
        raise UnsupportedError(
            f"the function that builds the tf.data pipeline of an epoch uses the same {min(both)} each time.\n"
            "It counts its passes, so the order of an epoch would depend on how many epochs this process has read. "
            "Build the complete pipeline inside the function, or pass the dataset itself to wrap()."
        )


def _resources(graph: Graph) -> set[str]:
    """Return the names of the counters of shuffles and of the caches in this process."""
    constants = (one.node.attr["value"].tensor for one in graph.operations if one.node.op == "Const")
    handles = [handle for tensor in constants for handle in tensor.resource_handle_val]
    return {one.name for one in handles if "Seed" in one.maybe_type_name or "Cache" in one.maybe_type_name}


def _announce(chosen: Plan) -> None:
    _log.info("tf.data: resumes with %s: %s", chosen.strategy, chosen.reason)
    if chosen.python:
        warnings.warn(
            f"this tf.data pipeline runs Python ({', '.join(chosen.python)}), which cannot be inspected. A resumed run "
            "continues with the same samples only if that code returns the same in every run.\nIt runs in TensorFlow's "
            "threads, and the global random generators are not seeded there. Resuming reads the epoch again up to the "
            "saved position. If the code is pure, declare that: wrap(tfdata.source(dataset, assume_pure=True)).",
            PromiseWarning,
            stacklevel=2,
        )


def _identity(fingerprint: Fingerprint, name: str | None) -> dict[str, Any]:
    """Return the identity that a state must share with the pipeline; the user's name for the data replaces the data."""
    return {
        "tensorflow": tf.__version__,
        "elements": fingerprint.elements,
        "operations": fingerprint.operations,
        "parameters": fingerprint.parameters,
        "functions": fingerprint.functions,
        **({"data": fingerprint.data} if name is None else {"source": name}),
    }


def _converter(convert: Convert) -> Callable[[Any], Any]:
    """Return the function that converts an element from `as_numpy_iterator`."""
    if convert == "numpy":
        return lambda element: element
    try:
        import torch  # noqa: PLC0415  # an extra, needed only here
    except ImportError as error:
        raise MissingDependencyError(
            f'convert="torch" needs PyTorch, but it cannot be imported.\nInstall it: {pip_install("torch")}'
        ) from error

    def to_tensor(value: Any) -> Any:
        # A copy: TensorFlow's memory may belong to a cache or a constant, and PyTorch works in place.
        array = np.array(value)
        if array.dtype.name == "bfloat16":  # a NumPy extension that PyTorch cannot read
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return lambda element: tf.nest.map_structure(to_tensor, element)


def _length(dataset: Any) -> int | None:
    """Return the number of elements; None if it is infinite or unknown.

    Raises:
        ConfigurationError: it is 0.
    """
    count = int(dataset.cardinality())
    if count == 0:
        raise ConfigurationError(
            "this tf.data pipeline has no elements.\nAn epoch would have no batches. Check the data, and operations "
            "that may remove all of it, such as skip() or batch(..., drop_remainder=True)."
        )
    return count if count > 0 else None
