"""What a user's code raises while a batch is made arrives as it is, with notes of where it belongs."""

from __future__ import annotations

import errno
import threading
import traceback
from multiprocessing import Value
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable
from resumable._fetch.failures import Sent, note
from resumable.errors import ResumableError, SampleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TwoArgumentsError(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}, line {line}")
        self.path, self.line = path, line


class WordedError(ValueError):
    """Its constructor makes a message of what it is given, so unpickling it says it twice."""

    def __init__(self, path: str) -> None:
        super().__init__(f"cannot read {path}")


class TornFileError(OSError):
    def __init__(self, path: str, *, part: int) -> None:
        super().__init__(errno.EIO, "torn", path)
        self.part = part


class WithLockError(RuntimeError):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock, self.shard = threading.Lock(), 3


class UnprintableError(LookupError):
    def __str__(self) -> str:
        raise ValueError("no words")


MAKERS: dict[str, Callable[[], Exception]] = {
    "file": lambda: FileNotFoundError(errno.ENOENT, "No such file", "a.jpg"),
    "key": lambda: KeyError("label"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
    "two arguments": lambda: TwoArgumentsError("list.txt", 3),
    "worded": lambda: WordedError("a.jpg"),
    "torn": lambda: TornFileError("a.jpg", part=2),
    "lock": lambda: WithLockError("busy"),
    "group": lambda: ExceptionGroup("both", [OSError("one"), KeyError("two")]),
    "connection": lambda: ConnectionResetError("hung up"),
    "end of file": lambda: EOFError("torn archive"),
    "runtime": lambda: RuntimeError("DataLoader worker is a word that a user may say"),
}


class Breaks(Dataset[int]):
    """Raises at sample 5, until it is mended."""

    def __init__(self, make: Callable[[], BaseException]) -> None:
        self.make, self.mended = make, Value("b")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5 and not self.mended.value:
            raise self.make()
        return index


class BreakingStream(IterableDataset[int]):
    def __init__(self, make: Callable[[], BaseException]) -> None:
        self.make, self.mended = make, Value("b")

    def __iter__(self) -> Iterator[int]:
        for number in range(8):
            if number == 5 and not self.mended.value:
                raise self.make()
            yield number


def raised_by(loader: resumable.Loader[Any], into: list[Any]) -> BaseException:
    try:
        into.extend(batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader)
    except Exception as error:  # noqa: BLE001  # of whatever type
        return error
    raise AssertionError("nothing was raised")


def facts(error: BaseException) -> dict[str, Any]:
    kept = {name: value for name, value in vars(error).items() if name not in {"__notes__", "lock"}}
    if isinstance(error, OSError):
        kept |= {"errno": error.errno, "filename": error.filename}
    if isinstance(error, ExceptionGroup):
        return {"inside": [repr(one) for one in error.exceptions]}
    return {"args": error.args, "text": str(error), **kept}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Breaks, BreakingStream])
def test_exceptions_keep_their_type_and_what_they_know(kind: Any, workers: int) -> None:
    for make in MAKERS.values() if workers == 0 or kind is Breaks else [MAKERS["file"], MAKERS["torn"]]:
        expected, got = make(), list[Any]()
        error = raised_by(resumable.wrap(DataLoader(kind(make), batch_size=2, num_workers=workers)), got)
        assert type(error) is type(expected)
        assert facts(error) == facts(expected)
        first, place = error.__notes__
        sample = "sample 5" if kind is Breaks else "sample 5 of its stream"
        assert first == f"resumable: raised by {sample}{', in worker 0' if workers else ''}."
        assert place.startswith(f"resumable: in epoch 0, step {len(got)}, rank 0.")
        text = "".join(traceback.format_exception(error))
        assert "self.make()" in text, "the line that raised it"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Breaks, BreakingStream])
def test_the_loop_goes_on_with_the_batch_that_failed(kind: Any, workers: int) -> None:
    dataset, got = kind(MAKERS["file"]), list[Any]()
    loader = resumable.wrap(DataLoader(dataset, batch_size=2, num_workers=workers, persistent_workers=workers > 0))
    raised_by(loader, got)
    state = loader.state_dict()
    again = resumable.wrap(DataLoader(kind(MAKERS["file"]), batch_size=2, num_workers=workers))
    again.load_state_dict(state)
    assert type(raised_by(again, [])) is FileNotFoundError
    raised_by(loader, got)
    assert loader.state_dict() == state
    dataset.mended.value = 1
    got += [batch.tolist() for batch in loader]
    whole = resumable.wrap(DataLoader(dataset, batch_size=2, num_workers=workers))
    assert got == [batch.tolist() for batch in whole]


