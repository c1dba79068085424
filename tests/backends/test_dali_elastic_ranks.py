"""DALI fed by our sampler is elastic: the same pixels for any ranks, batch sizes, threads and ways to read."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import numpy as np
import pytest
from dali_images import COUNT, Bytes, encoded, pixels, wrap

import resumable
from resumable import World
from resumable.backends.dali import graph as fetcher
from resumable.errors import ConfigurationError, StateMismatchError

GLOBAL = 8


def ranks(size: int, state: dict[str, Any] | None = None, **options: Any) -> list[resumable.Loader]:
    loaders = [wrap(batch_size=GLOBAL // size, world=World(rank, size), **options) for rank in range(size)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders


def run(loaders: list[resumable.Loader], epochs: int = 3, stop: int | None = None) -> list[list[bytes]]:
    """Return the global batches, until the loaders have delivered `stop` of them."""
    got: list[list[bytes]] = []
    streams = [(batch for epoch in loader.epochs(epochs) for batch in epoch) for loader in loaders]
    while stop is None or len(got) < stop:
        batches = [next(stream, None) for stream in streams]
        if batches[0] is None:
            assert all(batch is None for batch in batches)
            break
        got.append([sample for batch in batches if batch is not None for sample in pixels(batch)])
    return got


def alone(**options: Any) -> list[list[bytes]]:
    return run(ranks(1, **options))


@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_share_the_global_batches_of_one(tail: str, size: int) -> None:
    assert run(ranks(size, tail=tail)) == alone(tail=tail)


@pytest.mark.parametrize(("tail", "batches"), [("drop", 6), ("pad", 9), ("partial", 9), ("carry", 9)])
def test_the_tail_is_that_of_the_policy(tail: str, batches: int) -> None:
    got = alone(tail=tail)
    assert len(got) == batches
    if tail == "partial":
        assert [len(batch) for batch in got] == [8, 8, 7] * 3
    else:
        assert {len(batch) for batch in got} == {8}


def test_a_short_last_batch_is_shared_unevenly() -> None:
    assert run(ranks(2, tail="partial")) == alone(tail="partial")


def test_three_ranks_share_unevenly_and_their_pipelines_fit() -> None:
    whole = alone(tail="drop")
    state = ranks(1, tail="drop")[0].state_dict()
    loaders = [wrap(batch_size=GLOBAL, world=World(rank, 3), tail="drop") for rank in range(3)]
    for loader in loaders:
        loader.load_state_dict(state)
    assert run(loaders) == whole


@pytest.mark.parametrize("data", ["files", "bytes"])
@pytest.mark.parametrize("first", range(1, 6))
def test_resized_in_the_middle_of_an_epoch(data: str, first: int) -> None:
    """Two ranks, then four, then one, then two again, with states that went through JSON."""
    options: dict[str, Any] = {"tail": "carry", "data": Bytes() if data == "bytes" else None}
    whole = alone(**options)
    got: list[list[bytes]] = []
    state: dict[str, Any] | None = None
    for size, count in ((2, first), (4, 2), (1, 1), (2, None)):
        loaders = ranks(size, state, **options)
        got += run(loaders, stop=count)
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1
        assert len(states[0]) < 1024
        state = json.loads(states[0])
    assert got == whole


def test_batches_that_grow_with_fewer_ranks_fit_the_pipeline() -> None:
    state = ranks(4, tail="drop")[0].state_dict()
    (loader,) = (wrap(batch_size=2, world=World(0, 1), tail="drop"),)
    loader.load_state_dict(state)
    assert run([loader]) == alone(tail="drop")


def test_another_batch_size_keeps_pixels() -> None:
    """A different batch size keeps the order and each sample's pixels."""
    flat = [sample for batch in alone(tail="partial") for sample in batch]
    for size in (1, 3, 5, COUNT):
        loader = wrap(batch_size=size, tail="partial")
        assert [sample for batch in run([loader]) for sample in batch] == flat
    state = ranks(1, tail="partial")[0].state_dict()
    with pytest.raises(StateMismatchError, match="batch size"):
        wrap(batch_size=5, tail="partial").load_state_dict(state)
    moved = wrap(batch_size=5, tail="partial", on_change="continue")
    moved.load_state_dict(state)
    assert [sample for batch in run([moved]) for sample in batch] == flat


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("dynamic", [True, False])
def test_threads_prefetch_and_executor_change_nothing(threads: int, depth: int, dynamic: bool) -> None:
    got = alone(num_threads=threads, prefetch_queue_depth=depth, exec_dynamic=dynamic)
    assert got == alone()


def test_an_executor_that_is_not_asynchronous_changes_nothing() -> None:
    for depth in (1, 2):
        assert alone(exec_async=False, exec_pipelined=False, prefetch_queue_depth=depth) == alone()


def test_files_and_a_dataset_of_the_same_bytes_give_the_same() -> None:
    inside = sorted(encoded(), key=lambda sample: sample[1])  # as the folder has them: by class, then by number
    assert alone(data=inside, tail="partial") == alone(tail="partial")


def test_augmentations_differ_between_epochs_and_seeds() -> None:
    loader = wrap(batch_size=COUNT, shuffle=False)
    ((first,), (second,)) = ([pixels(batch) for batch in loader] for _ in range(2))
    other = pixels(next(iter(wrap(batch_size=COUNT, shuffle=False, seed=8))))
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_ranks_that_cannot_share_are_refused() -> None:
    state = ranks(1, tail="drop")[0].state_dict()
    with pytest.raises(ConfigurationError, match="9 ranks cannot share"):
        wrap(batch_size=8, world=World(0, 9), tail="drop").load_state_dict(state)


def test_numbers_by_the_place_in_the_batch_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that the keys prevent, planted."""
    whole = alone(tail="drop")

    def by_place(keys: Any, count: int) -> Any:
        return np.random.default_rng(len(keys)).random((len(keys), count), np.float32)

    monkeypatch.setattr(fetcher, "uniforms", by_place)
    assert run(ranks(2, tail="drop")) != whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "data", "size"), [("forkserver", "files", 2), ("forkserver", "bytes", 2), ("spawn", "bytes", 1)]
)
def test_workers_change_nothing(method: str, data: str, size: int) -> None:
    multiprocessing.set_forkserver_preload(["resumable.backends.dali.workers"])
    options: dict[str, Any] = {"tail": "carry", "data": Bytes() if data == "bytes" else None}
    whole = alone(**options)
    workers: dict[str, Any] = {"py_num_workers": 2, "py_start_method": method}
    loaders = ranks(size, **options, **workers)
    got = run(loaders, stop=4)
    state = loaders[0].state_dict()
    for loader in loaders:
        loader.load_state_dict(state)
    got += run(loaders)
    assert got == whole, "also after a seek, with the same workers"
