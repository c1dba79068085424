"""Loops over a Loader: an epoch and its index, one loop at a time, evaluation in between, and mistakes that warn."""

from __future__ import annotations

import copy
import io
import json
import pickle
import queue
import subprocess
import sys
import threading
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable import ResumableSampler
from resumable.errors import CheckpointError, LoopError, LoopWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def make(state: dict[str, Any] | None = None) -> resumable.Loader:
    loader = resumable.wrap([(number, -number) for number in range(3)])
    if state is not None:
        loader.load_state_dict(state)
    return loader


def state_at(epoch: int, step: int = 1) -> dict[str, Any]:
    loader = make()
    loader.seek(epoch=epoch, step=step)
    return loader.state_dict()


# ---------------------------------------------------------------------- an epoch as a number


def test_an_epoch_is_its_number() -> None:
    epochs = list(make().epochs(4))
    first, last = epochs[0], epochs[3]
    assert (not first, bool(last)) == (True, True)
    assert 0.1**last == 0.1**3
    assert (last + 1, 10 - last, last * 2, last / 2, last // 2, last % 2, -last) == (4, 7, 6, 1.5, 1, 1, -3)
    assert last == 3
    assert first < last
    assert {3: "three"}[last] == "three"
    assert list(range(last, 5)) == [3, 4]
    assert "abcd"[last] == "d"
    assert (f"{last}", f"{last:03d}", str(last), f"{last!r}", "%d" % last) == ("3", "003", "3", "Epoch(3)", "3")  # noqa: UP031  # the old form, too
    assert json.dumps({"epoch": last}) == '{"epoch": 3}'
    assert type(last.number) is int


def test_a_copy_of_an_epoch_is_a_plain_integer() -> None:
    epoch = next(make().epochs(1))
    for copied in (copy.deepcopy(epoch), copy.copy(epoch), copy.deepcopy({"epoch": [epoch]})["epoch"][0], epoch.number):
        assert type(copied) is int
    assert [batch for batch in epoch] == [(0, 0), (1, -1), (2, -2)]  # noqa: C416  # the form of a loop
    assert len(epoch) == 3


@pytest.mark.parametrize("save", [pickle.dumps, lambda value: torch.save({"epoch": value}, io.BytesIO())])
def test_an_epoch_fails_at_the_save_and_says_what_to_store(save: Callable[[Any], Any], tmp_path: Path) -> None:
    epoch = next(make().epochs(1))
    for value in (epoch, [epoch], {"epoch": epoch}):
        with pytest.raises(UnsupportedError, match=r"weights_only=True. Save `epoch\.number`"):
            save(value)
    torch.save({"epoch": epoch.number}, tmp_path / "ck.pt")
    assert torch.load(tmp_path / "ck.pt", weights_only=True) == {"epoch": 0}


def test_a_store_and_a_sampler_take_a_plain_number(tmp_path: Path) -> None:
    sampler = ResumableSampler(range(4))
    for epoch in make().epochs(2):
        with pytest.raises(CheckpointError, match=r"epoch\.number"):
            resumable.CheckpointStore(tmp_path).save(int(epoch), {"epoch": epoch})
        assert resumable.CheckpointStore(tmp_path).latest() is None, "nothing is half-written"
        sampler.set_epoch(epoch)
        assert {type(value) for value in vars(sampler).values() if value == 1 and epoch == 1} <= {int, bool}
        pickle.dumps(sampler)


# ---------------------------------------------------------------------- the index of a batch


def test_enumerate_continues_after_a_resume_at_every_step() -> None:
    def run(loader: resumable.Loader) -> Iterator[tuple[int, int, Any, Any]]:
        for epoch in loader.epochs(3):
            for index, batch in epoch.enumerate():
                yield int(epoch), index, batch, loader.state_dict()

    whole = list(run(make()))
    assert [row[:3] for row in whole] == [(epoch, index, (index, -index)) for epoch in range(3) for index in range(3)]
    for number, (*_, state) in enumerate(whole, start=1):
        assert [row[:3] for row in run(make(state))] == [row[:3] for row in whole[number:]]


def test_enumerate_starts_and_holds_nothing() -> None:
    """`enumerate` starts at its argument and keeps no batch alive."""
    loader = resumable.wrap([torch.zeros(1) + number for number in range(3)])
    for epoch in loader.epochs(2):
        pairs, freed = epoch.enumerate(10), list[Any]()
        for index, batch in pairs:
            assert index == 10 + int(batch)
            freed.append(weakref.ref(batch + 1))
        assert index == 12
        assert [one() for one in freed] == [None] * 3
        assert next(iter(pairs), None) is None


# ---------------------------------------------------------------------- one loop at a time


def held_again(loader: resumable.Loader) -> Any:
    return iter(loader)


def of_the_epoch(loader: resumable.Loader) -> Any:
    return iter(next(loader.epochs(9)))


def of_steps(loader: resumable.Loader) -> Any:
    return loader.steps(99)


@pytest.mark.parametrize("newer", [held_again, of_the_epoch, of_steps])
@pytest.mark.parametrize("older", [held_again, of_steps])
def test_the_newest_loop_wins_and_an_older_one_raises(older: Callable[..., Any], newer: Callable[..., Any]) -> None:
    loader = resumable.wrap(list(range(6)))
    first, second = older(loader), newer(loader)
    assert next(first) == 0
    if older is of_steps and newer is not of_steps:
        with pytest.raises(LoopError, match=r"steps\(\) is open.*\n.*for_evaluation\(\)"):
            next(second)
        assert list(first)[:5] == [1, 2, 3, 4, 5]
        return
    assert next(second) == 1
    with pytest.raises(LoopError, match=r"newer loop.*\n.*for_evaluation\(\)"):
        next(first)
    assert next(second) == 2
    with pytest.raises(LoopError, match="newer loop"):
        next(first)
    assert loader.global_step == 3


def test_an_iterator_that_was_never_used_disturbs_no_loop() -> None:
    loader = resumable.wrap(list(range(6)))
    first = iter(loader)
    assert next(first) == 0
    iter(loader), loader.steps(9), loader.epochs(9)
    assert list(first) == [1, 2, 3, 4, 5]
    assert list(first) == []


def test_an_exhausted_iterator_stays_exhausted() -> None:
    loader = resumable.wrap(list(range(3)))
    first = iter(loader)
    assert list(first) == [0, 1, 2]
    second = iter(loader)
    assert next(second) == 0
    assert next(first, None) is None
    assert list(second) == [1, 2]


def test_function_that_loops_over_the_loader() -> None:
    """A function may loop over the Loader in place of the epoch.

    `train(loader, epoch)`, as people write it, within `epochs()`.
    """
    loader, got = resumable.wrap(list(range(4)), shuffle=True, seed=0), list[Any]()
    for epoch in loader.epochs(3):
        for step, batch in enumerate(loader):
            got.append((int(epoch), step, batch))
    plain = resumable.wrap(list(range(4)), shuffle=True, seed=0)
    assert got == [(epoch, step, batch) for epoch in range(3) for step, batch in enumerate(plain)]


@pytest.mark.parametrize("again", [lambda loader, _: list(loader), lambda _, epoch: list(epoch)])
def test_second_loop_within_epochs(again: Callable[..., Any]) -> None:
    """A second loop within epochs is rejected and takes nothing."""
    loader, got = resumable.wrap(list(range(4)), shuffle=True, seed=0), list[Any]()
    for epoch in loader.epochs(3):
        got += epoch
        with pytest.raises(LoopError, match=rf"epoch {int(epoch)} .*is over: .*\n.*loader\.for_evaluation\(\)"):
            again(loader, epoch)
    assert loader.global_step == len(got) == 12
    assert got == [batch for _ in range(3) for batch in loader.for_evaluation()][:4] + got[4:]


def test_a_loop_over_an_epoch_of_before_is_rejected() -> None:
    loader = resumable.wrap(list(range(4)))
    kept = list(loader.epochs(2))
    with pytest.raises(LoopError, match="epoch 1 was started, but that epoch is over: the Loader is in epoch 2"):
        list(kept[1])


def test_an_epoch_that_was_resumed_at_its_end_is_empty_once() -> None:
    loader = resumable.wrap(list(range(4)))
    states = [loader.state_dict() for _ in loader]
    for loop in (lambda loader, _: loader, lambda _, epoch: epoch):
        loader = resumable.wrap(list(range(4)))
        loader.load_state_dict(states[-1])
        epochs = loader.epochs(2)
        epoch = next(epochs)
        assert (int(epoch), list(loop(loader, epoch))) == (0, [])
        with pytest.raises(LoopError):
            list(loop(loader, epoch))
        assert [int(one) for one in epochs] == [1]


@pytest.mark.parametrize("end", ["break", "close", "exhausted", "dropped by an exception"])
@pytest.mark.parametrize("form", ["epochs", "steps"])
def test_a_loop_that_has_ended_is_not_in_the_way(form: str, end: str) -> None:
    loader = resumable.wrap(list(range(4)))
    outer: Any = loader.epochs(1) if form == "epochs" else loader.steps(4)
    if end == "close":
        next(outer)
        outer.close()
        assert list(outer) == []
    elif end == "exhausted":
        for _ in outer:
            pass
    else:
        with suppress(KeyError):
            for _ in outer:
                del outer
                if end == "break":
                    break
                raise KeyError
    assert len(list(loader)) + len(list(loader)) >= 6


@pytest.mark.parametrize("leave", ["rewind and read", "load and read"])
def test_left_epoch_is_over_after_a_rollback(leave: str) -> None:
    """An epoch that is left by `break` is over, also after a rollback in it."""
    loader, got = resumable.wrap(list(range(5))), list[tuple[int, int]]()
    for epoch in loader.epochs(3):
        state, failed = loader.state_dict(), False
        for batch in epoch:
            if batch == 1 and not failed:
                failed = True
                loader.rewind() if leave == "rewind and read" else loader.load_state_dict(state)
                continue
            got.append((int(epoch), batch))
            if batch == 2:
                break
    once = [1, 2] if leave == "rewind and read" else [0, 1, 2]
    assert got == [(epoch, batch) for epoch in range(3) for batch in [0, *once]]


def test_a_rollback_and_break_continues_at_the_position() -> None:
    loader, got, failed = resumable.wrap(list(range(4))), list[tuple[int, int]](), False
    for epoch in loader.epochs(2):
        for batch in epoch:
            if batch == 2 and not failed:
                failed = True
                loader.rewind()
                break
            got.append((int(epoch), batch))
    assert got == [(epoch, batch) for epoch in range(2) for batch in range(4)]


def test_a_loop_that_an_exception_left_open_is_replaced() -> None:
    loader = resumable.wrap(list(range(4)))
    kept: list[Any] = []

    def fails() -> None:
        kept.append(loader.steps(8))
        for batch in kept[0]:
            if batch == 1:
                raise KeyError

    with pytest.raises(KeyError):
        fails()
    with pytest.raises(LoopError, match=r"an exception left it open, call steps\(\) again"):
        next(iter(loader))
    assert list(loader.steps(6)) == [2, 3, 0, 1]
    with pytest.raises(LoopError):
        next(kept[0])
    assert list(loader) == [2, 3]


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_end_epoch_after_a_finished_epoch(ack: Any) -> None:
    """`end_epoch` after an epoch that ended by itself skips nothing."""
    loader, got = resumable.wrap(list(range(3)), ack=ack), list[tuple[int, int]]()
    for epoch in loader.epochs(3):
        for batch in epoch:
            got.append((int(epoch), batch))
            if ack == "manual":
                loader.ack()
        loader.end_epoch()
    assert got == [(epoch, batch) for epoch in range(3) for batch in range(3)]
    loader.end_epoch()
    assert loader.epoch == 4, "without epochs(), the next epoch is left"
    assert [int(epoch) for epoch in loader.epochs(8)] == [4, 5, 6, 7], "an epoch of which nothing is read is over, too"


def test_a_newer_epochs_replaces_an_older_one() -> None:
    loader = resumable.wrap(list(range(4)))
    older = loader.epochs(3)
    assert next(older) == 0
    newer = loader.epochs(3)
    assert next(newer) == 0
    with pytest.raises(LoopError, match="newer loop"):
        next(older)
    assert [len(list(epoch)) for epoch in newer] == [4, 4], "epoch 0 was left"


def test_late_ack_of_an_epochs_last_batch() -> None:
    """An epoch whose last batch is acknowledged late ends with its loop."""
    loader, inside = resumable.wrap(list(range(4)), ack="manual"), []
    for epoch in loader.epochs(2):
        assert loader.state_dict()["cursor"] == {"epoch": int(epoch), "position": 0, "step": 0}
        fetched = list(epoch)
        loader.ack(len(fetched))
        inside.append(loader.state_dict())
        assert inside[-1]["cursor"] == {"epoch": int(epoch), "position": 4, "step": 4}
    assert loader.state_dict()["cursor"] == {"epoch": 2, "position": 0, "step": 0}
    resumed = resumable.wrap(list(range(4)))
    resumed.load_state_dict(inside[0])
    assert [(int(epoch), list(epoch)) for epoch in resumed.epochs(2)] == [(0, []), (1, [0, 1, 2, 3])]


def test_a_thread_that_prefetches_is_one_loop() -> None:
    loader, fetched = resumable.wrap(list(range(4)), ack="manual"), queue.Queue[Any](2)

    def fetch() -> None:
        for batch in loader.steps(8):
            fetched.put(batch)

    thread = threading.Thread(target=fetch)
    thread.start()
    got = []
    for step in range(1, 9):
        got.append(fetched.get(timeout=10))
        loader.ack()
        assert loader.global_step == step
        if step < 4:
            with pytest.raises(UnsupportedError, match=r"steps\(\) is open|another thread"):
                next(iter(loader))
    thread.join()
    assert got == [0, 1, 2, 3] * 2


# ---------------------------------------------------------------------- evaluation on the same data


EVALUATED: dict[str, Callable[[], resumable.Loader[Any]]] = {
    "list": lambda: resumable.wrap(list(range(7)), batch_size=2, shuffle=True, seed=2, tail="carry"),
    "map-style": lambda: resumable.wrap(DataLoader(torch.arange(7), batch_size=2, shuffle=True), seed=2),  # type: ignore[arg-type]  # a sequence
    "map-style, workers": lambda: resumable.wrap(
        DataLoader(torch.arange(7), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True),  # type: ignore[arg-type]  # a sequence
        seed=2,
    ),
    "function": lambda: resumable.wrap(lambda epoch: iter(range(epoch, epoch + 7)), batch_size=2, identity="n"),
    "stream": lambda: resumable.wrap(DataLoader(Numbers(), batch_size=2)),
    "stream, workers": lambda: resumable.wrap(DataLoader(Numbers(), batch_size=2, num_workers=1)),
}


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


@pytest.mark.parametrize("make_one", EVALUATED.values(), ids=EVALUATED)
def test_evaluation_is_one_pass_of_epoch_0(
    make_one: Callable[[], resumable.Loader[Any]],
) -> None:
    """An evaluation is one pass of epoch 0 and leaves the training alone."""

    def told(batches: Any) -> list[Any]:
        return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]

    golden = [told(epoch) for epoch in make_one().epochs(3)]
    first = golden[0]
    loader, got = make_one(), list[list[Any]]()
    evaluation = loader.for_evaluation()
    assert evaluation.evaluation
    assert evaluation.for_evaluation() is evaluation
    for epoch in loader.epochs(3):
        got.append([])
        for batch in epoch:
            got[-1] += told([batch])
            assert told(evaluation) == told(loader.for_evaluation()) == first
            state = loader.state_dict()
        assert told(evaluation) == first
        again = make_one()
        again.load_state_dict(state)
        assert told(again.for_evaluation()) == first
    assert got == golden


