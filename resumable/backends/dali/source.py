"""source(): NVIDIA DALI with our sampler, so that DALI's own graph does the work and any batch can be asked for.

DALI's readers decide themselves what they read, so a run with readers can only go on with the ranks it was started
with. Here the order comes from the loader's sampler, and the randomness from the sample's place in it: the same images
and the same augmentations on any number of ranks.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from resumable.backends.dali.samples import Dataset, Files, are_paths
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.samplers.base import length_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence


__all__ = ["Source", "source"]


_OURS = {
    "batch_size": "The loader has it: resumable.wrap(source, batch_size=...).",
    "seed": "The loader has it: resumable.wrap(source, seed=...). DALI's own would only be for operators that are "
    "refused here.",
    "enable_checkpointing": "The loader's state is that of the sampler; the pipeline needs none.",
    "checkpoint": "The loader's state is that of the sampler; the pipeline needs none.",
    "debug": "DALI's debug mode runs the graph's function again for each batch, and cannot be looked into beforehand.",
}


def source(  # noqa: PLR0913  # what DALI's own pipelines have, under the same names
    data: str | os.PathLike[str] | Sequence[Any] | Any,
    *,
    pipeline: Callable[..., Any],
    outputs: Sequence[str] = ("data", "label"),
    uniforms: int = 0,
    file_root: str | os.PathLike[str] | None = None,
    num_threads: int = 2,
    device_id: int | None = None,
    prefetch_queue_depth: int = 2,
    py_num_workers: int = 0,
    py_start_method: Literal["spawn", "forkserver", "fork"] = "spawn",
    on_nondeterministic: Literal["error", "warn"] = "error",
    **pipeline_options: Any,
) -> Source:
    """Describe samples, and the DALI graph that they go through, for `resumable.wrap`.

        def augment(raw, label, u):
            image = fn.decoders.image(raw)
            return fn.flip(fn.resize(image, size=(64, 64)), horizontal=fn.cast(u[0] < 0.5, dtype=types.INT32)), label

        source = resumable.backends.dali.source("images/", pipeline=augment, uniforms=1)
        loader = resumable.wrap(source, batch_size=32, shuffle=True, seed=0)

    Args:
        data: what to read. A folder with a folder per class (as for `fn.readers.file` and torchvision's `ImageFolder`);
            a text file with lines of a path and a label (as `file_list` of `fn.readers.file`); a list of paths, or of
            pairs of a path and a label; or an object with `__getitem__` and `__len__` that gives bytes, or pairs of
            bytes and a label. Where there are no labels, the sample index stands for them.
        pipeline: a plain function over DALI's nodes: `pipeline(raw, label, u)`, or `pipeline(raw, label)` without
            uniforms. `raw` is the encoded sample, uint8 of shape `(bytes,)`; `label` is int32 of shape `(1,)`, or
            whatever array the dataset gives; `u` is float32 of shape `(uniforms,)`. It returns a node or a tuple.
        outputs: names of what it returns; a batch is a dict of tensors under these names.
        uniforms: how many random numbers of [0, 1) each sample gets, by the loader's seed, the epoch and the sample's
            position in it.
        file_root: what the paths of a text file or of a list are relative to; by default the folder of the text file,
            or the working directory.
        num_threads: threads of DALI.
        device_id: number of the GPU, or None to work on the CPU.
        prefetch_queue_depth: batches that DALI works on ahead.
        py_num_workers: processes that read the samples, for a dataset that takes long in Python. With 0, files are
            read by DALI's own threads, and a dataset in this process.
        py_start_method: how these processes are started.
        on_nondeterministic: "error" refuses a graph with random operators of DALI's own, which are another stream on
            every number of ranks and after every resume; "warn" warns.
        pipeline_options: more for `nvidia.dali.pipeline_def`, such as `enable_conditionals=True`.

    Returns:
        A description; nothing is read but the names of files.

    Raises:
        ConfigurationError: there are no samples, or an option has a bad value.
        UnsupportedError: `data` is nothing that can be read by an index.
    """
    _check_count("uniforms", uniforms, 0)
    _check_count("num_threads", num_threads, 1)
    _check_count("prefetch_queue_depth", prefetch_queue_depth, 1)
    _check_count("py_num_workers", py_num_workers, 0)
    _check_choice("py_start_method", py_start_method, ("spawn", "forkserver", "fork"))
    _check_choice("on_nondeterministic", on_nondeterministic, ("error", "warn"))
    _check_options(pipeline_options)
    _check_graph(pipeline, ("raw", "label", "u") if uniforms else ("raw", "label"))
    return Source(
        samples=_samples(data, file_root),
        graph=pipeline,
        outputs=_names(outputs),
        uniforms=uniforms,
        workers=py_num_workers,
        start_method=py_start_method,
        on_nondeterministic=on_nondeterministic,
        device_id=device_id,
        options={"num_threads": num_threads, "prefetch_queue_depth": prefetch_queue_depth, **pipeline_options},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Samples and the graph they go through; `resumable.wrap` makes a loader of it. `source` makes one.

    Args:
        samples: the encoded samples and their labels.
        graph: the user's function over DALI's nodes.
        outputs: names of what the graph returns.
        uniforms: random numbers per sample.
        workers: processes that read the samples.
        start_method: how these processes are started.
        on_nondeterministic: what to do about operators that break a promise.
        device_id: number of the GPU, or None.
        options: of DALI's pipeline.
    """

    samples: Files | Dataset
    graph: Callable[..., Any]
    outputs: tuple[str, ...]
    uniforms: int
    workers: int
    start_method: str
    on_nondeterministic: Literal["error", "warn"]
    device_id: int | None
    options: Mapping[str, Any] = field(default_factory=dict)


def _samples(data: Any, file_root: Any) -> Files | Dataset:
    if are_paths(data):
        return Files.find(data, file_root)
    if file_root is not None:
        raise ConfigurationError(f"file_root={file_root!r} was given, but the data is no list of files: {data!r}.")
    if not hasattr(data, "__getitem__") or isinstance(data, (bytes, bytearray, dict)):
        raise UnsupportedError(
            f"cannot read samples by index from an object of the type {type(data).__module__}."
            f"{type(data).__qualname__}.\nNo place in it could be gone to. Give a folder, a list of files, or an "
            "object with __getitem__ and __len__ that gives bytes. For DALI's own readers, wrap their iterator."
        )
    if not length_of(data, type(data).__qualname__):
        raise ConfigurationError("the dataset is empty: its len() is 0.\nThere would be nothing to read.")
    return Dataset(data)


def _names(outputs: Any) -> tuple[str, ...]:
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"outputs must be different names, one for each node that the pipeline returns, but it is {outputs!r}.\n"
            'A batch is a dict under these names. Use for instance outputs=["data", "label"].'
        )
    return names


def _check_graph(graph: Any, parameters: tuple[str, ...]) -> None:
    call = f"pipeline({', '.join(parameters)})"
    if not callable(graph) or hasattr(graph, "_is_pipeline_def"):
        raise ConfigurationError(
            f"pipeline must be a plain function that is called as {call}, but it is {graph!r}.\n"
            "The pipeline around it is made here, with the options that source() got. Leave @pipeline_def out."
        )
    try:
        inspect.signature(graph).bind(*parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"pipeline is called as {call}, but {getattr(graph, '__qualname__', graph)} has the parameters "
            f"{inspect.signature(graph)}: {error}.\n"
            "`u` is there where uniforms is 1 or more. Change the parameters, or the number of uniforms."
        ) from error


def _check_options(options: Mapping[str, Any]) -> None:
    for name, reason in _OURS.items():
        if name in options:
            raise ConfigurationError(f"{name}={options[name]!r} cannot be given to source().\n{reason}")


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be an integer of {least} or more, but it is {value!r}.")


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.")
