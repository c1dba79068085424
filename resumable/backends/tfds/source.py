"""Splits as map-style datasets that each reading process opens: ours, and data sources made by TFDS."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from resumable._order.plan import Padding
from resumable.backends.tfds import forks
from resumable.backends.tfds.layout import HINTS, layout_of
from resumable.backends.tfds.records import TFRecords
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.utils.data import Dataset

    from resumable.backends.tfds.decoding import Decoding
    from resumable.backends.tfds.layout import Layout
    from resumable.backends.tfds.records import ArrayRecords

    # For type checkers only: a DataLoader takes any object with a length and indices, and PyTorch may be missing.
    _Base = Dataset[Any]
else:
    _Base = object


__all__ = ["GuardedSource", "TfdsSource", "default_threads"]


_MOST_THREADS = 8


class TfdsSource(_Base):
    """A split of a dataset that is read by index, made by `resumable.backends.tfds.source`.

    Pass it to `resumable.wrap`, or to a `DataLoader` as its dataset. It can be pickled, and each process opens the
    files itself.

    Attributes:
        threads: number of threads that read ahead if `wrap` reads it in this process.
    """

    def __init__(  # noqa: PLR0913  # called in one place
        self,
        layout: Layout,
        records: TFRecords | ArrayRecords,
        decoding: Decoding,
        *,
        identity: Mapping[str, str],
        repeats: int = 1,
        mark_padding: bool = False,
        add_tfds_id: bool = False,
        threads: int = 0,
    ) -> None:
        self._layout, self._records, self._decoding = layout, records, decoding
        self._repeats, self._mark_padding, self._add_tfds_id = repeats, mark_padding, add_tfds_id
        self.threads = threads
        self.resumable_identity, self.resumable_hints = dict(identity), HINTS

    def __len__(self) -> int:
        return len(self._layout) * self._repeats

    def __getitem__(self, index: int) -> Any:
        sample = self._decoding(self.record(index))
        if self._add_tfds_id:
            sample["tfds_id"] = self.tfds_id(index).encode()
        if not self._mark_padding:
            return sample
        valid = not isinstance(index, Padding)
        return {**sample, "valid": valid} if isinstance(sample, dict) else (*sample, valid)

    @property
    def makes_batches(self) -> bool:
        """Whether `batch` can be used after `prepare`: the images have the same shape."""
        return self._decoding.makes_batches

    def batch(self, indices: list[int]) -> Any:
        """Return the stacked samples, with fewer calls: arrays `(len(indices), ...)`."""
        batch = self._decoding.batch([self.record(index) for index in indices])
        if self._add_tfds_id:
            batch["tfds_id"] = [self.tfds_id(index).encode() for index in indices]
        if not self._mark_padding:
            return batch
        valid = np.array([not isinstance(index, Padding) for index in indices])
        return {**batch, "valid": valid} if isinstance(batch, dict) else (*batch, valid)

    def __repr__(self) -> str:
        said = self.resumable_identity
        return f"TfdsSource({said['dataset']}/{said['version']}, split={said['split']!r}, decode={said['decode']!r})"

    def record(self, index: int) -> bytes:
        """Return the bytes of a sample's record: a serialized `tf.train.Example`."""
        return self._records[self._place(index)]

    def tfds_id(self, index: int) -> str:
        """Return the name that TensorFlow Datasets uses for a sample: file, and number of the record in it."""
        run, record = self._layout.locate(self._place(index))
        return f"{Path(run.path).name}__{record}"

    def build_index(self) -> int:
        """Build the index of every TFRecord file now, with a progress bar, instead of when a file is first read.

        Returns:
            The number of records in the files.
        """
        if not isinstance(self._records, TFRecords):
            return sum({run.path: run.total for run in self._layout.runs}.values())
        runs = {run.path: run for run in self._layout.runs}.values()
        return sum(map(self._records.build_index, tqdm(runs, desc="indexing", unit="file", delay=1.0, leave=False)))

    def prepare(self) -> None:
        """Import the decoder now, because threads must not import it at the same time."""
        self._decoding.prepare()

    def _place(self, index: int) -> int:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"sample {index} does not exist: {self!r} has {len(self)}")
        return place % len(self._layout)


class GuardedSource:
    """Reads a data source of `tfds.data_source`, adds its identity, and detects forks in which it would crash.

    Args:
        source: the user's; it decodes as usual.

    Raises:
        UnsupportedError: its samples are not those in its split.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        info = source.dataset_info
        layout = layout_of(info, source.split, os.fspath(info.data_dir))
        if len(layout) != len(source):
            raise UnsupportedError(
                f"the data source has {len(source)} samples, but its split {source.split!r} has {len(layout)}.\n"
                "From parquet files, TensorFlow Datasets reads all samples, even for a slice. Use a full split."
            )
        self._process = os.getpid()
        self._threaded = layout.file_format == "array_record"
        self.threads = default_threads()
        self.makes_batches = False
        self.resumable_identity = {**layout.identity, "decode": _decoder_of(source), "fields": "all"}
        self.resumable_hints = HINTS

    @property
    def user_dataset(self) -> Any:
        """The user's data source."""
        return self._source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        if self._threaded:
            here = self._process == os.getpid()
            forks.check_threads(inherited=not here and _is_open(self._source))
            self._process = os.getpid()
        return self._source[index]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())

    def prepare(self) -> None:
        """Do nothing: the data source imports what it needs."""


def _is_open(source: Any) -> bool:
    return any(reader is not None for reader in getattr(source.data_source, "_readers", ()))


def _decoder_of(source: Any) -> str:
    """Return the name of the decoder, which determines the pixels."""
    if source.deserialize_method.value != "deserialize_and_decode":
        return str(source.deserialize_method.value)
    from tensorflow_datasets.core.features import image_feature  # noqa: PLC0415  # already imported

    library = "pil" if image_feature.cv2 is None else "cv2"
    return library if not source.decoders else f"{library}, {_describe_decoders(source.decoders)}"


def _describe_decoders(decoders: Any) -> str:
    if isinstance(decoders, dict):
        return ", ".join(f"{name}: {_describe_decoders(part)}" for name, part in sorted(decoders.items()))
    return type(decoders).__qualname__


def default_threads() -> int:
    """Return the number of processors that this process may use, up to a limit."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, _MOST_THREADS)
