"""Each moment at which a checkpoint can be saved: the resumed run equals the uninterrupted one, bit for bit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from sources import MAKERS, SIZED, validation
from trainer_runs import Model, Outcome, PlannedError, SaveOnce, check_rest, fit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def trained(count: int) -> Callable[[Any, Any], bool]:
    return lambda _, model: model.trained == count


def always(*_: Any) -> bool:
    return True


@dataclass(frozen=True)
class Row:
    """A moment to save at.

    Args:
        name: what happens.
        hook: of the Trainer.
        when: the first time this holds.
        trained: batches that are in the weights then.
        begins: first event of the resumed run.
        options: of the Trainer, as items.
        model: options of the interrupted model, as items.
        validates: there is a validation loader.
        sized: the case needs a loader with a length.
    """

    name: str
    hook: str
    when: Callable[[Any, Any], bool]
    trained: int
    begins: str
    options: tuple[tuple[str, Any], ...] = ()
    model: tuple[tuple[str, Any], ...] = ()
    validates: bool = False
    sized: bool = False


STEPS = (("max_steps", 12),)
LIMIT = (("limit_train_batches", 4),)
WINDOW = (("accumulate_grad_batches", 3),)
EVERY_2 = (("val_check_interval", 2),)

ROWS = [
    Row("batch end 1", "on_train_batch_end", trained(1), 1, "train"),
    Row("batch end 3", "on_train_batch_end", trained(3), 3, "train"),
    Row("batch end, last", "on_train_batch_end", trained(5), 5, "epoch end"),
    Row("batch end 7", "on_train_batch_end", trained(7), 7, "train"),
    Row("batch end, last of the second epoch", "on_train_batch_end", trained(10), 10, "epoch end"),
    Row("batch end 3, max_steps", "on_train_batch_end", trained(3), 3, "train", STEPS),
    Row("batch end, last, max_steps", "on_train_batch_end", trained(5), 5, "epoch end", STEPS),
    Row("batch start 3", "on_train_batch_start", trained(3), 3, "train"),
    Row("batch start, first", "on_train_batch_start", trained(0), 0, "epoch start"),
    Row("train start", "on_train_start", always, 0, "epoch start"),
    Row("epoch start", "on_train_epoch_start", trained(5), 5, "epoch start"),
    Row("epoch start, max_steps", "on_train_epoch_start", trained(5), 5, "epoch start", STEPS),
    Row("epoch end", "on_train_epoch_end", trained(5), 5, "epoch start"),
    Row("epoch end, max_steps", "on_train_epoch_end", trained(5), 5, "epoch start", STEPS),
    Row("exception 3", "on_exception", always, 3, "train", (), (("fail_at", 3),)),
    Row("exception, first of an epoch", "on_exception", always, 5, "epoch start", (), (("fail_at", 5),)),
    Row("exception, first of all", "on_exception", always, 0, "epoch start", (), (("fail_at", 0),)),
    Row("limit, 3", "on_train_batch_end", trained(3), 3, "train", LIMIT),
    Row("limit, last", "on_train_batch_end", trained(4), 4, "epoch end", LIMIT),
    Row("limit, epoch end", "on_train_epoch_end", trained(4), 4, "epoch start", LIMIT),
    Row("limit as a share", "on_train_batch_end", trained(4), 4, "train", (("limit_train_batches", 0.6),), sized=True),
    Row("window, 1 of 3", "on_train_batch_end", trained(4), 3, "train", WINDOW),
    Row("window, 2 of 2, the last", "on_train_batch_end", trained(5), 5, "epoch end", WINDOW),
    Row("window, closed", "on_train_batch_end", trained(3), 3, "train", WINDOW),
    Row("window, exception in it", "on_exception", always, 3, "train", WINDOW, (("fail_at", 4),)),
    Row("window, exception at its first", "on_exception", always, 3, "train", WINDOW, (("fail_at", 3),)),
    Row("window, exception in the first", "on_exception", always, 0, "epoch start", WINDOW, (("fail_at", 1),)),
    Row("validation due", "on_train_batch_end", trained(2), 2, "validation", EVERY_2, validates=True),
    Row("validation start", "on_validation_start", trained(2), 2, "validation", EVERY_2, validates=True),
    Row("in a validation", "on_validation_batch_end", trained(4), 4, "validation", EVERY_2, validates=True),
    Row("validation end", "on_validation_end", trained(2), 2, "train", EVERY_2, validates=True),
    Row(
        "exception in a validation",
        "on_exception",
        always,
        4,
        "validation",
        EVERY_2,
        (("fail_in_validation", 4),),
        validates=True,
    ),
    Row("behind a validation", "on_train_batch_end", trained(3), 3, "train", EVERY_2, validates=True),
    Row("batch start after a validation", "on_train_batch_start", trained(4), 4, "train", EVERY_2, validates=True),
    Row("exception after a validation", "on_exception", always, 4, "train", EVERY_2, (("fail_at", 4),), validates=True),
    Row("epoch's validation due", "on_train_batch_end", trained(5), 5, "validation", validates=True),
    Row("in the epoch's validation", "on_validation_batch_end", trained(5), 5, "validation", validates=True),
    Row("epoch's validation end", "on_validation_end", trained(5), 5, "epoch end", validates=True),
    Row("epoch end with validation", "on_train_epoch_end", trained(5), 5, "epoch start", validates=True),
    Row("epoch end with validation, max_steps", "on_train_epoch_end", trained(5), 5, "epoch start", STEPS, (), True),
    Row(
        "validation in a window",
        "on_validation_end",
        trained(4),
        3,
        "train",
        (*WINDOW, ("val_check_interval", 4)),
        validates=True,
    ),
    Row(
        "validation every 4 batches of all epochs",
        "on_train_batch_end",
        trained(8),
        8,
        "validation",
        (("val_check_interval", 4), ("check_val_every_n_epoch", None)),
        validates=True,
    ),
    Row(
        "validation with a sanity check",
        "on_train_batch_end",
        trained(4),
        4,
        "validation",
        (*EVERY_2, ("num_sanity_val_steps", 2)),
        validates=True,
    ),
]


@cache
def uninterrupted(kind: str, options: tuple[tuple[str, Any], ...], *, validates: bool) -> Outcome:
    return fit(Model(), MAKERS[kind](), validation() if validates else None, **dict(options))


def sample() -> set[tuple[str, str]]:
    """Choose who is tried at each moment: an indexed loader, and the kind that was tried least at moments of its kind.

    The whole grid is for `make test-long`.
    """
    chosen: set[tuple[str, str]] = set()
    tried: Counter[tuple[str, str]] = Counter()
    for row in ROWS:
        others = [kind for kind in (SIZED if row.sized else MAKERS) if kind != "indexed"]
        other = min(others, key=lambda kind: (tried[kind, row.hook], tried[kind, row.begins]))
        tried.update([(other, row.hook), (other, row.begins)])
        chosen |= {(row.name, "indexed"), (row.name, other)}
    return chosen


SAMPLE = sample()


def marks(row: Row, kind: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] * ((row.name, kind) not in SAMPLE)


CASES = [
    pytest.param(row, kind, id=f"{row.name}, {kind}", marks=marks(row, kind))
    for row in ROWS
    for kind in MAKERS
    if kind in SIZED or not row.sized
]


def test_sample_of_the_grid_is_complete() -> None:
    """The sample of the grid has each kind of loader at each kind of moment."""
    for kind in MAKERS:
        rows = [row for row in ROWS if (row.name, kind) in SAMPLE]
        assert {row.hook for row in rows} >= {"on_train_batch_end", "on_exception"}, kind
        assert {row.begins for row in rows} == {row.begins for row in ROWS}, kind
    assert {name for name, _ in SAMPLE} == {row.name for row in ROWS}


@pytest.mark.slow
@pytest.mark.parametrize(("row", "kind"), CASES)
def test_a_resumed_run_equals_the_uninterrupted_one(row: Row, kind: str, tmp_path: Path) -> None:
    whole = uninterrupted(kind, row.options, validates=row.validates)
    path, options = tmp_path / "saved.ckpt", dict(row.options)
    data = MAKERS[kind](), validation() if row.validates else None
    with suppress(PlannedError):
        fit(Model(**dict(row.model)), *data, callbacks=[SaveOnce(path, row.hook, row.when)], **options)
    rest = fit(Model(), MAKERS[kind](), data[1], checkpoint=path, **options)
    check_rest(whole, rest, trained=row.trained, begins=row.begins)
