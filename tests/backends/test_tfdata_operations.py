"""Which operations of TensorFlow restore their state: each is tried once, and what does not restore is read again."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.experimental.ops.matching_files import MatchingFilesDataset
from tensorflow.python.framework import op_def_registry
from tfdata_pipelines import DATA, doubled, even, part

import resumable
from resumable.backends import tfdata
from resumable.backends.tfdata import backend, strategy
from resumable.backends.tfdata.graph import Graph, plain_name
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

TRY = tf.data.experimental
ROWS = 8
FEATURES = {"x": tf.io.FixedLenFeature((), tf.int64)}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        Path(f"{name}.txt").write_text("".join(f"{row}\n" for row in range(ROWS)))
        Path(f"{name}.csv").write_text("x,y\n" + "".join(f"{row},{row * row}\n" for row in range(ROWS)))
        Path(f"{name}.bin").write_bytes(b"HH" + b"".join(struct.pack("<i", row) for row in range(ROWS)) + b"FFF")
        for kind in ("", "GZIP"):
            with tf.io.TFRecordWriter(f"{name}{kind}.rec", kind) as writer:
                for row in range(ROWS):
                    value = tf.train.Feature(int64_list=tf.train.Int64List(value=[row]))
                    features = tf.train.Features(feature={"x": value})
                    writer.write(tf.train.Example(features=features).SerializeToString())
    with sqlite3.connect("rows.db") as database:
        database.execute("create table rows (x int)")
        database.executemany("insert into rows values (?)", [(row,) for row in range(ROWS)])
    database.close()


def rows(count: int = ROWS) -> Any:
    return DATA.range(count)


def csv(name: str = "a.csv") -> Any:
    return TRY.CsvDataset(name, [tf.int32, tf.int32], header=True).map(lambda x, y: x)


def two() -> list[Any]:
    return [rows(6), DATA.range(10, 16)]


def saved() -> Any:
    rows().save("saved")
    return DATA.load("saved")


def sparse() -> Any:
    return rows(5).map(tf.range).apply(TRY.dense_to_sparse_batch(2, [12])).map(tf.sparse.to_dense)


def reducer() -> Any:
    summed = TRY.Reducer(lambda _: np.int64(0), lambda total, x: total + x, lambda total: total)
    return rows().apply(TRY.group_by_reducer(lambda x: x % 5, summed))


def parsed() -> Any:
    batches = tf.data.TFRecordDataset("a.rec").batch(2)
    return batches.apply(TRY.parse_example_dataset(FEATURES)).map(lambda features: features["x"])


def batched_features() -> Any:
    made = TRY.make_batched_features_dataset(
        "?.rec", 3, FEATURES, num_epochs=1, shuffle=False, reader_num_threads=1, drop_final_batch=False
    )
    return made.map(lambda features: features["x"])


TRIED: dict[str, Callable[[], Any]] = {
    "range": rows,
    "tensors": lambda: DATA.from_tensors(np.arange(3)).repeat(4),
    "slices": lambda: DATA.from_tensor_slices(np.arange(ROWS)),
    "list_files": lambda: DATA.list_files("*.txt", shuffle=True, seed=1),
    "random": lambda: DATA.random(seed=1).take(ROWS),
    "random again": lambda: DATA.random(seed=1, rerandomize_each_iteration=True).take(ROWS),
    "counter": lambda: DATA.counter().take(ROWS),
    "text": lambda: tf.data.TextLineDataset(["a.txt", "b.txt"]),
    "text in small pieces": lambda: tf.data.TextLineDataset("a.txt", buffer_size=8),
    "records": lambda: tf.data.TFRecordDataset(["a.rec", "b.rec"]),
    "compressed records": lambda: tf.data.TFRecordDataset(["aGZIP.rec", "bGZIP.rec"], "GZIP"),
    "parallel records": lambda: tf.data.TFRecordDataset(["a.rec", "b.rec"], num_parallel_reads=2),
    "fixed length": lambda: tf.data.FixedLengthRecordDataset(["a.bin", "b.bin"], 4, header_bytes=2, footer_bytes=3),
    "sql": lambda: TRY.SqlDataset("sqlite", "rows.db", "select x from rows", (tf.int32,)),
    "load": saved,
    "features": batched_features,
    "parse": parsed,
    "choose": lambda: DATA.choose_from_datasets(two(), DATA.range(2).repeat(5)),
    "choose from shuffled": lambda: DATA.choose_from_datasets([one.shuffle(6, seed=1) for one in two()], rows(2)),
    "choose, shuffled once": lambda: DATA.choose_from_datasets(
        two(), DATA.range(2).repeat(4).shuffle(8, seed=2, reshuffle_each_iteration=False)
    ),
    "sample": lambda: DATA.sample_from_datasets(two(), seed=4),
    "sample with shuffled weights": lambda: DATA.sample_from_datasets(
        two(), DATA.from_tensor_slices([[0.1, 0.9]] * 5 + [[0.9, 0.1]] * 5).shuffle(10, seed=1), seed=4
    ),
    "window": lambda: rows().window(4, shift=2, stride=2).flat_map(lambda window: window.batch(3)),
    "unique": lambda: rows().map(lambda x: x % 7).unique(),
    "cache": lambda: rows().cache().shuffle(5, seed=1),
    "group": lambda: rows().group_by_window(lambda x: x % 3, lambda _, window: window.batch(2), 2),
    "reducer": reducer,
    "ignore errors": lambda: rows().map(lambda x: tf.debugging.check_numerics(1 / (x % 4), "x")).ignore_errors(),
    "rebatch": lambda: rows().batch(6).rebatch([2, 3, 1]),
    "interleave": lambda: rows(4).interleave(part, cycle_length=2),
    "parallel interleave": lambda: rows(4).interleave(part, cycle_length=2, num_parallel_calls=2),
    "legacy interleave": lambda: rows(4).apply(TRY.parallel_interleave(part, cycle_length=2, sloppy=False)),
    "flat map": lambda: rows(4).flat_map(part),
    "map and batch": lambda: rows().apply(TRY.map_and_batch(doubled, 3)),
    "sparse batch": sparse,
    "cardinality": lambda: rows().filter(even).apply(TRY.assert_cardinality(ROWS // 2)),
    "shard": lambda: rows().shard(2, 1),
    "skip": lambda: rows().skip(3),
    "take while": lambda: rows().take_while(lambda x: x < 7),
    "scan": lambda: rows().scan(np.int64(0), lambda total, x: (total + x, total + x)),
    "zip": lambda: DATA.zip((rows(), rows(9))),
    "concatenate": lambda: rows(4).concatenate(rows(5)),
    "map": lambda: rows().map(doubled, num_parallel_calls=3).prefetch(2),
    "batch": lambda: rows().batch(3, num_parallel_calls=2).unbatch().batch(2),
    "padded": lambda: rows().map(tf.range).padded_batch(2),
    "shuffle": lambda: rows().shuffle(5, seed=1).with_options(tf.data.Options()),
}
LOSING: dict[str, Callable[[], Any]] = {
    "CSV": csv,
    "CSV, shuffled": lambda: csv().shuffle(2, seed=3).batch(2),
    "CSV inside": lambda: DATA.from_tensor_slices(["a.csv", "b.csv"]).interleave(csv, cycle_length=2).batch(3),
    "MatchingFiles": lambda: MatchingFilesDataset("*.*"),
}
# TensorFlow adds it while it optimizes a graph, so a written graph never has it.
ADDED = {"Model"}


def names_of(dataset: Any) -> set[str]:
    return {plain_name(one.node.op) for one in Graph(dataset).datasets}


def every_name() -> set[str]:
    """Return the names of the operations of this TensorFlow that make datasets."""
    known = {name: op_def_registry.get(name) for name in dir(tf.raw_ops) if "Dataset" in name}
    return {
        plain_name(name)
        for name, one in known.items()
        if one is not None and [each.type for each in one.output_arg] == [tf.variant.as_datatype_enum]
    }


def test_no_operation_is_trusted_that_was_not_tried() -> None:
    tried = set[str]().union(*(names_of(make()) for make in TRIED.values())) | ADDED
    trusted = strategy._SYMBOLIC | strategy._EXPLICIT  # the table
    assert trusted - tried == set()
    assert trusted <= every_name()
    losing = set[str]().union(*(names_of(make()) for make in LOSING.values()))
    assert losing - trusted == {"CSV", "MatchingFiles"}


def values(element: Any) -> Any:
    return [np.asarray(part).tolist() for part in tf.nest.flatten(element)]


def cuts_that_differ(dataset: Any, *, symbolic: bool) -> list[int]:
    """Return after how many elements TensorFlow's own state continues with different elements."""
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    dataset = dataset.with_options(options)
    iterator, run, states = dataset.as_numpy_iterator(), list[Any](), list[Any]()
    states.append(iterator.save())
    for element in iterator:
        run.append(values(element))
        states.append(iterator.save())
    differ = []
    for cut, state in enumerate(states[:-1]):
        restored = dataset.as_numpy_iterator()
        restored.restore(state)
        if [values(element) for element in restored] != run[cut:]:
            differ.append(cut)
    return differ


