"""A batch counts once the next is asked for, or a state is taken outside of an exception (`ack="auto"`)."""

from __future__ import annotations

import asyncio
import code
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import nullcontext, redirect_stderr, suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

import resumable
from resumable import flight
from resumable._leaving import Left, drivers_of, how_left
from resumable.errors import LoopWarning

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
    "sparse snapshots": lambda: resumable.wrap(Going(), batch_size=2, snapshot_every=3),
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
            states.append(loader.state_dict())
            assert loader.global_step == step
        states.append(loader.state_dict())
        assert loader.global_step == step
        assert loader.acknowledged.as_dict() == states[0]["cursor"] == states[1]["cursor"]
        assert states[0]["global_step"] == step
        train(loader, batches)
        assert batches == golden, f"run again after step {step}"
        for state in states:
            assert batches[:step] + rest_of(make, state) == golden, f"resumed after step {step}"


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_nothing_is_lost_or_repeated_wherever_a_loop_fails(make: Callable[[], resumable.Loader[Any]]) -> None:
    check_every_step(make)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(0, 3), pytest.param(None, marks=pytest.mark.long)], ids=["", "all steps"])
@pytest.mark.parametrize("make", WITH_WORKERS.values(), ids=WITH_WORKERS)
def test_nothing_is_lost_or_repeated_with_workers(make: Callable[[], resumable.Loader[Any]], steps: Any) -> None:
    check_every_step(make, steps)


# ---------------------------------------------------------------------- forms of loops


