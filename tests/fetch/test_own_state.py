"""Map-style sources that remember something from sample to sample, by a state of their own."""

from __future__ import annotations

import multiprocessing
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, StackDataset, Subset, random_split

import resumable
from resumable import World
from resumable.errors import (
    PromiseWarning,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable import Loader

_EPOCHS = 3


class Counting(Dataset[tuple[int, int, int]]):
    """Each sample says how many were read before it, and at which stage its user has set it."""

    def __init__(self, length: int = 7) -> None:
        self.length, self.seen, self.stage, self.broken = length, 0, 0, -1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.seen += 1
        if self.seen == self.broken:
            raise OSError("the disk is gone")
        return index, self.seen, self.stage

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "inner": {"stage": self.stage}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stage = state.get("stage", 0)  # half of it was taken when the rest turns out not to be there
        self.seen, self.stage = state["seen"], state["inner"]["stage"]


class Seven(Dataset[int]):
    """It remembers nothing."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> int:
        return index


class Backwards(Sampler[int]):
    """A sampler of a user's own."""

    def __len__(self) -> int:
        return 7

    def __iter__(self) -> Iterator[int]:
        return iter(range(6, -1, -1))


class Getting(Counting):
    """The other pair of names."""

    get_state, set_state = Counting.state_dict, Counting.load_state_dict
    state_dict = load_state_dict = None  # type: ignore[assignment]


def as_loader(data: Counting, **options: Any) -> Loader[Any]:
    return resumable.wrap(DataLoader(data, batch_size=2, shuffle=True, collate_fn=list), **options)


def as_sequence(data: Counting, **options: Any) -> Loader[Any]:
    return resumable.wrap(data, batch_size=2, shuffle=True, **options)


WAYS = [as_loader, as_sequence]


def train(loader: Loader[Any], data: Counting, states: list[dict[str, Any]] | None = None) -> list[Any]:
    """Train for the epochs that are left, with a stage per epoch, and more in the middle of one."""
    batches = []
    for epoch in loader.epochs(_EPOCHS):
        if loader.cursor.step == 0:
            data.stage += 10_000
        for batch in epoch:
            batches.append(batch)
            data.stage += 1
            loader.ack() if loader.ack_mode == "manual" else None
            if states is not None:
                states.append(loader.state_dict())
        data.stage += 100
        if states is not None:
            states.append(loader.state_dict())
    return batches


@pytest.mark.parametrize("kind", [Counting, Getting])
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_has_the_rest_of_the_samples(way: Callable[..., Any], kind: type[Counting]) -> None:
    data = kind()
    loader, states = way(data), list[dict[str, Any]]()
    whole = train(loader, data, states)
    assert whole[-1][-1][1] == 7 * _EPOCHS
    for state in states:
        again = kind()
        resumed = way(again)
        resumed.load_state_dict(state)
        assert train(resumed, again) == whole[state["global_step"] :], state
        rolled = way(data)  # what was used already goes back, too
        rolled.load_state_dict(state)
        assert train(rolled, data) == whole[state["global_step"] :], state


@pytest.mark.parametrize("way", WAYS)
def test_unacknowledged_with_its_memory(way: Callable[..., Any]) -> None:
    """Batches that are not acknowledged are reread with what was remembered."""
    data = Counting()
    loader = way(data, ack="manual")
    reading = iter(loader)
    first, second = next(reading), next(reading)
    loader.ack()
    state = loader.state_dict()
    assert [next(reading)[0][1], data.seen] == [5, 6]
    loader.rewind()
    assert next(iter(loader)) == second
    again = way(Counting(), ack="manual")
    again.load_state_dict(state)
    assert next(iter(again)) == second
    assert [one[1] for one in first + second] == [1, 2, 3, 4]


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_failed_is_read_again_from_before_it(way: Callable[..., Any]) -> None:
    data, whole = Counting(), list(way(Counting()))
    data.broken = 4
    loader, batches = way(data), []
    with pytest.raises(OSError, match="the disk is gone"):
        batches += loader  # the list keeps what came before
    state = loader.state_dict()
    data.broken = -1
    assert list(loader) == whole[1:]
    resumed = way(Counting())
    resumed.load_state_dict(state)
    assert list(resumed) == whole[1:]


@pytest.mark.parametrize("way", WAYS)
def test_looking_at_a_batch_leaves_the_state_alone(way: Callable[..., Any]) -> None:
    data = Counting()
    loader = way(data)
    whole = list(way(Counting()))
    for step in range(len(whole)):
        assert loader.peek() == whole[step]
        resumed = way(Counting())
        resumed.load_state_dict(loader.state_dict())
        assert list(resumed) == whole[step:]
        assert next(iter(loader)) == whole[step]


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.parametrize("way", WAYS)
def test_an_epoch_that_was_left_and_passes_of_an_evaluation(way: Callable[..., Any]) -> None:
    data = Counting()
    loader = way(data)
    next(iter(loader))
    loader.end_epoch()
    state = loader.state_dict()
    following = list(loader)
    assert following[0][0][1] == 3
    resumed = way(Counting())
    resumed.load_state_dict(state)
    assert list(resumed) == following


@pytest.mark.parametrize("way", WAYS)
def test_an_evaluation_leaves_alone_what_its_dataset_remembers(way: Callable[..., Any]) -> None:
    data = Counting()
    training, evaluation = way(data), way(data, evaluation=True)
    orders, stages = [], []
    for epoch in training.epochs(3):
        stages += [sample[2] for batch in epoch for sample in batch]
        orders += [[[index for index, *_ in batch] for batch in evaluation]]
        data.stage += 1
        orders += [[[index for index, *_ in batch] for batch in evaluation]]
    assert stages == [0] * 7 + [1] * 7 + [2] * 7
    assert orders == orders[:1] * 6
    assert (data.seen, data.stage) == (3 * 3 * 7, 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [True, False])
def test_what_the_loop_changes_counts_with_its_acknowledgement(way: Callable[..., Any], *, before: bool) -> None:
    def run(loader: Loader[Any], data: Counting) -> tuple[list[Any], list[dict[str, Any]]]:
        batches, states = [], []
        for epoch in loader.epochs(_EPOCHS):
            for batch in epoch:
                batches.append(batch)
                data.stage += before
                loader.ack()
                data.stage += not before
                states.append(loader.state_dict())
        return batches, states

    data = Counting()
    whole, states = run(way(data, ack="manual"), data)
    assert whole[-1][-1][2] == 4 * _EPOCHS - 1
    for number, state in enumerate(states, 1):
        again = Counting()
        resumed = way(again, ack="manual")
        resumed.load_state_dict(state)
        assert run(resumed, again)[0] == whole[number:]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_what_is_changed_after_a_load_or_a_failure_stays(way: Callable[..., Any], ack: str) -> None:
    data = Counting()
    loader = way(data, ack=ack)
    reading = iter(loader)
    next(reading)
    loader.ack() if ack == "manual" else None
    again = Counting()
    resumed = way(again, ack=ack)
    resumed.load_state_dict(loader.state_dict())
    resumed.progress.set_ack("manual")  # as the Lightning callback does
    again.stage = 5
    assert [sample[1:] for sample in next(iter(resumed))] == [(3, 5), (4, 5)]

    data.broken = 4
    with pytest.raises(OSError, match="the disk is gone"):
        next(reading)
    data.broken, data.stage = -1, 7
    assert [sample[1:] for sample in next(iter(loader))] == [(3, 7), (4, 7)]


@pytest.mark.parametrize("wrapper", ["subset", "split", "concat", "stack", "nested"])
@pytest.mark.parametrize("plain", [False, True])
def test_datasets_inside_of_those_of_torch_are_found(wrapper: str, *, plain: bool) -> None:
    def make() -> Any:
        first, second = Counting(), Counting(5)
        made: dict[str, Callable[[], Any]] = {
            "subset": lambda: Subset(first, range(6)),
            "split": lambda: random_split(first, [5, 2], torch.Generator().manual_seed(0))[0],
            "concat": lambda: ConcatDataset([first, second, first]),
            "stack": lambda: StackDataset(one=first, two=[*range(7)]),  # type: ignore[arg-type]  # map-style
            "nested": lambda: Subset(ConcatDataset([Subset(first, range(3)), second]), range(6)),
        }
        data = made[wrapper]()
        if plain:
            return resumable.wrap(data, batch_size=2, shuffle=True)
        return resumable.wrap(DataLoader(data, batch_size=2, shuffle=True, collate_fn=list), randomness="sample")

    loader, whole, states = make(), [], []
    for epoch in loader.epochs(2):
        for batch in epoch:
            whole.append(batch)
            states.append(loader.state_dict())
    for number, state in enumerate(states, 1):
        resumed = make()
        resumed.load_state_dict(state)
        assert [batch for epoch in resumed.epochs(2) for batch in epoch] == whole[number:]


def test_half_of_a_state_is_named() -> None:
    class Half(Counting):
        load_state_dict = None  # type: ignore[assignment]

    with pytest.warns(PromiseWarning, match=r"not saved: it has no load_state_dict\(\) to restore it"):
        as_loader(Half())
    with pytest.warns(PromiseWarning, match=r"not saved: it has no load_state_dict\(\) to restore it") as told:
        resumable.wrap(Half(), batch_size=2)
    assert told[0].filename == __file__


def _in_a_fresh_process(state: dict[str, Any]) -> list[Any]:
    loader = as_loader(Counting())
    loader.load_state_dict(state)
    return list(loader)


def test_a_fresh_process_goes_on_from_a_saved_state(tmp_path: Any) -> None:
    loader = as_loader(Counting())
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        resumed = pool.apply(_in_a_fresh_process, (torch.load(tmp_path / "state.pt", weights_only=True),))
    assert resumed == list(loader)


def test_seek_needs_a_state() -> None:
    with pytest.raises(UnsupportedError, match="its own snapshots"):
        as_loader(Counting()).seek(epoch=0, step=1)


def test_a_state_belongs_to_its_rank() -> None:
    state = as_loader(Counting(8), world=World(0, 2)).state_dict()
    with pytest.raises(StateMismatchError, match="rank differs.*\n.*0\n.*1\nLoad on each rank the state"):
        as_loader(Counting(8), world=World(1, 2)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="rank differs"):
        as_loader(Counting(8), world=World(0, 1)).load_state_dict(state)
    as_loader(Counting(8), world=World(0, 2)).load_state_dict(state)


def test_a_state_from_where_nothing_was_remembered_says_so() -> None:
    plain = resumable.wrap(DataLoader(Seven(), batch_size=2, shuffle=True), identity="same")
    next(iter(plain))
    loader = as_loader(Counting(), identity="same")
    with pytest.warns(StateMismatchWarning, match=r"does not include the dataset's own state \(its state_dict\(\)\)"):
        loader.load_state_dict(plain.state_dict())
    assert next(iter(loader))[0][1] == 1


def test_a_state_that_cannot_be_given_back_is_refused() -> None:
    loader = as_loader(Counting(), identity="same")
    next(iter(loader))
    plain = resumable.wrap(DataLoader(Seven(), batch_size=2, shuffle=True), identity="same")
    with pytest.raises(StateMismatchError, match=r"'seen': 2.*\n.*one that workers read.*\n.*num_workers=0"):
        plain.load_state_dict(loader.state_dict())
    plain.load_state_dict(loader.state_dict(), strict=False)
    assert len(list(plain)) == 3


@pytest.mark.parametrize("snapshot", [{}, 7, {"stage": 2}])
def test_a_state_that_the_dataset_does_not_take_changes_nothing(snapshot: Any) -> None:
    loader = as_loader(Counting())
    first = next(iter(loader))
    source = {"snapshot": snapshot, "skip": 0, "ended": False}
    with pytest.raises(StateFormatError, match="its digest does not match"):
        loader.load_state_dict({**loader.state_dict(), "source_state": source})
    state = {**loader.state_dict(), "source_state": source, "digest": None}
    with pytest.raises(StateFormatError, match="could not restore the snapshot"):
        loader.load_state_dict(state)
    assert first[0][1] == 1
    assert next(iter(loader))[0][1:] == (3, 0)


def test_a_state_of_a_stream_is_refused() -> None:
    loader = as_loader(Counting())
    next(iter(loader))
    source = {"snapshot": {}, "skip": 1, "ended": False}
    with pytest.raises(StateFormatError, match="belongs to a source without indices"):
        loader.load_state_dict({**loader.state_dict(), "source_state": source, "digest": None})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"num_workers": 1},
            r"the workers read the samples, and each.*\n.*or read without workers \(num_workers=0\)\.$",
        ),
        ({"sampler": Backwards()}, "the DataLoader uses a custom sampler"),
    ],
)
def test_a_state_that_is_not_saved_is_named(options: dict[str, Any], reason: str) -> None:
    with pytest.warns(PromiseWarning, match=rf"(?s)Counting has its own state_dict\(\).*{reason}"):
        loader = resumable.wrap(DataLoader(Counting(), batch_size=2, **options))
    assert loader.state_dict()["source_state"] is None or "dataset" not in loader.state_dict()["source_state"]


def test_random_draws_of_such_a_dataset_are_keyed_as_ever() -> None:
    class Drawing(Counting):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), random.random()

    whole = list(as_loader(Drawing()))
    loader = as_loader(Drawing())
    next(iter(loader))
    resumed = as_loader(Drawing())
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == whole[1:]
