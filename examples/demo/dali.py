"""The digits as JPEG files, read, decoded and augmented by NVIDIA DALI."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy
from PIL import Image

import resumable
from resumable.backends.dali import source

from .digits import BATCH_SIZE
from .prepared import prepared

if TYPE_CHECKING:
    from resumable.loader import Loader

    from .digits import Digits

__all__ = ["make_dali", "make_dali_elastic"]


def make_dali(digits: Digits) -> Loader:
    """Wrap a DALI iterator; each of its batches becomes images and labels for the training."""
    pipeline = _pipeline(str(_write_files(digits)))
    iterator = DALIClassificationIterator(
        pipeline, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )
    return resumable.wrap(iterator, transform=_images_and_labels)


def make_dali_elastic(digits: Digits) -> Loader:
    """Let our sampler choose what DALI reads."""
    described = source(_write_files(digits), pipeline=_augment, uniforms=3, num_threads=1)
    return resumable.wrap(described, batch_size=BATCH_SIZE, shuffle=True)


def _augment(raw: Any, label: Any, u: Any) -> tuple[Any, Any]:
    image = fn.decoders.image(raw, device="cpu", output_type=types.GRAY)
    image = fn.crop(image, crop=(7, 7), crop_pos_x=u[0], crop_pos_y=u[1])
    image = fn.resize(image, resize_x=8, resize_y=8)
    return fn.crop_mirror_normalize(image, output_layout="CHW", std=[255.0]) + 0.05 * u[2], label


@pipeline_def(batch_size=BATCH_SIZE, num_threads=1, device_id=None, seed=0)  # type: ignore[untyped-decorator]  # DALI's
def _pipeline(root: str) -> Any:
    jpegs, labels = fn.readers.file(file_root=root, random_shuffle=True, pad_last_batch=True, name="Reader")
    images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.GRAY, random_area=[0.7, 1.0])
    images = fn.resize(images, resize_x=8, resize_y=8)
    noise = fn.random.normal(images, stddev=0.05)
    return fn.crop_mirror_normalize(images, output_layout="CHW", std=[255.0]) + fn.transpose(
        noise, perm=[2, 0, 1]
    ), labels


def _images_and_labels(batch: Any) -> tuple[Any, Any]:
    return batch[0]["data"], batch[0]["label"].squeeze(-1).long()


def _write_files(digits: Digits) -> Path:
    """Write the files once for all processes, and return their directory."""
    name = hashlib.blake2b(digits.images.tobytes(), digest_size=8).hexdigest()
    final = prepared(f"digits-{name}")
    if not final.exists():
        part = Path(tempfile.mkdtemp(prefix=final.name, dir=final.parent))
        for number, (image, label) in enumerate(zip(digits.images, digits.labels, strict=True)):
            (part / str(label)).mkdir(exist_ok=True)
            Image.fromarray((image * 255).astype(np.uint8)).save(part / f"{label}/{number:04d}.jpg", quality=95)
        try:
            part.rename(final)
        except OSError:  # another process was faster
            shutil.rmtree(part)
    return final
