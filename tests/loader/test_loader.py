"""The Loader: epochs, breaks, acknowledgement, seeking, resizes, and states that do not fit."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable import Cursor, World
from resumable.errors import (
    ConfigurationError,
    StateFormatError,
    StateMismatchError,
    StateMismatchWarning,
    UnevenBatchError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def make(length: int = 23, **options: Any) -> resumable.Loader:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True}
    return resumable.wrap(range(length), **settings | options)


def state_after(batches: int, **options: Any) -> dict[str, Any]:
    loader = make(**options)
    for _ in zip(range(batches), loader, strict=False):
        pass
    return loader.state_dict()


# ---------------------------------------------------------------------- epochs


def test_code_behind_the_inner_loop_runs_once() -> None:
    """Code behind the inner loop runs once per epoch, whenever the run is killed.

    A crash between the last batch and the end-of-epoch code neither skips nor doubles that code.
    """

    def train(state: dict[str, Any] | None, kill_at: int) -> tuple[list[str], dict[str, Any] | None]:
        """Save after each batch and at the end of the body; `kill_at` counts the things done."""
        loader, log, saved = make(), list[str](), state
        if state is not None:
            loader.load_state_dict(state)
        for epoch in loader.epochs(3):
            for batch in epoch:
                if len(log) == kill_at:
                    return log, saved
                log.append(f"train {epoch.number} {batch}")
                saved = loader.state_dict()
            if len(log) == kill_at:
                return log, saved
            log.append(f"validate {epoch.number}")
            saved = loader.state_dict()
        return log, None

    golden, _ = train(None, -1)
    assert sum(line.startswith("validate") for line in golden) == 3
    for kill_at in range(len(golden)):
        before, saved = train(None, kill_at)
        after, _ = train(saved, -1)
        assert before + after == golden, f"killed after {kill_at} things"


def test_the_plain_form_counts_epochs_by_the_loader() -> None:
    for batches in range(13):
        loader = make()
        loader.load_state_dict(state_after(batches) if batches else loader.state_dict())
        epochs = [number for number in range(loader.epoch, 3) if sum(1 for _ in loader)]
        assert epochs == list(range(0 if batches < 6 else 1, 3))


def test_an_epoch_that_is_left_is_over() -> None:
    loader, seen = make(), []
    for epoch in loader.epochs(3):
        for batch in epoch:
            seen.append((epoch.number, batch))
            break
    fresh = make()
    assert seen == [(number, next(iter(epoch))) for number, epoch in enumerate(fresh.epochs(3))]


def test_an_exhausted_iterator_stays_exhausted() -> None:
    loader = make()
    iterator = iter(loader)
    assert len(list(iterator)) == 6
    assert list(iterator) == []
    assert len(list(loader)) == 6


def test_iterators_share_the_position() -> None:
    loader = make()
    run = list(make())
    got = [next(iter(loader)), next(iter(loader)), *loader]
    assert got == run


def test_a_rollback_in_the_end_of_epoch_code_is_followed() -> None:
    loader, seen, rolled = make(), [], False
    middle = state_after(3)
    for epoch in loader.epochs(2):
        seen += [(epoch.number, batch) for batch in epoch]
        if not rolled:
            rolled = True
            loader.load_state_dict(middle)
    run = [(epoch.number, batch) for epoch in make().epochs(2) for batch in epoch]
    assert seen == run[:6] + run[3:]


def test_the_cursor_counts_steps_and_samples() -> None:
    loader = make()
    assert loader.cursor == Cursor(0, 0, 0)
    cursors = [loader.cursor for _ in loader]
    assert cursors == [Cursor(0, min(4 * step, 23), step) for step in range(1, 7)]
    assert loader.cursor == Cursor(1, 0, 0)
    assert loader.epoch == 1


# ---------------------------------------------------------------------- acknowledgement


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_acknowledged_late_as_by_a_trainer_that_fetches_ahead() -> None:
    run = [batch for epoch in make().epochs(2) for batch in epoch]
    loader, trained = make(ack="manual"), []
    for epoch in loader.epochs(2):
        ahead: list[Any] = []
        for batch in epoch:
            ahead.append(batch)
            if len(ahead) == 3:
                trained.append(ahead.pop(0))
                loader.ack()
                fresh = make(ack="manual")
                fresh.load_state_dict(loader.state_dict())
                assert next(iter(fresh)) == run[len(trained)]
        trained += ahead
        loader.ack(len(ahead))
    assert trained == run


def test_unacknowledged_after_rewind() -> None:
    """Batches that were not acknowledged are delivered again after a rewind."""
    run = list(make())
    loader = make(ack="manual")
    got = [next(iter(loader)), next(iter(loader))]
    assert got == run[:2], "a new iterator delivers nothing twice"
    assert (loader.cursor.step, loader.acknowledged.step) == (2, 0)
    loader.ack()
    assert loader.acknowledged.step == 1
    loader.rewind()
    assert loader.cursor.step == 1
    assert list(loader) == run[1:]


def test_an_epoch_left_with_unacknowledged_batches_is_an_error() -> None:
    loader = make(ack="manual")
    with pytest.raises(ConfigurationError, match="epoch 0 was left with 6 delivered batches"):
        for epoch in loader.epochs(2):
            list(epoch)


def test_acknowledging_too_much_is_an_error() -> None:
    loader = make(ack="manual")
    next(iter(loader))
    with pytest.raises(ConfigurationError, match=r"ack\(2\) was called, but 1 batches are waiting"):
        loader.ack(2)
    with pytest.raises(ConfigurationError, match='wrapped with ack="auto"'):
        make().ack()


# ---------------------------------------------------------------------- time travel


@pytest.mark.parametrize("tail", ["drop", "pad", "partial", "carry"])
def test_any_batch_can_be_sought(tail: Any) -> None:
    golden = make(tail=tail)
    run = [(golden_epoch.number, batch) for golden_epoch in golden.epochs(3) for batch in golden_epoch]
    loader, number = make(tail=tail), 0
    for epoch in range(3):
        for step in range(len(make(tail=tail)) if tail != "carry" else loader.total_steps(epoch)):
            loader.seek(epoch=epoch, step=step)
            assert [(e.number, batch) for e in loader.epochs(3) for batch in e] == run[number:]
            assert loader.sample_indices(epoch=epoch, step=step) == run[number][1]
            number += 1
    assert number == len(run)


def test_the_samples_of_a_rank_are_told_without_reading() -> None:
    parts = [make(world=World(rank, 2), tail="drop").sample_indices(epoch=5, step=1, rank=rank) for rank in range(2)]
    assert parts[0] + parts[1] == make(batch_size=8, tail="drop").sample_indices(epoch=5, step=1)


def test_there_is_no_batch_outside_of_the_epoch() -> None:
    with pytest.raises(
        ConfigurationError, match=r"has 6 batches, so step 7 does not exist\.\nBatches count from 0; step 6 is the end"
    ):
        make().seek(epoch=0, step=7)
    with pytest.raises(ConfigurationError, match="epoch=-1, step=0 is not a position"):
        make().seek(epoch=-1)
    with pytest.raises(ConfigurationError, match="has 6 batches, so step 6 does not exist"):
        make().sample_indices(epoch=0, step=6)


# ---------------------------------------------------------------------- ranks and batch sizes


def test_the_share_of_a_rank_is_derived_after_a_resize() -> None:
    """Through several resizes, with the script's batch size unchanged."""
    run = [batch for epoch in make(48, batch_size=8).epochs(1) for batch in epoch]
    state, step = None, 0
    for size in (4, 2, 1, 4, 8):
        loaders = [make(48, batch_size=2, world=World(rank, size)) for rank in range(size)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        assert loaders[0].global_batch_size == 8
        assert [sample for loader in loaders for sample in next(iter(loader))] == run[step]
        state, step = loaders[0].state_dict(), step + 1


def test_a_global_batch_that_cannot_be_shared_is_refused_on_load() -> None:
    state = state_after(2, batch_size=2, length=48)
    loader = make(48, batch_size=2, world=World(0, 3))
    with pytest.raises(UnevenBatchError, match="3 ranks cannot share a global batch of 2 samples"):
        loader.load_state_dict(state)
    assert loader.cursor == Cursor()


def test_a_changed_batch_size_is_refused_or_moves_the_borders() -> None:
    order = [sample for batch in make() for sample in batch]
    state = state_after(2)
    with pytest.raises(StateMismatchError, match=r"checkpoint: 4 per rank, 4 in total\n.*: +5 per rank, 5 in total"):
        make(batch_size=5).load_state_dict(state)
    loader = make(batch_size=5, on_change="continue")
    loader.load_state_dict(state)
    assert len(loader) == 5
    assert list(loader) == [order[start : start + 5] for start in (8, 13, 18)]
    assert loader.state_dict()["global_batch"] == 5


def test_same_global_batch_is_accepted() -> None:
    """A batch size that gives the same global batch is accepted."""
    state = state_after(2, batch_size=8, length=48)
    loader = make(48, batch_size=4, world=World(1, 2))
    loader.load_state_dict(state)
    assert loader.global_batch_size == 8


# ---------------------------------------------------------------------- states


def test_a_state_is_small_plain_and_the_same_on_all_ranks() -> None:
    states = []
    for rank in range(3):
        loader = resumable.wrap(range(10**12), batch_size=64, shuffle=True, world=World(rank, 3))
        loader.seek(epoch=10**6, step=10**9)
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1] == states[2]
    assert len(json.dumps(states[0])) < 1024
    assert json.loads(json.dumps(states[0])) == states[0]


