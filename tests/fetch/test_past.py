"""An epoch's end is a position like any other: sources that depend on their past are exact, rejected, or named.

Each is saved after every step and at every epoch's end, and resumed in a fresh object. The rest of the run is compared.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from past_sources import DEPENDENT, OPENED, RIGHT, Source
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import PromiseWarning, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS = 3
WAYS: dict[str, Callable[[Any], resumable.Loader]] = {
    "iterable": lambda source: resumable.wrap(source, batch_size=3, seed=0, identity="source"),
    "stream": lambda source: resumable.wrap(DataLoader(source, batch_size=3), seed=0, identity="source"),
}


def wrapped(source: Any, way: str) -> resumable.Loader:
    if isinstance(source, DataLoader):
        return resumable.wrap(source, seed=0, identity="source")
    if isinstance(source, Source) and way == "stream":
        kind = type(source)
        source.__class__ = type(kind.__name__, (kind, IterableDataset), {})
    return WAYS[way if isinstance(source, Source) else "iterable"](source)


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


def outcomes(make: Callable[[], Any], way: str) -> dict[str, str]:
    """Resume from every state of a run, and return what happened: exact, rejected, warned or silently different."""
    source = make()
    states, found = dict[str, Any](), {}
    run = read(wrapped(source, way), source, states)
    for when, (done, state) in states.items():
        again = make()
        loader = wrapped(again, way)
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