def handed_on(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def one_by_one(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:  # noqa: UP028  # the form is the point
        yield batch


class Wrapper:
    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = iter(batches)

    def __iter__(self) -> Wrapper:
        return self

    def __next__(self) -> Any:
        return next(self.batches)


FORMS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "for": lambda loader: loader,
    "enumerate": lambda loader: (batch for _, batch in enumerate(loader)),
    "zip": lambda loader: map(list, zip(loader, strict=True)),
    "tqdm": lambda loader: tqdm(loader, disable=True),
    "tqdm, shown": lambda loader: tqdm(loader, file=io.StringIO()),
    "generator": one_by_one,
    "yield from": handed_on,
    "generators": lambda loader: one_by_one(handed_on(one_by_one(loader))),
    "class": Wrapper,
    "steps": lambda loader: loader.steps(100),
}


def leave_by_raising(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        raise LossError


def leave_by_a_call(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        int("no number")


def leave_from_a_handler(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        try:
            int("no number")
        except ValueError as error:
            raise LossError from error


def leave_by_an_interrupt(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        os.kill(os.getpid(), signal.SIGINT)


def leave_from_a_with(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    with torch.no_grad():
        for _ in form(loader):
            with suppress(KeyError), torch.no_grad():
                int("no number")


def leave_caught_inside(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    try:
        for _ in form(loader):
            int("no number")
    except ValueError:
        return


def leave_in_a_generator(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    def losses() -> Iterator[int]:
        for _ in form(loader):
            yield int("no number")

    for _ in losses():
        pass


RAISE = [
    leave_by_raising,
    leave_by_a_call,
    leave_from_a_handler,
    leave_by_an_interrupt,
    leave_from_a_with,
    leave_caught_inside,
    leave_in_a_generator,
]


def leave_by_break(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        break


def leave_by_return(form: Callable[[Any], Iterable[Any]], loader: Any) -> Any:
    for batch in form(loader):
        if batch:
            return [batch]
    return None


def leave_by_break_in_a_handler(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        try:
            int("no number")
        except ValueError:
            break


def leave_by_break_in_a_with(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in form(loader):
        with torch.no_grad():
            break


def leave_by_a_shorter_zip(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in zip(range(1), form(loader), strict=False):
        pass


def leave_by_islice(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    for _ in itertools.islice(form(loader), 1):
        pass


def leave_by_next(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    next(iter(form(loader)))


def leave_by_a_variable(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    held = iter(form(loader))
    next(held)
    del held


def leave_a_list(form: Callable[[Any], Iterable[Any]], loader: Any) -> None:
    list(itertools.islice(form(loader), 1))


LEAVE = [
    leave_by_break,
    leave_by_return,
    leave_by_break_in_a_handler,
    leave_by_break_in_a_with,
    leave_by_a_shorter_zip,
    leave_by_islice,
    leave_by_next,
    leave_by_a_variable,
    leave_a_list,
]


@pytest.fixture(params=[False, True], ids=["", "traced"])
def _traced(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run without and with a trace function, as debuggers and coverage set one."""
    before = sys.gettrace()
    if request.param:
        sys.settrace(lambda *_: None)
    yield
    sys.settrace(before)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("leave", RAISE)
def test_the_batch_on_which_a_loop_failed_comes_again(leave: Callable[..., Any], form: Callable[[Any], Any]) -> None:
    loader = resumable.wrap([[1], [2], [3], [4]])
    next(iter(loader))
    for _ in range(3):  # the code gets faster ways as it is run
        with suppress(LossError, ValueError, KeyboardInterrupt):
            leave(form, loader)
        assert (loader.cursor.step, loader.acknowledged.step, loader.global_step) == (2, 1, 1)
    assert loader.state_dict()["cursor"]["step"] == 1
    assert list(loader) == [[2], [3], [4]]


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("leave", LEAVE)
def test_a_loop_that_is_left_at_will_goes_on(leave: Callable[..., Any], form: Callable[[Any], Any]) -> None:
    loader = resumable.wrap([[number + 1] for number in range(8)])
    for step in range(1, 4):
        leave(form, loader)
        assert loader.acknowledged.step == loader.global_step == step
    assert list(loader) == [[4], [5], [6], [7], [8]]


def test_what_cannot_be_known_is_said_to_be_so() -> None:
    frame = sys._getframe()
    assert how_left((), frame) is Left.UNKNOWN
    assert how_left(drivers_of(frame), frame) is Left.UNKNOWN
    assert how_left(drivers_of(frame), None) is Left.UNKNOWN

    held: list[Any] = [iter(resumable.wrap([1, 2, 3]))]
    for _ in held[0]:
        break
    drivers = held[0]._doubt.drivers
    assert how_left(drivers, sys._getframe()) is Left.UNCLEAR, "code after the loop that is no assignment"


def leave_held(batches: Iterable[Any]) -> None:
    for _ in batches:
        raise LossError


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("hold", [iter, enumerate, one_by_one, lambda loader: loader.steps(5)])
def test_an_iterator_that_dies_with_a_traceback_is_warned_of(hold: Callable[[Any], Any], *, named: bool) -> None:
    def run(loader: resumable.Loader[int]) -> None:
        if named:
            try:
                leave_held(hold(loader))
            except LossError as error:  # noqa: F841  # it is kept to the end of the handler
                assert loader.state_dict()["cursor"]["step"] == 0, "what holds it is no longer running"
            return
        with suppress(LossError):
            leave_held(hold(loader))

    loader = resumable.wrap([0, 1, 2])
    run(loader)
    with pytest.warns(LoopWarning, match=r'step 0 of epoch 0 counts as.*\n.*ack="manual"'):
        assert list(loader) == [1, 2]
    loader = resumable.wrap([0, 1, 2])
    run(loader)
    with pytest.warns(LoopWarning, match=r'step 0 of epoch 0 counts as.*\n.*ack="manual"'):
        assert loader.state_dict()["cursor"]["step"] == 1


def test_a_loop_that_was_left_unclearly_warns() -> None:
    loader = resumable.wrap([1, 2, 3])
    held: list[Any] = [iter(loader)]
    for _ in held[0]:
        break
    held.clear()
    with pytest.warns(LoopWarning, match=r'step 0 of epoch 0 counts as.*\n.*ack="manual"') as caught:
        assert list(loader) == [2, 3]
    assert caught[0].filename == __file__


# ---------------------------------------------------------------------- states in handlers


def test_a_state_in_a_finally_tells_how_the_loop_ended() -> None:
    def run(*, fails: bool) -> int:
        loader = resumable.wrap([1, 2, 3])
        state: dict[str, Any] = {}
        with suppress(LossError):
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
    assert list(loader) == [4, 5]


def test_a_state_in_a_handler_inside_of_the_loop_is_warned_of() -> None:
    loader, steps = resumable.wrap(list(range(5))), []
    for _ in loader:
        try:
            fail()
        except LossError:
            assert loader.global_step == loader.acknowledged.step == loader.cursor.step - 1
            with pytest.warns(LoopWarning, match=r'LossError was handled in a loop.*\n.*ack="manual"') as caught:
                steps.append(loader.state_dict()["cursor"]["step"])
            assert caught[0].filename == __file__
        assert loader.global_step == loader.cursor.step
    assert steps == [0, 1, 2, 3, 4], "and the loop went on"


def test_a_state_that_was_taken_before_the_exception_counts_the_batch() -> None:
    loader = resumable.wrap(list(range(5)))
    with suppress(LossError):
        for _ in loader:
            loader.state_dict()  # a checkpoint
            raise LossError
    assert loader.global_step == 1
    assert list(loader) == [1, 2, 3, 4]


def test_an_exception_of_another_thread_is_none_of_the_loop() -> None:
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


def test_an_iterator_that_is_held_counts_what_was_asked_for() -> None:
    loader = resumable.wrap(list(range(5)))
    held = iter(loader)
    next(held)
    try:
        fail()
    except LossError:
        with pytest.warns(LoopWarning, match="does not count"):
            assert loader.state_dict()["cursor"]["step"] == 0
        assert next(held) == 1
    assert loader.state_dict()["cursor"]["step"] == 2
    next(held)
    try:
        fail()
    except LossError:
        assert next(iter(loader)) == 2, "a new loop in the handler"


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("way", ["peek", "close", "state of before"])
def test_looks_and_a_close_in_between_change_nothing(make: Callable[[], resumable.Loader[Any]], way: str) -> None:
    golden = whole(make)
    for step in range(len(golden)):
        loader, batches = make(), list[Any]()
        with suppress(LossError), loader if way == "close" else nullcontext():
            for epoch in loader.epochs(EPOCHS):
                for batch in epoch:
                    if len(batches) == step:
                        if way == "peek" and step < len(golden) - 1:
                            assert plain(loader.peek()) == golden[step + 1]
                        raise LossError
                    batches.append(plain(batch))
                    if way == "state of before":
                        loader.state_dict()
        state = loader.state_dict()
        assert loader.global_step == step
        train(loader, batches)
        assert batches == golden
        assert batches[:step] + rest_of(make, state) == golden


def test_seek_and_end_epoch_go_from_the_batch_that_counts() -> None:
    loader = resumable.wrap(list(range(5)))
    leave = pytest.raises(LossError)
    with leave:
        leave_by_raising(iter, loader)
    loader.seek(epoch=0, step=3)
    assert (loader.global_step, list(loader)) == (0, [3, 4])
    with leave:
        leave_by_raising(iter, loader)
    loader.end_epoch()
    assert (loader.global_step, loader.epoch) == (2, 2)


def test_the_last_batch_of_an_epoch_comes_again_in_its_epoch() -> None:
    loader, got = resumable.wrap([1, 2]), []
    with pytest.raises(LossError):
        for batch in loader:
            if batch == 2:
                raise LossError
    assert (loader.epoch, loader.cursor.step) == (0, 2)
    got = [[batch for batch in epoch] for epoch in loader.epochs(2)]  # noqa: C416  # a loop
    assert got == [[2], [1, 2]]


def test_steps_give_as_many_as_were_asked_for() -> None:
    loader, got = resumable.wrap([0, 1, 2]), list[int]()
    with suppress(LossError):
        for batch in loader.steps(4):
            if len(got) == 3:
                raise LossError
            got.append(batch)
    got += loader.steps(4)
    assert (got, loader.global_step) == ([0, 1, 2, 0], 4)


def test_a_source_that_is_read_once_cannot_go_back_and_says_so() -> None:
    loader = resumable.wrap(iter(range(5)))
    next(iter(loader))
    with suppress(LossError):
        leave_by_raising(iter, loader)
    assert loader.state_dict()["cursor"]["step"] == 1
    with pytest.warns(LoopWarning, match=r"at step 1 of epoch 0, and this source cannot go back.*\n.*wrap\(make\)"):
        assert list(loader) == [2, 3, 4]


def test_manual_acknowledgement_is_as_it_was() -> None:
    loader = resumable.wrap(list(range(5)), ack="manual")
    with suppress(LossError):
        for batch in loader:
            if batch == 2:
                raise LossError
            loader.ack()
    assert loader.acknowledged.step == 2
    assert list(loader) == [2, 3, 4]


def test_the_flight_record_has_the_step_of_the_state(tmp_path: Path) -> None:
    loader = resumable.wrap(list(range(5)), flight_recorder=str(tmp_path))
    with suppress(LossError):
        for batch in loader:
            if batch == 3:
                raise LossError
    loader.state_dict()
    (record,) = flight.read(tmp_path)
    assert record.saved == 3
    assert record.step == 3
    del loader


# ---------------------------------------------------------------------- sessions and processes


def test_a_cell_that_is_run_again_begins_with_the_batch_that_was_not_trained_on() -> None:
    loader, got = resumable.wrap(list(range(6))), list[int]()
    session = code.InteractiveInterpreter({"loader": loader, "got": got, "broken": [True]})
    session.write = lambda data: None  # type: ignore[method-assign]  # what it shows
    cell = "held = iter(loader)\nfor _ in range(2):\n    got.append(next(held))\nassert not broken, next(held)\n"
    assert not session.runsource(cell, "cell", "exec")
    assert got == [0, 1]
    session.runsource("broken.clear()", "other", "exec")
    session.runsource("got.extend(loader)", "third", "exec")
    assert got == [0, 1, 2, 3, 4, 5]


SCRIPT = """
import json, os, signal, sys, time
import resumable

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
def test_a_state_that_is_saved_in_a_handler_resumes_in_another_process(tmp_path: Path, fails: int) -> None:
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


@pytest.mark.filterwarnings("ignore::resumable.errors.LoopWarning")  # some come on the way to the next batch
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function tqdm.__del__")  # where an interrupt is lost
def test_interrupts_at_any_moment_lose_no_batch() -> None:
    """A batch that was interrupted may be trained on again; none is left out, and the order stays."""
    armed, golden = [False], list(range(300))

    def interrupt(*_: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for turn in range(20):
            loader, begun, cuts = resumable.wrap(golden), list[int](), 0
            while loader.epoch == 0:
                try:
                    armed[0] = True
                    signal.setitimer(signal.ITIMER_VIRTUAL, 3e-4 + 1e-5 * turn)
                    for batch in tqdm(loader, disable=turn % 2 == 0, file=io.StringIO()):
                        begun.append(batch)
                    armed[0] = False
                except KeyboardInterrupt:
                    cuts += 1
            assert [number for number, _ in itertools.groupby(begun)] == golden
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def test_no_warning_and_no_log_come_on_the_way(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for leave in LEAVE:
            loader = resumable.wrap([[1], [2], [3]])
            leave(iter, loader)
            leave(iter, loader)
            assert loader.state_dict()["cursor"]["step"] == 2
    assert not [one for one in caplog.records if one.levelname != "INFO"]


# ---------------------------------------------------------------------- loops that others drive


def sequence() -> resumable.Loader[Any]:
    return resumable.wrap(range(16), batch_size=2, seed=0)


ALL = [[number, number + 1] for number in range(0, 16, 2)]


@pytest.mark.parametrize("around", [map, lambda function, loader: (function(batch) for batch in loader)])
def test_a_state_knows_of_an_exception_in_what_is_mapped(around: Callable[..., Iterable[Any]]) -> None:
    loader, trained, steps = sequence(), list[Any](), list[int]()

    def to_device(batch: Any) -> Any:
        if len(trained) == 3 and not steps:
            fail()
        return batch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LoopWarning)  # of the generator, which is warned of
        try:
            for batch in around(to_device, loader):
                trained.append(batch)
        except LossError:
            steps.append(loader.state_dict()["cursor"]["step"])
    assert steps == [3]
    if around is map:
        assert trained + list(loader) == ALL


@pytest.mark.parametrize(
    "limit", [lambda loader: zip(loader, range(3), strict=False), lambda loader: itertools.islice(loader, 3)]
)
def test_the_end_of_what_limits_a_loop_is_no_exception(limit: Callable[[Any], Iterable[Any]]) -> None:
    loader = sequence()
    taken = 0
    for _ in limit(loader):
        taken += 1
    before = loader.global_step
    try:
        fail()
    except LossError:
        assert loader.state_dict()["cursor"]["step"] == before >= taken == 3
    assert list(loader) == ALL[before:]


def test_a_break_out_of_an_async_loop_is_no_exception() -> None:
    loader, trained = sequence(), list[Any]()

    async def batches() -> Any:
        for batch in loader:
            yield batch

    async def train() -> None:
        async for batch in batches():
            trained.append(batch)
            if len(trained) == 3:
                break

    asyncio.run(train())
    assert loader.state_dict()["cursor"]["step"] == 3
    assert trained + list(loader) == ALL


def test_an_iterator_that_is_made_in_a_handler_begins_with_the_batch_that_failed() -> None:
    loader, trained, failed = sequence(), list[Any](), list[bool]()
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
            if len(trained) == 3 and not failed:
                failed.append(True)
                fail()
            trained.append(batch)
        except StopIteration:
            break
        except LossError:
            batches = iter(loader)
    assert trained == ALL


def test_the_end_of_another_iterator_is_no_exception() -> None:
    loader, batches, other = sequence(), None, iter(())
    batches = iter(loader)
    for step in range(8):
        try:
            next(other)
        except StopIteration:
            assert loader.state_dict()["cursor"]["step"] == step
        next(batches)


def test_a_state_in_the_cell_after_the_one_that_failed_leaves_out_its_batch() -> None:
    console = code.InteractiveConsole({"loader": sequence(), "fail": fail})
    with redirect_stderr(io.StringIO()):
        console.runsource(
            "def train():\n    batches = iter(loader)\n    for batch in batches:\n        fail()\n", symbol="exec"
        )
        console.runsource("train()")
    console.runsource("step = loader.state_dict()['cursor']['step']")
    console.runsource("first = next(iter(loader))")
    assert (console.locals["step"], console.locals["first"]) == (0, ALL[0])


def test_an_iterator_that_is_dropped_as_the_interpreter_ends_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are emptied by then, so that what it would call may not be there."""
    loader, asked = resumable.wrap(list(range(9)), batch_size=2), []
    batches = iter(loader)
    next(batches)
    monkeypatch.setattr(loader.progress, "leave", lambda *_: asked.append(1))
    batches.__del__(lambda: True)  # type: ignore[attr-defined]  # it has one
    assert not asked
    batches.__del__(lambda: False)  # type: ignore[attr-defined]  # as above
    assert asked
