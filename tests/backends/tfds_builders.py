"""Small datasets, written by real builders in both file formats; once per machine, as TensorFlow takes seconds."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAIN, TEST = 61, 23
DIGITS = 120

# Variant: name of the set, version, shards.
VARIANTS = {
    "shapes": ("shapes", "1.0.0", 5),
    "newer": ("shapes", "1.1.0", 5),
    "resharded": ("shapes", "1.0.0", 3),
    "typed": ("shapes", "1.0.0", 5),
    "digits": ("digits", "1.0.0", 1),
    "fixed": ("fixed", "1.0.0", 3),
}


def folder(variant: str, file_format: str) -> str:
    """Return the folder of a prepared set; made where it is not there yet."""
    name, version, _ = VARIANTS[variant]
    return str(_root() / file_format / variant / name / version)


def _root() -> Path:
    content = hashlib.blake2b(Path(__file__).read_bytes(), digest_size=6).hexdigest()
    root = Path(tempfile.gettempdir(), f"resumable-test-tfds-{os.getuid()}-{content}")
    if not root.exists():
        making = Path(tempfile.mkdtemp(prefix=f"{root.name}-"))
        # In a process of its own: TFRecord files are written by TensorFlow, which the tests' process does without.
        subprocess.run([sys.executable, __file__, str(making)], check=True, capture_output=True, timeout=300)
        try:
            making.rename(root)
        except OSError:  # somebody else was faster
            shutil.rmtree(making)
    return root


def encoded(image: Any, kind: str) -> io.BytesIO:
    from PIL import Image  # noqa: PLC0415  # the tests' process does not write

    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    file.seek(0)
    return file


def shape(index: int) -> dict[str, Any]:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as above

    rows, columns = np.mgrid[0:16, 0:16]
    noise = np.random.default_rng(index).integers(0, 60, (16, 16, 3))
    image = np.stack([rows * index, columns * 9, rows + columns + index], -1) % 190 + noise
    boxes = [{"box": tfds.features.BBox(0.0, 0.0, 0.5, 0.5), "tag": tag} for tag in range(index % 3)]
    return {
        "image": encoded(image.astype(np.uint8), "jpeg"),
        "label": index % 7,
        "name": f"sample {index}",
        "boxes": boxes,
        "vector": np.arange(3, dtype=np.float32) + index,
    }


def shapes_features(tfds: Any) -> dict[str, Any]:
    return {
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
        "label": tfds.features.ClassLabel(num_classes=7),
        "name": tfds.features.Text(),
        "boxes": tfds.features.Sequence({"box": tfds.features.BBoxFeature(), "tag": np.int64}),
        "vector": tfds.features.Tensor(shape=(3,), dtype=np.float32),
    }


def typed_features(tfds: Any) -> dict[str, Any]:
    return {**shapes_features(tfds), "label": tfds.features.ClassLabel(num_classes=8)}


def fixed_features(tfds: Any) -> dict[str, Any]:
    """Images of one shape, some of them in shades of grey."""
    return {**shapes_features(tfds), "image": tfds.features.Image(shape=(16, 16, 3), encoding_format="jpeg")}


def fixed(index: int) -> dict[str, Any]:
    made = shape(index)
    if index % 5 == 0:
        made["image"] = encoded(np.add.outer(np.arange(16), np.arange(16) * index % 200).astype(np.uint8), "jpeg")
    return made


def digits_features(tfds: Any) -> dict[str, Any]:
    return {
        "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
        "label": tfds.features.ClassLabel(num_classes=10),
    }


def digits() -> list[dict[str, Any]]:
    from sklearn import datasets  # noqa: PLC0415  # as above

    images, labels = datasets.load_digits(return_X_y=True)
    return [
        {"image": encoded((image * 15).astype(np.uint8).reshape(8, 8), "png"), "label": int(label)}
        for image, label in zip(images[:DIGITS], labels[:DIGITS], strict=True)
    ]


def rows(name: str) -> dict[str, list[dict[str, Any]]]:
    if name == "digits":
        return {"train": digits()}
    if name == "fixed":
        return {"train": [fixed(index) for index in range(TRAIN)]}
    train = [shape(index) for index in range(TRAIN)]
    return {"train": train, "test": [shape(index) for index in range(TRAIN, TRAIN + TEST)]}


def write(root: Path, variant: str, file_format: str) -> None:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as above
    from tensorflow_datasets.core import dataset_metadata, registered  # noqa: PLC0415  # as above

    set_name, version, shards = VARIANTS[variant]
    make = {"digits": digits_features, "typed": typed_features, "fixed": fixed_features}.get(variant, shapes_features)
    content = rows(set_name)

    with registered.skip_registration():

        class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]  # it has no types
            VERSION = tfds.core.Version(version)
            name = set_name

            @classmethod
            def get_metadata(cls) -> Any:  # the usual way looks for files beside the builder's module
                return dataset_metadata.DatasetMetadata(description="made", citation="", tags=[])

            def _info(self) -> Any:
                features = tfds.features.FeaturesDict(make(tfds))
                return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

            def _split_generators(self, _manager: Any) -> dict[str, Any]:
                return {split: self._generate_examples(split) for split in content}

            def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
                yield from enumerate(content[split])

    Builder(data_dir=root / file_format / variant, file_format=file_format).download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=shards, try_download_gcs=False)
    )


if __name__ == "__main__":
    for kind in ("array_record", "tfrecord"):
        for each in VARIANTS:
            write(Path(sys.argv[1]), each, kind)
