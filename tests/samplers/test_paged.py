"""The paged shuffle: every sample once, few pages at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable.errors import ConfigurationError
from resumable.samplers import PagedShuffle

deterministic = settings(derandomize=True, deadline=None, max_examples=60)
pages_of_samples = st.lists(st.integers(-1, 30), min_size=1, max_size=300)


@deterministic
@given(pages=pages_of_samples, window=st.integers(1, 40), epoch=st.integers(0, 2**40))
def test_every_sample_comes_once_and_few_pages_at_a_time(pages: list[int], window: int, epoch: int) -> None:
    order = PagedShuffle(pages, window=window, seed=1).indices(epoch, 0, len(pages))
    assert sorted(order.tolist()) == list(range(len(pages)))
    seen: list[int] = []
    for sample in order:
        if pages[sample] not in seen:
            seen.append(pages[sample])
    ranks = [seen.index(pages[sample]) // window for sample in order]
    assert ranks == sorted(ranks), "a page of a later group came before the end of the one before"


def test_inside_of_a_group_the_samples_are_mixed() -> None:
    pages = np.arange(8000) // 100
    order = PagedShuffle(pages, window=20).indices(0, 0, 2000)
    neighbours = np.mean(pages[order][1:] == pages[order][:-1])
    assert 0.02 < neighbours < 0.09, "of 20 pages, one in 20 neighbours is of the same page"


def test_groups_and_their_order_change_with_the_epoch() -> None:
    sampler = PagedShuffle(np.arange(8000) // 100, window=20)
    groups = [frozenset((sampler.indices(epoch, 0, 2000) // 100).tolist()) for epoch in range(3)]
    assert len(set(groups)) == 3
    assert all(len(group) == 20 for group in groups)


def test_the_spec_tells_what_is_on_which_page() -> None:
    first, second = PagedShuffle([0, 0, 1, 1], window=1), PagedShuffle([0, 1, 0, 1], window=1)
    assert first.spec()["pages"] != second.spec()["pages"]
    assert first.spec() == PagedShuffle([7, 7, 9, 9], window=1).spec()


@pytest.mark.parametrize("pages", [[[1, 2]], [0.5], ["a"]])
def test_bad_pages_are_refused(pages: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be integers in one dimension"):
        PagedShuffle(pages, window=1)


@pytest.mark.parametrize(("pages", "window"), [([], 1), ([1], 0), ([1], 1.5)])
def test_no_samples_or_no_window_are_refused(pages: list[int], window: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be an integer of 1 or more"):
        PagedShuffle(pages, window=window)
