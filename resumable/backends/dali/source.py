"""source(): NVIDIA DALI with our sampler. DALI's graph does the work, and any batch can be requested.

DALI's readers choose what they read, so a run with readers can only continue with the number of ranks that it started
with. Here the loader's sampler determines the order, and a sample's position in that order determines its random
numbers: the same images and augmentations on any number of ranks.
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
    "batch_size": "Pass it to the loader: resumable.wrap(source, batch_size=...).",
    "seed": "Pass it to the loader: resumable.wrap(source, seed=...). DALI's own seed would only affect its random "
    "operators, which source() does not support.",
    "enable_checkpointing": "The loader saves the state of the sampler; the pipeline needs no checkpoints.",
    "checkpoint": "The loader saves the state of the sampler; the pipeline needs no checkpoints.",
    "debug": "In debug mode, DALI calls the graph's function for each batch, so it cannot be checked beforehand.",
}


def source(  # noqa: PLR0913  # named like DALI's pipeline options
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
    """Describe samples and the DALI graph that processes them, for `resumable.wrap`.

        def augment(raw, label, u):
            image = fn.decoders.image(raw)
            return fn.flip(fn.resize(image, size=(64, 64)), horizontal=fn.cast(u[0] < 0.5, dtype=types.INT32)), label

        source = resumable.backends.dali.source("images/", pipeline=augment, uniforms=1)
        loader = resumable.wrap(source, batch_size=32, shuffle=True, seed=0)

    Args:
        data: the samples. A folder with one folder per class (as for `fn.readers.file` and torchvision's
            `ImageFolder`); a text file with a path and a label per line (as `file_list` of `fn.readers.file`); a list
            of paths, or of pairs of a path and a label; or an object with `__getitem__` and `__len__` that returns
            bytes, or pairs of bytes and a label. Without labels, the sample index is used as the label.
        pipeline: a plain function of DALI nodes: `pipeline(raw, label, u)`, or `pipeline(raw, label)` without uniforms.
            `raw` is the encoded sample, uint8 of shape `(bytes,)`; `label` is int32 of shape `(1,)`, or the array that
            the dataset returns; `u` is float32 of shape `(uniforms,)`. It returns a node or a tuple.
        outputs: names of the returned nodes; a batch is a dict of tensors with these names.
        uniforms: how many random numbers in [0, 1) each sample gets. They depend on the loader's seed, the epoch and
            the sample's position in the epoch.
        file_root: the folder that the paths of a text file or list are relative to; by default the folder of the text
            file, or the working directory.
        num_threads: number of DALI threads.
        device_id: number of the GPU, or None to use the CPU.
        prefetch_queue_depth: how many batches DALI prepares ahead.
        py_num_workers: number of processes that read the samples, for a dataset that is slow in Python. With 0, DALI's
            threads read files, and this process reads a dataset.
        py_start_method: how these processes are started.
        on_nondeterministic: "error" raises an error if the graph contains DALI's own random operators, as these produce
            different batches on a different number of ranks and after every resume. "warn" only warns.
        pipeline_options: more options of `nvidia.dali.pipeline_def`, such as `enable_conditionals=True`.

    Returns:
        A description of the source. Only file names have been read.

    Raises:
        ConfigurationError: the source is empty, or an option has an invalid value.
        UnsupportedError: `data` cannot be read by index.
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
    """Samples and the graph that processes them, made by `source`; pass it to `resumable.wrap`.

    Args:
        samples: the encoded samples and their labels.
        graph: the user's function of DALI nodes.
        outputs: names of the nodes that the graph returns.
        uniforms: random numbers per sample.
        workers: number of processes that read the samples.
        start_method: how these processes are started.
        on_nondeterministic: whether operators that break a promise cause an error or a warning.
        device_id: number of the GPU, or None.
        options: options of DALI's pipeline.
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
        raise ConfigurationError(
            f"file_root={file_root!r} was passed, but the data is not a list of files: {data!r}.\nRemove file_root."
        )
    if not hasattr(data, "__getitem__") or isinstance(data, (bytes, bytearray, dict)):
        raise UnsupportedError(
            f"cannot read samples by index from an object of the type {type(data).__module__}."
            f"{type(data).__qualname__}.\nA run could not resume at a position in it. Pass a folder, a list of files, "
            "or an object with __getitem__ and __len__ that returns bytes. For DALI's readers, wrap their iterator."
        )
    if not length_of(data, type(data).__qualname__):
        raise ConfigurationError("the dataset is empty: its len() is 0.\nThere would be nothing to read.")
    return Dataset(data)


def _names(outputs: Any) -> tuple[str, ...]:
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"outputs must contain a different name for each node that the pipeline returns, but it is {outputs!r}.\n"
            'A batch is a dict with these names. Use for example outputs=["data", "label"].'
        )
    return names


def _check_graph(graph: Any, parameters: tuple[str, ...]) -> None:
    call = f"pipeline({', '.join(parameters)})"
    if not callable(graph) or hasattr(graph, "_is_pipeline_def"):
        raise ConfigurationError(
            f"pipeline must be a plain function that can be called as {call}, but it is {graph!r}.\n"
            "source() makes the DALI pipeline itself, from its own options. Remove @pipeline_def."
        )
    try:
        inspect.signature(graph).bind(*parameters)
    except TypeError as error:
        raise ConfigurationError(
            f"pipeline is called as {call}, but {getattr(graph, '__qualname__', graph)} has the parameters "
            f"{inspect.signature(graph)}: {error}.\n"
            "`u` is only passed if uniforms is 1 or more. Change the parameters, or the number of uniforms."
        ) from error


def _check_options(options: Mapping[str, Any]) -> None:
    for name, reason in _OURS.items():
        if name in options:
            raise ConfigurationError(f"source() does not accept {name}={options[name]!r}.\n{reason}")


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be an integer of {least} or more, but it is {value!r}.")


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.")