def test_an_evaluation_has_the_seed_that_a_state_brought() -> None:
    state = resumable.wrap(list(range(9)), shuffle=True, seed=5).state_dict()
    loader = resumable.wrap(list(range(9)), shuffle=True)
    loader.load_state_dict(state)
    assert list(loader.for_evaluation()) == list(resumable.wrap(list(range(9)), shuffle=True, seed=5))


class Remembers(list[int]):
    """A dataset with a state."""

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}


class ToldTheEpoch(Numbers):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (iter(range(4)), "can be read only once"),
        (Remembers(range(4)), "has a state"),
        (DataLoader(ToldTheEpoch()), r"has set_epoch\(\)"),
    ],
)
def test_sources_that_cannot_be_opened_twice_say_so(source: Any, why: str) -> None:
    loader = resumable.wrap(source)
    for epoch in loader.epochs(1):
        for _ in epoch:
            with pytest.raises(UnsupportedError, match=rf"{why}.*\n.*evaluation=True"):
                loader.for_evaluation()
    assert loader.global_step == len(range(4)) or loader.global_step == 7


# ---------------------------------------------------------------------- loops that count from 0


def over_range(loader: resumable.Loader, total: int) -> None:
    for _epoch in range(total):
        for _ in loader:
            pass


def through_a_function(loader: resumable.Loader, total: int) -> None:
    def train_epoch(_: int) -> None:
        for _batch in enumerate(loader):
            pass

    for epoch_idx in range(total):
        train_epoch(epoch_idx)


