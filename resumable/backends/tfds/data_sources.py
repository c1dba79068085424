"""Data sources that TensorFlow Datasets made (`tfds.data_source`, `builder.as_data_source`), as users hold them."""

from __future__ import annotations

import os
from typing import Any

from resumable.backends.tfds import forks
from resumable.backends.tfds.layout import HINTS, layout_of
from resumable.backends.tfds.opening import default_threads
from resumable.errors import UnsupportedError

__all__ = ["GuardedSource"]


class GuardedSource:
    """A data source as it is, with its identity, and with forks seen in which it would crash.

    Args:
        source: the user's; it decodes as it always does.

    Raises:
        UnsupportedError: it has other samples than its split.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        info = source.dataset_info
        layout = layout_of(info, source.split, os.fspath(info.data_dir))
        if len(layout) != len(source):
            raise UnsupportedError(
                f"the data source has {len(source)} samples, but its split {source.split!r} has {len(layout)}.\n"
                "Of parquet files, TensorFlow Datasets reads all samples, whatever the slice. Use a whole split."
            )
        self._process = os.getpid()
        self._threaded = layout.file_format == "array_record"
        self.threads = default_threads()
        self.makes_batches = False
        self.resumable_identity = {**layout.identity, "decode": _decoder(source), "fields": "all"}
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


def _decoder(source: Any) -> str:
    """Name what makes the samples, as it decides about the pixels."""
    if source.deserialize_method.value != "deserialize_and_decode":
        return str(source.deserialize_method.value)
    from tensorflow_datasets.core.features import image_feature  # noqa: PLC0415  # it is imported already

    library = "pil" if image_feature.cv2 is None else "cv2"
    return library if not source.decoders else f"{library}, {_describe(source.decoders)}"


def _describe(decoders: Any) -> str:
    if isinstance(decoders, dict):
        return ", ".join(f"{name}: {_describe(part)}" for name, part in sorted(decoders.items()))
    return type(decoders).__qualname__
