"""Counters that only grow, and loops that count steps instead of epochs."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from released_states import MAKERS, Reader, rarely, run

import resumable
from resumable import Cursor, World
from resumable.errors import ConfigurationError, DataError, LoopWarning, OnePassError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NAMES = [pytest.param(name, marks=[pytest.mark.slow] * ("workers" in name)) for name in MAKERS]
MANUAL = [
    lambda: resumable.wrap(list(range(7)), batch_size=2, shuffle=True, seed=3, ack="manual"),
    lambda: resumable.wrap(Reader(), seed=3, ack="manual"),
    lambda: resumable.wrap(rarely(Reader(), 2), seed=3, ack="manual"),
    lambda: resumable.wrap(Reader(7), batch_size=2, tail="drop", seed=3, ack="manual"),
    lambda: resumable.wrap(lambda: iter(range(5)), identity="n", batch_size=2, ack="manual"),
]


def make(length: int = 7, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(list(range(length)), **{"batch_size": 2, "shuffle": True, "seed": 3, **options})


def resumed(fresh: Callable[[], resumable.Loader[Any]], state: dict[str, Any]) -> resumable.Loader[Any]:
    loader = fresh()
    loader.load_state_dict(state)
    return loader


def plain(batch: Any) -> Any:
    return batch if isinstance(batch, (int, list)) else batch.tolist()


def counts(loader: resumable.Loader[Any]) -> tuple[int, int]:
    return loader.global_step, loader.samples_seen


def numbered(loader: resumable.Loader[Any], batches: Iterable[Any]) -> Iterator[tuple[int, int]]:
    for _ in batches:
        yield counts(loader)


# ---------------------------------------------------------------------- the counters


@pytest.mark.parametrize("leave_at", [None, 1])
@pytest.mark.parametrize("name", NAMES)
def test_counters_are_those_of_the_whole_run_from_each_state(name: str, leave_at: int | None) -> None:
    def states(loader: resumable.Loader[Any]) -> Iterator[dict[str, Any]]:
        return (loader.state_dict() for _ in run(loader, leave_at))

    loader = MAKERS[name]()
    known = list(states(loader))
    assert [state["global_step"] for state in known] == list(range(1, len(known) + 1))
    whole = [(state["global_step"], state["samples_seen"]) for state in known]
    for number, state in list(enumerate(known, start=1))[:: 3 if "workers" in name else 1]:
        again = resumed(MAKERS[name], state)
        assert counts(again) == whole[number - 1]
        assert list(numbered(again, run(again, leave_at))) == whole[number:]


def test_seeking_and_leaving_keep_what_was_trained_on() -> None:
    loader = make()
    assert counts(loader) == (0, 0)
    next(iter(loader))
    loader.seek(epoch=4, step=1)
    assert counts(loader) == (1, 2)
    next(iter(loader))
    loader.end_epoch()
    loader.seek(epoch=0)
    assert (counts(loader), loader.cursor) == ((2, 4), Cursor())
    loader.peek()
    next(iter(loader))
    assert counts(loader) == (3, 6)
    loader.load_state_dict(make().state_dict())
    assert counts(loader) == (0, 0)


def test_they_grow_over_resizes_and_batch_changes() -> None:
    """`epoch * len(epoch) + step` counts backwards here, as the epochs become shorter."""
    state, told, naive = make(24, tail="carry").state_dict(), [], []
    for ranks, size in ((1, 2), (1, 8), (2, 4), (4, 1), (1, 3)):
        loader = make(24, batch_size=size, world=World(0, ranks), tail="carry", on_change="continue")
        loader.load_state_dict(state)
        for _ in loader.steps(loader.global_step + 3):
            told.append(counts(loader))
            naive.append(loader.cursor.epoch * len(loader) + loader.cursor.step)
        state = loader.state_dict()
    assert [step for step, _ in told] == list(range(1, 16))
    sizes = [2] * 3 + [8] * 6 + [4] * 3 + [3] * 3
    assert [seen for _, seen in told] == list(itertools.accumulate(sizes))
    assert naive != sorted(naive)


def test_they_grow_when_ranks_change() -> None:
    """They grow if the number of ranks changes, and each keeps its batch."""
    state, told = make(48, tail="drop").state_dict(), []
    for ranks in (1, 4, 2, 3):
        loader = make(48, tail="drop", world=World(0, ranks), on_change="keep_local")
        loader.load_state_dict(state)
        told += list(numbered(loader, loader.steps(loader.global_step + 2)))
        state = loader.state_dict()
    assert told == [(1, 2), (2, 4), (3, 12), (4, 20), (5, 24), (6, 28), (7, 34), (8, 40)]


def test_they_count_what_is_acknowledged() -> None:
    loader = make(ack="manual")
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert counts(loader) == (0, 0)
    loader.ack()
    assert counts(loader) == (1, 2)
    state = loader.state_dict()
    assert counts(loader) == (state["global_step"], state["samples_seen"])


@pytest.mark.parametrize("name", ["global_step", "samples_seen"])
def test_they_are_read_only(name: str) -> None:
    with pytest.raises(AttributeError, match=r"(?s)cannot set .*Only load_state_dict\(\) sets it"):
        setattr(make(), name, 3)


# ---------------------------------------------------------------------- loops that count steps


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_the_batches_of_the_epochs_from_each_state(name: str) -> None:
    whole = list(run(MAKERS[name](), None))
    loader, states = MAKERS[name](), list[dict[str, Any]]()
    for batch in loader.steps(len(whole)):
        assert plain(batch) == whole[len(states)]
        states.append(loader.state_dict())
    assert len(states) == len(whole)
    for number, state in list(enumerate(states, start=1))[:: 3 if "workers" in name else 1]:
        again = resumed(MAKERS[name], state)
        assert [plain(batch) for batch in again.steps(len(whole))] == whole[number:]
        ends = again.state_dict(), dict(states[-1])
        for end in ends:  # what a process has seen of the epoch before depends on where it started
            del end["past"], end["digest"]
        assert ends[0] == ends[1]


@pytest.mark.parametrize("total", [0, 1, 3, 4, 5, 11])
def test_a_loop_that_is_left_goes_on(total: int) -> None:
    loader, whole = make(), list(make().steps(total))
    got = [batch for _ in range(total) for batch in itertools.islice(loader.steps(total), 1)]
    assert got == whole
    assert len(got) == total == loader.global_step


def test_epochs_and_steps_mix() -> None:
    loader, whole = make(), list(make().steps(16))
    got = list(loader.steps(2))
    got += list(loader)
    got += list(loader.steps(6))
    got += [batch for epoch in loader.epochs(3) for batch in epoch]
    got += list(loader.steps(16))
    assert got == whole


def test_a_rollback_in_the_loop_is_followed() -> None:
    for back, at in itertools.combinations(range(9), 2):
        loader, got, states = make(), [], [make().state_dict()]
        for batch in loader.steps(9):
            got.append(batch)
            states.append(loader.state_dict())
            if len(got) == at + 1:
                loader.load_state_dict(states[back])
        whole = list(make().steps(9))
        assert got == whole[: at + 1] + whole[back:]
        assert loader.global_step == 9


def test_next_epoch_after_the_last_step() -> None:
    """The next epoch of the loader is the right one after the last step."""
    for total in range(9):
        loader = resumable.wrap(Reader(9), batch_size=4, tail="drop")
        list(loader.steps(total))
        whole = list(resumable.wrap(Reader(9), batch_size=4, tail="drop").steps(10))
        assert list(loader) == whole[total : total + 2 - total % 2], total


def test_without_an_end() -> None:
    batches = make().steps(math.inf)
    assert list(itertools.islice(batches, 40)) == list(make().steps(40))


def test_ranks_get_their_parts_of_the_same_steps() -> None:
    whole = [sorted(batch) for batch in make(8, batch_size=4).steps(7)]
    parts = [list(make(8, world=World(rank, 2)).steps(7)) for rank in range(2)]
    assert [sorted(first + second) for first, second in zip(*parts, strict=True)] == whole


def test_it_counts_no_further_after_its_end() -> None:
    loader = make()
    state, batches = loader.state_dict(), loader.steps(2)
    assert len(list(batches)) == 2
    loader.load_state_dict(state)
    assert list(batches) == []


def fetch_ahead(batches: Iterable[Any], depth: int) -> Iterator[Any]:
    waiting: deque[Any] = deque()
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == depth:
            yield waiting.popleft()
    yield from waiting


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
@pytest.mark.parametrize("fresh", MANUAL)
def test_nothing_is_delivered_beyond_the_total(fresh: Callable[[], resumable.Loader[Any]], depth: int) -> None:
    """With batches in flight over the ends of epochs; and resumed from each state, nothing is lost or repeated."""
    total = 11
    whole, loader, got, states = list(acknowledged(fresh(), total)), fresh(), [], []
    for batch in fetch_ahead(loader.steps(total), depth):
        got.append(batch)
        assert loader.global_step + loader.progress.in_flight <= total
        loader.ack()
        states.append(loader.state_dict())
    assert got == whole
    assert (loader.global_step, loader.progress.in_flight) == (total, 0)
    for number, state in enumerate(states, start=1):
        assert list(acknowledged(resumed(fresh, state), total)) == whole[number:], number


def acknowledged(loader: resumable.Loader[Any], total: int) -> Iterator[Any]:
    for batch in loader.steps(total):
        yield batch
        loader.ack()


def test_unacknowledged_after_rewind() -> None:
    """Batches that were not acknowledged are delivered again after a rewind."""
    for confirmed in range(6):
        loader, whole = make(ack="manual"), list(make().steps(6))
        assert list(loader.steps(6)) == whole
        loader.ack(confirmed)
        with pytest.warns(LoopWarning, match=r"steps\(6\) has no batch left"):
            assert list(loader.steps(6)) == []
        loader.rewind()
        assert list(loader.steps(6)) == whole[confirmed:]


def test_a_sample_that_fails_can_be_read_again() -> None:
    broken = {3}

    def read(number: int) -> int:
        if number in broken:
            raise OSError("no such sample")
        return number

    loader = resumable.wrap(list(range(4)), transform=read)
    batches, got = loader.steps(8), []
    for _ in range(9):
        try:
            got.append(next(batches))
        except OSError:
            broken.clear()
    assert got == [0, 1, 2, 3] * 2


# ---------------------------------------------------------------------- what is refused


def test_a_loader_for_evaluation_has_no_steps() -> None:
    with pytest.raises(UnsupportedError, match=r"steps\(\) was called on a loader with evaluation=True"):
        make(evaluation=True).steps(4)


class Sometimes:
    """Gives batches in some of its epochs."""

    def __init__(self, *lengths: int) -> None:
        self.lengths, self.epoch = lengths, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.lengths[self.epoch % len(self.lengths)]))


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_a_source_without_batches_does_not_loop_for_ever(ack: Any) -> None:
    empty = resumable.wrap(Sometimes(0), ack=ack)
    for batches in (empty.steps(5), empty.steps(5)):
        with pytest.raises(DataError, match=r"epochs \d and \d yielded no batch, .*\n.*tail="):
            next(batches)
    short = resumable.wrap(Sometimes(3), batch_size=4, tail="drop", ack=ack)
    with pytest.raises(DataError, match=r"epochs 0 and 1 yielded no batch"):
        list(short.steps(5))
    ends = resumable.wrap(Sometimes(2, 0, 0), ack=ack)
    batches = ends.steps(5)
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(DataError, match="epochs 1 and 2 yielded no batch"):
        next(batches)


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_an_epoch_without_batches_in_between_is_none(ack: Any) -> None:
    assert list(resumable.wrap(Sometimes(0, 2), ack=ack).steps(5)) == [0, 1, 0, 1, 0]


def test_one_pass_is_one_epoch() -> None:
    loader = resumable.wrap(iter([1, 2, 3]))
    batches = loader.steps(5)
    assert [next(batches) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(OnePassError):
        next(batches)


def test_a_loop_around_steps_is_told() -> None:
    loader = make()
    with pytest.warns(LoopWarning, match=r"steps\(4\) has no batch left, because this process has delivered 4") as told:
        trained = [epoch for epoch in range(2) for _ in loader.steps(4)]
    assert trained == [0] * 4
    assert told[0].filename == __file__
    again = resumed(make, next(loader.state_dict() for _ in loader.steps(5)))
    list(again.steps(6))
    with pytest.warns(LoopWarning, match=r"steps\(6\)"):
        again.steps(6)


def test_stages_and_finished_runs_are_not_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = make()
        assert [len(list(loader.steps(stage))) for stage in (1, 3, 9)] == [1, 2, 6]
        finished = resumed(make, loader.state_dict())
        assert [len(list(finished.steps(stage))) for stage in (3, 9, 10)] == [0, 0, 1]
        finished.load_state_dict(make().state_dict())
        assert len(list(finished.steps(9))) == 9


def test_steps_loop_does_not_count_from_zero() -> None:
    """A loop over steps is not taken for one that counts from zero."""
    loader = make()
    loader.seek(epoch=2)
    again = resumed(make, loader.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(1):
            assert len(list(again.steps(3))) == 3, epoch


# ---------------------------------------------------------------------- other forms of the loop


def by_next(loader: resumable.Loader[Any], total: int) -> Iterator[Any]:
    """As nanoGPT and many others do."""
    assert loader.epoch >= 0, "asked for: the loop does not count epochs"
    iterator = iter(loader)
    while loader.global_step < total:
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            batch = next(iterator)
        yield batch


def by_while(loader: resumable.Loader[Any], total: int) -> Iterator[Any]:
    assert loader.epoch >= 0, "as above"
    while loader.global_step < total:
        for batch in loader:
            yield batch
            if loader.global_step == total:
                break


@pytest.mark.parametrize("form", [by_next, by_while])
@pytest.mark.parametrize("name", ["list", "list, carry", "function", "reader", "sampler", "stateful stream"])
def test_forms_that_are_right(name: str, form: Callable[..., Iterator[Any]]) -> None:
    whole, loader = [plain(batch) for batch in MAKERS[name]().steps(11)], MAKERS[name]()
    states = [loader.state_dict()] + [loader.state_dict() for _ in form(loader, 11)]
    for number, state in enumerate(states):
        assert [plain(batch) for batch in form(resumed(MAKERS[name], state), 11)] == whole[number:]


def test_what_is_wrong_with_cycle() -> None:
    """It keeps all batches of the first epoch, and the loader stays at that epoch's end."""
    loader, epoch = make(), list(make().steps(4))
    got = list(itertools.islice(itertools.cycle(loader), 12))
    assert got == epoch * 3
    assert got[0] is got[4] is got[8]
    assert (loader.cursor, loader.global_step) == (Cursor(1), 4)
    assert list(make().steps(12)) != got


def test_what_is_no_number_of_steps_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="whole number"):
        make().steps("many")  # type: ignore[arg-type]  # on purpose
