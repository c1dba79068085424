"""What counts after an exception (`ack="auto"`): each delivered batch, but for a state taken while it is handled.

No loop is given a batch twice, unless `rewind()` goes back.
"""

from __future__ import annotations

import io
import itertools
import json
import signal
import subprocess
import sys
import threading
import warnings
from collections import deque
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

import resumable
from resumable import failpoints, flight
from resumable.errors import LoopWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

EPOCHS = 2


class LossError(Exception):
    """What a training loop raises."""


def fail() -> None:
    raise LossError


# ---------------------------------------------------------------------- sources


class Counting:
    """A list whose samples say how many were read before, which it remembers."""

    def __init__(self) -> None:
        self.seen = 0

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> tuple[int, int]:
        if not 0 <= index < 7:
            raise IndexError(index)
        self.seen += 1
        return index, self.seen

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


class Going:
    """An iterator with a state, whose numbers go on from epoch to epoch."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Going:
        return self

    def __next__(self) -> int:
        self.given += 1
        if self.given % 8 == 0:
            raise StopIteration
        return self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Rare(Going):
    """Wants no snapshot for every batch."""

    snapshot_every = 3


class Stream(IterableDataset[int]):
    """Numbers with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        while self.at < 7:
            self.at += 1
            yield self.at + 100 * (worker.id if worker else 0)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def drawn(epoch: int) -> Iterator[float]:
    """Yield numbers that depend on the generators, too."""
    for number in range(7):
        yield number + 10 * epoch + float(torch.rand(()))


SOURCES: dict[str, Callable[[], resumable.Loader[Any]]] = {
    "list": lambda: resumable.wrap(list(range(13)), batch_size=2, shuffle=True, seed=1),
    "own state": lambda: resumable.wrap(Counting(), batch_size=2),
    "function": lambda: resumable.wrap(drawn, batch_size=2, seed=3),
    "stateful iterator": lambda: resumable.wrap(Going(), batch_size=2),
    "sparse snapshots": lambda: resumable.wrap(Rare(), batch_size=2),
    "map": lambda: resumable.wrap(DataLoader(torch.arange(9), batch_size=2, shuffle=True), seed=4),  # type: ignore[arg-type]  # a sequence
    "stream": lambda: resumable.wrap(DataLoader(Stream(), batch_size=2)),
}
WITH_WORKERS: dict[str, Callable[[], resumable.Loader[Any]]] = {
    "map, 2 workers": lambda: resumable.wrap(DataLoader(torch.arange(9), batch_size=2, num_workers=2), seed=4),  # type: ignore[arg-type]  # a sequence
    "stream, 2 workers": lambda: resumable.wrap(DataLoader(Stream(), batch_size=2, num_workers=2)),
    "stream, workers that live on": lambda: resumable.wrap(
        DataLoader(Stream(), batch_size=2, num_workers=1, persistent_workers=True)
    ),
}


def plain(batch: Any) -> Any:
    return (
        batch.tolist()
        if isinstance(batch, torch.Tensor)
        else [plain(one) for one in batch]
        if isinstance(batch, (list, tuple))
        else batch
    )


def train(loader: resumable.Loader[Any], into: list[Any], fails_at: int = -1) -> None:
    """Train to the end of the last epoch; fail in the body of the loop once so many batches are in the weights."""
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            if len(into) == fails_at:
                raise LossError
            into.append(plain(batch))


def whole(make: Callable[[], resumable.Loader[Any]]) -> list[Any]:
    batches: list[Any] = []
    train(make(), batches)
    return batches


def rest_of(make: Callable[[], resumable.Loader[Any]], state: dict[str, Any]) -> list[Any]:
    loader, batches = make(), list[Any]()
    loader.load_state_dict(state)
    train(loader, batches)
    return batches


