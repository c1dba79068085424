"""`close()` and `with`: what a loader has opened ends, and its place stays."""

from __future__ import annotations

import gc
import os
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable
from resumable.errors import OnePassError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

Children: TypeAlias = "Callable[[], list[BaseProcess]]"
LENGTH = 24


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """Divided among its workers."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        yield from range(info.id if info else 0, LENGTH, info.num_workers if info else 1)


class Remembering(Stream):
    """Counts what was read of it, over all epochs, and has that as its state."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count % 100, LENGTH):
            self.count += 1
            yield 1000 * self.count + number
        self.count = 100 * (self.count // 100 + 1)

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


WORKERS: dict[str, Callable[[], Any]] = {
    "map": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=2),
    "map, persistent": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=2, persistent_workers=True),
    "sampler": lambda: DataLoader(Numbers(), 4, sampler=[*range(5, LENGTH)], num_workers=2, persistent_workers=True),
    "iterable": lambda: DataLoader(Stream(), batch_size=4, num_workers=2),
    "iterable, persistent": lambda: DataLoader(Stream(), batch_size=4, num_workers=2, persistent_workers=True),
    "state, persistent": lambda: DataLoader(Remembering(), batch_size=4, num_workers=2, persistent_workers=True),
}
SOME = ["map, persistent", "state, persistent"]


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in batches]


def run(loader: resumable.Loader[Any]) -> list[Any]:
    return [(int(epoch), batch) for epoch in loader.epochs(2) for batch in plain(epoch)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKERS)
def test_closed_loader_has_no_workers(kind: str, own_children: Children) -> None:
    """A closed loader has no workers and continues, in an epoch and between two."""
    with resumable.wrap(WORKERS[kind](), seed=5) as loader:
        golden = run(loader)
    per_epoch = sum(epoch == 0 for epoch, _ in golden)
    for taken in (1, per_epoch - 1, per_epoch, per_epoch + 1):
        loader = resumable.wrap(WORKERS[kind](), seed=5)
        got = []
        for batch in _endless(loader):
            got += plain([batch])
            if len(got) == taken:
                break
        assert len(own_children()) == 2 or taken == per_epoch
        before = loader.state_dict()
        loader.close()
        assert not own_children()
        assert loader.state_dict() == before
        loader.close()
        assert got + [batch for _, batch in run(loader)] == [batch for _, batch in golden]
        loader.close()
        assert not own_children()


def _endless(loader: resumable.Loader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME)
def test_workers_that_wait_for_the_next_epoch_end(kind: str, own_children: Children) -> None:
    golden = run(resumable.wrap(WORKERS[kind]()))
    loader = resumable.wrap(WORKERS[kind]())
    first = plain(loader)
    assert len(own_children()) == 2
    loader.close()
    assert not own_children()
    assert first + plain(loader) == [batch for _, batch in golden]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOME)
def test_the_end_of_a_with_block_ends_the_workers(kind: str, own_children: Children) -> None:
    with resumable.wrap(WORKERS[kind]()) as loader:
        next(iter(loader))
        assert len(own_children()) == 2
    assert not own_children()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "state, persistent"])
def test_an_exception_leaves_a_with_block_as_it_is(kind: str, own_children: Children) -> None:
    """Its traceback holds the iterator, and so would hold the workers."""
    boom = KeyError("boom")

    def train() -> None:
        with resumable.wrap(WORKERS[kind]()) as loader:
            iterator = iter(loader)
            next(iterator)
            raise boom

    with pytest.raises(KeyError) as caught:
        train()
    assert caught.value is boom
    assert not hasattr(boom, "__notes__")
    assert not own_children()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "on_death"),
    [
        *((kind, "error") for kind in WORKERS),
        *(pytest.param(kind, "restart", marks=[pytest.mark.long] * (kind not in SOME)) for kind in WORKERS),
    ],
)
def test_in_a_cycle_it_is_no_wait_for_the_garbage_collector(kind: str, on_death: Any, own_children: Children) -> None:
    """As where an error's traceback holds the loop, and the loop the error."""
    cycle: list[Any] = [iter(resumable.wrap(WORKERS[kind](), on_worker_death=on_death))]
    next(cycle[0])
    cycle.append(cycle)
    assert len(own_children()) == 2
    began = time.monotonic()
    del cycle
    gc.collect()
    assert not own_children()
    assert time.monotonic() - began < 4, "a worker was waited for until torch's time-out of 5 seconds"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_evaluation_leaves_no_workers(kind: str, own_children: Children) -> None:
    """An evaluation has no workers after a `break` nor at its end."""
    loader = resumable.wrap(WORKERS[kind](), evaluation=True)
    first = plain(loader)
    assert not own_children()
    for _ in loader:
        assert len(own_children()) == 2
        break
    assert not own_children()
    held = iter(loader)
    assert plain([next(held)]) == first[:1]
    loader.close()
    assert not own_children()
    assert plain(held) == first[1:]
    assert plain(loader) == first
    assert not own_children()


@pytest.mark.slow
def test_a_forked_process_leaves_the_workers_to_its_parent(own_children: Children) -> None:
    for kind in ("map", "map, persistent"):
        loader = resumable.wrap(WORKERS[kind](), seed=5)
        golden = plain(resumable.wrap(WORKERS[kind](), seed=5))
        iterator = iter(loader)
        got = [next(iterator)]

        def close(loader: resumable.Loader[Any] = loader) -> None:
            with loader:
                pass

        in_a_fork(close)
        assert len(own_children()) == 2
        assert plain([*got, *iterator]) == golden
        in_a_fork(close)
        workers = set(own_children())
        plain(loader)
        if kind == "map, persistent":
            assert set(own_children()) == workers
        loader.close()


