"""Splits of TensorFlow Datasets keep every promise, for each reader, in this process and in a DataLoader."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tfds_builders import TEST, TRAIN, folder
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable._order.plan import Padding
from resumable._randomness.keys import SampleKeys
from resumable.backends import tfds as backend
from resumable.backends.tfds.backend import _Ahead, _Job
from resumable.backends.tfds.opening import _check_added
from resumable.errors import ConfigurationError, StateMismatchError, StateMismatchWarning, UnsupportedError
from resumable.testing import BackendTests, digest

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("tfrecord", "array_record")
DRAWN: dict[str, Any] = {"batch_size": 8, "shuffle": True}


def open_split(variant: str = "shapes", file_format: str = "tfrecord", split: Any = "train", **options: Any) -> Any:
    settings = {"index_dir": False, "fields": ["image", "label"], "threads": 2}
    return backend.source(folder(variant, file_format), split, **{**settings, **options})


def augment(sample: dict[str, Any]) -> dict[str, Any]:
    """Change the image in place, as augmentations do, and draw from two generators."""
    sample["image"] = sample["image"].copy() if not sample["image"].flags.writeable else sample["image"]
    sample["image"] += np.uint8(random.randrange(5))
    return {**sample, "drawn": np.random.rand()}


class TfdsTests(BackendTests):
    """What the readers have in common."""

    shared = True
    epochs = 2


class TestIndexReader(TfdsTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(open_split(decode="pil"), **{**DRAWN, "transform": augment, **options})

    others = {
        "version": lambda: resumable.wrap(open_split("newer", decode="pil"), **DRAWN),
        "split": lambda: resumable.wrap(open_split(split="train[:50]", decode="pil"), **DRAWN),
        "features": lambda: resumable.wrap(open_split("typed", decode="pil"), **DRAWN),
        "layout": lambda: resumable.wrap(open_split("resharded", decode="pil"), **DRAWN),
        "decode": lambda: resumable.wrap(open_split(decode="cv2"), **DRAWN),
        "fields": lambda: resumable.wrap(open_split(decode="pil", as_supervised=True, fields=None), **DRAWN),
        "repeats": lambda: resumable.wrap(open_split(decode="pil", repeats=2), **DRAWN),
        "dataset": lambda: resumable.wrap(open_split("digits", decode="pil"), **DRAWN),
        "batch": lambda: TestIndexReader.make(batch_size=4),
        "sampler": lambda: TestIndexReader.make(shuffle=False),
        "tail": lambda: TestIndexReader.make(tail="drop"),
        "kind": lambda: resumable.wrap(DataLoader(open_split(decode="pil"), batch_size=8)),
        "source": lambda: TestIndexReader.make(identity="another name"),
    }


class TestWithoutThreads(TfdsTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(open_split(decode="cv2", threads=0), **{**DRAWN, **options})


class TestImagesOfOneShape(TfdsTests):
    """OpenCV decodes them into the rows of the batch."""

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        source = open_split("fixed", decode="cv2")
        source.prepare()
        assert source.makes_batches
        return resumable.wrap(source, **{**DRAWN, **options})


class TestArrayRecord(TfdsTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        source = open_split(file_format="array_record", decode="cv2", reader="data_source")
        return resumable.wrap(source, **{**DRAWN, "transform": augment, **options})

    others = {"decode": lambda: resumable.wrap(open_split(file_format="array_record", decode="pil"), **DRAWN)}


class TestTheirDataSource(TfdsTests):
    """What `builder.as_data_source` gives, as users hold it."""

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(data_source("train"), **{**DRAWN, "transform": without_boxes, **options})

    others = {
        "split": lambda: resumable.wrap(data_source("train[:50]"), **DRAWN),
        "decode": lambda: resumable.wrap(data_source("train", raw=True), **DRAWN),
        "version": lambda: resumable.wrap(data_source("train", variant="newer"), **DRAWN),
    }


@pytest.mark.slow  # it decodes an image for each sample of each run
class TestInADataLoader(TfdsTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(
            DataLoader(open_split(as_supervised=True, fields=None), batch_size=8, shuffle=True), **options
        )

    others = {"decode": lambda: resumable.wrap(DataLoader(open_split(decode="pil"), batch_size=8, shuffle=True))}


@pytest.mark.slow
@pytest.mark.long  # as the class without workers; the tests below have workers, too
class TestWithWorkers(TfdsTests):
    stride = 5

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        source = open_split(as_supervised=True, fields=None)
        return resumable.wrap(DataLoader(source, batch_size=8, shuffle=True, num_workers=2), **options)


def data_source(split: str, variant: str = "shapes", *, raw: bool = False) -> Any:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    decoders = {"image": tfds.decode.SkipDecoding()} if raw else None
    return tfds.builder_from_directory(folder(variant, "array_record")).as_data_source(split, decoders=decoders)


def without_boxes(sample: dict[str, Any]) -> dict[str, Any]:
    """Leave out what has another length in each sample."""
    return {name: value for name, value in sample.items() if name != "boxes"}


def ids(batches: Any) -> list[str]:
    return [name.decode() for batch in batches for name in batch["tfds_id"]]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_sample_of_every_shard_is_there(file_format: str) -> None:
    source = open_split(file_format=file_format, split="train+test", add_tfds_id=True, fields=["name"])
    names = [source[index]["name"] for index in range(len(source))]
    assert sorted(names) == sorted(f"sample {index}".encode() for index in range(TRAIN + TEST))
    assert len({source.tfds_id(index) for index in range(len(source))}) == TRAIN + TEST
    assert source[-1]["name"] == names[-1]
    with pytest.raises(IndexError, match="sample 84 does not exist"):
        source[84]


def test_both_formats_have_the_same_samples_in_the_same_order() -> None:
    """So that a run may go on with the data in the other format."""
    one, other = (open_split(file_format=file_format, fields=None, decode="cv2") for file_format in FORMATS)
    assert one.resumable_identity == other.resumable_identity
    for index in range(TRAIN):
        assert repr(one[index]) == repr(other[index])


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("train[10%:50%]", "train[6:30]"),
        ("train[6:30]", "train[6:30]"),
        ("train[:10]+test[3:]", "train[0:10]+test[3:23]"),
        ("train[:10]+train[10:]", "train"),
        ("all", "train+test"),
        ("train[1shard:2shard]", "train[12:24]"),
    ],
)
def test_splits_are_what_they_select_however_they_are_written(split: str, said: str) -> None:
    source = open_split(split=split, fields=["name"])
    assert source.resumable_identity["split"] == said
    whole = open_split(split="all", fields=["name"])
    place = {whole[index]["name"]: index for index in range(len(whole))}
    chosen = [place[source[index]["name"]] for index in range(len(source))]
    assert chosen == sorted(chosen)
    assert len(set(chosen)) == len(source)


def test_even_splits_and_read_instructions() -> None:
    import tensorflow_datasets as tfds  # noqa: PLC0415  # as in a user's script

    parts = [open_split(split=part, fields=["name"]) for part in tfds.even_splits("train", 3)]
    names = [part[index]["name"] for part in parts for index in range(len(part))]
    assert len(names) == len(set(names)) == TRAIN
    one = open_split(split=tfds.core.ReadInstruction("train", from_=3, to=9, unit="abs"))
    assert one.resumable_identity["split"] == "train[3:9]"


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize(("ranks", "per_rank"), [(1, 30), (2, 15), (3, 10), (5, 6)])
def test_every_sample_once_on_any_number_of_ranks(file_format: str, ranks: int, per_rank: int) -> None:
    source = open_split(file_format=file_format, fields=["label"], add_tfds_id=True)
    orders = set()
    for epoch in range(2):
        parts = []
        for rank in range(ranks):
            loader = resumable.wrap(source, batch_size=per_rank, shuffle=True, tail="drop", world=World(rank, ranks))
            loader.seek(epoch=epoch)
            parts.append([ids([batch]) for batch in loader])
        order = [name for step in zip(*parts, strict=True) for part in step for name in part]
        assert len(order) == len(set(order)) == 60
        orders.add(tuple(order))
    assert len(orders) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than processors
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_sample_once_over_ranks_and_workers(ranks: int, workers: int) -> None:
    """Also with fewer shards than workers."""
    seen: dict[int, list[Any]] = {}
    for rank in range(ranks):
        source = open_split(fields=["label"], add_tfds_id=True)
        reading = DataLoader(source, batch_size=30 // ranks, shuffle=True, num_workers=workers, drop_last=True)
        loader = resumable.wrap(reading, world=World(rank, ranks))
        for epoch in loader.epochs(2):
            seen.setdefault(epoch.number, []).extend(name for batch in epoch for name in batch["tfds_id"])
    for names in seen.values():
        assert len(names) == len(set(names)) == 60


@pytest.mark.parametrize("file_format", FORMATS)
def test_three_ranks_become_two_in_the_middle_of_an_epoch(file_format: str) -> None:
    source = open_split(file_format=file_format, fields=["label"], add_tfds_id=True)

    def ranks(size: int, state: Any = None, steps: int | None = None) -> tuple[list[str], Any]:
        loaders = [
            resumable.wrap(source, batch_size=4, shuffle=True, tail="pad", world=World(r, size)) for r in range(size)
        ]
        order: list[str] = []
        for loader in loaders if state else ():
            loader.load_state_dict(state)
        for step, batches in enumerate(zip(*loaders, strict=True), start=1):
            order += ids(batches)
            if step == steps:
                break
        return order, loaders[0].state_dict()

    whole, _ = ranks(3)
    for steps in range(1, 5):
        first, state = ranks(3, steps=steps)
        second, _ = ranks(2, state)
        assert first + second == whole
    assert len(set(whole)) == TRAIN


def test_padding_is_marked() -> None:
    source = open_split(split="test", as_supervised=True, fields=None, mark_padding=True)
    loaders = [resumable.wrap(source, batch_size=5, tail="pad", world=World(rank, 2)) for rank in range(2)]
    valid = [[batch[2].tolist() for batch in loader] for loader in loaders]
    assert sum(map(sum, valid[0])) + sum(map(sum, valid[1])) == TEST
    assert valid[0] == [[True] * 5] * 2 + [[True, True, True, False, False]] or valid[0][2][0]
    assert valid[1][2] == [False] * 5
    everything = [batch[2].tolist() for batch in resumable.wrap(source, batch_size=5, tail="partial")]
    assert all(all(batch) for batch in everything)
    carried = resumable.wrap(source, batch_size=10, tail="carry")
    assert all(batch[2].all() for epoch in carried.epochs(3) for batch in epoch)


@pytest.mark.slow
def test_padding_is_marked_in_workers() -> None:
    source = open_split(split="test", mark_padding=True)
    loader = resumable.wrap(DataLoader(source, batch_size=10, num_workers=2), tail="pad")
    assert [int(batch["valid"].sum()) for batch in loader] == [10, 10, 3]


def test_repeats() -> None:
    source = open_split(repeats=3, fields=["label"], add_tfds_id=True)
    names = ids(resumable.wrap(source, **DRAWN))
    assert len(names) == 3 * TRAIN
    assert {names.count(name) for name in names} == {3}


def test_a_mismatch_that_is_accepted_warns() -> None:
    state = resumable.wrap(open_split(), **DRAWN).state_dict()
    loader = resumable.wrap(open_split("resharded"), **DRAWN)
    with pytest.raises(StateMismatchError, match="written with different shards"):
        loader.load_state_dict(state)
    with pytest.warns(StateMismatchWarning, match="layout"):
        loader.load_state_dict(state, strict=False)


@pytest.mark.slow
def test_neither_reader_imports_tensorflow(tmp_path: Path) -> None:
    script = f"""
