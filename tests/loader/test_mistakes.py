"""What is given by mistake: a message that says what it is, and what to give instead."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import resumable
from resumable.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    PromiseWarning,
    StateFormatError,
    StateMismatchError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DATASET = TensorDataset(torch.arange(20))


class Reader:
    """A source with a state."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        while self.read < 5:
            self.read += 1
            yield self.read
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"] + 0


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


class Order(Sampler[int]):
    """Any number of indices; with a state, if it is asked for."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Batches(Order):
    def __iter__(self) -> Iterator[Any]:
        return iter([number] for number in range(self.length))


class Told(Order):
    def set_epoch(self, epoch: int) -> None:
        """Take note of nothing."""


def state() -> dict[str, Any]:
    return resumable.wrap(range(4)).state_dict()


# ---------------------------------------------------------------------- something else than a state


def test_a_checkpoint_that_has_the_state_inside_names_it() -> None:
    loader = resumable.wrap(range(4))
    whole = {"model": {"weight": torch.ones(3)}, "step": 4, "loader": state()}
    with pytest.raises(StateFormatError, match=r"did you mean load_state_dict\(state\['loader'\]\)"):
        loader.load_state_dict(whole)
    with pytest.raises(StateFormatError, match=r"load_state_dict\(state\['states'\]\['data'\]\)") as told:
        loader.load_state_dict({"states": {"model": {}, "data": state()}})
    assert "a dict with the keys 'states'." in str(told.value)


def test_other_states_are_called_by_their_name() -> None:
    loader = resumable.wrap(range(4))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(StateFormatError, match="an optimizer's state: did you mean the loader's"):
        loader.load_state_dict(optimizer.state_dict())
    with pytest.raises(StateFormatError, match=r"for resumable.rng.load_state_dict"):
        loader.load_state_dict(resumable.rng.state_dict())
    for other in ({"model": 1}, 3, None, [1]):
        with pytest.raises(StateFormatError, match=r"not a state of the global RNGs, but a .*\n.*\['generators'\]"):
            resumable.rng.load_state_dict(other)  # type: ignore[arg-type]  # that is the point


def test_a_loader_is_not_saved(tmp_path: Path) -> None:
    loader = resumable.wrap(range(4))
    with pytest.raises(
        UnsupportedError, match=r"a Loader cannot be copied or pickled(.|\n)*Save loader.state_dict\(\) instead"
    ):
        pickle.dumps({"loader": loader})
    with pytest.raises(CheckpointError, match=r"content\['loader'\](.|\n)*Save loader.state_dict\(\)") as told:
        resumable.CheckpointStore(tmp_path).save(1, {"loader": loader})
    assert "add_safe_globals" not in str(told.value)


# ---------------------------------------------------------------------- damaged states


@pytest.mark.parametrize("field", [*state(), "nothing"])
def test_a_state_of_too_many_levels(field: str) -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    loader = resumable.wrap(range(4))
    with pytest.raises(StateFormatError):
        loader.load_state_dict({"format": 2} | {**state(), field: deep} if field != "nothing" else {"x": deep})
    with pytest.raises(StateFormatError):
        loader.load_state_dict(deep)  # type: ignore[arg-type]  # that is the point


def with_snapshot(loader: resumable.Loader, snapshot: Any) -> dict[str, Any]:
    """Return the state after one batch, with another snapshot in it."""
    next(iter(loader))
    taken = copy.deepcopy(loader.state_dict())
    taken["digest"], taken["source_state"]["snapshot"] = None, snapshot
    return taken


@pytest.mark.parametrize("snapshot", [None, 3, "x", {}, [1], {"other": 1}, {"read": None}])
def test_a_snapshot_of_another_type(snapshot: Any) -> None:
    loader = resumable.wrap(Reader())
    with pytest.raises(StateFormatError, match=r"could not restore the snapshot(.|\n)*in the checkpoint: "):
        loader.load_state_dict(with_snapshot(resumable.wrap(Reader()), snapshot))
        list(loader)


class Choosy(Reader):
    """Says itself what is wrong with a state."""

    def load_state_dict(self, state: Any) -> None:
        (self.read,) = state.values()
        if not 0 <= self.read <= 5:
            raise ValueError("of another file")


class ChoosyStream(Choosy, IterableDataset[int]):
    """In a `DataLoader`."""


@pytest.mark.parametrize(
    ("snapshot", "why"), [({"read": 9}, "of another file"), ({}, "not enough values"), (3, "values")]
)
def test_a_snapshot_that_the_source_refuses(snapshot: Any, why: str) -> None:
    with pytest.raises(StateFormatError, match=rf"could not restore the snapshot.*: .*{why}"):
        loader: resumable.Loader = resumable.wrap(Choosy())
        loader.load_state_dict(with_snapshot(resumable.wrap(Choosy()), snapshot))
        list(loader)
    with pytest.raises(StateFormatError, match=rf"could not restore the snapshot.*: .*{why}"):
        loader = resumable.wrap(DataLoader(ChoosyStream()))
        worker = {"batches": 1, "ended": False, "state": snapshot}
        loader.load_state_dict(
            with_snapshot(resumable.wrap(DataLoader(ChoosyStream())), {"next": 0, "workers": [worker]})
        )
        list(loader)


class StatefulOrder(Order):
    def state_dict(self) -> dict[str, int]:
        return {"length": self.length}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.length = state["length"]


@pytest.mark.parametrize(
    "snapshot",
    [
        None,
        {},
        {"order": 3, "step": 1, "samples": 2, "ended": False},
        {"order": {"length": 9}, "step": 1, "samples": "2", "ended": False},
        {"order": {"length": 9}, "step": "1", "samples": 2, "ended": False},
    ],
)
def test_a_samplers_snapshot_of_another_type(snapshot: Any) -> None:
    def make() -> resumable.Loader:
        return resumable.wrap(DataLoader(DATASET, batch_size=2, sampler=StatefulOrder(9)))

    with pytest.raises(StateFormatError):
        loader = make()
        loader.load_state_dict(with_snapshot(make(), snapshot))
        list(loader)


def test_places_that_nobody_would_live_to_see() -> None:
    def edited(loader: resumable.Loader, **cursor: int) -> dict[str, Any]:
        state = loader.state_dict()
        return {**state, "digest": None, "cursor": {**state["cursor"], **cursor}}

    def endless() -> resumable.Loader:
        return resumable.wrap(lambda: iter(int, 1))

    loader = endless()
    loader.load_state_dict(edited(endless(), position=10**18))
    with pytest.raises(UnsupportedError, match="That would take forever"):
        next(iter(loader))
    sampled = resumable.wrap(DataLoader(DATASET, sampler=Order(3)))
    sampled.seek(epoch=10**9)
    with pytest.raises(UnsupportedError, match=r"That would take forever.* define set_epoch\(\) on the sampler"):
        next(iter(sampled))
    with pytest.raises(StateFormatError, match="global_batch must be an integer of 1073741824 or less"):
        endless().load_state_dict({**edited(endless()), "global_batch": 2**31})


@pytest.mark.parametrize("kind", [Order, Told, Batches])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sampler_that_shrank(kind: type[Order], workers: int) -> None:
    def make(length: int) -> resumable.Loader:
        sampler = kind(length)
        given: dict[str, Any] = {"batch_sampler": sampler} if kind is Batches else {"sampler": sampler, "batch_size": 2}
        return resumable.wrap(DataLoader(DATASET, num_workers=workers, **given))

    saved = make(10)
    for _ in zip(range(4), saved, strict=False):
        pass
    loader = make(3)
    state = saved.state_dict()
    state["backend"]["parameters"], state["digest"] = {"length": 3}, None  # as of one that does not say how long it is
    loader.load_state_dict(state)
    with pytest.raises(StateMismatchError, match="ended before the position"):
        list(loader)
    loader.seek(epoch=0, step=999) if kind is Batches else loader.seek(epoch=0, step=1)
    if kind is Batches:
        with pytest.raises(StateMismatchError, match="ended before the position"):
            list(loader)


# ---------------------------------------------------------------------- things that cannot be wrapped


@pytest.mark.parametrize(
    ("option", "meant"),
    [("sed", "seed"), ("batchsize", "batch_size"), ("collate_fn", "collate"), ("drop_last", "tail")],
)
def test_a_misspelt_option_is_named(option: str, meant: str) -> None:
    wrap: Any = resumable.wrap
    with pytest.raises(UnsupportedError, match=f"wrap has no option {option}, but .*\n.*Did you mean {meant}?"):
        wrap(range(4), **{option: 0})
    with pytest.raises(TypeError, match="The options are batch_size, transform, collate"):
        wrap(range(4), quux=0)


def test_a_class_is_no_object() -> None:
    for kind in (TensorDataset, Dataset, Order.__mro__[-1]):
        with pytest.raises(UnsupportedError, match="expected an instance, got the class"):
            resumable.wrap(kind)
    assert list(resumable.wrap(Reader)) == [1, 2, 3, 4, 5], "it can be called, and its objects iterated over"


class Inner(DataLoader[Any]):
    """What Accelerate's classes look like, from outside."""

    __module__ = "accelerate.data_loader"


