"""The digits as a dataset of TensorFlow Datasets, in array_record files: written and read without TensorFlow."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core import dataset_metadata, registered
from torch.utils.data import default_collate

import resumable
from resumable.backends.tfds import source

from .augmentation import augment
from .digits import BATCH_SIZE, read_digits, write_digits
from .prepared import prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.loader import Loader

    from .digits import Digits

__all__ = ["main", "make_tfds", "write_tfds"]

_FEATURES = {
    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
    "label": tfds.features.ClassLabel(num_classes=10),
}


def make_tfds(digits: Digits) -> Loader:
    """Wrap a split, read by index."""
    name = hashlib.blake2b(digits.images.tobytes(), digest_size=8).hexdigest()
    split = source(write_tfds(digits, prepared(f"tfds-{name}")), "train")
    return resumable.wrap(split, batch_size=BATCH_SIZE, shuffle=True, transform=_augmented, collate=default_collate)


def write_tfds(digits: Digits, folder: Path) -> Path:
    """Write a dataset with the split "train", unless it exists; return its folder.

    A separate process writes it, because a process that has written array_record files cannot fork workers that read
    them.
    """
    if not folder.exists():
        part = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
        with tempfile.TemporaryDirectory() as temporary:
            write_digits(digits, Path(temporary, "digits.npz"), training=len(digits.labels))
            command = [sys.executable, "-m", f"{__package__}.tfds", f"{temporary}/digits.npz", str(part)]
            paths = {"PYTHONPATH": os.pathsep.join(sys.path)}  # the child finds this module wherever it was found
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, **paths})  # noqa: S603  # our own
        try:
            part.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(part)
    return folder / "digits" / "1.0.0"


def main(path: str, folder: str) -> None:
    """Write the digits of a file as a dataset."""
    digits, _ = read_digits(Path(path))
    tfds.disable_progress_bar()
    _builder(digits, Path(folder)).download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))


def _augmented(sample: dict[str, Any]) -> tuple[Any, int]:
    return augment(sample["image"][:, :, 0] / 255), sample["label"]


def _builder(digits: Digits, folder: Path) -> Any:
    with registered.skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]  # it has no types
            VERSION = tfds.core.Version("1.0.0")
            name = "digits"
            code_path = None  # otherwise it would search for checksums of downloads next to this module

            @classmethod
            def get_metadata(cls) -> Any:
                """Describe the dataset; the default searches for files next to this module."""
                return dataset_metadata.DatasetMetadata(description="Handwritten digits.", citation="", tags=[])

            def _info(self) -> Any:
                features = tfds.features.FeaturesDict(_FEATURES)
                return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

            def _split_generators(self, _: Any) -> dict[str, Any]:
                return {"train": self._generate_examples()}

            def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
                for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
                    yield number, {"image": _png(image), "label": int(label)}

    return Builder(data_dir=folder, file_format="array_record")


def _png(image: np.ndarray[Any, Any]) -> io.BytesIO:
    """Encode an image; TensorFlow Datasets would import TensorFlow for it."""
    file = io.BytesIO()
    Image.fromarray((image * 255).astype(np.uint8)).save(file, "png")
    file.seek(0)
    return file


if __name__ == "__main__":
    main(*sys.argv[1:])
