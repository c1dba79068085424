"""Canaries: a source that goes on with other elements than the run that saved its state is refused."""

from __future__ import annotations

import json
import random
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable._content import Canary
from resumable.errors import StateFormatError, StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable import Loader

Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as many datasets have them


def digest(element: Any) -> str | None:
    return Canary(element).digest


# ---------------------------------------------------------------------- what a digest tells apart

DIFFERENT = [
    None,
    0,
    1,
    1.0,
    True,
    "1",
    b"",
    [],
    {},
    [1],
    [[1]],
    (1, 2),
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 2},
    np.int32(1),
    np.arange(3),
    np.arange(3, dtype=np.float32),
    np.arange(4).reshape(2, 2),
    torch.arange(3),
    torch.arange(3.0),
    torch.arange(3.0).bfloat16(),
    torch.arange(3.0).bfloat16() + 1,
    "x" * 5000,
    "x" * 4999 + "y",
    np.zeros((200, 200)),
    np.arange(40000.0).reshape(200, 200),
]


def test_what_differs_has_another_digest() -> None:
    digests = [digest(element) for element in DIFFERENT]
    assert None not in digests
    assert len(set(digests)) == len(DIFFERENT)


def test_what_is_the_same_has_the_same() -> None:
    values = np.arange(40000).reshape(200, 200)
    assert digest(values) == digest(values.copy()) == digest(np.asfortranarray(values)) == digest(values.T.copy().T)
    assert digest(torch.from_numpy(values)) == digest(torch.from_numpy(values.T.copy()).T)
    assert digest(Pair(values, 3)) == digest(Pair(values.copy(), 3))
    assert digest({"__url__": "/scratch/1/a.tar", "x": 1}) == digest({"__url__": "/scratch/2/a.tar", "x": 1})


@pytest.mark.parametrize("unknown", [object(), {1, 2}, lambda: 0, np.array([object()]), torch.eye(2).to_sparse()])
def test_unknown_objects_count_by_their_type(unknown: Any) -> None:
    assert digest(unknown) is not None
    assert digest([unknown, 1]) != digest([unknown, 2])


def test_what_cannot_be_digested_fits_anything() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert digest(endless) is not None or Canary(endless).fits(1)

    class Torn(dict[str, int]):
        def items(self) -> Any:
            raise OSError("torn")

    assert digest(Torn(a=1)) is None
    assert Canary(Torn(a=1)).fits(3)
    assert Canary(3).fits(Torn(a=1))


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists))
def test_a_digest_belongs_to_the_value(element: Any) -> None:
    assert digest(element) == digest(element)
    assert Canary(element).fits(element)


def test_changing_elements_are_digested_at_once() -> None:
    """An element that can change is digested at once, any other one on request."""
    element = [1, 2]
    canary = Canary(element)
    element.append(3)
    assert canary.digest == digest([1, 2])
    assert Canary("text")._pending


# ---------------------------------------------------------------------- a source that is not repeatable


def shuffled() -> Iterator[int]:
    yield from random.SystemRandom().sample(range(1000), 12)


