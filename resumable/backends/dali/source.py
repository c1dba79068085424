"""source(): NVIDIA DALI with our sampler, so that DALI's own graph does the work and any batch can be asked for.

DALI's readers decide themselves what they read, so a run with readers can only go on with the ranks it was started
with. Here the order comes from the loader's sampler, and the randomness from the sample's place in it: the same images
and the same augmentations on any number of ranks.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from resumable.errors import ConfigurationError, SampleError, UnsupportedError
from resumable.samplers.base import length_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray


__all__ = ["Dataset", "Files", "Labelled", "Source", "source"]


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


def _samples(data: Any, file_root: Any) -> Files | Dataset:
    if is_paths(data):
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


_OURS = {
    "batch_size": "The loader has it: resumable.wrap(source, batch_size=...).",
    "seed": "The loader has it: resumable.wrap(source, seed=...). DALI's own would only be for operators that are "
    "refused here.",
    "enable_checkpointing": "The loader's state is that of the sampler; the pipeline needs none.",
    "checkpoint": "The loader's state is that of the sampler; the pipeline needs none.",
    "debug": "DALI's debug mode runs the graph's function again for each batch, and cannot be looked into beforehand.",
}


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be an integer of {least} or more, but it is {value!r}.")


def _check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.")


# ------------------------------------------------------------------ samples
#
# Where encoded samples come from: files by name, or a dataset by index. Known to worker processes; without DALI.

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
Labelled = tuple[Bytes, "NDArray[Any]"]  # an encoded sample, and its label

_PAIR = 2
_MOST = 2**31 - 1  # labels are int32, as those of DALI's readers


def is_paths(data: Any) -> bool:
    """Return whether it is a path, or a list of paths or of pairs of a path and a label."""
    if isinstance(data, (str, os.PathLike)):
        return True
    if not isinstance(data, (list, tuple)):
        return False
    return not data or isinstance(data[0], (str, os.PathLike)) or _is_pair(data[0])


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, (list, tuple)) and len(entry) == _PAIR and isinstance(entry[0], (str, os.PathLike))


@dataclass(frozen=True, slots=True)
class Files:
    """Files, one sample each.

    Args:
        root: folder that the names are relative to, with a slash at its end.
        names: names in the file system's encoding, shape `(files,)`, of dtype "S".
        labels: shape `(files,)`, int32.
    """

    root: bytes
    names: NDArray[np.bytes_]
    labels: NDArray[np.int32]

    @classmethod
    def find(cls, data: Any, file_root: Any) -> Files:
        """Find the files of a folder, of a text file with names, or of a list.

        Raises:
            ConfigurationError: there are none, or a line or entry is none.
        """
        if isinstance(data, (str, os.PathLike)):
            path = Path(data)
            if path.is_dir():
                _refuse_root(file_root, path)
                return cls._of(path, classes_of(path), path)
            if not path.is_file():
                raise ConfigurationError(f"there is no folder and no file {str(path)!r}.\nThere is nothing to read.")
            return cls._of(Path(file_root or path.parent), lines_of(path), path)
        return cls._of(Path(file_root or ""), [_entry(number, entry) for number, entry in enumerate(data)], None)

    @classmethod
    def _of(cls, root: Path, entries: Sequence[tuple[str, int | None]], where: Path | None) -> Files:
        if not entries:
            found = f"{str(where)!r}" if where else "the list"
            raise ConfigurationError(
                f"{found} has no files.\nThere would be nothing to read. "
                "A folder needs a folder per class, with images in it."
            )
        labels = [number if label is None else label for number, (_, label) in enumerate(entries)]
        if max(map(abs, labels)) > _MOST:
            raise ConfigurationError(f"a label is out of the range of int32: {max(labels, key=abs)}.")
        base, names = _common(root, [name for name, _ in entries])
        return cls(base, np.array(names), np.array(labels, np.int32))

    @property
    def length(self) -> int:
        """Number of files."""
        return len(self.names)

    @property
    def identity(self) -> dict[str, Any]:
        """A fingerprint of their names and labels; the folder they are in may be moved."""
        state = hashlib.blake2b(digest_size=8, person=b"resumable1")
        for name in self.names.tolist():
            state.update(name + b"\0")
        state.update(self.labels.astype("<i4").tobytes())
        return {"source": "files", "files": state.hexdigest()}

    def paths(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the paths of some files, for DALI: uint8 of shape `(len(indices), bytes)`, filled up with zeros."""
        names = self.names[indices]
        width = names.dtype.itemsize
        paths = np.zeros((len(names), len(self.root) + width + 1), np.uint8)
        paths[:, : len(self.root)] = np.frombuffer(self.root, np.uint8)
        paths[:, len(self.root) : -1] = names.view(np.uint8).reshape(len(names), width)
        return paths

    def name(self, index: int) -> str:
        """Return the path of a file, for messages."""
        return os.fsdecode(self.root + bytes(self.names[index]))

    def __getitem__(self, index: int) -> Labelled:
        return np.fromfile(self.name(index), np.uint8), self.labels[index : index + 1]


