"""The rows of the grid: a small source of every kind that the registry knows, and sources that depend on their past.

A group is what one process imports. Each row makes a Loader over a new source; its samples contain random numbers.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resumable import Loader

ANOTHER = "another run"
EXACT = ("exact",)
REJECTED = ("exact", "rejected")  # exact within the first epoch, as nothing has happened before
UNWRAPPED = ("rejected by wrap",)


class Row(NamedTuple):
    """A source and what happens to it.

    Args:
        make: returns a Loader over a new source.
        outcomes: what all cuts together have.
        words: in each error and warning.
    """

    make: Callable[[], Loader[Any]]
    outcomes: tuple[str, ...] = EXACT
    words: str = ""


Rows = dict[str, Row]

# For each name of the registry, the group and the row that reads such a source.
ROW_OF = {
    "builtins.list": ("python", "list"),
    "builtins.tuple": ("python", "tuple"),
    "builtins.range": ("python", "range"),
    "numpy.ndarray": ("python", "array"),
    "torch.Tensor": ("python", "tensor"),
    "torch.utils.data.dataloader.DataLoader": ("python", "DataLoader"),
    "nvidia.dali.plugin.base_iterator._DaliBaseIterator": ("dali", "iterator"),
    "resumable.backends.dali.turns.InTurn": ("dali", "in_turn()"),
    "checkpoints": ("dali", "function of checkpoints"),
    "nvidia.dali.pipeline.Pipeline": ("dali", "pipeline"),
    "nvidia.dali.experimental.dynamic._ops.Reader": ("dali", "reader of the dynamic mode"),
    "resumable.backends.dali.source.Source": ("dali", "source()"),
    "resumable.backends.tfds.source.TfdsSource": ("tfds", "source()"),
    "tensorflow_datasets.core.data_sources.base.BaseDataSource": ("tfds", "data source"),
    "tensorflow_datasets.core.dataset_builder.DatasetBuilder": ("tfds", "builder"),
    "tensorflow_datasets.core.dataset_utils._IterableDataset": ("tfds", "as_numpy()"),
    "tensorflow.python.data.ops.dataset_ops.DatasetV2": ("tensorflow", "typical"),
    "resumable.backends.tfdata.adapter.Source": ("tensorflow", "function of the epoch"),
    "tensorflow.python.data.ops.iterator_ops.OwnedIterator": ("tensorflow", "iterator"),
    "tensorflow.python.data.ops.dataset_ops.NumpyIterator": ("tensorflow", "as_numpy_iterator()"),
    "tensorflow.python.distribute.input_lib.DistributedDataset": ("tensorflow", "distributed dataset"),
    "ffcv.loader.loader.Loader": ("ffcv", "Loader"),
    "resumable.backends.ffcv.identity.Source": ("ffcv", "source()"),
    "ray.data.iterator._IterableFromIterator": ("ray", "iter_torch_batches()"),
    "ray.data.iterator.DataIterator": ("ray", "iterator"),
    "ray.data.dataset.Dataset": ("ray", "dataset"),
}


def python(folder: Path) -> Rows:
    """Return sources that this process reads: sequences, files, iterables, and DataLoaders without workers."""
    import every_source as every  # noqa: PLC0415  # a group imports what it needs
    import past_sources as past  # noqa: PLC0415
    import test_iterable as iterables  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import torch_datasets as own  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415
    from torchdata import nodes  # noqa: PLC0415
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415

    wrap = partial(resumable.wrap, batch_size=3, seed=3)
    makes = every.of_python(folder) | every.of_torch(folder)
    rows = {name: Row(make) for name, make in makes.items() if not _has_workers(name) and name != "long range"}
    whole = "DataLoader, __getitems__"  # of which `wrap` warns: its randomness is per batch
    rows[whole] = Row(makes[whole], ("exact, warned",), "Together")
    makes = {
        "tuple": lambda: wrap(tuple(range(10)), shuffle=True, transform=every.augmented),
        "range": lambda: wrap(range(10), shuffle=True, transform=every.augmented),
        "tensor": lambda: wrap(torch.arange(10), shuffle=True, transform=every.augmented),
        "generator function of the epoch": lambda: wrap(past.of_epoch, transform=every.augmented),
        "re-iterable object": lambda: resumable.wrap(iterables.Records()),
        "iterator with a state": lambda: resumable.wrap(iterables.Dataset()),
        "reader that restarts late": lambda: resumable.wrap(iterables.LateReader()),
        "nodes of torchdata": lambda: resumable.wrap(
            nodes.Loader(nodes.SamplerWrapper(range(6)), restart_on_stop_iteration=False)
        ),
        "StatefulDataLoader": lambda: resumable.wrap(StatefulDataLoader(own.Augmented(10), batch_size=4, shuffle=True)),
        "DataLoader without batches": lambda: resumable.wrap(DataLoader(own.Augmented(6), batch_size=None)),
        "subclass of DataLoader": lambda: resumable.wrap(
            past.Tracked(own.Augmented(10), batch_size=4), seed=3, resume="replay"
        ),
    }
    return rows | {name: Row(make) for name, make in makes.items()}


def workers(folder: Path) -> Rows:
    """Return DataLoaders with worker processes."""
    import every_source as every  # noqa: PLC0415  # a group imports what it needs
    import past_sources as past  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415

    def loader(dataset: Any, *, lives: bool = False) -> Loader[Any]:
        return resumable.wrap(DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=lives), seed=3)

    made = every.of_torch(folder)
    return {name: Row(make) for name, make in made.items() if _has_workers(name)} | {
        "counts its passes": Row(lambda: loader(past.SharedCount()), REJECTED, "SharedCount"),
        "shuffles with its own generator": Row(lambda: loader(past.Reshuffles())),
        "shuffles in workers that stay": Row(lambda: loader(past.Reshuffles(), lives=True), REJECTED, "Reshuffles"),
    }


def _has_workers(name: str) -> bool:
    return "workers" in name or "streams" in name


def hugging_face(_: Path) -> Rows:
    """Return datasets and streams of Hugging Face's library."""
    import every_source as every  # noqa: PLC0415  # a group imports what it needs

    return {name: Row(make) for name, make in every.of_datasets().items()}


