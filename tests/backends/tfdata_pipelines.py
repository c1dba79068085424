"""tf.data pipelines for the tests; each call builds one again, as a new process would."""

from __future__ import annotations

import os

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}

from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from resumable.backends import tfdata

DATA = tf.data.Dataset


def doubled(x: Any) -> Any:
    return x * 2


def part(x: Any) -> Any:
    return DATA.range(x * 10, x * 10 + 3)


def noisy(counter: Any, x: Any) -> Any:
    return x + tf.random.stateless_uniform((), [1, counter], maxval=1000, dtype=tf.int64)


def even(x: Any) -> Any:
    return x % 2 == 0


def typical() -> Any:
    return DATA.range(20).shuffle(8, seed=1).map(doubled, num_parallel_calls=2).batch(3).prefetch(2)


def interleaved(*, parallel: int | None = None) -> Any:
    files = DATA.range(5).shuffle(5, seed=1)
    rows = files.interleave(part, cycle_length=2, num_parallel_calls=parallel)
    return rows.shuffle(4, seed=3).map(doubled, num_parallel_calls=2).batch(2).prefetch(3)


def repeated() -> Any:
    return DATA.range(7).shuffle(4, seed=1).map(doubled, num_parallel_calls=2).batch(2).prefetch(2).repeat(2)


def augmented() -> Any:
    return DATA.zip((DATA.counter(), DATA.range(12).shuffle(5, seed=2))).map(noisy).batch(3)


def table_lookup() -> Any:
    keys = tf.range(9, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys * 7), -1)
    return DATA.range(9).map(table.lookup).batch(2)


def structured() -> Any:
    arrays = {"image": np.arange(24.0, dtype=np.float32).reshape(12, 2), "label": np.arange(12)}
    return DATA.from_tensor_slices((arrays, np.arange(12) * 3)).shuffle(6, seed=4).batch(5)


def of_epoch(epoch: int) -> Any:
    return DATA.range(20).shuffle(8, seed=epoch + 1).map(doubled).batch(3)


def generated() -> Any:
    def numbers() -> Any:
        yield from range(12)

    return DATA.from_generator(numbers, output_signature=tf.TensorSpec((), tf.int64)).batch(5)


def explicit(dataset: Any) -> Any:
    return tfdata.source(dataset, strategy="explicit")


def by(strategy: Any, pipeline: Any) -> Any:
    """Return a pipeline, or what was said about one, with another strategy."""
    if isinstance(pipeline, tfdata.Source):
        return replace(pipeline, strategy=strategy)
    return tfdata.source(pipeline, strategy=strategy)


NATIVE = {
    "typical": typical,
    "typical, explicit": lambda: explicit(typical()),
    "interleave": interleaved,
    "parallel interleave": lambda: interleaved(parallel=2),
    "repeated": repeated,
    "repeated interleave": lambda: DATA.range(4).shuffle(4, seed=1).interleave(part, cycle_length=2).repeat(3).batch(3),
    "augmented": augmented,
    "augmented, explicit": lambda: explicit(augmented()),
    "cached": lambda: DATA.range(20).cache().shuffle(8, seed=1).batch(3),
    "of an epoch": lambda: tfdata.source(of_epoch),
    "of an epoch, explicit": lambda: tfdata.source(of_epoch, strategy="explicit"),
    "flat map": lambda: DATA.range(5).shuffle(5, seed=1).flat_map(part).filter(even).batch(2),
    "zip": lambda: DATA.zip((DATA.range(5).shuffle(5, seed=1), DATA.range(7).shuffle(7, seed=2))),
    "concatenate": lambda: DATA.range(5).shuffle(5, seed=1).concatenate(DATA.range(10, 15).shuffle(5, seed=3)),
    "sampled": lambda: DATA.sample_from_datasets([DATA.range(6).shuffle(6, seed=1), DATA.range(10, 16)], seed=4),
    "rerandomized": lambda: DATA.zip(
        (DATA.random(seed=3, rerandomize_each_iteration=True), DATA.range(9).shuffle(4, seed=1))
    ),
    "unbatched": lambda: DATA.range(12).batch(4).unbatch().shuffle(5, seed=2).batch(3, num_parallel_calls=2),
    "window": lambda: DATA.range(12).shuffle(4, seed=2).window(3).flat_map(lambda window: window.batch(3)),
    "unique": lambda: DATA.range(30).shuffle(9, seed=2).map(lambda x: x % 9).unique(),
    "padded": lambda: DATA.range(9).shuffle(4, seed=2).map(tf.range).padded_batch(2),
    "scan": lambda: DATA.range(9).shuffle(4, seed=2).scan(np.int64(0), lambda state, x: (state + x, state + x)).take(7),
    "table": table_lookup,
    "structured": structured,
}

# Of these, both states were seen to be exact; "auto" takes the explicit one.
EITHER = (
    "typical", "interleave", "augmented", "of an epoch", "flat map", "zip", "concatenate", "sampled", "rerandomized",
    "unbatched", "padded", "scan", "table", "structured",
)  # fmt: skip
