"""Measurements over a dataset of TensorFlow Datasets: random JPEG images of 224 x 224 pixels."""

from __future__ import annotations

import gc
import io
import json
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Epoch = Callable[[], Iterator[Any]]

__all__ = ["FirstSample", "IndexBuild", "Reading", "Written", "source"]

_BATCH, _PIXELS, _SHARDS = 64, 224, 8


class Written:
    """Writes the dataset in both formats, once."""

    def write(self, folder: str, samples: int) -> None:
        """Write `samples` images below `folder`, unless they exist."""
        for file_format in ("array_record", "tfrecord"):
            if not Path(folder, file_format).exists():
                _builder(Path(folder, file_format), file_format, samples)


class Reading:
    """Reads epochs, each from its start, because tf.data would prefetch during the turns of others.

    Args:
        name: of the contender.
        folder: of the datasets.
    """

    def __init__(self, name: str, folder: str) -> None:
        self._epoch = _READERS[name](folder)
        self.turn()

    def turn(self) -> dict[str, float]:
        """Return the µs per batch of an epoch: wall-clock time, and processor time of this process."""
        wall, processor = time.perf_counter(), time.process_time()
        batches = sum(1 for _ in self._epoch())
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        gc.collect()
        return {"wall": wall / batches * 1e6, "processor": processor / batches * 1e6}


class FirstSample:
    """Waits for the first batch after a position of an epoch, including the opening of the dataset.

    Args:
        folder: of the datasets.
        file_format: "tfrecord" or "array_record".
    """

    def __init__(self, folder: str, file_format: str) -> None:
        self._folder, self._format = folder, file_format

    def wait(self, percent: int) -> float:
        """Return the milliseconds from opening the dataset to a batch after `percent` of an epoch."""
        begin = time.perf_counter()
        loader = self._loader()
        loader.seek(epoch=0, step=len(loader) * percent // 100)
        next(iter(loader))
        return (time.perf_counter() - begin) * 1e3

    def size(self) -> int:
        """Return the size of a state, as JSON."""
        return len(json.dumps(self._loader().state_dict()))

    def _loader(self) -> resumable.Loader:
        return resumable.wrap(source(self._folder, self._format), batch_size=_BATCH, shuffle=True, tail="drop")


class IndexBuild:
    """Builds the index of a TFRecord file.

    Args:
        records: number of records.
        size: bytes per record.
    """

    def __init__(self, records: int, size: int) -> None:
        from resumable.backends.tfds.records import masked_crc  # noqa: PLC0415  # not installed everywhere

        self._folder = tempfile.TemporaryDirectory()
        self._file, self._records = str(Path(self._folder.name, "records")), records
        length = struct.pack("<Q", size)
        record = length + struct.pack("<I", masked_crc(length)) + bytes(size + 4)
        with Path(self._file).open("wb") as file:
            file.writelines(record for _ in range(records))

    def build(self) -> float:
        """Return the seconds that a million records would take."""
        from resumable.backends.tfds.records import build_index  # noqa: PLC0415  # as above

        begin = time.perf_counter()
        build_index(self._file)
        return (time.perf_counter() - begin) / self._records * 1e6


def source(folder: str, file_format: str, **options: Any) -> Any:
    """Return the written dataset as a source of this package."""
    from resumable.backends import tfds  # noqa: PLC0415  # not installed everywhere

    root = Path(folder, file_format, "images", "1.0.0")
    return tfds.source(root, "train", as_supervised=True, index_dir=Path(folder, "indices"), **options)


def _ours(folder: str, file_format: str = "tfrecord", **options: Any) -> Epoch:
    data = source(folder, file_format, **options)
    return resumable.wrap(data, batch_size=_BATCH, shuffle=True, tail="drop").__iter__


def _workers(folder: str) -> Epoch:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # only for this one

    workers = len(os.sched_getaffinity(0))
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "drop_last": True}
    return resumable.wrap(DataLoader(source(folder, "tfrecord"), _BATCH, shuffle=True, **options)).__iter__


def _tf_data(folder: str) -> Epoch:
    import tensorflow as tf  # noqa: PLC0415  # only for this one
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as above

    builder = tfds.builder_from_directory(str(Path(folder, "tfrecord", "images", "1.0.0")))
    read = tfds.ReadConfig(try_autocache=False, skip_prefetch=True)
    data = builder.as_dataset(split="train", as_supervised=True, shuffle_files=True, read_config=read)
    batches = data.batch(_BATCH, drop_remainder=True, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    epoch: Epoch = batches.as_numpy_iterator
    return epoch


def _their_source(folder: str) -> Epoch:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # only for this one

    data = tfds.builder_from_directory(str(Path(folder, "array_record", "images", "1.0.0"))).as_data_source("train")

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng(0).permutation(len(data))
        for start in range(0, len(data) - _BATCH + 1, _BATCH):
            samples = [data[int(index)] for index in order[start : start + _BATCH]]
            yield np.stack([sample["image"] for sample in samples]), [sample["label"] for sample in samples]

    return epoch


_READERS = {
    "tf.data": _tf_data,
    "data_source, a loop": _their_source,
    "index, no threads": lambda folder: _ours(folder, threads=0),
    "index, threads": _ours,
    "index, PIL": lambda folder: _ours(folder, decode="pil"),
    "index, bytes": lambda folder: _ours(folder, decode="none"),
    "array_record, threads": lambda folder: _ours(folder, "array_record"),
    "tf reader, threads": lambda folder: _ours(folder, reader="tf"),
    "index, DataLoader workers": _workers,
}


def _builder(root: Path, file_format: str, samples: int) -> None:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # not installed everywhere
    from tensorflow_datasets.core import dataset_metadata, registered  # noqa: PLC0415  # as above

    with registered.skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]  # it has no types
            VERSION = tfds.core.Version("1.0.0")
            name, code_path = "images", None

            @classmethod
            def get_metadata(cls) -> Any:
                """Describe the dataset; the default searches for files next to this module."""
                return dataset_metadata.DatasetMetadata(description="Random images.", citation="", tags=[])

            def _info(self) -> Any:
                image = tfds.features.Image(shape=(_PIXELS, _PIXELS, 3), encoding_format="jpeg")
                features = tfds.features.FeaturesDict(
                    {"image": image, "label": tfds.features.ClassLabel(num_classes=10)}
                )
                return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

            def _split_generators(self, _: Any) -> dict[str, Any]:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
                for number in range(samples):
                    yield number, {"image": _jpeg(number), "label": number % 10}

    config = tfds.download.DownloadConfig(num_shards=_SHARDS, try_download_gcs=False)
    Builder(data_dir=root, file_format=file_format).download_and_prepare(download_config=config)


def _jpeg(number: int) -> io.BytesIO:
    """Make a photo-like image: smooth shapes and some noise, about 20 kB."""
    from PIL import Image  # noqa: PLC0415  # as above

    generator = np.random.default_rng(number)
    coarse = Image.fromarray(generator.integers(0, 256, (7, 7, 3), np.uint8)).resize((_PIXELS, _PIXELS), 3)
    noise = generator.integers(0, 40, (_PIXELS, _PIXELS, 3))
    file = io.BytesIO()
    Image.fromarray((np.asarray(coarse) * 0.8 + noise).astype(np.uint8)).save(file, "jpeg", quality=80)
    file.seek(0)
    return file