# ---------------------------------------------------------------------- one way each to depend on the past


class SetOrder:
    """Has the order of a set of texts, which differs in each process."""

    def __init__(self) -> None:
        self.names = {f"name {number}" for number in range(12)}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.names)


class FileOrder:
    """Lists a folder with the newest file first."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)

    def __iter__(self) -> Iterator[Any]:
        return (file.name for file in self.files)


class Echo:
    """A dataset of whatever it is asked for."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, asked: Any) -> Any:
        return asked, random.random()


def past(folder: Path) -> Rows:
    """Return sources that depend on their past, as iterables, in a DataLoader, and as the sampler of one."""
    import past_sources as past  # noqa: PLC0415  # a group imports what it needs
    from torch.utils.data import DataLoader, IterableDataset, Sampler  # noqa: PLC0415

    listed = folder / "listed"
    listed.mkdir(exist_ok=True)
    for age, name in enumerate({f"shard {number}" for number in range(12)}):  # in a different order in each process
        (listed / name).touch()
        os.utime(listed / name, ns=(age, age))

    def iterable(make: Callable[[], Any]) -> Loader[Any]:
        return resumable.wrap(make(), batch_size=3, seed=3)

    def stream(make: Callable[[], Any]) -> Loader[Any]:
        source = make()
        kind = type(source)
        source.__class__ = type(kind.__name__, (kind, IterableDataset), {})
        return resumable.wrap(DataLoader(source, batch_size=3), seed=3)

    def ordered(make: Callable[[], Any]) -> Loader[Any]:
        source, data = make(), cast("Any", Echo())
        kind = type(source)
        source.__class__ = type(kind.__name__, (kind, Sampler), {})
        return resumable.wrap(DataLoader(data, sampler=source, batch_size=3), seed=3)

    made: dict[str, Callable[[], Any]] = {
        **past.DEPENDENT,
        "SetOrder": SetOrder,
        "FileOrder": partial(FileOrder, listed),
    }
    rows = {}
    for name, make in made.items():
        outcomes = OUTCOMES.get(name, REJECTED)
        rows[name] = Row(partial(iterable, make), outcomes, name)
        if name not in {"closure", "Tracked"}:
            rows[f"{name} in a DataLoader"] = Row(partial(stream, make), outcomes, name)
        if name in ORDERS:
            rows[f"{name} as a sampler"] = Row(partial(ordered, make), ORDERS[name], f"{name}|Echo")
    return rows


DRAWN = (ANOTHER, "rejected", "different, warned")
OUTCOMES = {
    "Late": ("exact", "rejected", "different, warned"),  # it counts at the end of an epoch, and an error may come first
    "EveryThird": ("exact", "different, warned"),
    "Tracked": ("exact, warned", "rejected"),  # `wrap` warns of each subclass with its own __iter__
    "Statistics": ("exact", "exact, warned"),  # it counts without an effect, which nobody can know
    "Clock": (ANOTHER, "rejected"),
    "SetOrder": DRAWN,
    "FileOrder": DRAWN,
}
# As a sampler, whose indices of earlier epochs are read again.
ORDERS = {
    **dict.fromkeys(("Counter", "InPlace", "OwnRandom", "Cache", "KeepsIterator"), EXACT),
    "Thread": ("exact, warned",),  # it cannot be copied
    "Clock": DRAWN,
    "SetOrder": DRAWN,
    "FileOrder": DRAWN,
}


