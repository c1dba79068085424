"""DALI iterators that something else reads are refused where it is wrapped, before a batch of a run is lost."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import dali_pipelines
import pytest
import torch
from dali_pipelines import iterator
from nvidia.dali import pipeline_def
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


class Wrapper:
    """What many scripts have around their DALI iterators."""

    def __init__(self, loaders: Any) -> None:
        self.loaders = loaders

    def __iter__(self) -> Any:
        for loader in self.loaders if isinstance(self.loaders, (list, tuple)) else [self.loaders]:
            for (batch,) in loader:
                yield batch["data"]


class Slotted:
    __slots__ = ("empty", "loader")

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


class Streamed(IterableDataset[Any]):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


def read_from(loaders: Any) -> Any:
    for loader in loaders:
        yield from loader


def closing_over(loader: Any) -> Any:
    def batches() -> Any:
        yield from loader

    return batches


def class_closing_over(loader: Any) -> Any:
    class Local:
        def __iter__(self) -> Any:
            return iter(loader)

    return Local()


def read_the_global() -> Any:
    yield from THE_LOADER


THE_LOADER: Any = None
HIDDEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "attribute": (Wrapper, "Wrapper reads DALI iterators that it holds: loaders"),
    "list": (lambda inner: Wrapper([inner, inner]), "Wrapper reads DALI iterators that it holds: loaders"),
    "tuple": (lambda inner: Wrapper((inner,)), "Wrapper"),
    "dict": (lambda inner: Wrapper({"a": [inner]}), "Wrapper"),
    "slot": (Slotted, "Slotted reads DALI iterators that it holds: loader"),
    "closure": (closing_over, "batches reads DALI iterators that it holds: loader"),
    "closure of a class": (class_closing_over, "Local reads DALI iterators that it holds: loader"),
    "global": (lambda _: read_the_global, "read_the_global reads DALI iterators that it holds: THE_LOADER"),
    "method": (lambda inner: Wrapper([inner]).__iter__, "loaders"),
    "partial": (lambda inner: partial(read_from, [inner]), "partial reads DALI iterators that it holds: argument 0"),
    "named in a partial": (lambda inner: partial(read_from, loaders=[inner]), "holds: loaders"),
    "generator": (lambda inner: closing_over(inner)(), "loader"),
    "zip": (lambda inner: zip(inner, range(9), strict=False), "zip"),
    "map": (lambda inner: map(len, inner), "map"),
    "dataset": (lambda inner: DataLoader(Streamed(inner), batch_size=None), "Streamed .* holds: loader"),
}


@pytest.fixture(scope="module")
def an_iterator() -> Any:
    return iterator()


@pytest.mark.parametrize("form", HIDDEN)
def test_iterators_that_something_else_holds_are_refused(
    form: str, an_iterator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "THE_LOADER", an_iterator)
    make, told = HIDDEN[form]
    with pytest.raises(UnsupportedError, match=told) as refused:
        resumable.wrap(make(an_iterator))
    assert "in_turn(iterators)" in str(refused.value)


class Resumes(Wrapper):
    """It brings its iterators back itself."""

    @property
    def trap(self) -> Any:
        raise AssertionError("no code of a user is run")

    def state_dict(self) -> dict[str, Any]:
        return {"checkpoints": self.loaders.checkpoints()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Numbers(Wrapper):
    trap = Resumes.trap

    def __iter__(self) -> Any:
        return iter(range(3))


def test_what_holds_no_iterators_or_resumes_them_itself_is_taken(an_iterator: Any) -> None:
    resumable.wrap(Resumes(an_iterator))
    for held in ([1, 2], {"a": torch.zeros(3)}, None, [[[an_iterator.batch_size]]]):
        assert list(resumable.wrap(Numbers(held))) == [0, 1, 2]

    def make(epoch: int) -> Any:
        return iterator(pipeline={"seed": epoch})  # its iterators are new ones in each epoch

    resumable.wrap(make)
    assert list(resumable.wrap(map(abs, [1, -2]))) == [1, 2]


def test_nothing_is_looked_at_where_dali_was_not_imported(an_iterator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nvidia.dali.pipeline")
    resumable.wrap(Wrapper(an_iterator))


@pipeline_def(batch_size=4, num_threads=1, device_id=None, seed=3)  # type: ignore[untyped-decorator]  # DALI types none
def images() -> Any:
    return dali_pipelines.images_and_labels({})


def classification(*, checkpointing: bool, prepare: bool = False, auto_reset: bool = True) -> Any:
    """The iterator of NVIDIA's ImageNet scripts."""
    return DALIClassificationIterator(
        images(enable_checkpointing=checkpointing),
        reader_name="Reader",
        last_batch_policy=LastBatchPolicy.PARTIAL,
        auto_reset=auto_reset,
        prepare_first_batch=prepare,
    )


def labels(batch: Any) -> list[int]:
    return list(map(int, batch[0]["label"].flatten()))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("prepare", [False, True])
def test_foreign_draws_before_the_first_batch(*, checkpointing: bool, prepare: bool) -> None:
    """Batches that other code draws are reported before the first one."""
    iterator = classification(checkpointing=checkpointing, prepare=prepare)
    loader = resumable.wrap(iterator)
    next(iterator)
    with pytest.raises(UnsupportedError, match="batches were taken from the DALI iterator"):
        next(iter(loader))


def test_foreign_draws_in_an_epoch() -> None:
    """Batches that other code draws are reported in an epoch."""
    iterator = classification(checkpointing=False)
    loader = resumable.wrap(iterator)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(iterator)
    with pytest.raises(UnsupportedError, match="4 samples into the epoch\n.* 8 samples"):
        next(batches)
    expected = list(map(labels, resumable.wrap(classification(checkpointing=False))))
    loader.load_state_dict(state)  # the way back
    assert list(map(labels, loader)) == expected[1:]


def test_a_reset_behind_a_loop_that_counts_batches_is_told_of() -> None:
    iterator = classification(checkpointing=False, auto_reset=False)
    loader = resumable.wrap(iterator)
    for _ in zip(range(len(loader)), loader, strict=False):  # stops without asking for the end of the epoch
        pass
    iterator.reset()
    with pytest.raises(UnsupportedError, match="or it was reset"):
        next(iter(loader))


@pytest.mark.parametrize("auto_reset", [False, True])
def test_a_reset_behind_an_epoch_and_a_new_iter_are_harmless(*, auto_reset: bool) -> None:
    alone = resumable.wrap(classification(checkpointing=False, auto_reset=auto_reset))
    iterator = classification(checkpointing=False, auto_reset=auto_reset)
    loader = resumable.wrap(iterator)
    for _ in range(2):
        assert list(map(labels, loader)) == list(map(labels, alone))
        iterator.reset()
        iter(iterator)


def test_an_iterator_that_two_loaders_have_is_told_of() -> None:
    iterator = classification(checkpointing=False)
    resumable.wrap(iterator)
    with pytest.raises(UnsupportedError, match="was wrapped before"):
        resumable.wrap(iterator)
    own = classification(checkpointing=True)
    one, other = resumable.wrap(own), resumable.wrap(own)
    next(iter(one))
    with pytest.raises(UnsupportedError, match="after it was wrapped"):
        next(iter(other))