import sys, resumable, resumable.backends.tfds as tfds
for folder in {[folder("shapes", file_format) for file_format in FORMATS]!r}:
    for decode in ("cv2", "pil", "none"):
        source = tfds.source(folder, "train[:50%]+test", decode=decode, index_dir={str(tmp_path)!r}, as_supervised=True)
        assert len(list(resumable.wrap(source, batch_size=8, shuffle=True))) > 3
import tensorflow_datasets
their = tensorflow_datasets.builder_from_directory(folder).as_data_source("test")
assert len(list(resumable.wrap(their, batch_size=8, collate=list))) == 3
print("tensorflow" in sys.modules, "torch" in sys.modules)
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["False", "False"]


def test_a_batch_that_is_read_twice_is_not_augmented_twice() -> None:
    """A generator that is drawn from late makes its batch be read again, and the first read has changed the images."""

    def make(threads: int) -> list[Any]:
        places = iter(range(1000))

        def late(sample: dict[str, Any]) -> Any:
            sample["image"] += np.uint8(1)
            return sample["image"], random.random() if next(places) >= 12 else 0.0

        source = open_split(decode="cv2", threads=threads)
        return [digest(batch) for batch in resumable.wrap(source, batch_size=8, transform=late)]

    assert make(2) == make(0)


