"""The queues to worker processes, written to without a thread: nothing is lost, overtaken, or waited for."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from multiprocessing.reduction import ForkingPickler
from queue import Empty
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable._fetch.transport import LARGEST, Answer, _putter, _waiter, begin, pickled_here
from resumable._stats import Made

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL, LARGE = b"small", b"large" * 40_000  # below and above what a pipe holds


@pytest.fixture
def queue() -> Iterator[Any]:
    queue: Any = multiprocessing.get_context("fork").Queue()
    queue.put = _putter(queue)
    queue._poll = _waiter(queue._reader)
    yield queue
    queue.cancel_join_thread()
    queue.close()


def everything(queue: Any, count: int) -> list[Any]:
    return [queue.get(timeout=20) for _ in range(count)]


def test_small_messages_need_no_thread(queue: Any) -> None:
    """Each reader gives back what the writer has taken of the queue's semaphore, or raises."""
    for number in range(100):
        queue.put((number, SMALL))
        assert queue.get(timeout=20) == (number, SMALL)
    assert queue._thread is None


def test_none_overtakes_a_large_one(queue: Any) -> None:
    messages = [(number, LARGE if number in {3, 7} else SMALL) for number in range(20)]
    for message in messages:
        queue.put(message)
    assert queue._thread is not None
    assert everything(queue, len(messages)) == messages


def test_a_full_pipe_is_not_waited_for(queue: Any) -> None:
    """As its reader may be dead, or stopped."""
    messages = [(number, SMALL * 400) for number in range(200)]
    for message in messages:
        queue.put(message)
    assert everything(queue, len(messages)) == messages


def test_a_message_that_cannot_be_pickled_is_the_threads(queue: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """It says so, and goes on with the next."""
    queue.put(lambda: None)
    queue.put(SMALL)
    assert queue.get(timeout=20) == SMALL
    assert "pickle" in capfd.readouterr().err


def test_a_closed_queue_is_told(queue: Any) -> None:
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.put(SMALL)


def test_a_failed_write_leaves_no_view_of_a_buffer(queue: Any) -> None:
    """Python 3.12.1 crashes if the garbage collector frees a `BytesIO` before a view of it."""
    queue._writer.close()
    with pytest.raises(OSError, match="closed") as raised:
        queue.put(SMALL)
    held = [one for frame, _ in walk_tb(raised.tb) for one in frame.f_locals.values()]
    assert any(one == pickle.dumps(SMALL) for one in held if type(one) is bytes)
    assert not [one for one in held if isinstance(one, memoryview)]


def test_a_wait_ends_in_time(queue: Any) -> None:
    begin = time.monotonic()
    with pytest.raises(Empty):
        queue.get(timeout=0.2)
    assert time.monotonic() - begin >= 0.2
    with pytest.raises(Empty):
        queue.get_nowait()
    queue.put(SMALL)
    assert queue.get(timeout=20) == SMALL


class Batches:
    """A sampler of batches, some of whose requests are larger than a pipe."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        for number, size in enumerate(self.sizes):
            yield [(number + 7 * index) % 1000 for index in range(size)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_requests_of_all_sizes_come_in_their_order(context: str, *, persistent: bool) -> None:
    data = torch.arange(1000)
    options: Any = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": persistent}
    sampler: Any = Batches([3, 5, 30_000, 4, 6, 7, 40_000, 2, 1, 8])
    plain: Any = DataLoader(data, batch_sampler=sampler, **options)  # type: ignore[arg-type]  # it has a length
    loader = resumable.wrap(plain, seed=1)
    for _ in range(2):
        whole = [batch.tolist() for batch in loader]
        assert whole == list(sampler)
    loader.close()


class Sized(Dataset[Any]):
    """Tensors that are sent in a message that fits the pipe, in a larger one, and in shared memory."""

    SIZES = (3, 5, 4, 2_000, 7, 300_000, 6, 8, 2_001, 300_001, 2)

    def __len__(self) -> int:
        return 4 * len(self.SIZES)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.SIZES[index % len(self.SIZES)],), float(index))


@pytest.mark.parametrize("workers", [1, 2])
def test_answers_of_all_sizes_come_in_their_order(workers: int) -> None:
    data = Sized()
    loader = resumable.wrap(DataLoader(data, batch_size=None, num_workers=workers))
    assert [(len(one), one[0].item(), one[-1].item()) for one in loader] == [
        (len(one), one[0].item(), one[-1].item()) for one in map(data.__getitem__, range(len(data)))
    ]


class Pickles(Dataset[Any]):
    """Tells whether torch has moved to shared memory what the dataset pickles for a queue of its own."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> bool:
        own: Any = torch.full((3,), index)
        ForkingPickler.dumps(own)
        return bool(own.is_shared())


def test_what_else_a_worker_pickles_is_sent_as_torch_does() -> None:
    """It answers in the thread that reads, whose other messages are none of ours."""
    assert list(resumable.wrap(DataLoader(Pickles(), batch_size=None, num_workers=1))) == [True] * 12


def tries_a_large_one(answers: Any) -> None:
    begin()
    large: Any = torch.zeros(LARGEST)
    small: Any = torch.zeros(3)
    told = "nothing"
    try:
        pickled_here(Answer(Made(large, 0.0, 0.0)))
    except Exception as error:  # noqa: BLE001  # of a private type
        told = type(error).__name__
    content = bytes(pickled_here(Answer(Made(small, 0.0, 0.0))))
    answers.send((told, large.is_shared(), small.is_shared(), content))


def test_large_answer_goes_to_the_thread() -> None:
    """A large answer is left to the thread before it is shared.

    What was moved to shared memory, and is not sent, stays there as long as the worker lives.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=tries_a_large_one, args=(there,))
    process.start()
    told, large, small, content = here.recv()
    process.join()
    assert (told, large, small) == ("_SharedError", False, False)
    assert pickle.loads(content).batch.tolist() == [0, 0, 0]  # noqa: S301  # our own bytes
