"""What cannot be resumed is refused or replayed by name, when it is wrapped and before anything is read."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from tfdata_pipelines import DATA, doubled, explicit, generated, of_epoch, part, repeated, typical

import resumable
from resumable.backends import tfdata
from resumable.backends.tfdata import backend
from resumable.errors import ConfigurationError, PromiseWarning, StateFormatError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

GENERATOR = tf.random.Generator.from_seed(1)
VARIABLE = tf.Variable(np.int64(1))


def unordered(dataset: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def mutable_lookup() -> Any:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    return DATA.range(4).map(table.lookup)


REFUSED: dict[str, Callable[[], Any]] = {
    "RandomUniform": lambda: DATA.range(9).map(lambda x: tf.random.uniform(())),
    "RandomUniform, seeded": lambda: DATA.range(9).map(lambda x: tf.random.uniform((), seed=3)),
    "RandomUniform, image": lambda: DATA.range(9).map(lambda x: tf.image.random_flip_left_right(tf.zeros((2, 2, 1)))),
    "RandomShuffle": lambda: DATA.range(9).map(lambda x: tf.random.shuffle(tf.range(4))),
    "RngReadAndSkip": lambda: DATA.range(9).map(lambda x: GENERATOR.uniform(())),
    "AssignAddVariableOp": lambda: DATA.range(9).map(lambda x: VARIABLE.assign_add(1)),
    "ReadVariableOp": lambda: DATA.range(9).map(lambda x: VARIABLE + x),
    "LookupTableFindV2": mutable_lookup,
    "Timestamp": lambda: DATA.range(9).map(lambda x: tf.timestamp()),
    "ShuffleDatasetV3, no seed": lambda: DATA.range(9).shuffle(4),
    "ShuffleDatasetV3, no seed, once": lambda: DATA.range(9).shuffle(4, reshuffle_each_iteration=False),
    "ShuffleDatasetV3, no seed inside": lambda: DATA.range(4).interleave(lambda x: DATA.range(x).shuffle(3)),
    "ShuffleDatasetV3, list_files": lambda: DATA.list_files("/etc/host*"),
    "RandomDataset, sampled": lambda: DATA.sample_from_datasets([DATA.range(4), DATA.range(4)]),
    "RandomDataset": lambda: DATA.random().take(4),
    "ParallelMapDatasetV2": lambda: DATA.range(9).map(doubled, num_parallel_calls=2, deterministic=False),
    "ParallelInterleaveDatasetV4": lambda: DATA.range(4).interleave(part, num_parallel_calls=2, deterministic=False),
    "OptionsDataset": lambda: unordered(DATA.range(9).map(doubled, num_parallel_calls=2)),
    "CacheDatasetV2": lambda: DATA.range(9).cache("/nowhere/cache"),
    "CacheDatasetV2, after shuffle": lambda: DATA.range(9).shuffle(3, seed=1).cache(),
    "SnapshotDatasetV2": lambda: DATA.range(9).snapshot("/nowhere/snapshot"),
    "RepeatDataset": lambda: DATA.range(9).shuffle(3, seed=1).repeat().take(20),
    "cannot serialize": lambda: DATA.range(9).apply(tf.data.experimental.copy_to_device("/cpu:0")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_resumed_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name.partition(",")[0]) as caught:
        resumable.wrap(REFUSED[name]())
    assert caught.value.args[0].count("\n") >= 1, "what would have happened, and the way out"


REPLAYED: dict[str, Callable[[], Any]] = {
    "PyFunc": lambda: DATA.range(9).map(lambda x: tf.numpy_function(abs, [x], tf.int64)),
    "EagerPyFunc": lambda: DATA.range(9).map(lambda x: tf.py_function(abs, [x], tf.int64)),
    "generator": generated,
}


@pytest.mark.parametrize("name", REPLAYED)
def test_python_is_replayed_and_said(name: str) -> None:
    with pytest.warns(PromiseWarning, match="runs Python"):
        assert "tf.data/replay" in repr(resumable.wrap(REPLAYED[name]()))


NATIVE: dict[str, tuple[Callable[[], Any], str]] = {
    "small": (typical, "explicit"),
    "large elements": (lambda: images(64, 224).prefetch(2), "symbolic"),
    "large elements, taken one by one": (lambda: images(1, 224).prefetch(2), "explicit"),
    "large elements, nothing ahead": (lambda: images(64, 224), "explicit"),
    "large elements in the shuffle alone": (lambda: images(1, 224).shuffle(999, seed=1).batch(64), "explicit"),
    "text": (lambda: DATA.range(9).map(tf.strings.as_string).prefetch(2), "symbolic"),
    "a part of no known size": (lambda: DATA.range(9).map(tf.range).prefetch(2), "symbolic"),
    "many in a map": (lambda: DATA.range(99).map(image, num_parallel_calls=64), "symbolic"),
    "tuned by TensorFlow": (lambda: images(64, 32).prefetch(tf.data.AUTOTUNE), "explicit"),
    "repeated": (repeated, "symbolic"),
    "pure numpy_function": (lambda: tfdata.source(REPLAYED["PyFunc"](), assume_pure=True), "symbolic"),
    "said to be stateless": (
        lambda: DATA.range(9).map(lambda x: tf.numpy_function(abs, [x], tf.int64, stateful=False)),
        "explicit",
    ),
    "variable that stays": (lambda: tfdata.source(REFUSED["ReadVariableOp"](), assume_pure=True), "symbolic"),
    "assert": (lambda: DATA.range(9).map(checked), "explicit"),
    "window": (lambda: DATA.range(9).window(3).flat_map(lambda window: window.batch(3)), "explicit"),
    "unique": (lambda: DATA.range(9).unique(), "explicit"),
    "cache": (lambda: DATA.range(9).cache(), "explicit"),
    "group by window": (lambda: DATA.range(9).group_by_window(lambda x: x % 2, lambda _, w: w.batch(2), 2), "explicit"),
    "ignore errors": (lambda: DATA.range(9).ignore_errors(), "explicit"),
    "shuffle of one": (lambda: DATA.range(9).shuffle(1), "explicit"),
}


def image(x: Any) -> Any:
    return tf.fill((224, 224, 3), tf.cast(x, tf.uint8))


def images(batch: int, size: int) -> Any:
    return DATA.range(99).map(lambda x: tf.fill((size, size, 3), tf.cast(x, tf.uint8))).batch(batch)


def checked(x: Any) -> Any:
    tf.debugging.assert_less(x, np.int64(100))
    return tf.debugging.check_numerics(tf.cast(x, tf.float32), "x")


@pytest.mark.parametrize("name", NATIVE)
def test_what_has_a_state_of_its_own_uses_it(name: str) -> None:
    make, strategy = NATIVE[name]
    assert f"tf.data/{strategy}," in repr(resumable.wrap(make()))


def test_the_choice_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "resumable"):
        list(resumable.wrap(DATA.range(9).cache()))
    assert [record.message for record in caplog.records if "resumes with" in record.message] == [
        "tf.data: resumes with explicit: Cache may not restore a symbolic state correctly"
    ]


def test_the_estimate_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "resumable"):
        resumable.wrap(images(64, 32).prefetch(2))
        resumable.wrap(tfdata.source(images(64, 32).prefetch(2), snapshot_every=2))
        resumable.wrap(images(64, 32).prefetch(2), ack="manual")
    said = [
        record.message.partition("resumes with ")[2].partition("; a symbolic one costs") for record in caplog.records
    ]
    assert {after for *_, after in said} == {" about 960 µs per step"}
    more = "an explicit state may be 0.5 MB larger, about"
    assert [before for before, *_ in said] == [
        f"explicit: {more} 10 µs per step with one every 1000 steps",
        f"symbolic: {more} 5000 µs per step with one every 2 steps",
        f"explicit: {more} 100 µs per step with one every 100 steps",
    ]


SHARED = typical()


def same_for_each_epoch(epoch: int) -> Any:
    return SHARED


BAD: dict[str, Callable[[], Any]] = {
    "strategy must be": lambda: tfdata.source(typical(), strategy="native"),  # type: ignore[arg-type]  # the point
    "convert must be": lambda: tfdata.source(typical(), convert="jax"),  # type: ignore[arg-type]  # the point
    "has no elements": lambda: DATA.range(0),
    "cannot be called without arguments": lambda: tfdata.source(lambda path: DATA.range(3)),
    "not a tf.data.Dataset": lambda: tfdata.source(lambda: [1, 2]),
    "takes a tf.data.Dataset or a function": lambda: tfdata.source([1, 2]),
    "RaggedTensorSpec": lambda: DATA.range(9).map(tf.range).ragged_batch(2),
    "SparseTensorSpec": lambda: DATA.from_tensor_slices(tf.sparse.SparseTensor([[0, 0], [1, 2]], [1, 2], [4, 3])),
    "not a plain tensor": lambda: DATA.range(9).window(3),
    "contain text": lambda: tfdata.source(DATA.from_tensor_slices(["a", "b"]), convert="torch"),
    "OwnedIterator": lambda: iter(typical()),
    "NumpyIterator": lambda: typical().as_numpy_iterator(),
    "uses the same ShuffleDatasetV3": lambda: tfdata.source(same_for_each_epoch),
    "repeats a shuffle, and is resumed from TensorFlow's explicit": lambda: explicit(repeated()),
    "several shuffles": lambda: DATA.range(4).shuffle(4, seed=1).flat_map(part).shuffle(4, seed=2).repeat(2),
    "Concatenate before repeat": lambda: DATA.range(4).shuffle(4, seed=1).concatenate(DATA.range(3)).repeat(),
    "requested, but TensorFlow cannot save": lambda: explicit(generated()),
}


@pytest.mark.parametrize("message", BAD)
def test_what_does_not_fit_is_refused(message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resumable.wrap(BAD[message]())


def test_plain_function_is_not_replayed_silently() -> None:
    """A plain function that returns a pipeline is not replayed silently."""
    loader = resumable.wrap(lambda: DATA.range(9).shuffle(3))
    with pytest.raises(UnsupportedError, match=r"tfdata.source\(function\)"):
        next(iter(loader))


def test_several_ranks_have_to_say_who_divides_the_data() -> None:
    world = resumable.World(1, 2)
    with pytest.raises(ConfigurationError, match="shard=True"):
        next(iter(resumable.wrap(typical(), world=world)))
    own = resumable.wrap(DATA.range(20).shard(2, 1).batch(2), shard=False, world=world)
    assert next(iter(own)).tolist() == [1, 3]
    shared = resumable.wrap(DATA.range(20).batch(2), shard=True, world=world)
    assert next(iter(shared)).tolist() == [2, 3]
    with pytest.raises(StateMismatchError, match="world_size"):
        resumable.wrap(DATA.range(20).shard(2, 1).batch(2), shard=False, world=resumable.World(1, 3)).load_state_dict(
            own.state_dict()
        )


def test_elements_become_tensors_of_their_own_memory() -> None:
    torch = import_module("torch")
    arrays = {"x": np.arange(4.0, dtype=np.float32), "y": tf.constant([1, 2, 3, 4], tf.bfloat16)}
    dataset = DATA.from_tensor_slices((arrays, np.arange(4)))
    batch = next(iter(resumable.wrap(tfdata.source(dataset.batch(2), convert="torch"))))
    assert torch.equal(batch[0]["x"], torch.tensor([0.0, 1.0]))
    assert batch[0]["y"].dtype == torch.bfloat16
    assert batch[0]["y"].tolist() == [1, 2]
    assert batch[1].dtype == torch.int64
    scalar = next(iter(resumable.wrap(tfdata.source(dataset, convert="torch"))))
    assert scalar[1].shape == ()
    constant = DATA.from_tensors(np.zeros(3)).repeat(2)
    for tensor in resumable.wrap(tfdata.source(constant, convert="torch")):
        assert tensor.sum() == 0, "another batch's memory"
        tensor.add_(1)


def test_large_states_are_warned_about_once_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_LARGE", 1000)
    loader = resumable.wrap(DATA.range(40).shuffle(30, seed=1))
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(PromiseWarning, match=r"MB, which are written with each checkpoint(.|\n)*shuffle before"):
        loader.state_dict()
    next(iterator)
    loader.state_dict()  # a second warning would be an error


def test_the_users_name_stands_for_the_data() -> None:
    def make(path: str, **options: Any) -> resumable.Loader:
        return resumable.wrap(DATA.from_tensor_slices([path, path]), **options)

    state = make("/here/data").state_dict()
    with pytest.raises(StateMismatchError, match="backend.data differs"):
        make("/there/data").load_state_dict(state)
    named = make("/here/data", identity="images-v1").state_dict()
    make("/there/data", identity="images-v1").load_state_dict(named)
    with pytest.raises(StateMismatchError, match="images-v2"):
        make("/there/data", identity="images-v2").load_state_dict(named)


def test_a_damaged_state_is_refused() -> None:
    loader = resumable.wrap(typical())
    next(iter(loader))
    for damage in (lambda text: text[:-8], lambda text: text[:50] + b"A" + text[51:], lambda text: b""):
        state = loader.state_dict()
        snapshot = state["source_state"]["snapshot"]
        snapshot["state"] = damage(snapshot["state"])
        resumed = resumable.wrap(typical())
        with pytest.raises(StateFormatError, match="its digest does not match"):
            resumed.load_state_dict(state)
        state["digest"] = None
        resumed.load_state_dict(state)
        with pytest.raises(StateFormatError, match="in the checkpoint(.|\n)*in this run"):
            next(iter(resumed))
    state = loader.state_dict()
    del state["source_state"]["snapshot"]["checksum"]
    state["digest"] = None
    resumed = resumable.wrap(typical())
    resumed.load_state_dict(state)
    with pytest.raises(StateFormatError, match="damaged"):
        next(iter(resumed))


def test_an_error_in_the_pipeline_is_the_users() -> None:
    def fails(x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(x, np.int64(3))]):
            return tf.identity(x)

    loader = resumable.wrap(DATA.range(9).map(fails))
    got = list[Any]()
    with pytest.raises(tf.errors.InvalidArgumentError):
        got.extend(iter(loader))
    assert loader.cursor.position == 3


def test_the_epoch_reaches_the_function() -> None:
    orders = [list(map(int, batch)) for batch in resumable.wrap(tfdata.source(of_epoch))]
    assert sorted(x for order in orders for x in order) == list(range(0, 40, 2))


# ---------------------------------------------------------------------- resume=


@pytest.mark.parametrize(("saved", "resumed"), [("state", "replay"), ("replay", "state"), ("replay", "replay")])
def test_a_state_of_either_kind_is_gone_on_from_in_either_way(saved: Any, resumed: Any) -> None:
    def make(resume: Any) -> resumable.Loader:
        return resumable.wrap(DATA.range(8).shuffle(5, seed=3).batch(2), resume=resume)

    loader, run, states = make(saved), list[str](), list[Any]()
    for epoch in loader.epochs(2):
        for batch in epoch:
            run.append(str(batch))
            states.append(loader.state_dict())
    assert all(state["canary"] for state in states if state["cursor"]["step"] == 1)
    for step in (1, 4, 6):
        loader = make(resumed)
        loader.load_state_dict(states[step - 1])
        assert [str(batch) for epoch in loader.epochs(2) for batch in epoch] == run[step:], f"after {step} batches"


def test_what_cannot_resume_in_that_way_is_refused() -> None:
    replayed = tfdata.source(generated, assume_pure=True)
    with pytest.raises(UnsupportedError, match="resume does not fit this tf.data pipeline.*\n.*replayed: TensorFlow"):
        resumable.wrap(replayed, resume="state")
    with pytest.raises(UnsupportedError, match="resume does not fit an endless tf.data pipeline"):
        resumable.wrap(DATA.range(4).repeat(), resume="replay")


def test_a_generator_that_gives_other_elements_is_refused() -> None:
    numbers = iter(range(1000))

    def pipeline() -> Any:
        signature = tf.TensorSpec((), tf.int64)
        return DATA.from_generator(lambda: (next(numbers) for _ in range(6)), output_signature=signature)

    def make() -> resumable.Loader:
        return resumable.wrap(tfdata.source(pipeline, assume_pure=True))

    loader = make()
    state = [loader.state_dict() for _ in zip(range(3), loader, strict=False)][-1]
    resumed = make()
    resumed.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="read again up to the saved position"):
        next(iter(resumed))
