"""`loader.stats()`: what the loop waited for and what it was busy with. The bounds of times hold on any machine."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAP = 0.05


def slow(sample: int) -> int:
    time.sleep(NAP)
    return sample


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_batches_and_samples_are_counted_per_epoch_and_in_total(ack: Any) -> None:
    loader = resumable.wrap(range(10), batch_size=4, ack=ack)
    for epoch in loader.epochs(3):
        for _ in epoch:
            if ack == "manual":
                loader.ack()
            if epoch == 2:
                break
    counts = {epoch: (one.batches, one.samples) for epoch in range(4) for one in [loader.stats(epoch)]}
    assert counts == {0: (3, 10), 1: (3, 10), 2: (1, 4), 3: (0, 0)}
    assert (loader.stats().batches, loader.stats().samples) == (7, 24)


def test_samples_are_those_of_all_ranks() -> None:
    loader = resumable.wrap(range(12), batch_size=2, world=resumable.World(1, 2))
    assert list(loader) == [[2, 3], [6, 7], [10, 11]]
    assert (loader.stats().batches, loader.stats().samples) == (3, 12)


@pytest.mark.slow
def test_a_slow_source_is_a_wait_and_the_longest_one_is_named() -> None:
    loader = resumable.wrap(range(6), transform=lambda sample: time.sleep(0.6 if sample == 4 else 0.01))
    began = time.perf_counter()
    assert len(list(loader)) == 6
    took = time.perf_counter() - began
    stats = loader.stats()
    assert 0.65 <= stats.wait_seconds <= took
    assert stats.wait_seconds + stats.loop_seconds <= took
    assert stats.longest_wait_seconds >= 0.6
    assert (stats.longest_wait_epoch, stats.longest_wait_step) == (0, 4)
    assert stats.wait_fraction == stats.wait_seconds / (stats.wait_seconds + stats.loop_seconds)


def test_a_slow_loop_is_no_wait() -> None:
    loader = resumable.wrap(range(4))
    began = time.perf_counter()
    for _ in loader:
        time.sleep(NAP)
    took, stats = time.perf_counter() - began, loader.stats()
    assert stats.loop_seconds >= 4 * NAP  # after the last batch, too: next() tells that there is none
    assert stats.wait_seconds <= took - 4 * NAP


@pytest.mark.slow
@pytest.mark.parametrize("how", ["epochs", "break", "load", "seek"])
def test_what_is_between_two_loops_is_time_of_none(how: str) -> None:
    loader = resumable.wrap(range(6))
    busy = 0.0
    for _ in range(2):
        began = time.perf_counter()
        for batch in loader:
            if how != "epochs" and batch == 2:
                break
        busy += time.perf_counter() - began
        if how == "load":
            loader.load_state_dict(loader.state_dict())
        if how == "seek":
            loader.seek(epoch=0, step=0)
        time.sleep(0.3)  # a validation
    stats = loader.stats()
    assert stats.wait_seconds + stats.loop_seconds <= busy


def test_what_is_delivered_again_counts_again() -> None:
    loader = resumable.wrap(range(6))
    state = loader.state_dict()
    list(loader)
    loader.load_state_dict(state)
    list(loader)
    loader.seek(epoch=1, step=4)
    list(loader)
    assert [loader.stats(epoch).batches for epoch in (0, 1)] == [12, 2]


@pytest.mark.slow
@pytest.mark.parametrize("step", range(7))
def test_looking_at_a_batch_is_a_wait_for_it_and_no_batch(step: int) -> None:
    loader = resumable.wrap(range(6), transform=slow)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    before = loader.stats()
    loader.peek()
    looked = loader.stats()
    assert looked.batches == before.batches == step
    assert looked.wait_seconds >= before.wait_seconds + NAP
    rest = [*iterator, *loader]
    assert rest == [*range(step, 6), *range(6)] if step < 6 else rest == list(range(6))
    assert loader.stats().batches == 12


def test_a_look_into_the_next_epoch_is_a_wait_of_that_epoch() -> None:
    loader = resumable.wrap(range(3), transform=slow)
    list(zip(range(3), loader, strict=False))
    loader.peek()
    stats = loader.stats(1)
    assert (stats.batches, stats.longest_wait_epoch, stats.longest_wait_step) == (0, 1, 0)
    assert stats.opening_seconds >= NAP


def test_opening_is_the_wait_for_the_first_batch() -> None:
    def stream() -> Iterator[int]:
        time.sleep(NAP)
        yield from range(4)

    loader = resumable.wrap(stream)
    list(loader)
    first = loader.stats()
    assert NAP <= first.opening_seconds <= first.wait_seconds
    iterator = iter(loader)
    next(iterator)
    resumed = resumable.wrap(stream)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1
    list(resumed)
    assert resumed.stats(1).opening_seconds >= NAP
    assert resumed.stats(1).batches == 3
    assert resumed.stats(0) == resumable.LoaderStats()


def test_a_sample_that_cannot_be_read_is_a_wait_and_no_batch() -> None:
    broken = True

    def read(sample: int) -> int:
        if sample == 1 and broken:
            time.sleep(NAP)
            raise OSError("torn")
        return sample

    loader = resumable.wrap(range(3), transform=read)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OSError, match="torn"):
        next(iterator)
    stats = loader.stats()
    assert stats.batches == 1
    assert stats.wait_seconds >= NAP
    broken = False
    assert list(loader) == [1, 2]
    assert loader.stats().batches == 3


def test_an_evaluation_adds_up_its_passes() -> None:
    loader = resumable.wrap(range(6), batch_size=2, evaluation=True)
    assert list(loader) == list(loader)
    assert loader.stats().batches == loader.stats(0).batches == 6


def test_the_state_has_nothing_of_it() -> None:
    loader, other = (resumable.wrap(range(6), transform=read) for read in (None, slow))
    for _ in zip(range(4), loader, other, strict=False):
        assert loader.state_dict() == other.state_dict()
    assert loader.stats() != other.stats()


def test_as_dict_is_plain_numbers_for_a_logger() -> None:
    loader = resumable.wrap(range(6))
    empty = loader.stats().as_dict()
    assert set(empty.values()) == {0}
    list(loader)
    values = loader.stats().as_dict()
    assert set(values) - set(empty) == {"longest_wait_epoch", "longest_wait_step"}
    assert json.loads(json.dumps(values)) == values
    assert all(type(value) in {int, float} for value in values.values())
    assert 0 < values["wait_fraction"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_dataloader_is_measured_at_its_wait(workers: int) -> None:
    """A `DataLoader` is measured at the wait for its batches."""
    from torch.utils.data import DataLoader  # noqa: PLC0415  # here only

    data: Any = Napping()
    loader = resumable.wrap(DataLoader(data, batch_size=2, num_workers=workers))
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (4, 8)
    assert stats.wait_seconds >= stats.opening_seconds >= 2 * NAP
    assert stats.wait_seconds >= 8 * NAP / max(workers, 1)


class Napping:
    """Samples that take their time."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return slow(index)


@pytest.mark.parametrize("epoch", [-1, "x", True, 0.5])
def test_the_epoch_has_to_be_one(epoch: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"called with epoch=.*, which is not an epoch.*\nPass the number"):
        resumable.wrap([1, 2]).stats(epoch)