def over_steps(loader: resumable.Loader, total: int) -> None:
    step = 0
    while step < 3 * total:
        for _ in loader:
            step += 1


@pytest.mark.parametrize("loop", [over_range, through_a_function, over_steps])
def test_plain_loop_after_a_resume_is_told(loop: Callable[..., None]) -> None:
    """A plain loop after a resume in a later epoch is told once."""
    with pytest.warns(LoopWarning, match=r"starts in epoch 2, .*\n.*range\(loader\.epoch, total\)") as told:
        loop(make(state_at(2)), 4)
    assert len(told) == 1
    assert told[0].filename == __file__
    with pytest.warns(LoopWarning, match="starts in epoch 1"):
        loop(make(state_at(0, step=3)), 4)  # after the last batch of epoch 0
    loop(make(), 2)
    loop(make(state_at(0)), 2)


def from_the_loaders_epoch(loader: resumable.Loader) -> None:
    for _epoch in range(loader.epoch, 4):
        list(loader)


def by_steps(loader: resumable.Loader) -> None:
    list(loader.steps(12))


def by_epochs(loader: resumable.Loader) -> None:
    assert sum(len(list(epoch)) for epoch in loader.epochs(4)) > 3


def by_a_function_within_epochs(loader: resumable.Loader) -> None:
    assert sum(len(list(loader)) for _epoch in loader.epochs(4)) > 3