class Streaming(Stream):
    """What MosaicML's and LitData's datasets look like, from outside."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:
        return {"num_samples": num_samples, "from_beginning": from_beginning}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataLoader(DataLoader(DATASET)), r"wrap\(loader.dataset\)"),  # type: ignore[arg-type]  # the point
        (lambda: DataLoader(resumable.wrap(DATASET)), r"is a Loader, which(.|\n)*wrap\(source"),  # type: ignore[arg-type]
        (lambda: DataLoader(iter([1])), r"is a list_iterator, which(.|\n)*wrap\(source"),  # type: ignore[arg-type]
        (lambda: Inner(DATASET), "Accelerate has prepared"),
        (lambda: DataLoader(Streaming()), "needs arguments that only its own loader knows"),
    ],
)
def test_dataloaders_that_would_fail_late(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        resumable.wrap(make())


def test_a_stream_whose_length_raises_has_none() -> None:
    loader = resumable.wrap(DataLoader(ChainDataset([Stream(), Stream()]), batch_size=4))
    assert not loader.is_sized
    assert sum(len(batch) for batch in loader) == 12


class WithState(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it."""


def test_a_map_style_dataset_with_a_state_is_named() -> None:
    with pytest.warns(PromiseWarning, match=r"WithState has its own state_dict\(\), which is not saved") as told:
        resumable.wrap(DataLoader(WithState(), num_workers=1))
    assert told[0].filename == __file__


