"""An NVIDIA DALI iterator in a loop that crashes and resumes exactly: python examples/dali.py.

With a GPU, use device_id=0 for the pipeline and device="mixed" for the decoder.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy
from PIL import Image
from sklearn.datasets import load_digits

import resumable


@pipeline_def(batch_size=32, num_threads=2, device_id=None, seed=0)  # type: ignore[untyped-decorator]  # DALI's
def digits(root: str) -> Any:
    """Read, decode and crop at random, like any DALI pipeline."""
    jpegs, labels = fn.readers.file(file_root=root, random_shuffle=True, pad_last_batch=True, name="Reader")
    images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.GRAY, random_area=[0.6, 1.0])
    return fn.crop_mirror_normalize(fn.resize(images, resize_x=8, resize_y=8), mean=[128.0], std=[64.0]), labels


def train(root: str, folder: str, crash_at: int = -1) -> torch.Tensor:
    """Train two epochs, from the last checkpoint if there is one; return the weights."""
    policy, store, weights = LastBatchPolicy.PARTIAL, resumable.CheckpointStore(folder), torch.zeros(64, 10)
    pipeline = digits(root)
    loader = resumable.wrap(DALIClassificationIterator(pipeline, reader_name="Reader", last_batch_policy=policy))
    if (last := store.latest()) is not None:
        weights = last["weights"]
        loader.load_state_dict(last["loader"])
        print("  resumed:", loader.cursor)
    for epoch in loader.epochs(2):
        for (batch,) in epoch:
            inputs, targets = batch["data"].flatten(1), torch.eye(10)[batch["label"][:, 0].long()]
            weights = weights + 0.1 * inputs.T @ (targets - (inputs @ weights).softmax(1)) / len(inputs)
            step = loader.global_step
            if step == crash_at:
                raise RuntimeError
            if step % 4 == 0:
                store.save(step, {"weights": weights, "loader": loader.state_dict()})
    return weights


with tempfile.TemporaryDirectory() as temporary:
    for number, (pixels, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        Path(temporary, "images", str(label)).mkdir(exist_ok=True, parents=True)
        Image.fromarray((pixels.reshape(8, 8) * 15).astype("uint8")).save(f"{temporary}/images/{label}/{number}.jpg")
    baseline = train(f"{temporary}/images", f"{temporary}/baseline")
    with contextlib.suppress(RuntimeError):
        train(f"{temporary}/images", f"{temporary}/crashed", crash_at=75)
    print("The same weights, bit for bit:", train(f"{temporary}/images", f"{temporary}/crashed").equal(baseline))