def test_a_transform_gets_the_rng_of_its_sample() -> None:
    """With samples read by threads and in this process, in any batch size."""

    def keyed(sample: dict[str, Any], rng: Any) -> Any:
        return int(sample["image"].sum()), rng.key

    def make(threads: int, batch_size: int) -> list[Any]:
        source = open_split(decode="pil", threads=threads)
        options: Any = {"transform": keyed, "collate": list, "randomness": "passed", "shuffle": True, "seed": 3}
        return [one for batch in resumable.wrap(source, batch_size=batch_size, **options) for one in batch]

    golden = make(0, 8)
    assert make(2, 8) == golden == make(2, 5)
    assert [key for _, key in golden] == SampleKeys(3, 0).samples(0, len(golden)).tolist()
    with pytest.raises(UnsupportedError, match=r"searched for: transform\(sample, rng\)"):
        resumable.wrap(open_split(), batch_size=8, randomness="passed")


@pytest.mark.parametrize("transform", [None, dict])
def test_a_collate_function_alone_gets_the_rng_of_the_batch(transform: Any) -> None:
    options: Any = {
        "transform": transform,
        "collate": lambda some, rng: (len(some), rng.key),
        "seed": 3,
        "tail": "partial",
    }
    batches = list(resumable.wrap(open_split(decode="pil"), batch_size=8, randomness="passed", **options))
    starts = range(0, len(open_split()), 8)
    assert batches == [(min(8, len(open_split()) - start), SampleKeys(3, 0).batch(start)) for start in starts]


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


@pytest.mark.slow
def test_a_loader_may_be_collected_while_a_thread_is_starting() -> None:
    """Which holds a lock that the end of any thread needs: to wait for one there is to wait forever."""
    source = backend.source(folder("shapes", "tfrecord"), "train", threads=2, fields=["label"], index_dir=False)
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