def check_every_step(make: Callable[[], resumable.Loader[Any]], steps: Iterable[int] | None = None) -> None:
    golden = whole(make)
    for step in steps or range(len(golden)):
        loader, batches, states = make(), list[Any](), list[Any]()
        try:
            train(loader, batches, fails_at=step)
        except LossError:
            with pytest.warns(LoopWarning, match=r'LossError is handled.*\n.*ack="manual"'):
                states.append(loader.state_dict())
            assert loader.global_step == step
            assert loader.acknowledged.as_dict() == states[0]["cursor"]
        assert loader.global_step == step + 1, "it was delivered"
        loader.rewind()
        states.append(loader.state_dict())
        assert loader.global_step == step
        assert loader.acknowledged.as_dict() == states[0]["cursor"] == states[1]["cursor"]
        assert states[0]["global_step"] == states[1]["global_step"] == step
        train(loader, batches)
        assert batches == golden, f"run again after step {step}"
        for state in states:
            assert batches[:step] + rest_of(make, state) == golden, f"resumed after step {step}"


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_handler_saves_and_rewinds_wherever_a_loop_fails(make: Callable[[], resumable.Loader[Any]]) -> None:
    check_every_step(make)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(0, 3), pytest.param(None, marks=pytest.mark.long)], ids=["", "all steps"])
@pytest.mark.parametrize("make", WITH_WORKERS.values(), ids=WITH_WORKERS)
def test_a_handler_saves_and_rewinds_with_workers(make: Callable[[], resumable.Loader[Any]], steps: Any) -> None:
    check_every_step(make, steps)


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_without_rewind_no_batch_comes_again(make: Callable[[], resumable.Loader[Any]]) -> None:
    golden = whole(make)
    for step in range(len(golden)):
        loader, batches = make(), list[Any]()
        with suppress(LossError):
            train(loader, batches, fails_at=step)
        assert loader.global_step == step + 1
        train(loader, batches)
        assert batches == golden[:step] + golden[step + 1 :], f"failed at step {step}"


# ---------------------------------------------------------------------- ways to leave a loop


def leave_by_raising(loader: Any) -> None:
    for batch in loader:
        if batch == [2]:
            raise LossError


def fail_at_2(batch: Any) -> None:
    if batch == [2]:
        fail()


def leave_by_raising_in_a_comprehension(loader: Any) -> None:
    [fail_at_2(batch) for batch in loader]  # type: ignore[func-returns-value]  # it raises


def leave_by_raising_in_map(loader: Any) -> None:
    list(map(fail_at_2, loader))


def leave_by_raising_with_an_iterator_that_is_held(loader: Any) -> None:
    held = iter(loader)
    while next(held) != [2]:
        pass
    fail()


def leave_by_raising_from_tqdm(loader: Any) -> None:
    for batch in tqdm(loader, disable=True):
        if batch == [2]:
            fail()


def leave_by_an_interrupt(loader: Any) -> None:
    for batch in enumerate(loader):
        if batch[1] == [2]:
            raise KeyboardInterrupt


def leave_by_break(loader: Any) -> None:
    for batch in loader:
        if batch == [2]:
            break


def leave_by_return(loader: Any) -> Any:
    for batch in loader:
        if batch == [2]:
            return batch
    return None


def leave_by_islice(loader: Any) -> None:
    list(itertools.islice(loader, 2))


RAISING = [
    leave_by_raising,
    leave_by_raising_in_a_comprehension,
    leave_by_raising_in_map,
    leave_by_raising_with_an_iterator_that_is_held,
    leave_by_raising_from_tqdm,
    leave_by_an_interrupt,
]
LEAVING = [leave_by_break, leave_by_return, leave_by_islice]


@pytest.mark.parametrize("leave", [*RAISING, *LEAVING])
def test_however_a_loop_is_left_the_same_holds(leave: Callable[[Any], Any]) -> None:
    loader = resumable.wrap([[1], [2], [3]])
    try:
        leave(loader)
    except (LossError, KeyboardInterrupt):
        assert leave in RAISING
        with pytest.warns(LoopWarning, match="does not count the last batch"):
            assert loader.state_dict()["cursor"]["step"] == 1
    else:
        assert leave in LEAVING
    assert loader.state_dict()["cursor"]["step"] == 2
    loader.rewind()
    assert list(loader) == [[2], [3]]