def test_a_state_is_a_fresh_copy() -> None:
    loader = make()
    state = loader.state_dict()
    before = copy.deepcopy(state)
    next(iter(loader))
    assert state == before
    state["cursor"]["epoch"] = 99
    assert loader.state_dict()["cursor"]["epoch"] == 0


@pytest.mark.parametrize("wrong", [None, {}, [], "state", {"format": "1"}, {"format": 0}, {"step": 3}])
def test_what_is_no_state_is_refused(wrong: Any) -> None:
    with pytest.raises(StateFormatError, match="expected a state of a Loader"):
        make().load_state_dict(wrong)


def test_a_newer_state_is_refused() -> None:
    with pytest.raises(
        StateFormatError,
        match="newer version of resumable wrote the state: format 4, but this version reads only up to 3",
    ):
        make().load_state_dict({**state_after(1), "format": 4})


def test_a_truncated_state_is_refused_whatever_is_missing() -> None:
    state, loader = state_after(1), make()
    for field in set(state) - {"format"}:
        with pytest.raises(StateFormatError, match="truncated or damaged"):
            loader.load_state_dict({name: value for name, value in state.items() if name != field})
    for group in ("cursor", "backend", "sampler", "randomness"):
        for field in state[group]:
            cut = {**state, group: {name: value for name, value in state[group].items() if name != field}}
            with pytest.raises((StateFormatError, StateMismatchError), match=field):
                loader.load_state_dict(cut)
    assert loader.cursor == Cursor()


