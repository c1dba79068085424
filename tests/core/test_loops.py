"""An epoch is its number; and loops that do something else than they seem to are told."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable.errors import LoopWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_where_an_epoch_is_saved_it_is_a_plain_integer() -> None:
    epoch = next(make().epochs(1))
    for saved in (pickle.loads(pickle.dumps(epoch)), copy.deepcopy(epoch), copy.copy(epoch)):  # noqa: S301  # our own bytes
        assert type(saved) is int
    assert [batch for batch in epoch] == [(0, 0), (1, -1), (2, -2)]  # noqa: C416  # the form of a loop
    assert len(epoch) == 3


def test_an_epoch_that_is_taken_for_a_batch_is_refused() -> None:
    def nested(loader: resumable.Loader) -> None:
        for _x, _y, _z in loader.epochs(2):
            raise AssertionError("it was taken for three variables")

    with pytest.raises(UnsupportedError, match="for epoch in loader.epochs"):
        nested(make())
    with pytest.raises(UnsupportedError, match="epoch 1 was to be unpacked"):
        [x + y for x, y in make(state_at(1)).epochs(2)]
    assert [x + y for epoch in make().epochs(2) for x, y in epoch] == [0] * 6
    assert [first for first, *_ in make().epochs(1)] == [(0, 0)]


# ---------------------------------------------------------------------- loops that count from 0


def in_one_function(loader: resumable.Loader, total: int) -> None:
    for epoch in range(total):
        assert epoch >= 0
        for _ in loader:
            pass


def enumerated(loader: resumable.Loader, total: int) -> None:
    for ep in range(total):
        assert ep >= 0
        for _, _batch in enumerate(loader):
            pass


def through_a_function(loader: resumable.Loader, total: int) -> None:
    def train_epoch(_: int) -> None:
        for _batch in loader:
            pass

    for epoch_idx in range(total):
        train_epoch(epoch_idx)


def at_the_top(loader: resumable.Loader, total: int) -> None:
    code = "for epoch in range(total):\n  for batch in loader:\n    pass"
    exec(code, {"loader": loader, "total": total})  # noqa: S102  # a script's top level


@pytest.mark.parametrize("loop", [in_one_function, enumerated, through_a_function, at_the_top])
def test_a_loop_that_counts_from_zero_after_a_resume_is_told_once(loop: Callable[..., None]) -> None:
    with pytest.warns(
        LoopWarning, match=r"= 0, but the loader was resumed and is in epoch 2.*\n.*\n.*\n.*range\("
    ) as told:
        loop(make(state_at(2)), 4)
    assert len(told) == 1
    assert told[0].filename in {__file__, "<string>"}
    with pytest.warns(LoopWarning, match="is in epoch 1"):
        loop(make(state_at(0, step=3)), 4)  # after the last batch of epoch 0
    loop(make(), 2)
    loop(make(state_at(0)), 2)


def from_the_loaders_epoch(loader: resumable.Loader) -> None:
    for epoch in range(loader.epoch, 4):
        assert epoch >= 0
        list(loader)


def what_is_left(loader: resumable.Loader) -> None:
    for epoch in range(4 - loader.epoch):
        assert epoch >= 0
        list(loader)


def from_a_number_of_the_scripts_own(loader: resumable.Loader) -> None:
    for epoch in range(2, 4):
        assert epoch >= 0
        list(loader)


def by_steps(loader: resumable.Loader) -> None:
    epoch, step = 0, 7
    while step < 12:
        for _ in loader:
            step += 1
        epoch += 1


def folds(loader: resumable.Loader) -> None:
    for fold in range(2):
        assert fold >= 0
        list(loader)


def by_epochs(loader: resumable.Loader) -> None:
    for epoch in loader.epochs(4):
        assert list(epoch)


def by_seeking(loader: resumable.Loader) -> None:
    for epoch in range(2):
        loader.seek(epoch=epoch)
        list(loader)


def before_the_loop(loader: resumable.Loader) -> None:
    for epoch in range(2):
        assert epoch >= 0
    for _ in loader:
        pass


RIGHT = [from_the_loaders_epoch, what_is_left, from_a_number_of_the_scripts_own, by_steps, folds, by_epochs, by_seeking]


@pytest.mark.parametrize("loop", [*RIGHT, before_the_loop])
def test_no_other_loop_is_told(loop: Callable[[resumable.Loader], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(make(state_at(2)))


# ---------------------------------------------------------------------- epochs() that give nothing


def test_a_loop_around_epochs_is_told() -> None:
    loader = make()
    with pytest.warns(LoopWarning, match=r"epochs\(1\) gives no epoch, as all 1 were gone through") as told:
        trained = [epoch for epoch in range(2) for _ in loader.epochs(1)]
    assert trained == [0]
    assert told[0].filename == __file__
    with pytest.warns(LoopWarning, match=r"epochs\(1\) gives no epoch"):
        list(loader.epochs(1))


def test_stages_and_finished_runs_are_not_told() -> None:
    for loader in (make(), make(state_at(4, step=0))):
        assert [int(epoch) for stage in (1, 3, 5) for epoch in loader.epochs(stage)][-1] == 4
    assert list(make(state_at(5, step=0)).epochs(5)) == []
    loader = make()
    list(loader.epochs(2))
    loader.load_state_dict(state_at(0, step=0))
    assert len(list(loader.epochs(2))) == 2


class Held:
    """Something of the user's that is to be freed when it is deleted."""


def test_what_the_loops_function_holds_is_not_kept_alive() -> None:
    held = Held()
    freed = weakref.ref(held)
    loader = resumable.wrap(range(4))
    loader.load_state_dict(resumable.wrap(range(4)).state_dict())
    for epoch in range(1):
        assert list(loader) == [0, 1, 2, 3], epoch
    del held
    assert freed() is None
