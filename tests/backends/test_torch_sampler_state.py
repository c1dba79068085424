"""ResumableSampler: saved at every step and resumed, the rest is the same; with fewer and more ranks, too."""

from __future__ import annotations

import io
import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable import ResumableSampler
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError, StateMismatchWarning
from resumable.samplers import Shuffle, Weighted

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH, EPOCHS = 23, 3
Step = tuple[int, int]  # epoch and sample index

WORLDS = [
    (1, 1, False),
    (1, 1, True),
    (1, 4, True),
    (2, 1, True),
    (2, 3, False),
    (3, 2, False),
    (3, 2, True),
    (4, 1, False),
]
worlds = pytest.mark.parametrize(("world", "batch_size", "drop_last"), WORLDS)


def make(world: int = 1, rank: int = 0, **options: Any) -> ResumableSampler:
    return ResumableSampler(LENGTH, world, rank, **{"seed": 3, **options})


def saved(sampler: ResumableSampler, **options: int) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(sampler.state_dict(**options)))
    return state


def with_set_epoch(sampler: ResumableSampler) -> Iterator[Step]:
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        yield from one_pass(sampler)


def without_set_epoch(sampler: ResumableSampler) -> Iterator[Step]:
    for _ in range(sampler.epoch, EPOCHS):
        yield from one_pass(sampler)


def one_pass(sampler: ResumableSampler) -> Iterator[Step]:
    empty = True
    for index in sampler:
        empty = False
        yield sampler.epoch, index
    assert not empty


loops = pytest.mark.parametrize("loop", [with_set_epoch, without_set_epoch])


# ---------------------------------------------------------------------- every step


@loops
@worlds
def test_saved_at_every_step_the_rest_is_the_same(loop: Any, world: int, batch_size: int, drop_last: bool) -> None:
    options = {"batch_size": batch_size, "drop_last": drop_last}
    for rank in range(world):
        golden = list(loop(make(world, rank, **options)))
        sampler = make(world, rank, **options)
        states = [saved(sampler)] + [saved(sampler) for _ in loop(sampler)]
        assert len(golden) + 1 == len(states) == EPOCHS * len(sampler) + 1
        for step, state in enumerate(states):
            resumed = make(world, rank, **options)
            resumed.load_state_dict(state)
            assert saved(resumed) == state, "saving right after loading changes nothing"
            assert list(loop(resumed)) == golden[step:]


@loops
@worlds
def test_states_of_all_ranks_are_the_same(loop: Any, world: int, batch_size: int, drop_last: bool) -> None:
    samplers = [make(world, rank, batch_size=batch_size, drop_last=drop_last) for rank in range(world)]
    for _ in zip(*map(loop, samplers), strict=True):
        assert all(saved(sampler) == saved(samplers[0]) for sampler in samplers)


def test_a_state_behind_the_last_index_is_that_behind_the_end() -> None:
    sampler = make()
    for _ in range(EPOCHS):
        for _ in sampler:
            last = saved(sampler)
        assert saved(sampler) == last
        resumed = make()
        resumed.load_state_dict(last)
        assert resumed.epoch == sampler.epoch + 1


def test_loops_with_their_own_counter() -> None:
    """Loops with a counter of their own train on every sample once."""
    golden = list(with_set_epoch(make()))
    sampler = make()
    for step, (epoch, _) in enumerate(with_set_epoch(sampler), start=1):
        resumed = make()
        resumed.load_state_dict(sampler.state_dict())
        rest = []
        for number in range(epoch, EPOCHS):  # the epoch that was saved beside the state, not resumed.epoch
            resumed.set_epoch(number)
            rest += [(number, index) for index in resumed]
        assert rest == golden[step:]


def test_loading_is_valid_at_any_time() -> None:
    golden = list(without_set_epoch(make()))
    sampler = make()
    states = [saved(sampler)] + [saved(sampler) for _ in without_set_epoch(sampler)]
    for step in (30, 7, 0, 69, 23, 46, 22, 45):
        sampler.load_state_dict(states[step])
        for found, _ in zip(without_set_epoch(sampler), range(5), strict=False):  # is left in the middle
            assert found in golden[step:]
        sampler.load_state_dict(states[step])
        assert list(without_set_epoch(sampler)) == golden[step:]