class Dataset:
    """A map-style dataset of encoded samples.

    Args:
        source: gives bytes, or pairs of bytes and a label, by index.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    @property
    def length(self) -> int:
        """Number of samples."""
        return len(self.source)

    @property
    def identity(self) -> dict[str, Any]:
        """The name of its type."""
        return {"source": type(self.source).__qualname__}

    def name(self, index: int) -> str:
        """Return the name of a sample, for messages."""
        return f"sample {index} of {type(self.source).__qualname__}"

    def __getitem__(self, index: int) -> Labelled:
        sample = self.source[index]
        raw, label = sample if isinstance(sample, (tuple, list)) and len(sample) == _PAIR else (sample, index)
        return _encoded(raw, index), _label(label, index)


def _encoded(raw: Any, index: int) -> Bytes:
    if isinstance(raw, (bytes, bytearray, memoryview)):
        return np.frombuffer(raw, np.uint8)
    array = np.asarray(raw)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise SampleError(
            f"sample {index} is no encoded sample: {type(raw).__qualname__}, {array.dtype} of shape {array.shape}.\n"
            "The graph gets bytes. Give bytes or a one-dimensional uint8 array, alone or in a pair with a label."
        )
    return array


def _label(label: Any, index: int) -> NDArray[Any]:
    array = np.asarray(label)
    if array.dtype.kind not in "iubf":
        raise SampleError(
            f"the label of sample {index} is no number: {label!r}, a {type(label).__qualname__}.\n"
            "DALI takes arrays of numbers, so no batch could be made. Give the number of the class, or keep the names "
            "beside the loader and give their index."
        )
    return array if array.ndim else array.reshape(1).astype(np.int32 if array.dtype.kind in "iub" else np.float32)


def _entry(number: int, entry: Any) -> tuple[str, int | None]:
    if isinstance(entry, (str, os.PathLike)):
        return os.fspath(entry), None
    if not _is_pair(entry) or not isinstance(entry[1], (int, np.integer)):
        raise ConfigurationError(
            f"entry {number} of the list of files is neither a path nor a pair of a path and an integer: {entry!r}."
        )
    return os.fspath(entry[0]), int(entry[1])


def _common(root: Path, names: list[str]) -> tuple[bytes, list[bytes]]:
    """Split paths into the folder that they share and the rest, so that a moved folder has the same names."""
    above = os.fsencode(os.path.abspath(root))  # noqa: PTH100  # a million of them: no Path objects
    paths = [os.path.join(above, os.fsencode(name)) for name in names]  # noqa: PTH118  # likewise
    shared = os.path.commonpath({os.path.dirname(path) for path in paths})  # noqa: PTH120  # likewise
    base = os.path.join(shared, b"")  # noqa: PTH118  # likewise
    return base, [path[len(base) :] for path in paths]


def _refuse_root(file_root: Any, folder: Path) -> None:
    if file_root is not None:
        raise ConfigurationError(
            f"file_root={file_root!r} was given, but {str(folder)!r} is a folder already.\nLeave file_root out."
        )


# ------------------------------------------------------------------ lists
#
# Lists of files with labels, in the order of DALI's own reader: from a folder of classes, or from a text file.

# What fn.readers.file looks for where file_filters is not given, without the formats of sound.
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".pnm", ".ppm", ".pgm", ".pbm", ".jp2", ".webp")


def classes_of(folder: Path) -> list[tuple[str, int | None]]:
    """Return the images below each folder of a folder, sorted, with the number of that folder."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [(path, label) for label, name in enumerate(classes) for path in _images(folder, name)]


def _images(folder: Path, name: str) -> list[str]:
    found, cut = list[str](), len(os.path.join(folder, ""))  # noqa: PTH118  # a million of them: no Path objects
    for where, _, names in sorted(os.walk(folder / name, followlinks=True)):
        below = where[cut:]
        found += [f"{below}/{file}" for file in sorted(names) if file.lower().endswith(_ENDINGS)]
    return found


def lines_of(file: Path) -> list[tuple[str, int | None]]:
    """Return the paths and labels of a text file: one pair per line, the label after the last blank.

    Raises:
        ConfigurationError: a line is no such pair.
    """
    entries: list[tuple[str, int | None]] = []
    with file.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                entries.append(_parse(line.strip(), file, number))
    return entries


def _parse(line: str, file: Path, number: int) -> tuple[str, int]:
    name, _, label = line.replace("\t", " ").rpartition(" ")
    try:
        return name.rstrip(), int(label)
    except ValueError as error:
        raise ConfigurationError(
            f"line {number} of {str(file)!r} is not a path and a label: {line!r}.\n"
            "The label would be unknown. Write a path, a blank and an integer."
        ) from error