class Shuffled(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return shuffled()


LOADERS: dict[str, Callable[..., Loader[Any]]] = {
    "function": lambda **options: resumable.wrap(shuffled, batch_size=2, **options),
    "stream": lambda **options: resumable.wrap(DataLoader(Shuffled(), batch_size=2), **options),
}
WORKERS: dict[str, Callable[..., Loader[Any]]] = {
    "2 workers": lambda **options: resumable.wrap(DataLoader(Shuffled(), batch_size=2, num_workers=2), **options)
}


def state_after(loader: Loader[Any], steps: int) -> dict[str, Any]:
    return [loader.state_dict() for _ in zip(range(steps), loader, strict=False)][-1]


@pytest.mark.parametrize("how", [*LOADERS, pytest.param("2 workers", marks=pytest.mark.slow)])
def test_a_replay_of_other_elements_is_refused(how: str) -> None:
    make = {**LOADERS, **WORKERS}[how]
    state = state_after(make(), 3)
    loader = make()
    loader.load_state_dict(state)
    with pytest.raises(StateMismatchError) as caught:
        list(loader)
    for part in (
        "was read again up to the saved position",
        "in the checkpoint: element",
        "in this run:       an element with the digest",
        "lost or repeated",
        "seed=0",
        'checks="ranks"',
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("how", [*LOADERS, pytest.param("2 workers", marks=pytest.mark.slow)])
def test_without_strictness_it_is_warned_about_and_goes_on(how: str) -> None:
    make = {**LOADERS, **WORKERS}[how]
    state = state_after(make(), 3)
    loader = make()
    loader.load_state_dict(state, strict=False)
    with pytest.warns(StateMismatchWarning, match=r"(?s)read again.*because of strict=False"):
        rest = list(loader)
    assert len(rest) == (9 if "workers" in how else 3)


@pytest.mark.parametrize("how", LOADERS)
def test_it_can_be_turned_off(how: str) -> None:
    state = state_after(LOADERS[how](checks="ranks"), 3)
    assert "canary': '" not in str(state)
    for one in (state, state_after(LOADERS[how](), 3)):
        loader = LOADERS[how](checks="ranks")
        loader.load_state_dict(one)
        assert len(list(loader)) == 3
    loader = LOADERS[how]()
    loader.load_state_dict(state)  # without a canary there is nothing to compare
    assert len(list(loader)) == 3


def test_elements_changed_in_place_by_a_loop() -> None:
    """Elements that a loop changes in place are known as they were drawn."""

    def arrays() -> Iterator[Any]:
        for number in range(6):
            yield np.full(3, number)

    def in_place(array: Any) -> Any:
        array += 7
        return array

    loader = resumable.wrap(arrays, transform=in_place)
    states = []
    for batch in loader:
        states.append(loader.state_dict())
        batch.fill(100)
        states.append(loader.state_dict())
    assert states[::2] == states[1::2]
    for step, state in enumerate(states[:-2:2], start=1):
        resumed = resumable.wrap(arrays, transform=lambda array: array + 7)
        resumed.load_state_dict(state)
        assert [batch[0] for batch in resumed] == list(range(7 + step, 13))


def test_own_skip_leaves_one_element_to_compare() -> None:
    """A source with a skip has only one element left to compare."""
    drawn = []

    class Skips:
        def __init__(self) -> None:
            self.place = 0

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            if self.place == 9:
                raise StopIteration
            self.place += 1
            drawn.append(self.place)
            return self.place

        def skip(self, count: int) -> None:
            self.place += count

    state = state_after(resumable.wrap(Skips), 5)
    loader = resumable.wrap(Skips)
    loader.load_state_dict(state)
    drawn.clear()
    assert list(loader) == [6, 7, 8, 9]
    assert drawn == [5, 6, 7, 8, 9]


# ---------------------------------------------------------------------- in the state


def test_ranks_have_the_same_canary() -> None:
    def numbers() -> Iterator[int]:
        yield from range(12)

    loaders = [resumable.wrap(numbers, batch_size=2, tail="drop", world=resumable.World(rank, 2)) for rank in range(2)]
    states = [state_after(loader, 2) for loader in loaders]
    assert states[0] == states[1]
    alone = resumable.wrap(numbers, batch_size=4, tail="drop")
    alone.load_state_dict(states[0])
    assert list(alone) == [[8, 9, 10, 11]]


def test_a_canary_of_no_text_is_damage() -> None:
    state = state_after(resumable.wrap(lambda: iter(range(5))), 2)
    with pytest.raises(StateFormatError, match="canary must be a string"):
        resumable.wrap(lambda: iter(range(5))).load_state_dict({**state, "canary": 7, "digest": None})


def test_states_without_canaries_are_kept_and_load() -> None:
    """`test_state.py` goes on from each of them."""
    folder = Path(__file__).parents[1] / "state/states"
    before, now = (json.loads((folder / f"{name}.json").read_text()) for name in ("format2", "format2_canaries"))
    assert len(before) == len(now)
    assert {case["state"]["canary"] for case in before} == {None}
    with_source = [case["state"] for case in now if case["name"] == "reader"]
    assert sum(state["canary"] is not None for state in with_source) > len(with_source) // 2
    replayed = [case["state"] for case in now if case["name"] == "function"]
    assert all(state["canary"] is not None for state in replayed if state["cursor"]["position"])