@pytest.mark.parametrize(
    ("field", "value"), [("epoch", -1), ("epoch", 0.5), ("position", "8"), ("position", 10**9), ("step", None)]
)
def test_a_damaged_cursor_is_refused(field: str, value: Any) -> None:
    state = state_after(1)
    state["cursor"][field] = value
    with pytest.raises(StateFormatError, match=f"{value!r}|position 1000000000 is after"):
        make().load_state_dict(state)


MISMATCHES: dict[str, tuple[Callable[[], resumable.Loader], str, str]] = {
    "seed": (lambda: make(seed=8), "0", "8"),
    "the number of samples (backend.length)": (lambda: make(24), "23", "24"),
    "shuffle (sampler.name)": (lambda: make(shuffle=False), "shuffle=True", "shuffle=False"),
    "tail": (lambda: make(tail="drop"), "'partial'", "'drop'"),
    "randomness (randomness.mode)": (lambda: make(randomness="off"), "'sample'", "'off'"),
    "the kind of source (backend.kind)": (
        lambda: resumable.wrap(lambda: iter(range(23)), batch_size=4),
        "'sequence'",
        "'iterable'",
    ),
    "backend.source": (lambda: make(identity="other"), "'sequence'", "'other'"),
}


@pytest.mark.parametrize("field", MISMATCHES)
def test_state_of_another_run_is_explained(field: str) -> None:
    """A state of a different run is rejected with both values and the fix."""
    other, before, now = MISMATCHES[field]
    loader = other()
    with pytest.raises(StateMismatchError, match=rf"{re.escape(field)} differs") as caught:
        loader.load_state_dict(state_after(2))
    _, checkpoint, run, way_out = str(caught.value).split("\n", 3)
    assert (checkpoint, run) == (f"  in the checkpoint: {before}", f"  in this run:       {now}")
    assert way_out
    assert loader.cursor == Cursor()


def test_a_mismatch_is_accepted_where_that_is_asked_for() -> None:
    loader = make(seed=8)
    with pytest.warns(StateMismatchWarning, match="the seed differs") as caught:
        loader.load_state_dict(state_after(2), strict=False)
    assert {warning.filename for warning in caught} == {__file__}
    assert list(loader) == list(make(seed=8))[2:]
    with pytest.raises(StateMismatchError, match=r"backend.kind"):
        resumable.wrap(lambda: iter(range(23)), batch_size=4).load_state_dict(state_after(2), strict=False)


# ---------------------------------------------------------------------- wrap


@pytest.mark.parametrize("seed", [-1, 0.5, "7", True])
def test_a_bad_seed_is_refused(seed: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"integer of 0 or more, but it is {seed!r}"):
        make(seed=seed)


@pytest.mark.parametrize("size", [0, -1, 2.5, "4", True])
def test_a_bad_batch_size_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"batch_size must be an integer of 1 or more, but it is {size!r}"):
        make(batch_size=size)


@pytest.mark.parametrize(
    "options", [{"ack": "never"}, {"on_change": "ignore"}, {"randomness": "worker"}, {"tail": "wrap"}]
)
def test_an_unknown_choice_is_refused_with_those_there_are(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(ConfigurationError, match=f"{name} must be one of .*, but it is {value!r}"):
        make(**options)


@pytest.mark.parametrize("thing", [None, 3, "text", b"bytes", {"a": 1}, {1, 2}])
def test_what_is_no_source_is_refused(thing: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot wrap an object of type builtins.{type(thing).__name__}"):
        resumable.wrap(thing)


def test_a_loader_is_not_wrapped_again() -> None:
    with pytest.raises(UnsupportedError, match="already a Loader"):
        resumable.wrap(make())


def test_trainers_do_not_take_a_loader_for_what_it_is_not() -> None:
    loader = make()
    assert not {"sampler", "batch_sampler", "drop_last", "_iterator"} & set(dir(loader))
    assert not isinstance(loader, (list, dict, tuple))
