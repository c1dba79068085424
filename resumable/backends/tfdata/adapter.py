"""Looks at a pipeline when it is wrapped: what it is, whether it can be resumed, and how; `source` says more of it."""

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
from resumable.backends.tfdata.backend import Datasets, NativeBackend, ReplayBackend, is_endless
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
_RARELY = 1000  # steps between two states of a program that takes them itself
_WAYS = {
    "RaggedTensorSpec": "Make it dense in the pipeline: .map(lambda x: x.to_tensor()), or padded_batch.",
    "SparseTensorSpec": "Make it dense in the pipeline: .map(tf.sparse.to_dense).",
    "DatasetSpec": "Take the datasets apart in the pipeline: .flat_map(lambda window: window.batch(3)).",
}


def source(
    pipeline: Any | Callable[..., Any],
    *,
    strategy: Choice = "auto",
    assume_pure: bool = False,
    convert: Convert = "numpy",
    snapshot_every: int | None = None,
) -> Source:
    """Say more about a `tf.data` pipeline, for `wrap(source(...))`.

    Args:
        pipeline: a `tf.data.Dataset`, or a function that returns one. A function with a parameter `epoch` is called for
            each epoch, so that none depends on earlier ones; any other one is called once.
        strategy: how it is resumed: by TensorFlow's "symbolic" or "explicit" state, or by "replay", which rereads it
            up to the place. "auto" takes what works; where both states do, the one that is estimated to cost less per
            step, and after a load that of the state.
        assume_pure: the Python functions, variables and tables in it give the same for the same element in every run.
            It cannot be checked.
        convert: what the elements become: "numpy" arrays, or "torch" tensors of their own memory.
        snapshot_every: steps between two states that are taken in advance (`ack="manual"`); by default 100.

    Returns:
        What `wrap` takes.

    Raises:
        ConfigurationError: `snapshot_every` is no integer of 1 or more.
    """
    if snapshot_every is not None:
        snapshot_every = check_count("snapshot_every", snapshot_every, "It counts steps.")
    return Source(pipeline, strategy, assume_pure, convert, snapshot_every)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A pipeline for `wrap`; made by `source`."""

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
    every = source.snapshot_every or (NativeBackend.snapshot_every if options.ack == "manual" else _RARELY)
    chosen = plan(graph, source.strategy, assume_pure=source.assume_pure, per_epoch=datasets.per_epoch, every=every)
    if options.resume == "state" and chosen.strategy == "replay":
        options.refuse("this tf.data pipeline", resume=f"It is replayed: {chosen.reason}.")
    if options.resume == "replay" and not datasets.per_epoch and is_endless(dataset):
        options.refuse("an endless tf.data pipeline", resume="Leave repeat() out: the loader goes from epoch to epoch.")
    _announce(chosen)
    identity = _identity(Fingerprint(graph, dataset), options.identity)
    given = (datasets, identity, chosen.strategy, _converter(source.convert), _length(dataset))
    if chosen.strategy == "replay":
        return ReplayBackend(*given), options
    return NativeBackend(*given, also=chosen.also, snapshot_every=source.snapshot_every), options


def refuse_iterators(iterator: Any, options: Options) -> NoReturn:  # noqa: ARG001  # an adapter is called with both
    """Refuse what was made of a dataset, and has lost what is needed to resume it.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"this is no tf.data.Dataset, but what was made of one: {type(iterator).__qualname__}.\n"
        "It could be resumed by reading it again only, and whether it then gives the same is unknown. Wrap the "
        "dataset itself; with several ranks, give each rank one of its own (dataset.shard) and say shard=False."
    )


def _datasets(pipeline: Any) -> tuple[Datasets, Any]:
    """Return what gives the dataset of an epoch, and the dataset of the first."""
    if isinstance(pipeline, tf.data.Dataset):
        return Datasets(lambda _: pipeline, per_epoch=False), pipeline
    if not callable(pipeline):
        raise UnsupportedError(
            f"tfdata.source() takes a tf.data.Dataset or a function that returns one, but this is {pipeline!r}.\n"
            "There would be no batches."
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
            "It is called with nothing but the epoch, where it has a parameter of that name. Give a function that "
            "needs no more, such as functools.partial(function, ...)."
        ) from error
    return "epoch" in parameters


def _call(build: Callable[..., Any], arguments: dict[str, int]) -> Any:
    dataset = build(**arguments)
    if not isinstance(dataset, tf.data.Dataset):
        raise UnsupportedError(
            f"the function that was given to tfdata.source() returned no tf.data.Dataset, but {type(dataset)}.\n"
            "There would be no batches. Let it return the dataset; anything else can be given to wrap() by itself."
        )
    return dataset


