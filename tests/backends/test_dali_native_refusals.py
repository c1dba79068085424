"""What DALI would get silently wrong is refused or warned about, by name."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import nvidia.dali.plugin.pytorch as dali_torch
import pytest
from dali_pipelines import BATCH, images, iterator, made, pipelines, training_pipeline, write_images
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

import resumable
from resumable import World
from resumable.backends.dali import in_turn
from resumable.backends.dali.identity import is_of_files
from resumable.errors import (
    ConfigurationError,
    PromiseWarning,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.loader.loader import Loader

WARNED = pytest.mark.filterwarnings("ignore::resumable.errors.PromiseWarning")
define = pipeline_def(num_threads=1, device_id=None, batch_size=BATCH, seed=3)


# ---------------------------------------------------------------------------------------------- states of others


def wrapped(count: int = 1, reader: dict[str, Any] | None = None, **options: Any) -> Loader:
    pipeline: dict[str, Any] = {name: options.pop(name) for name in ("seed", "batch_size") if name in options}
    return resumable.wrap(iterator(count, reader=reader, pipeline=pipeline, **options))


def other_graph() -> Loader:
    @pipeline_def(num_threads=2, device_id=None, batch_size=BATCH, seed=12)  # type: ignore[untyped-decorator]  # DALI's
    def brighter() -> Any:
        jpegs, labels = fn.readers.file(file_root=images(), random_shuffle=True, pad_last_batch=True, name="Reader")
        return fn.resize(fn.decoders.image(jpegs), resize_x=12, resize_y=12), labels

    return resumable.wrap(made(brighter()))


SHARDS = {"num_shards": 2, "shard_id": 0}
MISMATCHES: dict[str, tuple[Callable[[], Loader], str, str]] = {
    "num_shards": (lambda: wrapped(reader={"num_shards": 4, "shard_id": 0}), "2", "4"),
    "shard_id": (lambda: wrapped(reader={"num_shards": 2, "shard_id": 1}), "0", "1"),
    "samples": (lambda: wrapped(reader={**SHARDS, "file_filters": ["000*.jpg"]}), "19", "10"),
    "random_shuffle": (lambda: wrapped(reader={**SHARDS, "random_shuffle": False}), "True", "False"),
    "initial_fill": (lambda: wrapped(reader={**SHARDS, "initial_fill": 5}), "1024", "5"),
    "batch_size": (lambda: wrapped(reader=SHARDS, batch_size=5), "4", "5"),
    "last_batch_policy": (
        lambda: wrapped(reader=SHARDS, last_batch_policy=LastBatchPolicy.FILL), "'PARTIAL'", "'FILL'",
    ),
    "pad_last_batch": (lambda: wrapped(reader={**SHARDS, "pad_last_batch": False}), "1", "0"),
    "stick_to_shard": (lambda: wrapped(reader={**SHARDS, "stick_to_shard": True}), "0", "1"),
    "seed": (lambda: wrapped(reader=SHARDS, seed=13), "12", "13"),
    "pipelines": (lambda: wrapped(2), "1", "2"),
    "outputs": (
        lambda: resumable.wrap(made(pipelines(1, SHARDS), _Renamed)), "['data', 'label']", "['image', 'label']",
    ),
    "iterators": (lambda: resumable.wrap(in_turn([iterator(reader=SHARDS), iterator(reader=SHARDS)])), "1", "2"),
}  # fmt: skip


class _Renamed(DALIGenericIterator):  # type: ignore[misc]  # DALI's
    def __init__(self, pipelines: Any, _: Any, **options: Any) -> None:
        super().__init__(pipelines, ["image", "label"], **options)


@WARNED
@pytest.mark.parametrize("field", MISMATCHES)
def test_a_state_of_another_configuration_is_refused_by_name(field: str) -> None:
    loader = wrapped(reader=SHARDS)
    next(iter(loader))
    state = loader.state_dict()
    make, before, now = MISMATCHES[field]
    other = make()
    untouched = digest(other.state_dict())
    with pytest.raises(StateMismatchError) as refused:
        other.load_state_dict(state)
    message = str(refused.value)
    assert f"backend.{field} differs" in message
    assert f"in the checkpoint: {before}\n" in message
    assert f"in this run:       {now}\n" in message
    assert digest(other.state_dict()) == untouched
    wrapped(reader=SHARDS).load_state_dict(state)


@WARNED
def test_a_state_of_another_graph_is_refused() -> None:
    loader = wrapped()
    next(iter(loader))
    with pytest.raises(StateMismatchError, match=r"backend\.graph differs"):
        other_graph().load_state_dict(loader.state_dict())


def test_several_mismatches_at_once_do_not_hide_each_other() -> None:
    state = wrapped().state_dict()
    with pytest.raises(StateMismatchError, match=r"backend\.batch_size differs"):
        wrapped(batch_size=5, seed=13).load_state_dict(state)


def over(root: Path, **reader: Any) -> Loader:
    options = {"file_root": str(root), "random_shuffle": True, "pad_last_batch": True, **reader}

    @define  # type: ignore[untyped-decorator]  # DALI's
    def files() -> Any:
        jpegs, labels = fn.readers.file(name="Reader", **options)
        return fn.resize(fn.decoders.image(jpegs), resize_x=8, resize_y=8), labels

    return resumable.wrap(made(files()))


def test_other_files_are_refused_and_another_directory_is_not(tmp_path: Path) -> None:
    write_images(tmp_path / "a", 9)
    state = over(tmp_path / "a").state_dict()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    over(tmp_path / "b").load_state_dict(state)
    (tmp_path / "b/even/0002.jpg").rename(tmp_path / "b/even/0011.jpg")
    with pytest.raises(StateMismatchError, match=r"backend\.files differs"):
        over(tmp_path / "b").load_state_dict(state)


def test_another_order_in_a_list_of_files_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, 8)
    names = [str(path) for path in sorted(tmp_path.rglob("*.jpg"))]
    state = over(tmp_path, file_root=None, files=names, labels=list(range(8))).state_dict()
    other = over(tmp_path, file_root=None, files=names[::-1], labels=list(range(8)))
    with pytest.raises(StateMismatchError, match=r"backend\.files differs"):
        other.load_state_dict(state)
    other = over(tmp_path, file_root=None, files=names, labels=list(range(8))[::-1])
    with pytest.raises(StateMismatchError, match=r"backend\.files differs"):
        other.load_state_dict(state)
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path, moved)
    names = [str(moved / Path(name).relative_to(tmp_path)) for name in names]
    over(tmp_path, file_root=None, files=names, labels=list(range(8))).load_state_dict(state)


def test_another_list_in_a_file_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, 8)
    listed = tmp_path / "list.txt"
    lines = [f"{path.relative_to(tmp_path)} {number}" for number, path in enumerate(sorted(tmp_path.rglob("*.jpg")))]
    listed.write_text("\n".join(lines))
    state = over(tmp_path, file_list=str(listed)).state_dict()
    over(tmp_path, file_list=str(listed)).load_state_dict(state)
    listed.write_text("\n".join(lines[::-1]))
    with pytest.raises(StateMismatchError, match=r"backend\.files differs"):
        over(tmp_path, file_list=str(listed)).load_state_dict(state)


def test_a_name_for_the_data_takes_the_place_of_its_files(tmp_path: Path) -> None:
    write_images(tmp_path, 8)
    state = resumable.wrap(iterator(), identity="digits-v1").state_dict()
    assert state["backend"]["files"] == "digits-v1"
    with pytest.raises(StateMismatchError, match="digits-v1"):
        resumable.wrap(iterator(), identity="digits-v2").load_state_dict(state)


def test_a_damaged_checkpoint_of_dalis_is_refused() -> None:
    loader = wrapped()
    next(iter(loader))
    state = loader.state_dict()
    state["source_state"]["snapshot"]["checkpoints"] = [b"\xff" * 40]
    with pytest.raises(StateFormatError, match="its digest does not match"):
        wrapped().load_state_dict(state)
    state["digest"] = None
    loader = wrapped()
    loader.load_state_dict(state)
    with pytest.raises(
        StateFormatError, match=r"DALI's checkpoint inside the state is damaged \(sizes in bytes: \[40\]"
    ):
        next(iter(loader))


@WARNED
def test_overruled_identity_of_another_pipeline() -> None:
    """A checkpoint of a different pipeline is rejected if the identity was overruled."""
    loader = wrapped()
    next(iter(loader))
    other = other_graph()
    with pytest.warns(resumable.errors.StateMismatchWarning):
        other.load_state_dict(loader.state_dict(), strict=False)
    with pytest.raises(StateMismatchError, match="a different DALI pipeline") as refused:
        next(iter(other))
    assert "__ImageRandomCrop_0" in str(refused.value)


# ---------------------------------------------------------------------------------------------- what cannot resume


def numbers(**source: Any) -> Any:
    @pipeline_def(num_threads=1, device_id=None, batch_size=BATCH, enable_checkpointing=True)  # type: ignore[untyped-decorator]  # DALI's
    def fed() -> Any:
        return fn.external_source(**source, dtype=types.INT64, name="numbers")

    return fed


def generator() -> Any:
    for number in count():
        yield [[number]] * BATCH


SOURCES = {
    "generator function": {"source": generator},
    "iterable": {"source": generator()},
    "function without arguments": {"source": lambda: [[1]] * BATCH},
    "gets data from outside, through feed_input or iter_setup: numbers": {},
}


@pytest.mark.filterwarnings("ignore:Checkpointing enabled in a pipeline with external source")  # DALI's, an error here
@pytest.mark.parametrize("kind", SOURCES)
def test_python_sources_that_nobody_can_bring_back(kind: str) -> None:
    def make(checkpoints: Any) -> Any:
        return DALIGenericIterator(numbers(**SOURCES[kind])(), ["n"], auto_reset=True, prepare_first_batch=False)

    with pytest.raises(UnsupportedError, match=kind):
        resumable.wrap(make)
    with pytest.raises(UnsupportedError, match=kind):
        resumable.wrap(make(None))


@pytest.mark.filterwarnings("ignore:Please set `reader_name`:Warning")  # DALI's, of a size
def test_python_functions_need_a_maker() -> None:
    """Python functions of an iterator need a function that makes it."""
    pipeline = numbers(source=lambda info: np.array([1]), batch=False)()
    with pytest.raises(UnsupportedError, match=r"calls Python functions \(external_source\).*(\n.*)*checkpoints"):
        resumable.wrap(DALIGenericIterator(pipeline, ["n"]))

    @define  # type: ignore[untyped-decorator]  # DALI's
    def doubled() -> Any:
        return fn.python_function(fn.random.uniform(), function=np.atleast_1d, name="twice")

    with pytest.raises(UnsupportedError, match=r"calls Python functions \(twice\)"):
        resumable.wrap(DALIGenericIterator(doubled(), ["n"], size=8, auto_reset=True))


def test_an_operator_without_checkpoints_is_named() -> None:
    @define  # type: ignore[untyped-decorator]  # DALI's
    def video() -> Any:
        return fn.experimental.inputs.video(name="clips", sequence_length=4, device="cpu")

    inner = DALIGenericIterator(video(), ["frames"], prepare_first_batch=False)
    with pytest.raises(UnsupportedError, match=r"without checkpoints: .*inputs"):
        resumable.wrap(inner)


def test_an_iterator_that_was_used_is_refused() -> None:
    for options in ({}, {"enable_checkpointing": True}):
        inner = iterator(pipeline=options)
        next(inner)
        with pytest.raises(UnsupportedError, match="batches were taken from this DALI iterator before"):
            resumable.wrap(inner)


def test_a_deserialized_pipeline_is_refused() -> None:
    (pipeline,) = pipelines()
    pipeline.build()
    again = Pipeline(batch_size=BATCH, num_threads=1, device_id=None)
    again.deserialize_and_build(pipeline.serialize())
    with pytest.raises(UnsupportedError, match="the pipeline was deserialized"):
        resumable.wrap(made(again))


def test_functions_that_do_not_do_what_they_should() -> None:
    def nothing(checkpoints: Any) -> Any:
        return [1, 2, 3]

    def without(checkpoints: Any) -> Any:
        return iterator()

    def deaf(checkpoints: Any) -> Any:
        return iterator(pipeline={"enable_checkpointing": True})

    with pytest.raises(UnsupportedError, match="returned a list"):
        resumable.wrap(nothing)
    with pytest.raises(UnsupportedError, match="without enable_checkpointing=True"):
        resumable.wrap(without)
    loader = resumable.wrap(deaf)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(UnsupportedError, match="1 of 1 pipelines without their checkpoint"):
        next(iter(loader))


@pytest.mark.parametrize("option", [{"batch_size": 4}, {"collate": list}, {"tail": "pad"}, {"shuffle": True}], ids=str)
def test_options_that_belong_to_dali(option: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(option))):
        resumable.wrap(iterator(), **option)


def test_bad_turns() -> None:
    one, order = iterator(), "random"
    with pytest.raises(ConfigurationError, match="got 0, of which 0 are different"):
        in_turn([])
    with pytest.raises(ConfigurationError, match="got 2, of which 1 are different"):
        in_turn([one, one])
    with pytest.raises(UnsupportedError, match="got a str"):
        in_turn(["iterator"])
    with pytest.raises(ConfigurationError, match="order must be one of batch, epoch, but it is 'random'"):
        in_turn([one], order=order)  # type: ignore[arg-type]  # the point of it


@WARNED
def test_iterators_in_turn_may_have_different_shards() -> None:
    parts = [iterator(reader={"num_shards": number, "shard_id": 0}) for number in (2, 3)]
    state = resumable.wrap(in_turn(parts)).state_dict()
    assert state["backend"]["num_shards"] == [2, 3]
    assert state["rank"] == 0


@WARNED
def test_another_order_of_turns_is_another_order_of_batches() -> None:
    def loader(order: Any) -> resumable.Loader:
        return resumable.wrap(in_turn([iterator(), iterator()], order=order))

    state = loader("batch").state_dict()
    with pytest.raises(
        StateMismatchError, match=r"in_turn differs(.|\n)*'batch'(.|\n)*'epoch'\nPass the same order to in_turn"
    ):
        loader("epoch").load_state_dict(state)
    loader("batch").load_state_dict(state)


def test_a_plain_list_of_iterators_is_no_list_of_batches() -> None:
    with pytest.raises(UnsupportedError, match="in_turn"):
        resumable.wrap([iterator(), iterator()])


# ---------------------------------------------------------------------------------------------- ranks


def test_several_ranks_without_shards_have_to_be_told() -> None:
    loader = resumable.wrap(iterator(), world=World(0, 2))
    with pytest.raises(ConfigurationError, match="2 ranks"):
        next(iter(loader))


def test_ranks_may_divide_a_stream_without_shards() -> None:
    alone = [digest(batch) for batch in resumable.wrap(iterator())]
    ranks = [resumable.wrap(iterator(), world=World(rank, 2), shard=True) for rank in range(2)]
    assert [[digest(batch) for batch in rank] for rank in ranks] == [alone[0:4:2], alone[1:4:2]]


def test_shards_and_ranks_do_not_divide_twice() -> None:
    with pytest.raises(UnsupportedError, match="shard=True does not fit"):
        resumable.wrap(iterator(2), shard=True)


def test_each_rank_has_a_state_of_its_own() -> None:
    ranks = [
        resumable.wrap(iterator(reader={"num_shards": 2, "shard_id": rank}), world=World(rank, 2)) for rank in range(2)
    ]
    states = []
    for rank in ranks:
        next(iter(rank))
        states.append(rank.state_dict())
    assert [state["rank"] for state in states] == [0, 1]
    with pytest.raises(StateMismatchError, match=r"shard_id|rank"):
        ranks[0].load_state_dict(states[1])
    alone = resumable.wrap(iterator(reader={"num_shards": 2, "shard_id": 0}), world=World())
    with pytest.raises(StateMismatchError, match="world_size"):
        alone.load_state_dict(states[0])


def test_shards_that_nobody_reads_are_warned_of() -> None:
    loader = resumable.wrap(iterator(reader={"num_shards": 3, "shard_id": 0}), world=World(0, 2))
    with pytest.warns(PromiseWarning, match="split into 3 shards, but 2 ranks with 1 pipelines each read 2"):
        next(iter(loader))


# ---------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize(
    ("policy", "padded", "problem"),
    [
        ("FILL", True, "FILL repeats the last sample"),
        ("FILL", False, "fills the last batch with samples of the next epoch"),
        ("DROP", True, "DROP drops the samples"),
        ("DROP", False, "DROP drops the samples"),
        ("PARTIAL", False, "removes samples from the last batch, and they appear in no epoch"),
    ],
)
def test_what_does_not_give_every_sample_once_is_said(policy: str, padded: bool, problem: str) -> None:
    def make() -> Any:
        return iterator(reader={"pad_last_batch": padded}, last_batch_policy=LastBatchPolicy[policy])

    with pytest.warns(PromiseWarning, match=problem) as caught:
        loader = resumable.wrap(make())
    assert "pad_last_batch=True" in str(caught[0].message)
    assert caught[0].filename == __file__
    each = [_labels(batches) for batches in (list(loader), list(loader), list(loader))]
    everything = sorted(_labels(list(resumable.wrap(iterator()))))
    assert any(sorted(epoch) != everything for epoch in each), "the warning is true"


def _labels(batches: list[Any]) -> list[int]:
    """The samples, told by their content."""
    return [hash(row.tobytes()) for batch in batches for row in batch[0]["label"].numpy()]


@pytest.mark.parametrize("policy", list(LastBatchPolicy), ids=lambda policy: policy.name)
@pytest.mark.parametrize("padded", [True, False])
def test_what_fits_is_not_warned_of(policy: Any, padded: bool) -> None:
    resumable.wrap(iterator(reader={"pad_last_batch": padded}, pipeline={"batch_size": 19}, last_batch_policy=policy))


def test_another_order_by_checkpointing_is_warned_of() -> None:
    reader = {"random_shuffle": False, "shuffle_after_epoch": True}
    with pytest.warns(PromiseWarning, match=r"'Reader' \(shuffle_after_epoch=True\) from the second epoch on"):
        resumable.wrap(iterator(reader=reader))
    resumable.wrap(iterator(reader=reader, pipeline={"enable_checkpointing": True}))


def test_a_shard_below_a_batch_has_no_batches() -> None:
    inner = iterator(
        pipeline={"batch_size": 25}, last_batch_policy=LastBatchPolicy.DROP, prepare_first_batch=False
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="19 samples, fewer than the batch size 25"):
        resumable.wrap(inner)


def test_dali_itself_says_nothing_of_another_shard() -> None:
    """Why the identity is checked here: this is what DALI does with such a checkpoint."""
    inner = iterator(reader=SHARDS, pipeline={"enable_checkpointing": True})
    next(inner)
    (checkpoint,) = inner.checkpoints()
    other = training_pipeline(
        {"num_shards": 4, "shard_id": 3}, batch_size=BATCH, seed=1, enable_checkpointing=True, checkpoint=checkpoint
    )
    dali_torch.DALIGenericIterator(other, ["data", "label"], reader_name="Reader", prepare_first_batch=False)


@pytest.mark.parametrize("value", ["x" * 5000, "a\0b", b"\xff" * 300, 7, None])
def test_arguments_that_cannot_be_names_of_files_are_none(value: object) -> None:
    assert not is_of_files("text", value, {"text"})