def ends(_: Any) -> Any:
    return next(iter(()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: resumable.wrap(DataLoader(DATASET, batch_size=2, collate_fn=ends)),
        lambda: resumable.wrap(range(4), batch_size=2, collate=ends),
        lambda: resumable.wrap(lambda: iter(range(4)), batch_size=2, collate=ends),
        lambda: resumable.wrap(lambda: iter(range(4)), transform=ends),
    ],
)
def test_stop_iteration_in_a_function_ends_no_epoch(make: Callable[[], resumable.Loader]) -> None:
    with pytest.raises(DataError, match=r"(collate|transform) raised StopIteration"):
        list(make())


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_step_that_a_source_without_a_length_does_not_have(epoch: int) -> None:
    loader = resumable.wrap(lambda: iter(range(5)), seed=0)
    loader.seek(epoch=epoch, step=999)
    with pytest.raises(
        StateMismatchError, match=r"before the position.*seek\(\)(?s:.*)999(?s:.*)source: +5\n(?s:.*)a step that"
    ):
        next(iter(loader))
    loader.seek(epoch=epoch, step=4)
    assert next(iter(loader)) == 4


def test_a_batch_is_no_number_of_batches() -> None:
    loader = resumable.wrap(DataLoader(DATASET, batch_size=2), ack="manual")
    batch: Any = next(iter(loader))
    with pytest.raises(
        ConfigurationError, match=r"ack\(\) expects the number of .* got a list.*\n.*Call ack\(\) after each"
    ):
        loader.ack(batch)
    one: Any = np.int64(1)
    loader.ack(one)
    assert loader.acknowledged.step == 1


@pytest.mark.parametrize("total", ["3", None, 1.5, -1, math.nan, torch.ones(2)])
@pytest.mark.parametrize("form", ["epochs", "steps"])
def test_a_total_that_is_no_number_of_epochs_or_steps_is_refused(form: str, total: Any) -> None:
    loader = resumable.wrap(range(8), batch_size=4)
    with pytest.raises(ConfigurationError, match=rf"{form}\(\) needs a whole number(.|\n)*math.inf"):
        list(getattr(loader, form)(total))


@pytest.mark.parametrize("total", [2, 2.0, np.int64(2), torch.tensor(2), math.inf])
def test_a_total_may_be_any_whole_number(total: Any) -> None:
    assert len(list(islice(resumable.wrap(range(8), batch_size=4).steps(total), 2))) == 2
    epochs = resumable.wrap(range(8), batch_size=4).epochs(total)
    assert [len(list(epoch)) for epoch in islice(epochs, 2)] == [2, 2]


def test_no_epochs_of_a_fresh_loader_are_no_mistake() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(resumable.wrap(range(8)).epochs(0))


class Endless:
    """Has samples by an index, and no length."""

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("source", "missing"), [(Endless(), "no __len__(.|\n)*add __len__"), ({"x": [1]}, "keys, not samples")]
)
def test_what_looks_like_a_source_is_told_what_it_misses(source: Any, missing: str) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot wrap an object(.|\n)*{missing}"):
        resumable.wrap(source)