@pytest.mark.parametrize("leave", [*RAISING, *LEAVING])
def test_no_warning_comes_without_a_state_in_a_handler(
    leave: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    loader = resumable.wrap([[1], [2], [3]])
    with warnings.catch_warnings(), suppress(LossError, KeyboardInterrupt):
        warnings.simplefilter("error")
        leave(loader)
    assert list(loader) == [[3]]
    assert not [one for one in caplog.records if one.levelname != "INFO"]


# ---------------------------------------------------------------------- states in handlers


def test_state_in_a_finally() -> None:
    """A state in a `finally` counts the last batch, unless an exception passes."""

    def run(*, fails: bool) -> int:
        loader = resumable.wrap([1, 2, 3])
        state: dict[str, Any] = {}
        with suppress(LossError), warnings.catch_warnings():
            warnings.simplefilter("ignore" if fails else "error", LoopWarning)
            try:
                for _ in loader:
                    if fails:
                        raise LossError
                    break
            finally:
                state = loader.state_dict()
        return int(state["cursor"]["step"])

    assert (run(fails=True), run(fails=False)) == (0, 1)


def test_a_loop_inside_of_a_handler_counts_as_any_other() -> None:
    loader = resumable.wrap(list(range(6)))
    try:
        fail()
    except LossError:
        for batch in loader:
            assert loader.state_dict()["cursor"]["step"] == loader.global_step == batch + 1
            if batch == 2:
                break
        iterator = iter(loader)
        try:
            next(iter(()))
        except StopIteration:
            assert next(iterator) == 3
        assert loader.global_step == 4, "it was delivered in a handler inside of this one"
        try:
            json.loads("[")
        except ValueError:  # its context is the one that was there at the delivery
            with pytest.warns(LoopWarning, match="JSONDecodeError is handled"):
                assert loader.state_dict()["cursor"]["step"] == 3, "this one came up after the delivery"
    assert list(loader) == [4, 5]


def test_a_state_in_a_handler_inside_of_the_loop_is_warned_of() -> None:
    loader, steps = resumable.wrap(list(range(5))), []
    for _ in loader:
        try:
            fail()
        except LossError:
            assert loader.global_step == loader.acknowledged.step == loader.cursor.step - 1
            with pytest.warns(LoopWarning, match=r'LossError is handled.*\n.*ack="manual"') as caught:
                steps.append(loader.state_dict()["cursor"]["step"])
            assert caught[0].filename == __file__
        assert loader.global_step == loader.cursor.step
    assert steps == [0, 1, 2, 3, 4], "and the loop continued"


def test_exception_after_the_next_request() -> None:
    """An exception after the request of the next batch leaves the last one counted."""

    def samples() -> Iterator[int]:
        yield from range(3)
        raise LossError

    loader = resumable.wrap(samples)
    with suppress(LossError):
        try:
            list(loader)
        except LossError:
            assert loader.state_dict()["cursor"]["step"] == 3
            raise
    loader = resumable.wrap([1, 2])
    for epoch in loader.epochs(1):
        list(epoch)
        try:
            fail()  # as a validation that fails
        except LossError:
            assert loader.state_dict()["cursor"] == {"epoch": 1, "position": 0, "step": 0}


def test_an_exception_of_another_thread_says_nothing_of_the_loop() -> None:
    loader, found = resumable.wrap(list(range(5))), list[int]()

    def save() -> None:
        try:
            fail()
        except LossError:
            found.append(loader.state_dict()["cursor"]["step"])

    for _ in loader:
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
        break
    assert found == [1]


def test_with_manual_acknowledgement_nothing_but_ack_counts() -> None:
    loader = resumable.wrap(list(range(5)), ack="manual")
    try:
        for batch in loader:
            if batch == 2:
                fail()
            loader.ack()
    except LossError:
        assert loader.state_dict()["cursor"]["step"] == 2
    assert loader.state_dict()["cursor"]["step"] == 2
    loader.rewind()
    loader.rewind()
    assert list(loader) == [2, 3, 4]


def test_the_end_of_another_iterator_is_not_an_exception() -> None:
    loader, other = resumable.wrap(range(16), batch_size=2), iter(())
    batches = iter(loader)
    for step in range(8):
        try:
            next(other)
        except StopIteration:
            assert loader.state_dict()["cursor"]["step"] == step
        next(batches)


# ---------------------------------------------------------------------- going back


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("way", ["peek", "close", "a state before", "a state after"])
def test_looks_states_and_a_close_in_between_change_nothing(
    make: Callable[[], resumable.Loader[Any]], way: str
) -> None:
    golden = whole(make)
    for step in range(len(golden)):
        loader, batches = make(), list[Any]()
        with suppress(LossError), loader if way == "close" else nullcontext():
            for epoch in loader.epochs(EPOCHS):
                for batch in epoch:
                    if len(batches) == step:
                        if way == "peek" and step < len(golden) - 1:
                            assert plain(loader.peek()) == golden[step + 1]
                        if way == "a state after":
                            loader.state_dict()
                        raise LossError
                    batches.append(plain(batch))
                    if way == "a state before":
                        loader.state_dict()
        loader.rewind()
        state = loader.state_dict()
        assert loader.global_step == step
        train(loader, batches)
        assert batches == golden
        assert batches[:step] + rest_of(make, state) == golden


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_rewind_leads_back_into_the_epoch_before(make: Callable[[], resumable.Loader[Any]]) -> None:
    golden = whole(make)
    loader = make()
    first = [plain(batch) for batch in loader]
    assert loader.cursor.epoch == 1
    loader.rewind()
    loader.rewind()
    assert (loader.cursor.epoch, loader.global_step) == (0, len(first) - 1)
    assert [plain(batch) for batch in loader] == first[-1:]
    rest: list[Any] = []
    train(loader, rest)
    assert first + rest == golden


def test_a_running_loop_continues_where_rewind_went() -> None:
    loader, got, failed = resumable.wrap(list(range(5))), list[int](), list[int]()
    for epoch in loader.epochs(2):
        for batch in epoch:
            if batch in {1, 4} and len(failed) < 2 and batch not in failed:
                failed.append(batch)
                loader.rewind()
            else:
                got.append(batch)
    assert (got, failed) == ([0, 1, 2, 3, 4, 0, 1, 2, 3, 4], [1, 4])


def test_rewind_without_deliveries() -> None:
    """A rewind changes nothing if nothing was delivered since the position was set."""
    loader = resumable.wrap(list(range(5)))
    loader.rewind()
    assert (loader.cursor.step, loader.progress.moves) == (0, 0)
    next(iter(loader))
    state = loader.state_dict()
    moves: list[Callable[[], None]] = [
        lambda: loader.load_state_dict(state),
        lambda: loader.seek(epoch=0, step=2),
        loader.end_epoch,
    ]
    for move in moves:
        next(iter(loader))
        move()
        before = loader.cursor, loader.global_step
        loader.rewind()
        assert (loader.cursor, loader.global_step) == before


def test_steps_deliver_as_many_as_were_asked_for() -> None:
    loader, got = resumable.wrap([0, 1, 2]), list[int]()
    try:
        for batch in loader.steps(4):
            if len(got) == 3:
                fail()
            got.append(batch)
    except LossError:
        with pytest.warns(LoopWarning, match=r"steps\(4\) has no batch left"):
            assert list(loader.steps(4)) == [], "four were delivered, whatever a state in this handler counts"
    loader.rewind()
    got += loader.steps(4)
    assert (got, loader.global_step) == ([0, 1, 2, 0], 4)


def test_sources_that_cannot_go_back_say_so_and_change_nothing() -> None:
    for loader in (resumable.wrap(iter(range(5))), resumable.wrap(iter(range(5)), ack="manual")):
        next(iter(loader))
        before = loader.cursor, loader.state_dict()
        with pytest.raises(UnsupportedError, match=r"cannot go back to .*\n.*wrap\(make\)"):
            loader.rewind()
        assert (loader.cursor, loader.state_dict()) == before
        assert list(loader) == [1, 2, 3, 4]
    evaluation = resumable.wrap([1, 2], evaluation=True)
    with pytest.raises(UnsupportedError, match="evaluation=True"):
        evaluation.rewind()


def test_batch_interrupted_on_its_way() -> None:
    """A batch that is interrupted on its way is delivered next.

    It never reached the loop, so it is neither lost nor counted, also for a source that is read once.
    """
    makers: list[Callable[..., resumable.Loader[Any]]] = [
        lambda **options: resumable.wrap(list(range(6)), **options),
        lambda **options: resumable.wrap(iter(range(6)), **options),
        lambda **options: resumable.wrap(Going(), **options),
    ]
    for make, ack, step in itertools.product(makers, ("auto", "manual"), range(4)):
        golden, loader, got = list(make()), make(ack=ack), list[Any]()
        failpoints.watch(_interrupt_at(step))
        try:
            with pytest.raises(KeyboardInterrupt):
                got.extend(loader)
        finally:
            failpoints.watch(None)
        got = golden[:step]
        assert (loader.cursor.step, loader.progress.in_flight) == (step, step if ack == "manual" else 0)
        assert got + list(loader) == golden


def _interrupt_at(step: int) -> Callable[..., None]:
    handed = itertools.count()

    def watch(name: str, *_: Any) -> None:
        if name == "loader.handed" and next(handed) == step:
            raise KeyboardInterrupt

    return watch


class Interrupts(deque[Any]):
    """Batches in flight, of which the second one is interrupted just after it was noted."""

    def append(self, mark: Any) -> None:
        super().append(mark)
        if len(self) == 2:
            raise KeyboardInterrupt


def test_interrupt_within_a_delivery() -> None:
    """An interrupt within a delivery leaves no batch in flight."""
    loader = resumable.wrap(list(range(4)), ack="manual")
    loader.progress._in_flight = Interrupts()
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert (loader.progress.in_flight, loader.cursor.step) == (1, 1)
    loader.progress._in_flight = deque(loader.progress._in_flight)
    assert list(loader) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function tqdm.__del__")  # where an interrupt is lost
def test_interrupts_at_any_time_lose_no_batch() -> None:
    """A batch that was interrupted is trained on again; none is left out, and the order stays."""
    armed, golden = [False], list(range(300))

    def interrupt(*_: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for turn in range(20):
            loader, begun = resumable.wrap(golden), list[int]()
            while loader.epoch == 0:
                try:
                    armed[0] = True
                    signal.setitimer(signal.ITIMER_VIRTUAL, 3e-4 + 1e-5 * turn)
                    for batch in tqdm(loader, disable=turn % 2 == 0, file=io.StringIO()):
                        begun.append(batch)
                    armed[0] = False
                except KeyboardInterrupt:
                    loader.rewind()
            assert [number for number, _ in itertools.groupby(begun)] == golden
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# ---------------------------------------------------------------------- records and processes


def test_the_flight_record_has_the_step_of_the_state(tmp_path: Path) -> None:
    loader = resumable.wrap(list(range(5)), flight_recorder=str(tmp_path))
    try:
        for batch in loader:
            if batch == 3:
                fail()
    except LossError:
        with pytest.warns(LoopWarning):
            loader.state_dict()
    (record,) = flight.read(tmp_path)
    assert record.saved == 3
    assert record.step == 3
    del loader


SCRIPT = """
import json, os, signal, sys, warnings
import resumable
from resumable.errors import LoopWarning

warnings.simplefilter("ignore", LoopWarning)
loader = resumable.wrap(list(range(40)), batch_size=2, shuffle=True, seed=5)
trained = []
try:
    with open("state") as file:
        saved = json.load(file)
except FileNotFoundError:
    fails = int(sys.argv[1])
else:
    fails, trained = -1, saved["trained"]
    loader.load_state_dict(saved["loader"])
try:
    for epoch in loader.epochs(2):
        for batch in epoch:
            if loader.global_step == fails + 1:
                raise MemoryError
            trained.append(batch)
except MemoryError:
    with open("state", "w") as file:
        json.dump({"loader": loader.state_dict(), "trained": trained}, file)
    os.kill(os.getpid(), signal.SIGKILL)
print(trained)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", [0, 7, 19, 20, 39])
def test_state_saved_in_a_handler(tmp_path: Path, fails: int) -> None:
    """A state that is saved in a handler resumes in another process."""

    def start() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, str(fails)], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert start().returncode == -signal.SIGKILL
    ended = start()
    assert ended.returncode == 0, ended.stderr
    golden: list[Any] = []
    train(resumable.wrap(list(range(40)), batch_size=2, shuffle=True, seed=5), golden)
    assert ended.stdout.strip() == str(golden)