@pytest.mark.parametrize("name", TRIED)
def test_a_trusted_state_restores(name: str) -> None:
    names = names_of(TRIED[name]())
    assert cuts_that_differ(TRIED[name](), symbolic=False) == []
    if names <= strategy._SYMBOLIC:  # the table
        assert cuts_that_differ(TRIED[name](), symbolic=True) == []
    assert "tf.data/replay" not in repr(resumable.wrap(TRIED[name]()))


@pytest.mark.parametrize("name", LOSING)
def test_what_does_not_restore_is_read_again(name: str) -> None:
    tries = (cuts_that_differ(LOSING[name](), symbolic=False) for _ in range(10))  # how far a thread reads ahead varies
    assert any(tries), "TensorFlow restores it now: trust it"
    loader = resumable.wrap(LOSING[name]())
    assert "tf.data/replay" in repr(loader)
    assert_exact(LOSING[name], epochs=2)
    with pytest.raises(UnsupportedError, match="may lose elements when it restores the state of"):
        resumable.wrap(tfdata.source(LOSING[name](), strategy="explicit"))


def assert_exact(make: Callable[[], Any], epochs: int, **options: Any) -> list[Any]:
    """Compare runs that are resumed after each element with an uninterrupted one, and return the states."""
    loader, run, states = resumable.wrap(make(), **options), list[Any](), list[Any]()
    for epoch in loader.epochs(epochs):
        for element in epoch:
            run.append(values(element))
            states.append(loader.state_dict())
    for cut, state in enumerate(states, start=1):
        resumed = resumable.wrap(make(), **options)
        resumed.load_state_dict(state)
        assert [values(element) for epoch in resumed.epochs(epochs) for element in epoch] == run[cut:], f"after {cut}"
    return states