def _check_elements(spec: Any, convert: Convert) -> None:
    """Refuse elements that cannot be delivered.

    Args:
        spec: the `element_spec` of a dataset.
        convert: what they are to become.

    Raises:
        ConfigurationError: `convert` is none of the two.
        UnsupportedError: a part is no tensor, or of a type that torch does not have.
    """
    if convert not in get_args(Convert):
        raise ConfigurationError(f'convert must be "numpy" or "torch", but it is {convert!r}.')
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or part.dtype in {tf.variant, tf.resource}:
            way = _WAYS.get(type(part).__name__, "Leave it out of the elements, by a map.")
            raise UnsupportedError(
                f"the elements of this tf.data pipeline have a part that is no plain tensor: {part}.\n"
                f"It would be no array in a batch. {way}"
            )
        if convert == "torch" and part.dtype == tf.string:
            raise UnsupportedError(
                f'convert="torch" was asked for, but the elements have text: {part}.\n'
                "torch has no tensors of text. Leave it out by a map, turn it into numbers, or use NumPy arrays "
                "(without convert)."
            )


def _check_fresh(datasets: Datasets, first: Graph) -> None:
    """Refuse a function of the epoch whose datasets share a shuffle, which counts its passes for all of them."""
    if not datasets.per_epoch:
        return
    both = _resources(first) & _resources(Graph(datasets.of(0)))
    if both:
        raise UnsupportedError(
            f"the function that builds the tf.data pipeline of an epoch uses the same {min(both)} each time.\n"
            "It counts its passes, so that an epoch's order would depend on how many epochs this process has read. "
            "Build the whole pipeline inside of the function, or give the dataset itself to wrap()."
        )


def _resources(graph: Graph) -> set[str]:
    """Return the names that this process has for the counters of shuffles, and for caches."""
    constants = (one.node.attr["value"].tensor for one in graph.operations if one.node.op == "Const")
    handles = [handle for tensor in constants for handle in tensor.resource_handle_val]
    return {one.name for one in handles if "Seed" in one.maybe_type_name or "Cache" in one.maybe_type_name}


def _announce(chosen: Plan) -> None:
    _log.info("tf.data: resumes by %s: %s", chosen.strategy, chosen.reason)
    if chosen.python:
        warnings.warn(
            f"this tf.data pipeline runs Python ({', '.join(chosen.python)}), which cannot be looked into: that "
            "a resumed run goes on with the same samples is promised only if it gives the same in every run.\nIt runs "
            "in TensorFlow's threads, where random numbers of the global generators are not seeded. Resuming reads the "
            "epoch again up to the place. If it is pure, say so: wrap(tfdata.source(dataset, assume_pure=True)).",
            PromiseWarning,
            stacklevel=2,
        )


def _identity(fingerprint: Fingerprint, name: str | None) -> dict[str, Any]:
    """Return what a state must have in common with the pipeline; the user's name for the data stands for the data."""
    return {
        "tensorflow": tf.__version__,
        "elements": fingerprint.elements,
        "operations": fingerprint.operations,
        "parameters": fingerprint.parameters,
        "functions": fingerprint.functions,
        **({"data": fingerprint.data} if name is None else {"source": name}),
    }


def _converter(convert: Convert) -> Callable[[Any], Any]:
    """Return the function that makes an element of what `as_numpy_iterator` gives."""
    if convert == "numpy":
        return lambda element: element
    try:
        import torch  # noqa: PLC0415  # an extra, and only where it was asked for
    except ImportError as error:
        raise MissingDependencyError(
            f'convert="torch" needs torch, which cannot be imported here.\nInstall it: {pip_install("torch")}'
        ) from error

    def to_tensor(value: Any) -> Any:
        # A copy: TensorFlow's memory may belong to a cache or a constant, and torch works in place.
        array = np.array(value)
        if array.dtype.name == "bfloat16":  # NumPy has it by an extension that torch does not read
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return lambda element: tf.nest.map_structure(to_tensor, element)


def _length(dataset: Any) -> int | None:
    """Return the number of elements; None where it is infinite or unknown.

    Raises:
        ConfigurationError: there is none.
    """
    count = int(dataset.cardinality())
    if count == 0:
        raise ConfigurationError(
            "this tf.data pipeline has no elements.\nAn epoch would have no batch. Give data, or leave out what takes "
            "them all away, such as skip() or batch(..., drop_remainder=True)."
        )
    return count if count > 0 else None
