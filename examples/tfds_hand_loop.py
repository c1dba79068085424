"""A split of TensorFlow Datasets, read by index and without TensorFlow; a run crashes and resumes."""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
from pathlib import Path

import tensorflow_datasets as tfds
from demo.digits import load_digits
from demo.tfds import write_tfds

import resumable
import resumable.backends.tfds


def train(folder: str, data: Path, crash_at: int = -1) -> tuple[float, list[str]]:
    """Train two epochs, from the last checkpoint if there is one; return the weight and the samples seen."""
    builder = tfds.builder_from_directory(str(data))
    source = resumable.backends.tfds.source(builder, "train[:20%]", decode="pil", add_tfds_id=True)
    loader = resumable.wrap(source, batch_size=64, shuffle=True, seed=0)
    store, weight = resumable.CheckpointStore(folder, keep=2), 0.0
    samples: list[str] = []

    if (last := store.latest()) is not None:
        weight = last["weight"]
        loader.load_state_dict(last["loader"])
        print(f"  resumed after step {loader.global_step}: {loader.cursor}")

    for epoch in loader.epochs(2):
        for batch in epoch:
            if loader.global_step == crash_at:
                raise RuntimeError
            weight = 0.9 * weight + float(batch["image"].mean() * batch["label"].mean())
            samples += [name.decode() for name in batch["tfds_id"]]
            store.save(loader.global_step, {"weight": weight, "loader": loader.state_dict()})
    return weight, samples


logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
with tempfile.TemporaryDirectory() as temporary:
    where = write_tfds(load_digits(), Path(temporary, "data"))
    print("Run 1, which crashes at step 8:")
    with contextlib.suppress(RuntimeError):
        train(f"{temporary}/crashed", where, crash_at=8)
    print("Run 2, the same again:")
    resumed, rest = train(f"{temporary}/crashed", where)
    baseline, whole = train(f"{temporary}/baseline", where)
    print("The same weight, bit for bit:", resumed == baseline)
    print("The same samples:", rest == whole[-len(rest) :], "such as", rest[0])
    print("TensorFlow was imported:", "tensorflow" in sys.modules)