# ---------------------------------------------------------------------- frameworks

CALLING = ("exact, warned", "rejected", "different, warned")  # `wrap` warns of Python in a pipeline


def dali(folder: Path) -> Rows:
    """Return DALI's iterators, with their own order and with ours, and what else of DALI holds data."""
    import dali_images  # noqa: PLC0415  # a group imports what it needs
    import dali_pipelines  # noqa: PLC0415
    import test_dali_python as calls  # noqa: PLC0415
    from nvidia.dali.plugin.pytorch import LastBatchPolicy  # noqa: PLC0415

    from resumable.backends.dali import in_turn  # noqa: PLC0415

    images, numbers = folder / "images", folder / "numbers"
    if not images.exists():
        dali_pipelines.write_images(images, 11)
        dali_images.write(folder / "digits", 11)
        numbers.mkdir()
        for number in range(6):
            np.save(numbers / f"{number}.npy", np.full(2, number, np.float32))

    def iterator(count: int = 1, **options: Any) -> Any:
        return dali_pipelines.iterator(count, reader={"file_root": str(images)}, **options)

    def made(checkpoints: list[bytes] | None) -> Any:
        given = {"enable_checkpointing": True, "checkpoint": checkpoints and checkpoints[0]}
        return iterator(pipeline=given)

    dropping = {"last_batch_policy": LastBatchPolicy.DROP, "auto_reset": False}
    return {
        "iterator": Row(lambda: resumable.wrap(iterator())),
        "iterator over two pipelines": Row(
            lambda: resumable.wrap(iterator(2, **dropping)), ("exact, warned",), "every sample exactly once"
        ),
        "in_turn()": Row(lambda: resumable.wrap(in_turn([iterator(), iterator()]))),
        "function of checkpoints": Row(lambda: resumable.wrap(made)),
        "source()": Row(lambda: dali_images.wrap(folder / "digits")),
        "source() of a dataset": Row(lambda: dali_images.wrap(dali_images.Bytes(11))),
        "pipeline": Row(lambda: resumable.wrap(dali_pipelines.pipelines()[0]), UNWRAPPED, "DALI [Pp]ipeline"),
        "reader of the dynamic mode": Row(
            lambda: resumable.wrap(calls.numpy_reader(numbers)), UNWRAPPED, "dynamic mode"
        ),
        "object that holds a reader": Row(
            lambda: resumable.wrap(calls.Epochs(calls.numpy_reader(numbers))), UNWRAPPED, "Epochs reads"
        ),
        "Python that depends on the index": Row(
            lambda: resumable.wrap(calls.reading(calls.Fresh)), ("exact, warned",), "calls Python"
        ),
        "Python that shuffles in place": Row(
            lambda: resumable.wrap(calls.reading(calls.ShufflesInPlace)), CALLING, "order|DALI|dali"
        ),
        "Python that counts": Row(lambda: resumable.wrap(calls.reading(calls.Counts)), CALLING, "calls|DALI|dali"),
        "Python that remembers": Row(
            lambda: resumable.wrap(calls.calling(calls.remembering)), CALLING, "seen|DALI|dali"
        ),
        "Python with its own generator": Row(
            lambda: resumable.wrap(calls.calling(calls.noisy)),
            (f"{ANOTHER}, warned", *CALLING[1:]),
            "generator|DALI|dali",
        ),
    }


def tensorflow(_: Path) -> Rows:
    """Return pipelines of tf.data, for each way to restore them, and iterators over them."""
    import tensorflow as tf  # noqa: PLC0415  # a group imports what it needs
    import tfdata_pipelines as pipelines  # noqa: PLC0415

    from resumable.backends import tfdata  # noqa: PLC0415

    def replayed() -> Any:
        return tfdata.source(pipelines.of_epoch, strategy="replay")

    def counting() -> Any:
        calls = itertools.count()
        return tf.data.Dataset.range(7).map(lambda x: tf.numpy_function(lambda x: x + next(calls), [x], tf.int64))

    def distributed() -> Any:
        return tf.distribute.OneDeviceStrategy("/cpu:0").experimental_distribute_dataset(pipelines.typical())

    def wrapped(make: Callable[[], Any]) -> Loader[Any]:
        return resumable.wrap(make())

    makes: dict[str, Callable[[], Any]] = {
        "typical": pipelines.typical,
        "typical, symbolic": lambda: pipelines.by("symbolic", pipelines.typical()),
        "augmented": pipelines.augmented,
        "parallel interleave": pipelines.NATIVE["parallel interleave"],
        "repeated": pipelines.repeated,
        "function of the epoch": lambda: tfdata.source(pipelines.of_epoch),
        "function of the epoch, read again": replayed,
        "pure generator": lambda: tfdata.source(pipelines.generated, assume_pure=True),
        "shuffled, read again": lambda: tfdata.source(pipelines.typical(), strategy="replay"),
    }
    refused = {
        "iterator": lambda: iter(pipelines.typical()),
        "as_numpy_iterator()": lambda: pipelines.typical().as_numpy_iterator(),
        "distributed dataset": distributed,
    }
    return {
        "Python that counts": Row(lambda: resumable.wrap(counting()), CALLING, "Python|element"),
        **{name: Row(partial(wrapped, make)) for name, make in makes.items()},
        **{name: Row(partial(wrapped, make), UNWRAPPED, "not a tf.data.Dataset") for name, make in refused.items()},
    }


