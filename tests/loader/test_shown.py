"""What a Loader shows of what it wraps, and what it says where a script asks for more."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import resumable


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(6))


DATASET = TensorDataset(torch.arange(12))
MAP = {
    "order of ours": lambda: DataLoader(DATASET, batch_size=4, shuffle=True, num_workers=2),
    "order of the user's": lambda: DataLoader(DATASET, batch_size=4, sampler=[3, 1, 2], num_workers=2),
}


@pytest.mark.parametrize("case", MAP)
def test_a_map_style_dataloader(case: str) -> None:
    user: DataLoader[Any] = MAP[case]()
    loader = resumable.wrap(user)
    assert loader.dataset is DATASET
    assert (loader.batch_size, loader.num_workers, loader.collate_fn) == (4, 2, user.collate_fn)
    for name in ("sampler", "batch_sampler", "drop_last"):
        assert not hasattr(loader, name)
        assert getattr(loader, name, None) is None


def test_a_stream_hides_its_dataset() -> None:
    loader = resumable.wrap(DataLoader(Stream(), batch_size=2))
    assert (loader.batch_size, loader.num_workers) == (2, 0)
    assert not hasattr(loader, "dataset")
    with pytest.raises(
        AttributeError, match="no attribute 'dataset'.\nIterating the dataset of a stream would restart it"
    ):
        len(loader.dataset)


def test_a_sequence() -> None:
    numbers = list(range(6))
    loader = resumable.wrap(numbers, batch_size=2)
    assert (loader.dataset, loader.batch_size) == (numbers, 2)
    assert not hasattr(loader, "num_workers")
    assert resumable.wrap(numbers).batch_size is None
    assert resumable.wrap(lambda: iter(numbers), batch_size=3).batch_size == 3


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("sampler", r"remove your set_epoch\(\) call"),
        ("set_epoch", r"no attribute 'set_epoch'\.\nThe loader counts the epochs itself: remove the call"),
        ("batch_sampler", r"wrap\(\.\.\., sampler="),
        ("drop_last", r"wrap\(\.\.\., tail="),
        ("pin_memory", "The wrapped DataLoader has one.* Keep a reference"),
        ("no_such_thing", "no attribute 'no_such_thing'$"),
    ],
)
def test_what_is_not_shown_has_advice(name: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(resumable.wrap(DataLoader(DATASET)), name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("batch_size", "wrap it again"), ("pin_memory", "wrap it again"), ("epoch", "seek"), ("sampler", "")],
)
def test_what_would_change_nothing_cannot_be_set(name: str, advice: str) -> None:
    loader = resumable.wrap(DataLoader(DATASET, batch_size=4))
    with pytest.raises(AttributeError, match=f"cannot set {name} of a Loader to 8.\n.*{advice}"):
        setattr(loader, name, 8)
    loader.note = "of the user's own"  # type: ignore[attr-defined]  # type checkers refuse it
    assert vars(loader)["note"] == "of the user's own"


def test_asking_runs_no_code_of_the_source() -> None:
    class Touchy:
        def __iter__(self) -> Any:
            return iter(range(3))

        @property
        def order(self) -> Any:
            raise RuntimeError("opened")

    loader = resumable.wrap(Touchy())
    assert not hasattr(loader, "order")
    with pytest.raises(resumable.ResumableError, match="cannot be copied"):
        copy.copy(loader)


@pytest.mark.slow
def test_no_framework_takes_a_loader_for_a_dataloader() -> None:
    """What Accelerate's `skip_first_batches` and Lightning's `overfit_batches` look at."""
    from lightning.fabric.utilities.data import _set_sampler_epoch, has_iterable_dataset  # noqa: PLC0415  # slow
    from lightning.pytorch.trainer.connectors.data_connector import _resolve_overfit_batches  # noqa: PLC0415  # slow
    from lightning.pytorch.trainer.states import RunningStage  # noqa: PLC0415  # slow
    from lightning.pytorch.utilities import CombinedLoader  # noqa: PLC0415  # slow

    loader = resumable.wrap(DataLoader(DATASET, batch_size=4, shuffle=True))
    assert not has_iterable_dataset(loader)
    _set_sampler_epoch(loader, 3)
    combined = CombinedLoader(loader)
    _resolve_overfit_batches(combined, RunningStage.TRAINING)
    assert combined.flattened == [loader]
    with pytest.raises(AttributeError, match="The loader sets the order"):
        isinstance(loader.sampler, torch.utils.data.BatchSampler)  # type: ignore[attr-defined]  # as Accelerate does