def test_a_loaded_place_survives_a_peek() -> None:
    sampler = make()
    state = {**saved(sampler), "cursor": {"epoch": 1, "position": 9, "step": 9}}
    expected = Shuffle(LENGTH, seed=3).indices(1, 9, LENGTH).tolist()
    sampler.load_state_dict(state)
    assert next(iter(sampler)) == expected[0]
    assert list(sampler) == expected
    assert len(list(sampler)) == LENGTH
    sampler = make(batch_size=4)
    sampler.load_state_dict(
        {**state, "cursor": {"epoch": 1, "position": 8, "step": 2}, "batch_size": 4, "within_batch": 1}
    )
    assert next(iter(sampler)) == expected[0]
    assert list(sampler)[: len(expected)] == expected


def test_states_are_small_and_load_without_code() -> None:
    sampler = ResumableSampler(10**12, 4096, 5, batch_size=512, seed=2**40)
    sampler.set_epoch(10**6)
    buffer = io.BytesIO()
    torch.save(sampler.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == sampler.state_dict()
    assert len(json.dumps(sampler.state_dict())) < 400


def test_a_state_is_a_copy() -> None:
    sampler = make()
    state = sampler.state_dict()
    before = json.dumps(state)
    sampler.load_state_dict(state)
    list(sampler)
    assert json.dumps(state) == before
    state["cursor"]["position"] = 99
    assert sampler.state_dict()["cursor"]["position"] == LENGTH


# ---------------------------------------------------------------------- another number of ranks


def steps_of(samplers: list[ResumableSampler], size: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Run passes of all ranks in lockstep; yield each global batch with the state after it, the same on all ranks."""
    parts = [without_set_epoch(sampler) for sampler in samplers]
    while True:
        batch = [[index for _, index in (next(part, (0, -1)) for _ in range(size))] for part in parts]
        if batch[0][0] < 0:
            return
        states = [saved(sampler) for sampler in samplers]
        assert all(state == states[0] for state in states)
        yield [index for part in batch for index in part], states[0]


def resized(plan: list[tuple[int, int]], drop_last: bool) -> list[list[int]]:
    """Run with a global batch of 12 (or less at the end) on changing numbers of ranks: `(ranks, steps)`."""
    batches: list[list[int]] = []
    state: dict[str, Any] | None = None
    for world, steps in [*plan, (1, 10**6)]:
        samplers = [
            ResumableSampler(50, world, rank, batch_size=12 // world, drop_last=drop_last) for rank in range(world)
        ]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        for batch, behind in islice(steps_of(samplers, 12 // world), steps):
            batches.append(batch)
            state = behind
    return batches


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 6)), max_size=6), st.booleans())
def test_global_batches_after_a_resize(plan: list[tuple[int, int]], drop_last: bool) -> None:
    """After a resize in the middle of an epoch, every global batch is the same."""
    assert resized(plan, drop_last) == resized([], drop_last)


@pytest.mark.parametrize("later", [1, 2, 3, 4])
def test_with_another_global_batch_the_flat_order_stays(later: int) -> None:
    head, state = next(steps_of([make(4, rank) for rank in range(4)], 1))
    samplers = [make(later, rank, batch_size=2) for rank in range(later)]
    for sampler in samplers:
        sampler.load_state_dict(state)
    flat = head + [index for batch, _ in steps_of(samplers, 2) for index in batch]
    expected: list[int] = []
    for epoch in range(EPOCHS):
        order = Shuffle(LENGTH, seed=3).indices(epoch, 0, LENGTH).tolist()
        own = LENGTH - 4 if epoch == 0 else LENGTH
        expected += order + order[: -own % (2 * later)]
    assert flat == expected


def test_larger_global_batch_leaves_nothing() -> None:
    """A larger global batch that leaves nothing continues with the next epoch."""
    sampler = make(batch_size=5, drop_last=True)
    state = next(saved(sampler) for count, _ in enumerate(sampler) if count == 14)
    larger = make(batch_size=10, drop_last=True)
    larger.load_state_dict(state)
    assert larger.epoch == 1
    assert list(larger) == Shuffle(LENGTH, seed=3).indices(1, 0, 20).tolist()


def test_state_in_the_middle_of_a_batch() -> None:
    """A state in the middle of a batch needs the same ranks and batch size."""
    sampler = make(2, 1, batch_size=4)
    state = next(saved(sampler) for count, _ in enumerate(sampler) if count == 5)
    assert state["within_batch"] == 2
    for other in (make(1, 0, batch_size=8), make(1, 0, batch_size=4), make(2, 1, batch_size=3)):
        before = saved(other)
        with pytest.raises(StateMismatchError, match="after 2 of its indices") as caught:
            other.load_state_dict(state)
        assert "in the checkpoint: batch_size=4 on 2 ranks" in str(caught.value)
        assert f"batch_size={other.state_dict()['batch_size']} on {other.num_replicas} ranks" in str(caught.value)
        assert saved(other) == before


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "field", "stored", "own"),
    [
        ({"seed": 4}, "the seed", "3", "4"),
        ({"dataset_or_length": 24}, "the length of the sampler (sampler.length)", "23", "24"),
        ({"shuffle": False}, "shuffle (sampler.name)", "shuffle=True", "shuffle=False"),
        ({"drop_last": True}, "sampler.drop_last", "False", "True"),
        (
            {"sampler": Weighted([1] * 23, seed=3), "seed": 0},
            "the order (sampler.name)",
            "'feistel8-v1'",
            "'weighted-v1'",
        ),
        (
            {"dataset_or_length": 99, "sampler": Shuffle(99, seed=3, num_samples=23), "seed": 0},
            "sampler.samples",
            "None",
            "99",
        ),
    ],
)
def test_a_state_of_another_order_is_refused(options: dict[str, Any], field: str, stored: str, own: str) -> None:
    state = saved(make())
    other = ResumableSampler(**{"dataset_or_length": LENGTH, "num_replicas": 1, "rank": 0, "seed": 3, **options})
    before = saved(other)
    with pytest.raises(StateMismatchError) as caught:
        other.load_state_dict(state)
    message = str(caught.value)
    assert message.startswith(field)
    assert f"in the checkpoint: {stored}\n" in message
    assert f"in this run:       {own}\n" in message
    assert "strict=False" in message
    assert saved(other) == before
    with pytest.warns(StateMismatchWarning, match="strict=False"):
        other.load_state_dict(state, strict=False)


def test_without_strictness_another_order_goes_on_at_the_place() -> None:
    sampler = make()
    state = {**saved(sampler), "cursor": {"epoch": 1, "position": 9, "step": 9}}
    other = make(seed=4)
    with pytest.warns(StateMismatchWarning, match="in the checkpoint: 3\n"):
        other.load_state_dict(state, strict=False)
    assert list(other) == Shuffle(LENGTH, seed=4).indices(1, 9, LENGTH).tolist()


@pytest.mark.parametrize("values", [None, 7, [], {}, "state", {"format": 2}, {"format": 1, "cursor": {}}])
def test_what_is_no_state_is_refused(values: Any) -> None:
    sampler = make()
    with pytest.raises(StateFormatError, match=r"not a state of a ResumableSampler(.|\n)*Nothing was loaded") as caught:
        sampler.load_state_dict(values)
    assert str(values) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": 2}, "of format 2; this version reads only 1"),
        ({"journal": []}, "the state has journal"),
        ({"cursor": {"epoch": 0, "position": 4, "step": 4, "file": 1}}, "its cursor has file"),
    ],
)
def test_a_state_of_a_newer_version_is_rejected(change: dict[str, Any], told: str) -> None:
    with pytest.raises(StateFormatError, match=f"a newer version of resumable wrote the state: .*{told}"):
        make().load_state_dict({**saved(make()), **change})


def test_the_state_of_a_loader_is_refused() -> None:
    state = resumable.wrap(list(range(LENGTH)), batch_size=4, seed=3).state_dict()
    with pytest.raises(StateFormatError, match="To load a Loader's state, use the Loader"):
        make().load_state_dict(state)


@pytest.mark.parametrize("field", ["sampler", "cursor", "batch_size", "world_size"])
def test_a_truncated_state_is_refused(field: str) -> None:
    state = saved(make())
    del state[field]
    with pytest.raises(StateFormatError, match=f"the field '{field}' is missing"):
        make().load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cursor": {"epoch": 0, "position": 25, "step": 25}}, "position=25"),
        ({"cursor": {"epoch": 0, "position": -1, "step": 0}}, "cursor.position must be .* but it is -1"),
        ({"cursor": {"epoch": 0, "position": 0}}, "the field 'step' is missing"),
        ({"cursor": {"epoch": 1.0, "position": 0, "step": 0}}, "cursor.epoch must be .* but it is 1.0"),
        ({"within_batch": 1}, "1 indices are outside"),
        ({"within_batch": -1}, r"within_batch must be an integer from 0 to \d+, but it is -1"),
        ({"batch_size": 0}, r"batch_size must be an integer from 1 to \d+, but it is 0"),
        ({"world_size": None}, r"world_size must be an integer from 1 to \d+, but it is None"),
        ({"sampler": {"name": "feistel8-v1"}}, "the field 'length' is missing"),
        ({"sampler": 5}, "not iterable"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], told: str) -> None:
    sampler = make()
    next(iter(sampler))
    before = saved(sampler)
    with pytest.raises(StateFormatError, match=told):
        sampler.load_state_dict({**saved(make()), **change})
    assert saved(sampler) == before


# ---------------------------------------------------------------------- in a DataLoader


def loader_of(sampler: ResumableSampler, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(40)), batch_size=4, sampler=sampler, **options)


def batches_of(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for (batch,) in loader]


@pytest.mark.parametrize("drop_last", [False, True])
def test_without_workers_a_state_counts_what_was_handed_over(drop_last: bool) -> None:
    sampler = ResumableSampler(40, 1, 0, batch_size=4)
    golden = batches_of(loader_of(sampler)) + batches_of(loader_of(sampler))
    sampler = ResumableSampler(40, 1, 0, batch_size=4)
    for done, _ in enumerate(loader_of(sampler, drop_last=drop_last), start=1):
        resumed = ResumableSampler(40, 1, 0, batch_size=4)
        resumed.load_state_dict(sampler.state_dict())
        assert sampler.state_dict(batches_done=done) == sampler.state_dict()
        rest = loader_of(resumed, drop_last=drop_last)
        assert len(rest) == 10
        found = batches_of(rest)
        assert (found if done == 10 else found + batches_of(rest)) == golden[done:]


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_batches_done_corrects_workers(persistent: bool) -> None:
    """With workers, the sampler is ahead and `batches_done` says how far."""
    sampler = ResumableSampler(40, 1, 0, batch_size=4)
    golden = [Shuffle(40).indices(epoch, start, start + 4).tolist() for epoch in range(3) for start in range(0, 40, 4)]
    loader = loader_of(sampler, num_workers=2, prefetch_factor=2, persistent_workers=persistent)
    step = 0
    for epoch in range(3):
        for done, (batch,) in enumerate(loader, start=1):
            step += 1
            assert batch.tolist() == golden[step - 1]
            plain, exact = sampler.state_dict()["cursor"], sampler.state_dict(batches_done=done)
            assert plain["step"] == min(done + 4, 10), "two batches for each of two workers are requested ahead"
            assert (exact["cursor"]["epoch"], exact["cursor"]["step"]) == (epoch, done)
            resumed = ResumableSampler(40, 1, 0, batch_size=4)
            resumed.load_state_dict(exact)
            rest = [index for number in range(resumed.epoch, 3) for index in set_and_list(resumed, number)]
            assert rest == [index for batch in golden[step:] for index in batch]


def set_and_list(sampler: ResumableSampler, epoch: int) -> list[int]:
    sampler.set_epoch(epoch)
    return list(sampler)


def test_batches_done_counts_from_where_the_pass_began() -> None:
    sampler = ResumableSampler(40, 1, 0, batch_size=4)
    iterator = iter(sampler)
    for _ in range(12):
        next(iterator)
    first = saved(sampler, batches_done=2)
    assert first["cursor"] == {"epoch": 0, "position": 8, "step": 2}
    sampler.load_state_dict(first)
    assert saved(sampler, batches_done=0) == first
    iterator = iter(sampler)
    for _ in range(12):
        next(iterator)
    assert saved(sampler, batches_done=1)["cursor"] == {"epoch": 0, "position": 12, "step": 3}


@pytest.mark.parametrize("done", [-1, 3, 100])
def test_more_batches_than_were_requested_are_refused(done: int) -> None:
    sampler = ResumableSampler(40, 1, 0, batch_size=4)
    for _ in zip(range(11), sampler, strict=False):
        pass
    message = rf"batches_done={done}\) .* requested 11 indices, which is 2 batches of 4"
    with pytest.raises(ConfigurationError, match=message):
        sampler.state_dict(batches_done=done)


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_wrap_takes_a_loader_with_this_sampler() -> None:
    def wrapped() -> Any:
        return resumable.wrap(loader_of(ResumableSampler(40, 1, 0, batch_size=4, seed=3)), seed=3)

    loader = wrapped()
    golden, states = [], []
    for _ in range(2):
        for (batch,) in loader:
            golden.append(batch.tolist())
            states.append(loader.state_dict())
    assert len(golden) == 20
    for step, state in enumerate(states[:-1], start=1):
        resumed = wrapped()
        resumed.load_state_dict(state)
        rest = batches_of(resumed)
        assert rest == golden[step : step + len(rest)]
        assert len(rest) == 10 - step % 10