def in_a_fork(call: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python's, where there are threads
        child = os.fork()
    if child == 0:
        try:
            call()
        except BaseException:  # noqa: BLE001  # whatever it is, the parent has to see it
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ---------------------------------------------------------------------- sources in this process


def test_a_generator_is_closed_and_opened_again() -> None:
    ended = []

    def numbers(epoch: int) -> Iterator[int]:
        try:
            yield from range(10 * epoch, 10 * epoch + 5)
        finally:
            ended.append(epoch)

    with resumable.wrap(numbers) as loader:
        iterator = iter(loader)
        assert [next(iterator), next(iterator)] == [0, 1]
        assert not ended
    assert ended == [0]
    assert list(iterator) == [2, 3, 4]
    assert list(loader) == [10, 11, 12, 13, 14]


def test_only_own_openings_are_closed(tmp_path: Any) -> None:
    """A source that a function opens is closed, and one that the user opened is not."""
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    opened = []

    def lines() -> Any:
        opened.append(path.open())
        return opened[-1]

    loader = resumable.wrap(lines)
    assert next(iter(loader)) == "a\n"
    loader.close()
    assert opened[0].closed
    assert list(loader) == ["b\n", "c\n"]
    loader.close()
    assert all(one.closed for one in opened)
    with path.open() as own:
        mine = resumable.wrap(own)
        assert next(iter(mine)) == "a\n"
        mine.close()
        assert own.readline() == "b\n"


def test_a_generator_that_can_be_read_once_is_over() -> None:
    ended = []

    def numbers() -> Iterator[int]:
        try:
            yield from range(5)
        finally:
            ended.append(True)

    with resumable.wrap(numbers()) as loader:
        assert next(iter(loader)) == 0
    assert ended == [True]
    with pytest.raises(OnePassError):
        next(iter(loader))


class Pool:
    """A backend with threads of its own that live on."""

    kind = "pool"
    length = 5

    def __init__(self) -> None:
        self.identity = {"source": "pool"}
        self.log: list[str] = []

    def read(self, requests: Any) -> Iterator[Any]:
        self.log.append("opened")
        try:
            for request in requests:
                yield list(request.indices)
        finally:
            self.log.append("ended")

    def close(self) -> None:
        self.log.append("closed")


def test_a_backend_of_ones_own_is_closed_after_its_iterator() -> None:
    backend = Pool()
    with resumable.wrap(backend) as loader:
        iterator = iter(loader)
        assert next(iterator) == [0]
    assert backend.log == ["opened", "ended", "closed"]
    assert list(iterator) == [[1], [2], [3], [4]]


def test_in_flight_batches_may_be_acknowledged_after_it() -> None:
    loader = resumable.wrap(range(5), ack="manual")
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [0, 1]
    before = loader.state_dict()
    loader.close()
    assert loader.state_dict() == before
    loader.ack()
    assert loader.acknowledged.step == 1
    assert next(iterator) == 2
    loader.close()
    loader.rewind()
    assert list(loader) == [1, 2, 3, 4]


def test_closed_before_the_first_batch_and_after_a_look() -> None:
    loader = resumable.wrap(range(3))
    loader.close()
    assert loader.peek() == 0
    loader.close()
    assert list(loader) == [0, 1, 2]
    assert loader.peek() == 0
    before = loader.state_dict()
    loader.close()
    assert (loader.state_dict(), loader.epoch) == (before, 1)
    assert list(loader) == [0, 1, 2]
    assert loader.epoch == 2


def test_another_thread_is_refused_while_a_batch_is_read() -> None:
    reading, go, refused = threading.Event(), threading.Event(), list[BaseException]()

    def read(sample: int) -> int:
        if sample == 1:
            reading.set()
            assert go.wait(60)
        return sample

    loader = resumable.wrap(range(4), transform=read)

    def intrude() -> None:
        assert reading.wait(60)
        try:
            loader.close()
        except UnsupportedError as error:
            refused.append(error)
        go.set()

    intruder = threading.Thread(target=intrude, name="the other")
    intruder.start()
    assert list(loader) == [0, 1, 2, 3]
    intruder.join(60)
    told = "closed while a different thread.*\n  reading:   thread 'MainThread'\n  closed by: thread 'the other'"
    with pytest.raises(UnsupportedError, match=told):
        raise refused[0]


def test_what_reads_a_batch_cannot_close_meanwhile() -> None:
    refused: list[BaseException] = []

    def read(sample: int) -> int:
        if sample == 1:
            try:
                loader.close()
            except UnsupportedError as error:
                refused.append(error)
        return sample

    loader = resumable.wrap(range(3), transform=read)
    assert list(loader) == [0, 1, 2]
    assert "inside its own next()" in str(refused[0])


def test_what_goes_wrong_at_the_end_of_a_with_block_is_a_note() -> None:
    class Stubborn(Pool):
        def close(self) -> None:
            raise OSError("it does not close")

    with pytest.raises(KeyError) as caught, resumable.wrap(Stubborn()) as loader:
        next(iter(loader))
        raise KeyError("mine")
    assert caught.value.__notes__ == ["resumable: closing the loader also failed: OSError: it does not close"]
    with pytest.raises(OSError, match="does not close"), resumable.wrap(Stubborn()):
        pass
