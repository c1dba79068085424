"""What workers are asked for: positions, resolved where the samples are read."""

from __future__ import annotations

import os
import pickle
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable import Cursor, Request, World
from resumable._fetch.failures import describe_death, is_death
from resumable._fetch.order import Order
from resumable._fetch.reader import Reader
from resumable._fetch.workers import RequestDataset, Workers, _inherited, _Messages
from resumable._order.plan import Schedule
from resumable.errors import BackendError, SampleError, WorkerError
from resumable.samplers import Sequential, Shuffle, Subset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.samplers import Sampler

LENGTH = 22


class Told(Dataset[tuple[int, int]]):
    """Says which sample was read, and in which process."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, int]:
        return int(index), os.getpid()


class Noting:
    """A sampler that notes where it is asked, and cannot be pickled."""

    def __init__(self, length: int = LENGTH) -> None:
        self._inner = Shuffle(length, seed=1)
        self.length = length
        self.asked: list[tuple[int, int]] = []
        self.unpicklable = lambda: None

    def indices(self, epoch: int, start: int, stop: int) -> Any:
        self.asked.append((start, stop))
        return self._inner.indices(epoch, start, stop)

    def spec(self) -> dict[str, int | str]:
        return self._inner.spec()


def wrap(workers: int = 2, size: int = 4, sampler: Sampler | None = None, **options: Any) -> Any:
    loader = DataLoader(
        Told(), batch_size=size, num_workers=workers, collate_fn=list, shuffle=True, persistent_workers=workers > 0
    )
    return resumable.wrap(loader, seed=1, sampler=sampler, on_change="continue", **options)


def indices(batches: Any) -> list[list[int]]:
    return [[index for index, _ in batch] for batch in batches]


def processes(batches: Any) -> set[int]:
    return {process for batch in batches for _, process in batch}


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_are_computed_where_the_samples_are_read(workers: int) -> None:
    sampler = Noting()
    loader = wrap(workers, sampler=sampler)
    batches = list(loader)
    assert indices(batches) == indices(wrap(0))
    assert len(processes(batches)) == max(workers, 1)
    assert bool(sampler.asked) is (workers == 0)


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["drop", "pad", "partial", "carry"])
def test_workers_read_what_the_training_process_would_read(tail: Any) -> None:
    """Over epochs, from every place."""
    loader, here = wrap(2, tail=tail), wrap(0, tail=tail)
    for epoch in range(2):
        assert indices(loader) == indices(here)
        for step in range(loader.total_steps(epoch)):
            loader.seek(epoch=epoch, step=step)
            here.seek(epoch=epoch, step=step)
            assert indices([next(iter(loader))]) == indices([next(iter(here))])
        loader.seek(epoch=epoch, step=loader.total_steps(epoch))
        here.seek(epoch=epoch, step=loader.total_steps(epoch))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [None, Noting()], ids=["pickled", "listed"])
def test_another_plan_reaches_living_workers(sampler: Sampler | None) -> None:
    """A state of another global batch moves the borders of the batches; the workers are those of before."""
    other = wrap(0, 5, sampler=sampler)
    next(iter(other))
    state = other.state_dict()
    expected = [*indices(other), *indices(other)]
    loader = wrap(2, 4, sampler=sampler)
    before = [next(iter(loader)) for _ in range(3)]
    loader.load_state_dict(state)
    assert loader.global_batch_size == 4, "the state's batches were of 5 samples"
    rest = list(loader)
    assert [index for batch in indices(rest) for index in batch] == [i for batch in expected[:4] for i in batch][:17]
    loader.load_state_dict(wrap(0, 4, sampler=sampler, world=World(0, 1)).state_dict())
    assert indices(loader) == indices(wrap(0, 4, sampler=sampler))
    assert processes([*before, *rest]) == processes(before)


def orders(*lengths: int) -> Iterator[Order]:
    order = None
    for length in lengths:
        plan = Schedule(length, 2, "pad")
        order = Order(Sequential(100), plan, 0) if order is None else order.changed(plan)
        yield order


def requests(order: Order, steps: int) -> list[Request]:
    found = list(order.rest_of_epoch(Cursor(), World(0, 1), deque()))
    return found[:steps]


def pool(count: int, **options: Any) -> Workers:
    options = {"num_workers": count, "persistent_workers": count > 0, **options}
    return Workers(RequestDataset(Reader(Told(), list, "off"), in_worker=count > 0), lambda: options)


def test_every_worker_is_told_before_it_is_asked() -> None:
    """Every worker is told before it is asked, also if a run is short.

    The plans differ in what is at a position, so that one that is not told would be seen.
    """
    workers = pool(2)
    living: set[int] = set()
    for order in orders(7, 9, 5, 7):
        for steps in (1, 9):  # the first run reaches one worker only
            batches = list(workers.run(requests(order, steps)))
            assert indices(batches) == [request.indices.tolist() for request in requests(order, steps)]  # type: ignore[union-attr]
            living |= processes(batches)
    assert len(living) == 2
    workers.end()


def test_two_runs_at_once_have_processes_of_their_own() -> None:
    workers = pool(1)
    first, second = orders(7, 9)
    one, other = workers.run(requests(first, 4)), workers.run(requests(second, 5))
    both = list(zip(one, other, strict=False))
    assert indices(mine for mine, _ in both) == [[0, 1], [2, 3], [4, 5], [6, 0]]
    assert indices(theirs for _, theirs in both) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert not processes(mine for mine, _ in both) & processes(theirs for _, theirs in both)
    one.close()
    other.close()
    workers.end()


def test_a_run_without_requests_starts_nothing() -> None:
    assert list(pool(3).run([])) == []


def test_a_worker_that_was_not_told_reads_nothing() -> None:
    first, second = orders(7, 9)
    dataset = RequestDataset(Reader(Told(), list, "off"))
    (request,) = requests(first, 1)
    with pytest.raises(BackendError, match=r"does not have.*\n  its order: None\n.*\(0, 0, 0, 0, 2, 0\)"):
        dataset[request[:6]]
    dataset.order = second
    with pytest.raises(BackendError, match=r"its order: <Order 1"):
        dataset[request[:6]]


def test_sent_are_numbers_and_one_order() -> None:
    """Numbers are sent, and the order once to each worker."""
    first, second = orders(7, 9)
    messages = _Messages(2, first)
    messages.requests = requests(first, 3)
    assert all(type(message) is tuple and len(message) == 6 for message in messages)
    messages.requests = requests(second, 5)
    sent = list(messages)
    assert [type(message).__name__ for message in sent] == ["_Introduction"] * 2 + ["tuple"] * 3
    assert sent[0][0] is sent[1][0], "it is pickled once"
    assert sent[0].pickled == pickle.dumps(second.plan), "the samples are those of before"  # type: ignore[union-attr]


def test_a_table_is_not_sent_again() -> None:
    """Workers that know the samples are told another plan alone; one that knows none gets the order."""
    table = Subset(range(100_000), Shuffle(100_000, seed=1))
    first = Order(table, Schedule(LENGTH, 2, "pad"), 0)
    later = first.changed(Schedule(LENGTH, 3, "pad")).changed(Schedule(LENGTH, 4, "pad"))
    messages = _Messages(2, first)
    messages._known[1] = None
    messages.requests = requests(later, 2)
    known, unknown = messages
    assert len(known.pickled) < 1000  # type: ignore[union-attr]
    assert len(unknown.pickled) > 800_000  # type: ignore[union-attr]
    for message, order in ((known, first), (unknown, None)):
        dataset = RequestDataset(Reader(Told(), list, "off"))
        dataset.order = order
        found = dataset.request_of(message)
        assert (found.version, found.indices.tolist()) == (2, Request(*found[:6], later).indices.tolist())  # type: ignore[union-attr]
    other = Order(table, Schedule(LENGTH, 3, "pad"), seed=1, version=1)
    assert other.samples != first.samples, "the keys are others"


def test_an_order_that_cannot_be_pickled_is_not_sent() -> None:
    order = Order(Noting(), Schedule(LENGTH, 2, "drop"), 0)
    (request,) = requests(order, 1)
    messages = _Messages(1, None)
    messages.requests = [request]
    assert list(messages) == [request]
    assert _inherited(request, {"num_workers": 1, "multiprocessing_context": "spawn"}) is None
    assert _inherited(request, {"num_workers": 1, "multiprocessing_context": "fork"}) is order
    (plain,) = requests(next(orders(7)), 1)
    assert _inherited(plain, {"num_workers": 1, "multiprocessing_context": "spawn"}) is plain.order


def test_a_users_sampler_lists_its_indices() -> None:
    class Own:
        def __iter__(self) -> Iterator[int]:
            return iter([3, 1, 2, 0, 5])

        def __len__(self) -> int:
            return 5

    loader = DataLoader(Told(), 2, sampler=Own(), num_workers=1, collate_fn=list)
    assert indices(resumable.wrap(loader, seed=1)) == [[3, 1], [2, 0], [5]]


DEATHS = {
    "killed": RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
    "gone": RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"),
    "reset": ConnectionResetError(104, "Connection reset by peer"),
    "end of file": EOFError(),
    "pinning": RuntimeError("Pin memory thread exited unexpectedly"),
}


@pytest.mark.parametrize("error", DEATHS.values(), ids=DEATHS)
def test_every_way_in_which_a_death_is_told_is_known(error: Exception) -> None:
    assert is_death(error)
    told = describe_death(error)
    assert isinstance(told, WorkerError)
    assert str(told).startswith("a worker process died: ")
    assert "The loader's state does not count this batch" in str(told)


def test_what_is_no_death_is_not_taken_for_one() -> None:
    for error in (
        RuntimeError("Caught RuntimeError in DataLoader worker process 0."),
        ConnectionError("Caught ConnectionError in DataLoader worker process 0."),
        SampleError("DataLoader worker"),
        RuntimeError("shapes do not match"),
        ValueError("DataLoader worker"),
    ):
        assert not is_death(error)
    late = RuntimeError("DataLoader timed out after 3 seconds")
    assert is_death(late)
    assert "did not answer" in str(describe_death(late))
