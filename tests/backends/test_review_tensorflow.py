"""TensorFlow's datasets: what a resumed run could have read from another pipeline, or waited for."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tfds_builders import folder

import resumable
from resumable._order.plan import Padding
from resumable.backends.tfds.backend import _Ahead, _Job
from resumable.backends.tfds.opening import _check_added
from resumable.backends.tfds.opening import source as tfds_source
from resumable.errors import ConfigurationError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}


def zipped(*, swapped: bool) -> Any:
    import tensorflow as tf  # noqa: PLC0415  # it takes seconds, and half of this file does without

    parts = [tf.data.Dataset.from_tensor_slices([factor * number for number in range(8)]) for factor in (1, 10)]
    return tf.data.Dataset.zip(tuple(reversed(parts) if swapped else parts)).batch(2)


def captured(*, other: bool) -> Any:
    import tensorflow as tf  # noqa: PLC0415  # as above

    factor, offset = tf.constant(3, tf.int64), tf.constant(99 if other else 5, tf.int64)
    return tf.data.Dataset.range(8).map(lambda x: x * factor + offset).batch(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda other: zipped(swapped=other), lambda other: captured(other=other)], ids=["zip", "captured number"]
)
def test_values_in_other_places_are_another_pipeline(make: Callable[[bool], Any]) -> None:
    loader = resumable.wrap(make(False), seed=1)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="data"):
        resumable.wrap(make(True), seed=1).load_state_dict(state)
    again = resumable.wrap(make(False), seed=1)
    again.load_state_dict(state)
    assert len(list(again)) == 3


def test_a_sample_is_not_taken_for_its_own_padding() -> None:
    jobs = deque[_Job]()
    for place, sample in enumerate((3, Padding(3))):
        future: Future[Any] = Future()
        future.set_result([("real", None), ("padding", None)])
        jobs.append(_Job(sample, future, place))

    class Again:
        def __getitem__(self, index: int) -> str:
            return "padding" if isinstance(index, Padding) else "real"

    samples = _Ahead(Again(), jobs, None)
    assert samples[3] == "real"
    assert [samples[index] for index in (3, Padding(3))] == ["real", "padding"]  # the batch is read once more


def test_a_feature_is_not_overwritten_by_an_added_field() -> None:
    info = SimpleNamespace(full_name="set/1.0.0", features=("label", "tfds_id", "valid"))
    _check_added(info, ["label"], {"tfds_id": True, "valid": True})
    _check_added(info, None, {"tfds_id": False, "valid": False})
    for name, option in (("tfds_id", "add_tfds_id"), ("valid", "mark_padding")):
        with pytest.raises(ConfigurationError, match=f"'{name}', and {option}=True"):
            _check_added(info, None, {name: True})


FORKED = """
import sys
import resumable
from torch.utils.data import DataLoader
from resumable.backends import tfds as backend

source = backend.source(sys.argv[1], "train", reader="tf", index_dir=False, fields=["label"], threads=0)
if sys.argv[2] == "used":
    source[0]
loader = DataLoader(source, batch_size=8, num_workers=1, timeout=60, multiprocessing_context=sys.argv[3])
print(sum(len(batch["label"]) for batch in resumable.wrap(loader, seed=1)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "expected"), [("used", "forked after a use of TensorFlow"), ("unused", "61")])
def test_tensorflow_in_forked_workers_is_refused_where_it_would_hang(before: str, expected: str) -> None:
    command = [sys.executable, "-c", FORKED, folder("shapes", "tfrecord"), before, "fork"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)
    assert expected in (done.stderr if before == "used" else done.stdout), done.stderr[-2000:]


@pytest.mark.slow
def test_a_loader_may_be_collected_while_a_thread_is_starting() -> None:
    """Which holds a lock that the end of any thread needs: to wait for one there is to wait forever."""
    source = tfds_source(folder("shapes", "tfrecord"), "train", threads=2, fields=["label"], index_dir=False)
    holder: dict[str, Any] = {"batches": iter(resumable.wrap(source, batch_size=4))}
    holder["itself"] = holder
    next(holder["batches"])
    del holder
    held = threading.Event()
    collector = threading.Thread(target=lambda: held.wait() and gc.collect(), daemon=True)
    collector.start()
    with threading._shutdown_locks_lock:  # type: ignore[attr-defined]  # the lock in question
        held.set()
        collector.join(timeout=20)
        assert not collector.is_alive()
