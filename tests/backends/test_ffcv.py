"""FFCV Loaders keep every promise, those of an indexed backend."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import ffcv_data
import numpy as np
import pytest
from ffcv.fields.decoders import IntDecoder, NDArrayDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor

import resumable
from resumable import World
from resumable.backends.ffcv import source
from resumable.errors import StateMismatchError
from resumable.testing import BackendTests

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

pytestmark = pytest.mark.slow


def pipelines() -> dict[str, Any]:
    crop = RandomResizedCropRGBImageDecoder((12, 12))
    return {"raw": [crop, RandomHorizontalFlip(), ToTensor()], "label": [IntDecoder(), ToTensor(), Squeeze()]}


def make_loader(path: str | None = None, **options: Any) -> Loader:
    given: dict[str, Any] = {"batch_size": 8, "num_workers": 2, "order": OrderOption.RANDOM, "pipelines": pipelines()}
    return Loader(path or ffcv_data.beton(), **given | options)


def make_paged_loader(**options: Any) -> Loader:
    path = ffcv_data.beton("paged", only=("big", "label"), count=40)
    given: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "order": OrderOption.QUASI_RANDOM, "os_cache": False}
    return Loader(path, pipelines={"big": [NDArrayDecoder(), ToTensor()]}, drop_last=False, **given | options)


the_loader = cache(make_loader)
the_paged_loader = cache(make_paged_loader)


def test_closed_it_has_no_thread(own_threads: Callable[[], list[threading.Thread]]) -> None:
    with resumable.wrap(the_loader()) as loader:
        next(iter(loader))
        assert "resumable-ffcv" in {thread.name for thread in own_threads()}
    assert "resumable-ffcv" not in {thread.name for thread in own_threads()}


class TestRandomOrder(BackendTests):
    shared = True
    stride = 5

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(the_loader(), **options)

    others = {
        "backend.file": lambda: resumable.wrap(make_loader(ffcv_data.beton("changed", change=5))),
        "backend.pipeline": lambda: resumable.wrap(make_loader(pipelines=pipelines() | {"label": None})),
        "sampler.name": lambda: resumable.wrap(make_loader(order=OrderOption.SEQUENTIAL)),
        "kind": lambda: resumable.wrap(list(range(70)), batch_size=8, shuffle=True),
    }


# FFCV compiles each of them, for some ten seconds.
OTHERS: dict[str, Any] = {
    "batch": lambda _: resumable.wrap(make_loader(batch_size=10)),
    "length": lambda file: resumable.wrap(make_loader(ffcv_data.beton("short", count=40)), identity=file),
    "backend.fields": lambda file: resumable.wrap(the_paged_loader(), identity=file),
    "backend.content": lambda _: resumable.wrap(source(the_loader(), content_hash=True)),
    "sampler.subset": lambda _: resumable.wrap(make_loader(indices=np.arange(70)[::-1])),
    "tail": lambda _: resumable.wrap(make_loader(drop_last=False)),
}


@pytest.mark.parametrize("word", [pytest.param(word, marks=[pytest.mark.long] * (word != "batch")) for word in OTHERS])
def test_a_state_of_another_loader_is_refused(word: str) -> None:
    state = TestRandomOrder.make().state_dict()
    other = OTHERS[word](state["backend"]["file"])
    with pytest.raises(StateMismatchError, match=word):
        other.load_state_dict(state)


class TestPagedOrder(BackendTests):
    """FFCV's quasi-random order in a cache of pages, with an incomplete batch at the end."""

    make_test = ()
    epochs = 2
    stride = 4
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(source(the_paged_loader(), window=4), **options)

    others = {"sampler.window": lambda: resumable.wrap(source(the_paged_loader(), window=3))}


@pytest.mark.parametrize("order", [OrderOption.RANDOM, OrderOption.SEQUENTIAL])
def test_the_order_is_that_of_our_sampler(order: OrderOption) -> None:
    loader = resumable.wrap(make_loader(order=order, drop_last=False), seed=4)
    for epoch in range(2):
        labels = labels_of(loader)
        asked = [loader.sample_indices(epoch=epoch, step=step) for step in range(9)]
        assert labels == [index for batch in asked for index in batch]
        assert (labels == list(range(70))) == (order == OrderOption.SEQUENTIAL)
        assert sorted(labels) == list(range(70))


def labels_of(loader: resumable.Loader) -> list[int]:
    parts = (min(batch, key=lambda part: part[0].numel()) for batch in loader)
    return [int(label) for labels in parts for label in labels.flatten()]


@pytest.mark.long  # it compiles twice
def test_shares_that_differ_by_one_sample_are_read() -> None:
    """Of the last batch, a rank may get one sample more than of its first one: the memory has room for it."""

    def wrapped(rank: int, size: int) -> resumable.Loader:
        loader = make_loader(order=OrderOption.SEQUENTIAL, indices=np.arange(63), drop_last=False)
        return resumable.wrap(loader, world=World(rank, size))

    state = wrapped(0, 1).state_dict()
    ranks = [wrapped(rank, 5) for rank in range(5)]
    for loader in ranks:
        loader.load_state_dict(state)
    sizes = [[len(max(batch, key=lambda part: part.numel())) for batch in loader] for loader in ranks]
    assert [size[0] for size in sizes] == [1, 2, 1, 2, 2]
    assert [size[-1] for size in sizes] == [1, 1, 2, 1, 2]


def test_the_quasi_random_order_keeps_to_few_pages_on_every_rank() -> None:
    loaders = [resumable.wrap(source(the_paged_loader(), window=2), seed=1, world=World(rank, 2)) for rank in (0, 1)]
    ranks = [labels_of(loader) for loader in loaders]
    assert sorted(ranks[0] + ranks[1]) == list(range(40))
    whole = labels_of(resumable.wrap(source(the_paged_loader(), window=2), seed=1))
    windows = [{label // 3 for label in whole[start : start + 6]} for start in range(0, 36, 6)]
    assert all(len(pages) <= 4 for pages in windows), "six samples in a row are of at most two groups of two pages"
    assert whole != list(range(40))


def test_a_subset_is_respected_in_every_order() -> None:
    subset = np.array([3, 1, 4, 15, 9, 26, 5, 35])
    for order in OrderOption:
        loader = resumable.wrap(make_paged_loader(order=order, indices=subset, os_cache=True))
        labels = labels_of(loader)
        assert sorted(labels) == sorted(subset.tolist())
        assert (labels == subset.tolist()) == (order == OrderOption.SEQUENTIAL)


def test_the_loader_itself_is_not_changed() -> None:
    loader = make_loader(num_workers=1, seed=5)
    before = [label.tolist() for _, label in loader]
    loader.next_epoch = 0
    list(resumable.wrap(loader))
    assert [label.tolist() for _, label in loader] == before


def test_a_sampler_of_ours_takes_the_place_of_the_order() -> None:
    chosen = resumable.samplers.Subset([7, 7, 3], resumable.samplers.Sequential(3))
    assert labels_of(resumable.wrap(make_paged_loader(), sampler=chosen)) == [7, 7, 3]
