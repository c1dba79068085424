"""Hugging Face's `datasets`: all that a pipeline is made of, resumed after every batch."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
import datasets.distributed
import huggingface_sources as sources
import pytest
from torch.utils.data import IterableDataset

import resumable
from resumable.errors import ConfigurationError, PromiseWarning, StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:IterableDataset shuffles in a buffer"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
MAKE: dict[str, Callable[..., resumable.Loader[Any]]] = {"DataLoader": sources.in_loader, "itself": sources.direct}
BY_WORKERS = {"shuffled shards", "concatenate", "interleave, shuffle", "split"}  # each has had an error of its own
IN_LOADER = {"map of batches", "filter", "interleave, first", "generator"}
BY_ITSELF = {"shuffled", "map that draws", "split"}
READ_TOGETHER = {"torch", "subset"}


def check(make: Callable[[], resumable.Loader[Any]], every: int = 1) -> sources.Run:
    """Resume after every batch, or, where that starts workers, after some."""
    run, states = sources.golden(make())
    assert {epoch for epoch, _ in run} == set(range(sources.EPOCHS))
    for step, state in enumerate(states):
        if step % every == every // 2:
            assert sources.rest(make(), state) == run[step:], f"resumed after {step} batches"
    return run


def made_of(make: Callable[[], Any], wrap: Callable[..., resumable.Loader[Any]], **options: Any) -> Any:
    return wrap(make(), **options)


def rarely(names: Any, often: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in often else [pytest.mark.long]) for name in names]


# ---------------------------------------------------------------------- streams


@pytest.mark.parametrize("name", rarely(sources.STREAMS, IN_LOADER))
def test_a_stream_in_a_data_loader(name: str) -> None:
    check(lambda: sources.in_loader(sources.STREAMS[name]()))


@pytest.mark.parametrize("name", rarely(sources.STREAMS, BY_ITSELF))
def test_a_stream_itself(name: str) -> None:
    check(lambda: sources.direct(sources.STREAMS[name]()))


@pytest.mark.parametrize("name", rarely(sources.STREAMS, BY_WORKERS))
def test_a_stream_in_two_workers(name: str) -> None:
    check(lambda: sources.in_loader(sources.STREAMS[name](), workers=2), every=6 if name in BY_WORKERS else 1)


@pytest.mark.parametrize("name", rarely(sources.STREAMS, {"concatenate"}))
def test_logical_streams(name: str) -> None:
    check(lambda: sources.in_loader(sources.STREAMS[name](), streams=2))


@pytest.mark.parametrize("kind", ["parquet", "json", "arrow"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_local_files_as_a_stream(kind: str, workers: int, tmp_path: Path) -> None:
    names = sources.files(tmp_path, kind)
    run = check(lambda: sources.in_loader(sources.streamed(kind, names), workers=workers))
    everything = sorted(number * 10 + row for number in range(5) for row in range(2 + number % 2))
    assert sorted(sources.samples([one for one in run if one[0] == 1])) == everything


@pytest.mark.parametrize("name", ["shuffled", "interleave by chance, all", "concatenate"])
def test_the_epochs_are_those_of_set_epoch(name: str) -> None:
    run, _ = sources.golden(sources.in_loader(sources.STREAMS[name]()))
    stream = sources.STREAMS[name]()
    for number in range(sources.EPOCHS):
        stream.set_epoch(number)
        wanted = [row["sample"] for row in stream]
        assert sources.samples([one for one in run if one[0] == number]) == wanted
    assert len({str([batch for epoch, batch in run if epoch == number]) for number in range(2)}) == 2


@pytest.mark.parametrize("how", list(MAKE))
def test_map_of_batches_that_draws(how: str) -> None:
    """A map of batches that draws is rejected with its state and exact by replay.

    Its state is that before the batch, which is made again in the middle of it.
    """

    def make(**options: Any) -> resumable.Loader[Any]:
        return MAKE[how](sources.stream().map(sources.all_drawn, batched=True, batch_size=3), **options)

    check(lambda: make(resume="replay"))
    _, states = sources.golden(make())
    with pytest.raises(StateMismatchError, match="continues with a different element"):
        sources.rest(make(), states[1])


# ---------------------------------------------------------------------- several ranks


@pytest.mark.parametrize("name", rarely(["plain", "shuffled", "map that draws", "interleave, all"], {"shuffled"}))
def test_two_ranks_share_a_stream(name: str) -> None:
    def make(rank: int) -> resumable.Loader[Any]:
        world = resumable.World(rank, 2)
        return sources.direct(sources.STREAMS[name](), world=world, tail="drop")

    runs = [check(partial(make, rank)) for rank in range(2)]
    assert len(runs[0]) == len(runs[1])
    assert all(one != other for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("shards", [4, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("how", ["DataLoader", "itself", "logical streams"])
def test_a_stream_that_is_split_already_is_not_divided_again(shards: int, how: str) -> None:
    def make(rank: int) -> resumable.Loader[Any]:
        part = datasets.distributed.split_dataset_by_node(sources.stream(8, shards=shards), rank, 2)
        options: dict[str, Any] = {"world": resumable.World(rank, 2)}
        if how == "itself":
            return sources.direct(part, tail="drop", **options)
        return sources.in_loader(part, **options, **({"streams": 2} if how == "logical streams" else {}))

    runs = [check(partial(make, rank)) for rank in range(2)]
    first = [sources.samples([one for one in run if one[0] == 0]) for run in runs]
    assert sorted(first[0] + first[1]) == list(range(8))
    _, states = sources.golden(make(0))
    with pytest.raises(StateMismatchError):
        sources.rest(make(1), states[1])


@pytest.mark.parametrize("how", list(MAKE))
def test_a_stream_that_is_split_already_refuses_to_be_divided(how: str) -> None:
    part = datasets.distributed.split_dataset_by_node(sources.stream(), 0, 2)
    with pytest.raises(
        ConfigurationError, match="would divide the stream among the ranks again: split_dataset_by_node"
    ):
        MAKE[how](part, shard=True, world=resumable.World(0, 2))


# ---------------------------------------------------------------------- other data behind a restart


@pytest.mark.parametrize("how", list(MAKE))
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_other_files_are_refused_though_the_place_is_the_same(how: str, kind: str, tmp_path: Path) -> None:
    names = sources.files(tmp_path / "here", kind)
    make = MAKE[how]
    run, states = sources.golden(make(sources.streamed(kind, names)))
    others = [
        (names[:1] + names[:0:-1], "the dataset has changed since the checkpoint: sample"),
        (names[:-1], "a different number of files"),
    ]
    for other, told in others:
        refusing = make(sources.streamed(kind, other))
        for state in states:
            with pytest.raises(StateMismatchError, match=told):
                refusing.load_state_dict(state)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = [name.replace("/here/", "/there/") for name in names]
    assert sources.rest(make(sources.streamed(kind, moved)), states[2]) == run[2:]


@pytest.mark.parametrize("how", list(MAKE))
def test_other_rows_after_the_place_are_refused(how: str) -> None:
    make, rows = MAKE[how], list(range(9))
    _, states = sources.golden(make(sources.stream()))
    other = datasets.Dataset.from_dict({"sample": [*rows[:-1], 99]}).to_iterable_dataset(num_shards=5)
    with pytest.raises(StateMismatchError, match="the dataset has changed"):
        make(other).load_state_dict(states[1])


@pytest.mark.parametrize("how", list(MAKE))
@pytest.mark.parametrize("size", [1, 4])
def test_a_shuffle_without_a_seed_is_refused_at_every_step(how: str, size: int) -> None:
    def make() -> resumable.Loader[Any]:
        plain: Any = sources.stream(20, shards=10)
        with pytest.warns(PromiseWarning, match="is shuffled without a seed"):
            return MAKE[how](plain.shuffle(buffer_size=size))

    _, states = sources.golden(make())
    other = make()
    for state in states:
        with pytest.raises(StateMismatchError, match="the dataset has changed"):
            other.load_state_dict(state)


# ---------------------------------------------------------------------- map-style datasets


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the samples of each `__getitems__`."""
    calls, read = list[int](), datasets.Dataset.__getitems__

    def getitems(self: Any, keys: Any) -> Any:
        calls.append(len(keys))
        return read(self, keys)

    monkeypatch.setattr(datasets.Dataset, "__getitems__", getitems)
    return calls


