"""An epoch's end is a position like any other: sources that depend on their past are exact, rejected, or named.

Each is saved after every step and at every epoch's end, and resumed in a fresh object. The rest of the run is compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from past_sources import (
    DEPENDENT,
    LENGTH,
    OPENED,
    RIGHT,
    Buckets,
    Complete,
    CountedOrder,
    PositionOnly,
    Reshuffles,
    SeededOrder,
    SharedCount,
    Source,
    StageOnly,
)
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EPOCHS = 3
SAMPLES: Any = torch.arange(LENGTH)
COMMON: dict[str, Any] = {"seed": 0, "identity": "source"}
WAYS: dict[str, Callable[..., resumable.Loader]] = {
    "iterable": lambda source, **options: resumable.wrap(source, batch_size=3, **COMMON, **options),
    "stream": lambda source, **options: resumable.wrap(DataLoader(source, batch_size=3), **COMMON, **options),
}


def wrapped(source: Any, way: str, **options: Any) -> resumable.Loader:
    if isinstance(source, DataLoader):
        accepted = {} if type(source) is DataLoader else {"resume": "replay"}  # of a subclass, `wrap` warns
        return resumable.wrap(source, **COMMON, **{**accepted, **options})
    if isinstance(source, Source) and way == "stream":
        kind = type(source)
        source.__class__ = type(kind.__name__, (kind, IterableDataset), {})
    return WAYS[way if isinstance(source, Source) else "iterable"](source, **options)


def read(loader: resumable.Loader, source: Any, states: dict[str, Any] | None = None) -> list[str]:
    run: list[str] = []
    for epoch in loader.epochs(EPOCHS):
        if hasattr(source, "stage"):
            source.stage = epoch.number
        for batch in epoch:
            run.append(f"{epoch.number} {batch}")
            if states is not None:
                states[f"after step {len(run)}"] = len(run), loader.state_dict()
        if states is not None:
            states[f"after epoch {epoch.number}"] = len(run), loader.state_dict()
    return run


def outcomes(make: Callable[[], Any], way: str, only: str = "", **options: Any) -> dict[str, str]:
    """Resume from every state of a run, and return what happened: exact, rejected, warned or silently different."""
    source = make()
    states, found = dict[str, Any](), {}
    run = read(wrapped(source, way, **options), source, states)
    for when, (done, state) in states.items():
        if only not in when:
            continue
        again = make()
        loader = wrapped(again, way, **options)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loader.load_state_dict(state)
            try:
                rest = read(loader, again)
            except StateMismatchError:
                found[when] = "rejected"
                continue
        exact = "exact" if rest == run[done:] else "different"
        found[when] = f"{exact}, warned" if any(one.category is PromiseWarning for one in told) else exact
    return found


@pytest.fixture(autouse=True)
def _close_files() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DEPENDENT)
def test_a_source_that_depends_on_its_past_is_never_silently_different(name: str, way: str) -> None:
    found = outcomes(DEPENDENT[name], way)
    assert "different" not in found.values(), found
    ends = {found[f"after epoch {epoch}"] for epoch in range(EPOCHS - 1)}
    assert all("warned" in end or end == "rejected" for end in ends), found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_exact_without_a_warning(name: str, way: str) -> None:
    assert set(outcomes(RIGHT[name], way).values()) == {"exact"}


@pytest.mark.parametrize("name", ["Staged", "Counter", "InPlace", "OwnNumpy", "Cache"])
def test_saving_changes_nothing(name: str) -> None:
    make = (DEPENDENT | RIGHT)[name]
    for way in WAYS:
        source, other = make(), make()
        assert read(wrapped(source, way), source, {}) == read(wrapped(other, way), other)


def test_a_bookmark_keeps_its_past_after_a_rollback() -> None:
    loader = wrapped(RIGHT["Local"](), "iterable")
    states = [loader.state_dict()]
    marks = []
    for _ in loader.steps(LENGTH):
        marks.append(loader.progress.bookmark())
        states.append(loader.state_dict())
    loader.load_state_dict(states[0])
    assert [mark.state_dict() for mark in marks] == states[1:]
    assert states[-1]["past"]


# ---------------------------------------------------------------------- replaying the run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", sorted(DEPENDENT.keys() - {"Clock"}))
def test_a_replay_of_the_run_is_exact(name: str, way: str) -> None:
    assert set(outcomes(DEPENDENT[name], way, resume="replay_run").values()) == {"exact"}


@pytest.mark.slow
@pytest.mark.parametrize("source", [Reshuffles, SharedCount])
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_a_replay_of_the_run_is_exact_if_a_reader_counts_its_passes(source: Any, options: dict[str, Any]) -> None:
    found = outcomes(lambda: DataLoader(source(), batch_size=3, **options), "", only="epoch", resume="replay_run")
    assert set(found.values()) == {"exact"}


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("source", [Reshuffles, SharedCount])
def test_what_lives_over_epochs_in_workers_is_found(source: Any, keeps: bool) -> None:
    def make() -> Any:
        return DataLoader(source(), batch_size=3, num_workers=2, persistent_workers=keeps)

    found = outcomes(make, "", only="epoch")
    wanted = "rejected" if keeps or source is SharedCount else "exact"  # other workers start with this process's object
    assert found == {"after epoch 0": wanted, "after epoch 1": wanted, "after epoch 2": "exact"}


def test_the_error_shows_the_cause_and_the_option_that_works() -> None:
    source = DEPENDENT["OwnRandom"]()
    states: dict[str, Any] = {}
    read(wrapped(source, "iterable"), source, states)
    again = wrapped(DEPENDENT["OwnRandom"](), "iterable")
    again.load_state_dict(states["after epoch 0"][1])
    with pytest.raises(StateMismatchError, match=r"(?s)its own random generator generator.*resume=\"replay_run\""):
        read(again, source)


def test_a_run_is_only_replayed_from_its_start() -> None:
    source = DEPENDENT["InPlace"]()
    loader, states = wrapped(source, "iterable", resume="replay_run"), dict[str, Any]()
    read(loader, source, states)
    loader.load_state_dict(states["after epoch 0"][1])
    with pytest.raises(UnsupportedError, match="back to the start of epoch 1"):
        read(loader, source)
    other = wrapped(DEPENDENT["InPlace"](), "iterable", resume="replay_run")
    next(iter(other))
    with pytest.raises(UnsupportedError, match="epoch 0 was left after 3 elements"):
        other.end_epoch()


# ---------------------------------------------------------------------- samplers


@pytest.mark.parametrize("sampler", [CountedOrder, SeededOrder])
def test_a_sampler_with_set_epoch_that_counts_is_exact(sampler: Any) -> None:
    found = outcomes(lambda: DataLoader(SAMPLES, batch_size=3, sampler=sampler()), "")
    assert set(found.values()) == {"exact"}


def test_the_next_indices_verify_the_state_of_a_sampler() -> None:
    for sampler in (StageOnly, Complete, PositionOnly):  # drawing again helps the first and the last

        def make(sampler: Any = sampler) -> Any:
            return DataLoader(SAMPLES, batch_size=2, sampler=sampler())

        assert set(outcomes(make, "").values()) == {"exact"}, sampler


@pytest.mark.parametrize(
    "make",
    [
        lambda: resumable.wrap(DataLoader(Buckets(), batch_size=None), seed=0),
        lambda: resumable.wrap(Buckets(), seed=0),
    ],
    ids=["stream", "iterable"],
)
def test_several_elements_after_a_restored_state_are_compared(make: Callable[[], resumable.Loader]) -> None:
    run = list(make())
    for cut in range(1, 8):
        loader, state = make(), None
        for _ in zip(range(cut), loader, strict=False):
            pass
        state = loader.state_dict()
        resumed = make()
        resumed.load_state_dict(state)
        try:
            rest = list(resumed)
        except StateMismatchError:
            continue
        assert rest == run[cut:], f"after {cut} elements"


# ---------------------------------------------------------------------- another process


@pytest.mark.slow
def test_a_different_order_of_a_set_gets_a_warning_at_an_epochs_end(tmp_path: Path) -> None:
    for seed, (mode, told) in enumerate([("save", ""), ("resume", "order of files or of a set")], start=1):
        done = subprocess.run(
            [sys.executable, "-c", SET_ORDER, mode, str(tmp_path / "state")],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told in done.stderr


SET_ORDER = """
import json, operator, pathlib, sys, resumable
class Names:
    def __init__(self): self.names, self.first = {f"name {number}" for number in range(50)}, operator.itemgetter(0)
    def __iter__(self): return map(self.first, zip(self.names))
loader, path = resumable.wrap(Names(), seed=0), pathlib.Path(sys.argv[2])
if sys.argv[1] == "save":
    for epoch in loader.epochs(1): list(epoch)
    path.write_text(json.dumps(loader.state_dict()))
else:
    loader.load_state_dict(json.loads(path.read_text()))
    next(iter(loader))
"""