def tfds(_: Path) -> Rows:
    """Return splits of TensorFlow Datasets, and what else its library returns for them."""
    import tensorflow_datasets  # noqa: PLC0415  # a group imports what it needs
    import test_tfds as splits  # noqa: PLC0415
    from tfds_builders import folder  # noqa: PLC0415
    from torch.utils.data import DataLoader  # noqa: PLC0415

    def builder(file_format: str = "array_record") -> Any:
        return tensorflow_datasets.builder_from_directory(folder("shapes", file_format))

    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "transform": splits.without_boxes}
    decoded = given | {"transform": splits.augment}
    return {
        "source()": Row(lambda: resumable.wrap(splits.open_split(split="train[:11]", decode="pil"), **decoded)),
        "data source": Row(lambda: resumable.wrap(builder().as_data_source("train[:11]"), **given)),
        "data source in a DataLoader": Row(
            lambda: resumable.wrap(
                DataLoader(builder().as_data_source("train[:11]"), batch_size=4, collate_fn=list), seed=3
            )
        ),
        "builder": Row(lambda: resumable.wrap(builder()), UNWRAPPED, "builder"),
        "as_numpy()": Row(
            lambda: resumable.wrap(tensorflow_datasets.as_numpy(builder("tfrecord").as_dataset("train[:11]"))),
            UNWRAPPED,
            "not a tf.data.Dataset",
        ),
    }


def ffcv(_: Path) -> Rows:
    """Return FFCV's Loader. As compiling takes seconds, its wrapper returns to its first batch each time."""
    import ffcv_data  # noqa: PLC0415  # a group imports what it needs
    from ffcv.fields import decoders  # noqa: PLC0415
    from ffcv.loader import Loader, OrderOption  # noqa: PLC0415
    from ffcv.transforms import RandomHorizontalFlip, RandomTranslate, ToTensor  # noqa: PLC0415

    from resumable.backends.ffcv import source  # noqa: PLC0415

    def loader() -> Any:
        pipelines = {
            "raw": [decoders.SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(3), ToTensor()],
            "label": [decoders.IntDecoder(), ToTensor()],
        }
        path = ffcv_data.beton("grid", count=22)
        return Loader(path, 8, num_workers=1, order=OrderOption.RANDOM, pipelines=pipelines)

    @functools.cache
    def compiled(name: str) -> tuple[Any, dict[str, Any]]:
        made = resumable.wrap(loader() if name == "Loader" else source(loader(), content_hash=True), seed=3)
        return made, made.state_dict()

    def at_start(name: str) -> Any:
        made, state = compiled(name)
        made.load_state_dict(state)
        return made

    return {name: Row(partial(at_start, name)) for name in ("Loader", "source()")}


def ray(_: Path) -> Rows:
    """Return iterables and datasets of Ray Data."""
    import ray  # noqa: PLC0415  # a group imports what it needs
    from ray import data  # noqa: PLC0415

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    dataset = data.range(10)
    return {
        "iter_torch_batches()": Row(lambda: resumable.wrap(dataset.iter_torch_batches(batch_size=4), tail="drop")),
        "iterator": Row(lambda: resumable.wrap(dataset.iterator()), UNWRAPPED, "Ray Data"),
        "dataset": Row(lambda: resumable.wrap(dataset), UNWRAPPED, "Ray Data"),
    }


GROUPS: dict[str, Callable[[Path], Rows]] = {
    "python": python,
    "past": past,
    "workers": workers,
    "hugging_face": hugging_face,
    "dali": dali,
    "tensorflow": tensorflow,
    "tfds": tfds,
    "ffcv": ffcv,
    "ray": ray,
}
TOGETHER = ("tensorflow", "tfds", "ffcv", "ray")  # their threads or compiled code do not survive a fork
