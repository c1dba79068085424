"""What Lightning does alone: every row of the page that says so is run, and compared with the uninterrupted run."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

import pytest
import torch
from alone import (
    Fixed,
    Numbers,
    NumberStream,
    Row,
    SizedFixed,
    SizedStateful,
    Stateful,
    StopsAtTheEnd,
    table,
)
from packaging.version import Version
from pytorch_lightning.utilities import CombinedLoader
from torchdata.stateful_dataloader import StatefulDataLoader

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[2] / "docs/reference/lightning-alone.md"
BATCH_END, EPOCH_END, VALIDATION_END = "on_train_batch_end", "on_train_epoch_end", "on_validation_end"
EVERY_2 = {"val_check_interval": 2, "max_epochs": 1}
OLDER = Version(version("pytorch-lightning")) < Version("2.6.6")


def combined(mode: Any, loader: Callable[[int, int], Any]) -> Callable[[], CombinedLoader]:
    return lambda: CombinedLoader({"a": loader(3, 1000), "b": loader(7, 2000)}, mode)


def six() -> SizedStateful:
    return SizedStateful(6)


def six_unsized() -> Stateful:
    return Stateful(6)


def four() -> SizedFixed:
    return SizedFixed(4, 5000)


def four_stateful() -> SizedStateful:
    return SizedStateful(4, 5000)


class WithWorkers(StatefulDataLoader):  # type: ignore[misc]  # torchdata ships no types
    """Its iterators are garbage in a cycle of Lightning's: in one, torch waits 5 seconds for each of their workers.

    The garbage collector closes the queues of a cycle first, and so the workers are not told, unless those are held.
    """

    def _get_iterator(self) -> Any:
        iterator: Any = super()._get_iterator()
        finalize(iterator, list, iterator._index_queues).atexit = False
        return iterator


def with_generator() -> StatefulDataLoader:
    return StatefulDataLoader(Numbers(), shuffle=True, generator=torch.Generator().manual_seed(3))


ONE_LOADER = [
    Row(
        "`on_train_batch_end`, mid-epoch; sized",
        SizedStateful,
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 3-4; epoch 1: 100-104",
        verdict="exact",
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; unsized",
        Stateful,
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 4; epoch 1: 100-104",
        verdict="lost 1",
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; unsized, `limit_train_batches=4`",
        Stateful,
        BATCH_END,
        3,
        rest="epoch 0: 3; epoch 1: 100-103",
        resumed="epoch 0: 3; epoch 1: 100-103",
        verdict="exact",
        options={"limit_train_batches": 4},
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; sized, model with dropout",
        SizedStateful,
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 3-4; epoch 1: 100-104",
        verdict="different weights",
        model={"drops": True},
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; sized, model uses `estimated_stepping_batches`",
        SizedStateful,
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 0-1; epoch 1: 100-104",
        verdict="lost 2, repeated 2",
        model={"estimates": True},
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; sized, `accumulate_grad_batches=3`, after the first batch of a window",
        SizedStateful,
        BATCH_END,
        4,
        rest="epoch 0: 4; epoch 1: 100-104",
        resumed="epoch 0: 4; epoch 1: 100-104",
        verdict="different weights",
        options={"accumulate_grad_batches": 3},
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; sized, `reload_dataloaders_every_n_epochs=1`",
        SizedStateful,
        BATCH_END,
        2,
        rest="epoch 0: 2-4; epoch 1: 0-4",
        resumed="epoch 0: 2-4; epoch 1: 0-4",
        verdict="exact",
        options={"reload_dataloaders_every_n_epochs": 1},
        in_module=True,
    ),
    Row(
        "`on_train_batch_start`; sized",
        SizedStateful,
        "on_train_batch_start",
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 4; epoch 1: 100-104",
        verdict="lost 1, wrong learning rate",
    ),
    Row(
        "`on_train_batch_start`; unsized",
        Stateful,
        "on_train_batch_start",
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 100-104; epoch 1: 200-204",
        verdict="lost 2, 5 extra",
    ),
    Row(
        "`on_exception` in `training_step`; sized",
        SizedStateful,
        "on_exception",
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 4; epoch 1: 100-104",
        verdict="lost 1, wrong learning rate",
        interrupted={"fail_at": 3},
    ),
    Row(
        "`on_exception` in `training_step`; unsized",
        Stateful,
        "on_exception",
        3,
        rest="epoch 0: 3-4; epoch 1: 100-104",
        resumed="epoch 0: 100-104; epoch 1: 200-204",
        verdict="lost 2, 5 extra",
        interrupted={"fail_at": 3},
    ),
    Row(
        "`on_train_batch_end`, last batch; sized",
        SizedStateful,
        BATCH_END,
        5,
        "epoch end",
        rest="epoch 1: 100-104",
        resumed="epoch 1: 100-104",
        verdict="`on_train_epoch_end` skipped",
    ),
    Row(
        "`on_train_batch_end`, last batch; unsized",
        Stateful,
        BATCH_END,
        5,
        "epoch end",
        rest="epoch 1: 100-104",
        resumed="epoch 1: 100-104 (`batch_idx` from 5)",
        verdict="wrong `batch_idx`, `on_train_epoch_end` skipped",
    ),
    Row(
        "`on_train_batch_end`, last batch; sized, stays at the end of its epoch",
        StopsAtTheEnd,
        BATCH_END,
        5,
        "epoch end",
        rest="epoch 1: 100-104; epoch 2: 200-204",
        resumed="epoch 2: 100-104",
        verdict="lost 5, `on_train_epoch_end` skipped, wrong learning rate",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_train_batch_end`, last batch; sized, `limit_train_batches=4`",
        SizedStateful,
        BATCH_END,
        4,
        "epoch end",
        rest="epoch 1: 100-103; epoch 2: 200-203",
        resumed="epoch 1: 4; epoch 2: 100-103",
        verdict="lost 4, 1 extra, `on_train_epoch_end` skipped, wrong learning rate",
        options={"limit_train_batches": 4, "max_epochs": 3},
    ),
    Row(
        "`on_train_epoch_end`; sized",
        SizedStateful,
        EPOCH_END,
        5,
        rest="epoch 1: 100-104; epoch 2: 200-204",
        resumed="epoch 1: 0-4; epoch 2: 100-104",
        verdict="lost 5, repeated 5",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_train_epoch_end`; unsized",
        Stateful,
        EPOCH_END,
        5,
        rest="epoch 1: 100-104; epoch 2: 200-204",
        resumed="epoch 1: 0-4; epoch 2: 100-104",
        verdict="lost 5, repeated 5",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_train_epoch_end`; sized, `max_steps=12`",
        SizedStateful,
        EPOCH_END,
        5,
        rest="epoch 1: 100-104; epoch 2: 200-201",
        resumed="epoch 0: 100 (`batch_idx` from 5); epoch 1: 200-204; epoch 2: 300",
        verdict="lost 4, 4 extra, `on_train_epoch_end` twice, wrong learning rate",
        options={"max_steps": 12, "max_epochs": -1},
    ),
    Row(
        "`on_train_epoch_end`; unsized, `max_steps=12`",
        Stateful,
        EPOCH_END,
        5,
        rest="epoch 1: 100-104; epoch 2: 200-201",
        resumed="epoch 0: 100-104 (`batch_idx` from 5); epoch 1: 200-201",
        verdict="wrong epoch, wrong learning rate",
        options={"max_steps": 12, "max_epochs": -1},
    ),
    Row(
        "`on_train_epoch_start` of epoch 1; sized",
        SizedStateful,
        "on_train_epoch_start",
        5,
        rest="epoch 1: 100-104; epoch 2: 200-204",
        resumed="epoch 1: 100 (`batch_idx` from 5); epoch 2: 200-204",
        verdict="lost 4",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_train_epoch_start` of epoch 1; unsized",
        Stateful,
        "on_train_epoch_start",
        5,
        rest="epoch 1: 100-104; epoch 2: 200-204",
        resumed="epoch 1: 100-104 (`batch_idx` from 5); epoch 2: 200-204",
        verdict="wrong `batch_idx`",
        options={"max_epochs": 3},
    ),
    Row(
        "finished with `max_epochs=2`, resumed with 3; sized",
        SizedStateful,
        "on_fit_end",
        10,
        rest="epoch 2: 200-204",
        resumed="epoch 2: 0-4",
        verdict="lost 5, repeated 5",
        options={"max_epochs": 3},
        before={"max_epochs": 2},
    ),
    Row(
        "finished with `max_epochs=2`, resumed with 3; unsized",
        Stateful,
        "on_fit_end",
        10,
        rest="epoch 2: 200-204",
        resumed="epoch 2: 0-4",
        verdict="lost 5, repeated 5",
        options={"max_epochs": 3},
        before={"max_epochs": 2},
    ),
]

COMBINED = [
    Row(
        "`max_size_cycle` after 3 batches; sized",
        combined("max_size_cycle", SizedStateful),
        BATCH_END,
        3,
        rest="epoch 0: a 1100-1102 1200, b 2003-2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        resumed="epoch 0: a 1100-1102 1200, b 2003-2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        verdict="exact",
    ),
    Row(
        "`max_size_cycle` after 3 batches; unsized",
        combined("max_size_cycle", Stateful),
        BATCH_END,
        3,
        rest="epoch 0: a 1100-1102 1200, b 2003-2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        resumed="epoch 0: a 1101-1102 1200, b 2004-2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        verdict="a: lost 1, b: lost 1",
    ),
    Row(
        "`max_size_cycle` after 6 batches; sized",
        combined("max_size_cycle", SizedStateful),
        BATCH_END,
        6,
        rest="epoch 0: a 1200, b 2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        resumed="epoch 0: a 1200, b 2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        verdict="exact",
    ),
    Row(
        "`max_size_cycle` after 6 batches; unsized",
        combined("max_size_cycle", Stateful),
        BATCH_END,
        6,
        rest="epoch 0: a 1200, b 2006; epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        resumed=(
            "epoch 0: a 1201-1202 1300-1302 1400-1401, b 2100-2106; epoch 1: a 1500-1502 1600-1602 1700, b 2200-2206"
        ),
        verdict="a: lost 2, a: 8 extra, b: lost 1, b: 7 extra",
    ),
    Row(
        "`max_size_cycle` after the last batch; sized",
        combined("max_size_cycle", SizedStateful),
        BATCH_END,
        7,
        "epoch end",
        rest="epoch 1: a 1300-1302 1400-1402 1500, b 2100-2106",
        resumed="epoch 1: a 1201-1202 1300-1302 1400-1401, b 2100-2106",
        verdict="a: lost 2, a: 2 extra, `on_train_epoch_end` skipped",
    ),
    Row(
        "`min_size` after 2 batches; sized",
        combined("min_size", SizedStateful),
        BATCH_END,
        2,
        rest="epoch 0: a 1002, b 2002; epoch 1: a 1100-1102, b 2100-2102",
        resumed="epoch 0: a 1002, b 2002; epoch 1: a 1100-1102, b 2100-2102",
        verdict="exact",
    ),
    Row(
        "`min_size` after 2 batches; unsized",
        combined("min_size", Stateful),
        BATCH_END,
        2,
        rest="epoch 0: a 1002, b 2002; epoch 1: a 1100-1102, b 2100-2102",
        resumed="epoch 0: a 1100-1102, b 2003-2005; epoch 1: a 1200-1202, b 2100-2102",
        verdict="a: lost 1, a: 3 extra, b: lost 1, b: 3 extra",
    ),
    Row(
        "`min_size` after the last batch; sized",
        combined("min_size", SizedStateful),
        BATCH_END,
        3,
        "epoch end",
        rest="epoch 1: a 1100-1102, b 2100-2102",
        resumed="epoch 1: a 1100-1102, b 2003-2005",
        verdict="b: lost 3, b: 3 extra, `on_train_epoch_end` skipped",
    ),
    Row(
        "`max_size` after 2 batches; sized",
        combined("max_size", SizedStateful),
        BATCH_END,
        2,
        rest="epoch 0: a 1002 none none none none, b 2002-2006; epoch 1: a 1100-1102 none none none none, b 2100-2106",
        resumed=(
            "epoch 0: a 1002 none none none none, b 2002-2006; epoch 1: a 1100-1102 none none none none, b 2100-2106"
        ),
        verdict="exact",
    ),
    Row(
        "`max_size` after 4 batches; sized",
        combined("max_size", SizedStateful),
        BATCH_END,
        4,
        rest="epoch 0: a none none none, b 2004-2006; epoch 1: a 1100-1102 none none none none, b 2100-2106",
        resumed="epoch 0: a 1100-1102, b 2004-2006; epoch 1: a 1200-1202 none none none none, b 2100-2106",
        verdict="a: 3 extra",
    ),
    Row(
        "`max_size` after 4 batches; unsized",
        combined("max_size", Stateful),
        BATCH_END,
        4,
        rest="epoch 0: a none none none, b 2004-2006; epoch 1: a 1100-1102 none none none none, b 2100-2106",
        resumed="epoch 0: a 1100-1102, b 2005-2006 none; epoch 1: a 1200-1202 none none none none, b 2100-2106",
        verdict="a: 3 extra, b: lost 1",
    ),
]

VALIDATION = [
    Row(
        "`on_validation_end`, mid-epoch; sized",
        six,
        VALIDATION_END,
        2,
        rest="epoch 0: 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: 2-3 [5000-5003] 4-5 [5000-5003]",
        verdict="exact",
        options=EVERY_2,
        validation=four,
    ),
    Row(
        "`on_validation_end`, mid-epoch; unsized",
        six_unsized,
        VALIDATION_END,
        2,
        rest="epoch 0: 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: 3-4 [5000-5003] 5",
        verdict="lost 1, validation skipped",
        options=EVERY_2,
        validation=four,
    ),
    Row(
        "`on_validation_end`, after the last batch; sized",
        six,
        VALIDATION_END,
        6,
        "epoch end",
        rest="epoch 1: 100-105 [5000-5003]",
        resumed="epoch 1: 100-105 [5000-5003]",
        verdict="exact",
        validation=four,
    ),
    Row(
        "`on_validation_end`, after the last batch; unsized",
        six_unsized,
        VALIDATION_END,
        6,
        "epoch end",
        rest="epoch 1: 100-105 [5000-5003]",
        resumed="epoch 1: 200-205 [5000-5003]",
        verdict="lost 6, 6 extra",
        validation=four,
    ),
    Row(
        "`on_train_batch_end`, validation due; sized",
        six,
        BATCH_END,
        2,
        "validation",
        rest="epoch 0: [5000-5003] 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: 2-3 [5000-5003] 4-5 [5000-5003]",
        verdict="validation skipped",
        options=EVERY_2,
        validation=four,
    ),
    Row(
        "`on_train_batch_end`, validation due; unsized",
        six_unsized,
        BATCH_END,
        2,
        "validation",
        rest="epoch 0: [5000-5003] 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: 3-4 [5000-5003] 5",
        verdict="lost 1, validation skipped",
        options=EVERY_2,
        validation=four,
    ),
    Row(
        "`on_train_batch_end`, epoch-end validation due; sized",
        six,
        BATCH_END,
        6,
        "validation",
        rest="epoch 0: [5000-5003]; epoch 1: 100-105 [5000-5003]",
        resumed="epoch 1: 100-105 [5000-5003]",
        verdict="validation skipped, `on_train_epoch_end` skipped",
        validation=four,
    ),
    Row(
        "`on_train_batch_end`, epoch-end validation due; unsized",
        six_unsized,
        BATCH_END,
        6,
        "validation",
        rest="epoch 0: [5000-5003]; epoch 1: 100-105 [5000-5003]",
        resumed="epoch 1: 100-105 [5000-5003] (`batch_idx` from 6)",
        verdict="wrong `batch_idx`, validation skipped, `on_train_epoch_end` skipped",
        validation=four,
    ),
    Row(
        "`on_validation_batch_end`; sized",
        six,
        "on_validation_batch_end",
        2,
        "validation",
        rest="epoch 0: [5000-5003] 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: 2-3 [5000-5003] 4-5 [5000-5003]",
        verdict="validation skipped",
        options=EVERY_2,
        validation=four,
    ),
    Row(
        "`on_validation_batch_end`, epoch-end validation; sized",
        six,
        "on_validation_batch_end",
        6,
        "validation",
        rest="epoch 0: [5000-5003]; epoch 1: 100-105 [5000-5003]",
        resumed="epoch 1: 100-105 [5000-5003]",
        verdict="validation skipped",
        validation=four,
    ),
    Row(
        "`on_exception` in `validation_step`, batch 2 of 4; sized",
        six,
        "on_exception",
        2,
        "validation",
        rest="epoch 0: [5000-5003] 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: [5000-5001] 2-3 [5000-5003] 4-5 [5000-5003]",
        verdict="wrong metric",
        options=EVERY_2,
        validation=four,
        interrupted={"fail_in_validation": 2},
    ),
    Row(
        "`on_exception` in `validation_step`, batch 2 of 4; unsized",
        six_unsized,
        "on_exception",
        2,
        "validation",
        rest="epoch 0: [5000-5003] 2-3 [5000-5003] 4-5 [5000-5003]",
        resumed="epoch 0: [5000-5001] 3-4 [5000-5003] 5",
        verdict="lost 1, validation skipped, wrong metric",
        options=EVERY_2,
        validation=four,
        interrupted={"fail_in_validation": 2},
    ),
    Row(
        "`on_train_epoch_end`; sized",
        six,
        EPOCH_END,
        6,
        rest="epoch 1: 100-105 [5000-5003]",
        resumed="epoch 1: 0-5 [5000-5003]",
        verdict="lost 6, repeated 6",
        validation=four,
    ),
    Row(
        "`on_train_epoch_end`; sized, `max_steps=14`",
        six,
        EPOCH_END,
        6,
        rest="epoch 1: 100-105 [5000-5003]; epoch 2: 200-201",
        resumed="epoch 1: 100-105 [5000-5003]; epoch 2: 200-201",
        verdict="`on_train_epoch_end` twice",
        options={"max_steps": 14, "max_epochs": -1},
        validation=four,
    ),
    Row(
        "`on_train_epoch_end`; unsized, `max_steps=14`",
        six_unsized,
        EPOCH_END,
        6,
        rest="epoch 1: 100-105 [5000-5003]; epoch 2: 200-201",
        resumed="epoch 1: 200-205 [5000-5003]; epoch 2: 300-301",
        verdict="lost 6, 6 extra, `on_train_epoch_end` twice",
        options={"max_steps": 14, "max_epochs": -1},
        validation=four,
    ),
    Row(
        "`on_train_batch_end`, stateful validation loader that counts its epochs; sized",
        six,
        BATCH_END,
        3,
        rest="epoch 0: 3 [5100-5103] 4-5 [5200-5203]",
        resumed="epoch 0: 3 [5000-5003] 4-5 [5100-5103]",
        verdict="wrong metric",
        options=EVERY_2,
        validation=four_stateful,
    ),
    Row(
        "the same with `num_sanity_val_steps=2`; sized",
        six,
        BATCH_END,
        1,
        rest="epoch 0: 1 [5100-5103] 2-3 [5200-5203] 4-5 [5300-5303]",
        resumed="epoch 0: 1 [5000-5003] 2-3 [5100-5103] 4-5 [5200-5203]",
        verdict="wrong metric",
        options={**EVERY_2, "num_sanity_val_steps": 2},
        validation=four_stateful,
    ),
]

TORCHDATA = [
    Row(
        "`on_train_batch_end`, mid-epoch",
        lambda: StatefulDataLoader(Numbers()),
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 0-4",
        resumed="epoch 0: 3-4; epoch 1: 0-4",
        verdict="exact",
    ),
    Row(
        "`on_train_batch_end`, mid-epoch, `num_workers=2`",
        lambda: WithWorkers(Numbers(), num_workers=2),
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 0-4",
        resumed="epoch 0: 3-4; epoch 1: 0-4",
        verdict="exact",
        slow=True,
    ),
    Row(
        "`on_train_batch_end`, mid-epoch, `IterableDataset`",
        lambda: StatefulDataLoader(NumberStream()),
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 0-4",
        resumed="epoch 0: 4; epoch 1: 0-4",
        verdict="lost 1",
    ),
    Row(
        "`on_train_batch_end`, in epoch 1, `shuffle=True`",
        lambda: StatefulDataLoader(Numbers(), shuffle=True),
        BATCH_END,
        7,
        rest="epoch 1: 4 0 2; epoch 2: 0 3 2 1 4",
        resumed="epoch 1: 4 0 2; epoch 2: 0 3 2 1 4",
        verdict="exact",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_train_batch_end`, in epoch 1, `shuffle=True, generator=...`",
        with_generator,
        BATCH_END,
        7,
        rest="epoch 1: 3-4 1; epoch 2: 0 2 1 4 3",
        resumed="epoch 1: 3-4 1; epoch 2: 4 0-3",
        verdict="different order",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_exception` in `training_step`",
        lambda: StatefulDataLoader(Numbers()),
        "on_exception",
        3,
        rest="epoch 0: 3-4; epoch 1: 0-4",
        resumed="epoch 0: 4; epoch 1: 0-4",
        verdict="lost 1, wrong learning rate",
        interrupted={"fail_at": 3},
    ),
    Row(
        "`on_train_batch_end`, last batch",
        lambda: StatefulDataLoader(Numbers()),
        BATCH_END,
        5,
        "epoch end",
        rest="epoch 1: 0-4; epoch 2: 0-4",
        resumed="epoch 2: 0-4",
        verdict="lost 5, `on_train_epoch_end` skipped, wrong learning rate",
        options={"max_epochs": 3},
    ),
    Row(
        "`on_train_epoch_end`",
        lambda: StatefulDataLoader(Numbers()),
        EPOCH_END,
        5,
        rest="epoch 1: 0-4",
        resumed="epoch 1: 0-4",
        verdict="exact",
    ),
    Row(
        "`on_train_epoch_end`, `shuffle=True`",
        lambda: StatefulDataLoader(Numbers(), shuffle=True),
        EPOCH_END,
        5,
        rest="epoch 1: 3 1 4 0 2",
        resumed="epoch 1: 1 3 2 0 4",
        verdict="different order",
    ),
    Row(
        "`on_train_epoch_end`, `shuffle=True, generator=...`",
        with_generator,
        EPOCH_END,
        5,
        rest="epoch 1: 0 2-4 1",
        resumed="epoch 1: 1 0 3-4 2",
        verdict="different order",
    ),
]

WITHOUT_STATE = [
    Row(
        "`on_train_batch_end`, mid-epoch; sized",
        SizedFixed,
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 0-4",
        resumed="epoch 0: 0-1; epoch 1: 0-4",
        verdict="lost 2, repeated 2 (warns)",
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; unsized",
        Fixed,
        BATCH_END,
        3,
        rest="epoch 0: 3-4; epoch 1: 0-4",
        resumed="epoch 0: 0-4; epoch 1: 0-4",
        verdict="repeated 3",
    ),
    Row(
        "`on_train_batch_end`, mid-epoch; unsized, `limit_train_batches=4`",
        Fixed,
        BATCH_END,
        3,
        rest="epoch 0: 3; epoch 1: 0-3",
        resumed="epoch 0: 0; epoch 1: 0-3",
        verdict="lost 1, repeated 1 (warns)",
        options={"limit_train_batches": 4},
    ),
    Row(
        "`on_train_batch_end`, last batch; sized",
        SizedFixed,
        BATCH_END,
        5,
        "epoch end",
        rest="epoch 1: 0-4",
        resumed="epoch 1: 0-4",
        verdict="`on_train_epoch_end` skipped",
    ),
    Row(
        "`on_train_epoch_end`; sized",
        SizedFixed,
        EPOCH_END,
        5,
        rest="epoch 1: 0-4",
        resumed="epoch 1: 0-4",
        verdict="exact",
    ),
    Row(
        "`on_train_epoch_end`; sized, `max_steps=12`",
        SizedFixed,
        EPOCH_END,
        5,
        rest="epoch 1: 0-4; epoch 2: 0-1",
        resumed="epoch 0: 0 (`batch_idx` from 5); epoch 1: 0-4; epoch 2: 0",
        verdict="lost 1, repeated 1, `on_train_epoch_end` twice, wrong learning rate",
        options={"max_steps": 12, "max_epochs": -1},
    ),
    Row(
        "`on_train_epoch_start` of epoch 1; sized",
        SizedFixed,
        "on_train_epoch_start",
        5,
        rest="epoch 1: 0-4; epoch 2: 0-4",
        resumed="epoch 1: 0 (`batch_idx` from 5); epoch 2: 0-4",
        verdict="lost 4",
        options={"max_epochs": 3},
    ),
]


SECTIONS = {
    "One stateful loader": ONE_LOADER,
    "Several stateful loaders": COMBINED,
    "Validation": VALIDATION,
    "torchdata's StatefulDataLoader": TORCHDATA,
    "Stateless loaders": WITHOUT_STATE,
}
CASES = [
    pytest.param(row, id=f"{title}: {row.name}", marks=[pytest.mark.slow] if row.slow else [])
    for title, rows in SECTIONS.items()
    for row in rows
]


@pytest.mark.skipif(OLDER, reason="the page describes Lightning 2.6.6")  # noqa: TID251  # not with what make installs
@pytest.mark.parametrize("row", CASES)
def test_lightning_does_what_the_page_says(row: Row, tmp_path: Path) -> None:
    found = row.run(tmp_path)
    if found != (row.rest, row.resumed, row.verdict):
        rest, resumed, verdict = found
        pytest.fail(
            f"Lightning now does {verdict!r} for row {row.name!r}; update docs/reference/lightning-alone.md\n"
            f"rest of the uninterrupted run: {rest}\nresumed run: {resumed}\nverdict: {verdict}\n"
            f"instead of\n{row.rest}\n{row.resumed}\n{row.verdict}"
        )


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_has_the_tables_of_these_rows(title: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = "".join(f"{line}\n" for line in section.splitlines() if line.startswith("|"))
    assert found == table(SECTIONS[title])


def test_the_page_has_no_other_tables() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("|") for line in lines) == sum(len(rows) + 2 for rows in SECTIONS.values())
