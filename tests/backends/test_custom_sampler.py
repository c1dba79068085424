"""A sampler of the user's own with other parameters gives another order: it is refused, as far as it can be known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, Sampler

import resumable
from resumable.errors import StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Iterator


class Strided(Sampler[int]):
    """Keeps its parameters under their names, one with an underscore, and one that says where the run is."""

    def __init__(self, length: int, stride: int, kind: str = "plain", epoch: int = 0) -> None:
        self.length, self._stride, self.kind, self.epoch = length, stride, kind, epoch

    def __iter__(self) -> Iterator[int]:
        for first in range(self._stride):
            yield from range(first, self.length, self._stride)

    def __len__(self) -> int:
        return self.length

    @property
    def seed(self) -> int:
        raise AssertionError("a property is a user's code")


class Batched(Strided):
    """A batch sampler with a parameter more."""

    def __init__(self, length: int, stride: int, batch_size: int) -> None:
        super().__init__(length, stride)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        yield from (order[start : start + self.batch_size] for start in range(0, self.length, self.batch_size))


def make(stride: int, kind: str = "plain", epoch: int = 0) -> resumable.Loader[Any]:
    data: Any = list(range(24))
    return resumable.wrap(DataLoader(data, sampler=Strided(24, stride, kind, epoch)), seed=0)


def make_batched(batch_size: int) -> resumable.Loader[Any]:
    data: Any = list(range(24))
    return resumable.wrap(DataLoader(data, batch_sampler=Batched(24, 2, batch_size)), seed=0)


def state_of(loader: resumable.Loader[Any]) -> dict[str, Any]:
    next(iter(loader))
    return loader.state_dict()


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (lambda: make(2), lambda: make(3)),
        (lambda: make(2), lambda: make(2, "other")),
        (lambda: make_batched(4), lambda: make_batched(6)),
    ],
    ids=["stride", "kind", "batch_size"],
)
def test_another_parameter_is_refused(saved: Any, now: Any) -> None:
    loader = now()
    with pytest.raises(StateMismatchError, match=r"backend\.parameters differs(.|\n)*in the checkpoint(.|\n)*options"):
        loader.load_state_dict(state_of(saved()))


def test_the_same_parameters_go_on_also_where_the_run_is_told_otherwise() -> None:
    loader = make(2, epoch=3)
    loader.load_state_dict(state_of(make(2)))
    assert [int(batch) for batch in loader] == [*range(2, 24, 2), *range(1, 24, 2)]


def test_a_state_of_an_earlier_version_is_not_compared_and_that_is_said() -> None:
    state = state_of(make(2))
    del state["backend"]["parameters"]
    state["digest"] = None
    loader = make(3)
    with pytest.warns(StateMismatchWarning, match=r"says nothing of backend\.parameters"):
        loader.load_state_dict(state)