def by_seeking(loader: resumable.Loader) -> None:
    for epoch in range(2):
        loader.seek(epoch=epoch)
        list(loader)


@pytest.mark.parametrize("loop", [from_the_loaders_epoch, by_steps, by_epochs, by_a_function_within_epochs, by_seeking])
def test_a_loop_that_knows_the_epoch_is_not_told(loop: Callable[[resumable.Loader], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(make(state_at(2)))
        loop(make(state_at(0, step=3)))


# ---------------------------------------------------------------------- one Loader after the other


def test_a_loader_that_is_made_again_is_told_once_of_its_order() -> None:
    script = """
import random, logging
from torch.utils.data import DataLoader
import resumable
from resumable import ResumableSampler

def make(size=8, **options):
    return resumable.wrap(list(range(size)), **{"shuffle": True, "seed": 1, **options})

told = []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("resumable").addHandler(handler)

def after(*loaders):
    for loader in loaders:
        list(loader)
    return sum("its order and augmentation are the same" in one for one in told)

right = [make(size=9), make(name="a"), make(seed=2), make(shuffle=False), make(evaluation=True), make()]
right += [make(batch_size=4, world=resumable.World(rank, 2)) for rank in range(2)]
assert after(*right) == 0, told
one = make(seed=7); assert after(one, one, one) == 0, told
sought = make(); sought.seek(epoch=1); assert after(sought) == 0, told
resumed = make(); resumed.load_state_dict(make().state_dict()); assert after(resumed) == 0, told
assert after(make().for_evaluation()) == 0, told
assert after(make()) == 1, told
assert "loader.seek(epoch=...)" in told[-1] and "Keep one Loader" in told[-1]
assert after(make(), make(seed=2)) == 1, "once per process"
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# ---------------------------------------------------------------------- epochs() that give nothing


def test_a_loop_around_epochs_is_told() -> None:
    loader = make()
    with pytest.warns(
        LoopWarning, match=r"epochs\(1\) has no epoch left, because an earlier call went through all 1"
    ) as told:
        trained = [epoch for epoch in range(2) for _ in loader.epochs(1)]
    assert trained == [0]
    assert told[0].filename == __file__
    with pytest.warns(LoopWarning, match=r"epochs\(1\) has no epoch left"):
        list(loader.epochs(1))


@pytest.mark.parametrize("end", [4, 5])
def test_a_finished_run_says_so_once_in_the_log(end: int, caplog: pytest.LogCaptureFixture) -> None:
    loader = make(state_at(end, step=0))
    for _ in range(2):
        assert list(loader.epochs(4)) == []
    (line,) = caplog.messages
    assert line.startswith("the loop over epochs(4) is complete: all 4 epochs are in the loaded state.")
    caplog.clear()
    trained = make()
    assert len(list(trained.steps(end))) == end
    loader = make(trained.state_dict())
    for _ in range(2):
        assert list(loader.steps(4)) == []
    (line,) = caplog.messages
    assert line.startswith("the loop over steps(4) is complete: all 4 steps are in the loaded state.")
    caplog.clear()
    assert list(make(state_at(3, step=0)).epochs(4)) == [3]
    unfinished = make(state_at(3, step=1))
    for epoch in unfinished.epochs(4):
        assert list(epoch)
    assert list(make().epochs(0)) == []
    with pytest.warns(LoopWarning):
        assert list(unfinished.epochs(4)) == []
    assert not caplog.messages


def test_stages_and_finished_runs_are_not_told() -> None:
    for loader in (make(), make(state_at(4, step=0))):
        assert [int(epoch) for stage in (1, 3, 5) for epoch in loader.epochs(stage)][-1] == 4
    assert list(make(state_at(5, step=0)).epochs(5)) == []
    loader = make()
    list(loader.epochs(2))
    loader.load_state_dict(state_at(0, step=0))
    assert len(list(loader.epochs(2))) == 2
