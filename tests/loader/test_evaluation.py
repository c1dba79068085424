"""Loaders for evaluation, which begin at their beginning each time; and a look at the next batch."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.errors import ConfigurationError, DataError, LoopError, OnePassError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess


class Stream(torch.utils.data.IterableDataset[int]):
    """Counts what was read of it, and says so in its state."""

    def __init__(self, length: int = 12) -> None:
        self.length, self.read = length, 0

    def __iter__(self) -> Iterator[int]:
        begin, self.read = self.read, 0
        for number in range(begin, self.length):
            self.read = number + 1
            yield number
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def data(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(12)), batch_size=4, **options)


SOURCES: dict[str, Callable[[], Any]] = {
    "map": lambda: data(shuffle=True),
    "workers": lambda: data(shuffle=True, num_workers=1, persistent_workers=True),
    "sampler": lambda: data(sampler=[11, 3, 5, 7, 1, 0, 2]),
    "iterable": lambda: DataLoader(Stream(), batch_size=4),
    "iterable, workers": lambda: DataLoader(Stream(), batch_size=4, num_workers=1),
    "list": lambda: list(range(5)),
    "function": lambda: lambda: iter(range(5)),
    "epochs": lambda: lambda epoch: iter(range(epoch, epoch + 5)),
    "state": lambda: Stream(5),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_each_pass_is_the_same_however_the_last_one_was_left(source: str) -> None:
    expected = [str(batch) for batch in resumable.wrap(SOURCES[source]())]
    loader = resumable.wrap(SOURCES[source](), evaluation=True)
    for taken in (len(expected), 1, 2, len(expected) + 1, 0, len(expected)):
        got = [str(batch) for _, batch in zip(range(taken), loader, strict=False)]
        assert got == expected[:taken]
        assert loader.epoch == 0


def test_its_length_is_the_same_in_each_pass() -> None:
    loader = resumable.wrap(range(10), batch_size=4, tail="carry", evaluation=True)
    for _ in range(3):
        assert len(loader) == 3
        assert sum(1 for _ in loader) == 3


@pytest.mark.slow
@pytest.mark.parametrize("end", ["break", "end"])
def test_its_workers_end_with_each_pass(end: str, own_children: Callable[[], list[BaseProcess]]) -> None:
    loader = resumable.wrap(data(num_workers=2), evaluation=True)
    for _ in loader:
        assert len(own_children()) == 2
        if end == "break":
            break
    gc.collect()
    assert not own_children()


def test_it_has_no_place() -> None:
    loader = resumable.wrap(range(5), evaluation=True)
    state = resumable.wrap(range(5)).state_dict()
    calls: dict[str, Callable[[], Any]] = {
        "state_dict": loader.state_dict,
        "load_state_dict": lambda: loader.load_state_dict(state),
        "seek": lambda: loader.seek(epoch=1),
        "end_epoch": loader.end_epoch,
        "epochs": lambda: list(loader.epochs(1)),
        "peek": loader.peek,
    }
    for name, call in calls.items():
        with pytest.raises(UnsupportedError, match=rf"{name}\(\) was called on a loader with evaluation=True"):
            call()
    assert list(loader) == [0, 1, 2, 3, 4]


def test_two_passes_at_once_are_refused() -> None:
    loader = resumable.wrap(range(5), evaluation=True)
    first, second = iter(loader), iter(loader)
    assert [next(first), next(second), next(second)] == [0, 0, 1]
    with pytest.raises(LoopError, match="a newer pass was started"):
        next(first)
    assert list(second) == [2, 3, 4]


def test_what_cannot_begin_again_is_refused() -> None:
    loader = resumable.wrap(iter(range(3)), evaluation=True)
    assert list(loader) == [0, 1, 2]
    with pytest.raises(OnePassError, match="can only be read once"):
        next(iter(loader))
    with pytest.raises(UnsupportedError, match='evaluation=True and ack="manual"'):
        resumable.wrap(range(5), evaluation=True, ack="manual")
    with pytest.raises(ConfigurationError, match="evaluation must be True, False or None"):
        resumable.wrap(range(5), evaluation="yes")  # type: ignore[call-overload]  # that is the point


# ---------------------------------------------------------------------- a look at the next batch


def places() -> Iterator[tuple[resumable.Loader, Callable[[], resumable.Loader]]]:
    for source in (SOURCES["map"], SOURCES["state"], SOURCES["epochs"]):
        for ack in ("auto", "manual"):
            yield from [(resumable.wrap(source(), ack=ack), lambda source=source: resumable.wrap(source()))]


def without_canary(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in {"canary", "digest"}}


@pytest.mark.parametrize("taken", range(7))
def test_a_look_and_then_whatever_comes(taken: int) -> None:
    """Another loop, a break, an end of the epoch, or a load: as if nobody had looked."""
    for loader, make in places():
        plain = make()
        for one in (loader, plain):
            for _, _batch in zip(range(taken), (batch for epoch in one.epochs(9) for batch in epoch), strict=False):
                if one.ack_mode == "manual":
                    one.ack()
        begun, state = make().state_dict(), plain.state_dict()
        seen = loader.state_dict()
        assert without_canary(seen) == without_canary(state)
        # With manual ack, fewer elements are read ahead for it.
        assert (state["canary"] or "").startswith(seen["canary"] or "")
        assert (state["canary"] is None) == (seen["canary"] is None)
        looked = loader.peek()
        assert loader.peek() is looked
        assert str(loader.state_dict()) == str(seen)
        assert loader.cursor == plain.cursor
        assert next(iter(loader)) is looked
        loader.load_state_dict(state)
        loader.peek()
        loader.end_epoch()
        plain.end_epoch()
        assert str(loader.peek()) == str(next(iter(plain)))
        loader.load_state_dict(begun)
        assert str(loader.peek()) == str(next(iter(make())))


def test_a_look_ahead_of_what_is_not_acknowledged() -> None:
    loader = resumable.wrap(range(5), ack="manual")
    running = iter(loader)
    assert [next(running), next(running), loader.peek(), next(running)] == [0, 1, 2, 2]
    assert loader.peek() == 3
    assert next(iter(loader)) == 3
    loader.peek()
    loader.rewind()
    assert (loader.peek(), next(iter(loader))) == (0, 0), "after what was acknowledged"
    loader.ack(1)
    assert list(loader) == [1, 2, 3, 4]
    assert (loader.peek(), loader.acknowledged) == (0, resumable.Cursor(0, 1, 1)), "of the next epoch"
    loader.ack(4)
    assert (loader.peek(), loader.acknowledged) == (0, resumable.Cursor(0, 5, 5))
    assert list(loader) == [0, 1, 2, 3, 4]


def test_a_look_fixes_the_number_of_ranks() -> None:
    """As does the first batch."""
    loader = resumable.wrap(range(8), batch_size=2)
    loader.peek()
    assert loader.global_batch_size == 2
    with pytest.raises(DataError, match="yields no batch"):
        resumable.wrap(lambda: iter(())).peek()


def test_a_look_that_fails_moves_nothing() -> None:
    broken = [True]

    def read(sample: int) -> int:
        if sample == 1 and broken[0]:
            raise OSError("the disk is away")
        return sample

    loader = resumable.wrap(range(3), transform=read)
    assert next(iter(loader)) == 0
    before = loader.state_dict()
    with pytest.raises(OSError, match="the disk is away"):
        loader.peek()
    assert loader.state_dict() == before
    broken[0] = False
    assert [loader.peek(), *loader] == [1, 1, 2]