@pytest.mark.parametrize("workers", [0, 1])
def test_unsendable_classes_come_as_the_nearest(workers: int) -> None:
    """Classes that cannot be sent come as the nearest that can."""

    class HiddenError(FileNotFoundError):
        pass

    class AloneError(Exception):
        pass

    def of(error: Exception) -> BaseException:
        loader = resumable.wrap(DataLoader(Breaks(lambda: error), batch_size=2, num_workers=workers))
        return raised_by(loader, [])

    found = of(HiddenError("a.jpg")), of(AloneError("a.jpg"))
    if not workers:
        assert [type(error) for error in found] == [HiddenError, AloneError]
        return
    assert [type(error) for error in found] == [FileNotFoundError, SampleError]
    assert all("a.jpg" in str(error) for error in found)
    assert all("raised by sample 5, in worker 0" in error.__notes__[0] for error in found)
    assert type(of(UnprintableError())) is UnprintableError


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_ends_no_epoch(workers: int) -> None:
    got: list[Any] = []
    error = raised_by(resumable.wrap(DataLoader(Breaks(StopIteration), batch_size=2, num_workers=workers)), got)
    assert type(error) is SampleError
    assert str(error).startswith("sample 5 raised StopIteration")
    assert "epoch 0, step 2, rank 0" in error.__notes__[-1]
    assert got == [[0, 1], [2, 3]]


class BreaksTogether(Breaks):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("make", [MAKERS["file"], StopIteration])
def test_batches_that_are_read_as_a_whole_are_named(make: Any) -> None:
    loader = resumable.wrap(DataLoader(BreaksTogether(make), batch_size=2), randomness="batch")
    error = raised_by(loader, [])
    assert isinstance(error, SampleError if make is StopIteration else FileNotFoundError)
    assert "samples [4, 5]" in f"{error} {error.__notes__}"


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_is_left_alone(signal: type[BaseException]) -> None:
    loader = resumable.wrap(DataLoader(Breaks(signal), batch_size=2))
    with pytest.raises(signal) as caught:
        list(loader)
    assert not hasattr(caught.value, "__notes__")
    assert loader.cursor.step == 2


def torn_collate(_: list[int]) -> Any:
    raise FileNotFoundError(errno.ENOENT, "No such file", "vocabulary")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_fn_and_a_transform_are_named(workers: int) -> None:
    data: Any = range(4)
    loader = resumable.wrap(DataLoader(data, batch_size=2, collate_fn=torn_collate, num_workers=workers))
    error = raised_by(loader, [])
    assert isinstance(error, FileNotFoundError)
    assert error.filename == "vocabulary"
    assert "raised by collate" in error.__notes__[0]
    for source in (range(4), lambda: iter(range(4))):
        error = raised_by(resumable.wrap(source, batch_size=2, transform=torn_collate), [])
        assert isinstance(error, OSError)
        assert "step 0" in error.__notes__[-1]


def test_iterable_element_and_rank_are_named() -> None:
    """An element of an iterable is named, and so is its place on a rank."""

    def numbers() -> Iterator[int]:
        yield from range(5)
        raise FileNotFoundError(errno.ENOENT, "No such file", "shard-1")

    loader = resumable.wrap(numbers, batch_size=2, world=resumable.World(1, 2), shard=True, tail="drop")
    error = raised_by(loader, [])
    assert isinstance(error, FileNotFoundError)
    assert error.__notes__[0] == "resumable: raised by element 5 of the epoch."
    assert "epoch 0, step 1, rank 1" in error.__notes__[1]
    with pytest.raises(FileNotFoundError) as caught:
        loader.peek()
    assert "epoch 0, step 1, rank 1" in caught.value.__notes__[-1]


def test_exception_raised_again() -> None:
    """An exception object that is raised again gets no note twice."""
    kept = OSError("torn")

    def read(_: int) -> Any:
        raise kept

    inner = resumable.wrap([1, 2], transform=read)
    for _ in range(3):
        assert raised_by(inner, []) is kept
    assert len(kept.__notes__) == 2
    outer = resumable.wrap(lambda: iter(inner), seed=0)
    assert raised_by(outer, []) is kept
    assert len(kept.__notes__) == 2, "both are at the first batch of their epoch"


def test_errors_of_the_package_get_no_note_of_a_batch() -> None:
    loader = resumable.wrap(iter([1]))
    assert list(loader) == [1]
    with pytest.raises(ResumableError) as caught:
        list(loader)
    assert not hasattr(caught.value, "__notes__")


def test_an_exception_with_notes_that_are_none_is_left_alone() -> None:
    error = OSError("torn")
    vars(error)["__notes__"] = "mine"  # what a user may do
    note(error, "sample 1")
    assert vars(error)["__notes__"] == "mine"
    assert isinstance(Sent(error).error(), OSError)