@pytest.mark.parametrize("name", rarely(sources.TABLES, READ_TOGETHER))
@pytest.mark.parametrize("how", [*MAKE, "sample by sample"])
def test_a_table_is_read_by_the_batch_without_a_warning(name: str, how: str, together: list[int]) -> None:
    options: dict[str, Any] = {"randomness": "sample"} if how == "sample by sample" else {}
    wrap: Callable[..., resumable.Loader[Any]] = MAKE.get(how, sources.in_loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = check(partial(made_of, sources.TABLES[name], wrap, **options))
    assert sum(together) > 0
    whole = sources.TABLES[name]()
    wanted = [int(whole[index]["sample"]) for index in range(len(whole))]
    assert sources.samples(run) == wanted * sources.EPOCHS


@pytest.mark.parametrize("name", list(sources.DRAWING))
def test_a_transform_that_draws(name: str, together: list[int]) -> None:
    make = sources.DRAWING[name]
    with pytest.warns(PromiseWarning, match="reads whole batches with __getitems__"):
        sources.in_loader(make())
    check(lambda: sources.in_loader(make(), randomness="batch"))
    assert together
    together.clear()
    one_by_one = check(lambda: sources.in_loader(make(), randomness="sample"))
    assert check(lambda: sources.direct(make())) == one_by_one
    assert not together


@pytest.mark.parametrize("name", rarely(sources.TABLES, {"torch"}))
def test_a_table_in_two_workers_and_on_two_ranks(name: str) -> None:
    table = sources.TABLES[name]
    for rank in range(2):
        options: dict[str, Any] = {"tail": "pad", "world": resumable.World(rank, 2)}
        check(partial(made_of, table, sources.in_loader, workers=2, **options), every=4)
        check(partial(made_of, table, sources.direct, **options))


@pytest.mark.parametrize("how", list(MAKE))
def test_another_fingerprint_is_told_by_name(how: str) -> None:
    make = MAKE[how]
    run, states = sources.golden(make(sources.table()))
    other = sources.table().map(lambda row: row, new_fingerprint="0123456789abcdef")
    resumed = make(other)
    with pytest.warns(StateMismatchWarning, match="_fingerprint differs from the checkpoint's"):
        resumed.load_state_dict(states[2])
    assert sources.samples([(0, batch) for batch in map(sources.plain, resumed)]) == [4, 5, 6, 7, 8]
    with pytest.raises(StateMismatchError, match="the dataset has changed"):
        make(sources.table().map(sources.twice)).load_state_dict(states[2])
    named = make(sources.table(), identity="rows-v1").state_dict()
    with pytest.raises(StateMismatchError, match="rows-v1"):
        make(sources.table(), identity="rows-v2").load_state_dict(named)
    assert sources.rest(make(sources.table()), states[2]) == run[2:]


# ---------------------------------------------------------------------- inside of a dataset of one's own


class Around(IterableDataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(epoch)

    def __iter__(self) -> Any:
        yield from self.inner

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


def test_a_state_is_given_back_inside_of_another_dataset() -> None:
    check(lambda: sources.in_loader(Around(sources.STREAMS["concatenate"]()), workers=2), every=4)


def test_what_is_mended_in_workers_is_there() -> None:
    """The private names of `datasets` that `backends/torch/hugging_face.py` relies on."""
    stream = sources.stream()
    assert hasattr(stream, "_starting_state_dict")
    assert callable(stream._iter_pytorch)  # the point
    assert callable(stream._prepare_ex_iterable_for_iteration)  # likewise
