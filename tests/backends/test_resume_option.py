"""`resume="state"` and `"replay"`, also with a state of the other kind; and a stream of Hugging Face with a buffer."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from datasets import Dataset
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import ConfigurationError, PromiseWarning, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS = 2


class Reader(IterableDataset[int]):
    """Goes on where it stands, or begins a new pass."""

    def __init__(self) -> None:
        self.index, self.start = 0, 0

    def __iter__(self) -> Iterator[int]:
        self.index, self.start = self.start, 0
        while self.index < 7:
            self.index += 1
            yield self.index - 1

    def state_dict(self) -> dict[str, int]:
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["index"] % 7


SOURCES: dict[str, Callable[..., resumable.Loader]] = {
    "object": lambda **options: resumable.wrap(Reader(), batch_size=2, identity="reader", **options),
    "stream": lambda **options: resumable.wrap(DataLoader(Reader(), batch_size=2), identity="reader", **options),
    "workers": lambda **options: resumable.wrap(
        DataLoader(Reader(), batch_size=2, num_workers=2), identity="reader", **options
    ),
}
each_source = pytest.mark.parametrize("source", ["object", "stream", pytest.param("workers", marks=pytest.mark.slow)])


def golden(loader: resumable.Loader) -> tuple[list[str], list[Any]]:
    run, states = [], []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            run.append(f"{epoch.number} {batch}")
            states.append(loader.state_dict())
    return run, states


def rest(loader: resumable.Loader, state: Any) -> list[str]:
    loader.load_state_dict(state)
    return [f"{epoch.number} {batch}" for epoch in loader.epochs(EPOCHS) for batch in epoch]


def steps(states: list[Any], source: str) -> list[int]:
    """Every step; a few where each takes new processes."""
    return [1, len(states) // 2 + 2] if "workers" in source and "no" not in source else list(range(1, len(states) + 1))


@each_source
@pytest.mark.parametrize("saved", ["state", "replay"])
@pytest.mark.parametrize("resumed", ["state", "replay"])
def test_a_state_of_either_kind_is_gone_on_from_in_either_way(source: str, saved: str, resumed: str) -> None:
    make = SOURCES[source]
    run, states = golden(make(resume=saved))
    assert ("index" in str(states[1])) is (saved == "state"), "what a replay saves has no state of the source's own"
    for step in steps(states, source):
        assert rest(make(resume=resumed), states[step - 1]) == run[step:], f"after {step} batches"


@each_source
def test_a_replay_compares_with_what_a_state_announced(source: str) -> None:
    make = SOURCES[source]
    _, states = golden(make(resume="state"))
    state = states[1]
    if source == "object":
        state |= {"canary": "0" * 16, "digest": None}
    else:
        state["source_state"]["snapshot"]["workers"][0]["canary"] = "0" * 16
        state["digest"] = None
    with pytest.raises(StateMismatchError, match="was read again up to the saved position"):
        rest(make(resume="replay"), state)


def test_what_cannot_do_both_refuses_the_option() -> None:
    samples: Any = [1, 2, 3]
    with pytest.raises(UnsupportedError, match="resume does not fit a DataLoader over a map-style dataset"):
        resumable.wrap(DataLoader(samples), resume="replay")
    with pytest.raises(UnsupportedError, match="resume does not fit a source that is read by index"):
        resumable.wrap(samples, resume="state")
    with pytest.raises(ConfigurationError, match="resume must be one of state, replay"):
        resumable.wrap(samples, resume="again")  # type: ignore[call-overload]  # that it fails is the point


# ---------------------------------------------------------------------- a buffer that is not in the state


def stream(**shuffle: Any) -> Any:
    plain = Dataset.from_dict({"sample": list(range(15))}).to_iterable_dataset(num_shards=4)
    return plain.shuffle(seed=3, buffer_size=5, **shuffle)


class Around(IterableDataset[Any]):
    """Keeps a stream inside, and passes its state on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def set_epoch(self, epoch: int) -> None:
        self.inner.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        yield from self.inner

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


BUFFERED: dict[str, Callable[..., resumable.Loader]] = {
    "no workers": lambda **options: resumable.wrap(DataLoader(stream(), batch_size=2), **options),
    "2 workers": lambda **options: resumable.wrap(DataLoader(stream(), batch_size=2, num_workers=2), **options),
    "by itself": lambda **options: resumable.wrap(stream(), **options),
    "mapped": lambda **options: resumable.wrap(DataLoader(stream().map(dict), batch_size=2), **options),
    "inside": lambda **options: resumable.wrap(DataLoader(Around(stream()), batch_size=2), **options),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", [pytest.param(one, marks=pytest.mark.slow) if "2" in one else one for one in BUFFERED])
def test_a_shuffle_buffer_is_replayed_by_itself(how: str) -> None:
    make = BUFFERED[how]
    with pytest.warns(PromiseWarning, match=r"a buffer that is not in its state, so it is replayed") as told:
        run, states = golden(make())
    assert len(told) == 1, "once"
    assert told[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        for step in steps(states, how):
            assert rest(make(resume="replay"), states[step - 1]) == run[step:], f"after {step} batches"


def test_a_stream_without_a_buffer_resumes_by_its_state() -> None:
    plain = Dataset.from_dict({"sample": list(range(6))}).to_iterable_dataset(num_shards=2)
    loader = resumable.wrap(DataLoader(plain, batch_size=2))
    _, states = golden(loader)
    assert "examples_iterable" in str(states[0])
    shards_only = DataLoader(plain.shuffle(seed=0, buffer_size=1), batch_size=2)
    assert "examples_iterable" in str(golden(resumable.wrap(shards_only))[1][0])


def test_canary_tells_of_a_lost_buffer() -> None:
    """With `resume="state"`, the canary tells that the buffer was lost."""
    _, states = golden(BUFFERED["no workers"](resume="state"))
    with pytest.raises(StateMismatchError, match=r"IterableDataset in worker 0 was restored from its own state"):
        rest(BUFFERED["no workers"](resume="state"), states[2])