def test_an_operation_that_nobody_has_tried_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "_EXPLICIT", strategy._EXPLICIT - {"Window"})  # the table
    assert "tf.data/replay" in repr(resumable.wrap(TRIED["window"]()))


# ------------------------------------------------------------------------------------------------ counts of passes

SELECTOR = DATA.range(2).repeat(4).shuffle(8, seed=2)  # this one lives on
UNCOUNTED: dict[str, Callable[[], Any]] = {
    "ShuffleDatasetV3 in the selector": lambda: DATA.choose_from_datasets(
        two(), DATA.range(2).repeat(4).shuffle(8, seed=2)
    ).batch(4),
    "ShuffleDatasetV3 in the selector, kept": lambda: DATA.choose_from_datasets(two(), SELECTOR).batch(4),
    "RandomDatasetV2 in the selector": lambda: DATA.choose_from_datasets(
        two(), DATA.random(seed=3, rerandomize_each_iteration=True).map(lambda x: x % 2).take(9)
    ),
    "ShuffleAndRepeatDataset": lambda: rows(6).apply(TRY.shuffle_and_repeat(4, 2, seed=1)),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_count_of_passes_that_nobody_can_set_is_rejected(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name.partition(',')[0]}(.|\n)*count from zero"):
        resumable.wrap(UNCOUNTED[name]())


COUNTED: dict[str, Callable[[], Any]] = {
    "selector": lambda: tfdata.source(selected),
    "of other lengths": lambda: tfdata.source(lambda epoch: rows(3 - epoch).shuffle(3, seed=1)),
    "shuffled data": lambda: DATA.choose_from_datasets(
        [one.shuffle(6, seed=1) for one in two()], rows(2).repeat(4)
    ).batch(3),
    "weights": lambda: TRIED["sample with shuffled weights"]().batch(4),
    "replayed": lambda: tfdata.source(rows().shuffle(5, seed=1).batch(3), strategy="replay"),
    "replayed and repeated": lambda: tfdata.source(rows(3).shuffle(3, seed=1).repeat(2), strategy="replay"),
}


def selected(epoch: int) -> Any:
    selector = DATA.range(2).repeat(4).shuffle(8, seed=epoch + 1)
    return DATA.choose_from_datasets(two(), selector).batch(4)


@pytest.mark.parametrize("name", COUNTED)
def test_what_counts_its_passes_is_exact_in_later_epochs(name: str) -> None:
    assert_exact(COUNTED[name], epochs=2)


# ------------------------------------------------------------------------------------------------ slow states


def test_a_slow_state_is_warned_about_once_and_the_epoch_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a state decides, and not an estimate of its size."""
    monkeypatch.setattr(backend, "_SLOW", 0.0)  # each state is slow
    monkeypatch.setattr(backend.Stream, "seconds", property(lambda _: -1.0, lambda *_: None), raising=False)
    with pytest.warns(PromiseWarning, match=r"s for one state of this(.|\n)*Shuffle\(300\)") as caught:
        states = assert_exact(lambda: rows(9).shuffle(300, seed=1).batch(2), epochs=2)
    assert len(caught) == 1
    taken = [state["source_state"] is not None for state in states[:8]]
    assert taken == [True] * 4 + [False] * 4  # the first state serves as long as its elements are compared


def test_a_slow_state_is_taken_where_reading_takes_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_SLOW", 0.0)
    monkeypatch.setattr(backend.Stream, "seconds", property(lambda _: 1e9, lambda *_: None), raising=False)
    with pytest.warns(PromiseWarning, match="one state"):
        states = assert_exact(lambda: rows(9).shuffle(30, seed=1).batch(2), epochs=1)
    assert None not in [state["source_state"] for state in states]


# ------------------------------------------------------------------------------------------------ counts of elements


def trusted_csv(monkeypatch: pytest.MonkeyPatch, dataset: Any) -> resumable.Loader:
    monkeypatch.setattr(strategy, "_EXPLICIT", strategy._EXPLICIT | {"CSV"})  # plants the bug
    return resumable.wrap(dataset)


@pytest.mark.parametrize("told", [True, False])
def test_a_resumed_epoch_that_ends_early_is_noticed(monkeypatch: pytest.MonkeyPatch, *, told: bool) -> None:
    def make() -> Any:
        return csv().apply(TRY.assert_cardinality(ROWS)) if told else csv()

    loader = trusted_csv(monkeypatch, make())
    states = [loader.state_dict() for epoch in loader.epochs(2) for _ in epoch]
    for cut in (3, ROWS + 3) if told else (ROWS + 3,):
        resumed = trusted_csv(monkeypatch, make())
        resumed.load_state_dict(states[cut - 1])
        with pytest.raises((StateMismatchError, tf.errors.OpError), match="number of elements|expected to contain"):
            list(next(iter(resumed.epochs(2))))


def test_a_resumed_epoch_that_continues_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> resumable.Loader:
        return resumable.wrap(rows(30).filter(even))

    loader = make()
    states = [loader.state_dict() for epoch in loader.epochs(2) for _ in epoch]
    state = states[17]
    state["source_state"]["snapshot"]["length"] -= 2
    state["digest"] = None
    resumed = make()
    resumed.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="continues after them"):
        list(next(iter(resumed.epochs(2))))
