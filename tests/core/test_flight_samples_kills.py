"""Processes that die while a sample is read: the next start names it, by what they wrote down themselves."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from flight_samples_run import BATCH, LENGTH, Samples, wrap

import resumable
from resumable import flight

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("flight_samples_run.py")
ORDER = [
    sample
    for step in range(LENGTH // BATCH)
    for sample in resumable.wrap(list(range(LENGTH)), batch_size=BATCH, shuffle=True).sample_indices(epoch=0, step=step)
]


def die(folder: Path, sample: int, how: str) -> None:
    """Let a training without workers die."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        list(wrap(Samples(folder, sample, how), folder, 0))
        os._exit(77)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == {"kill": -9, "exit": 0, "fault": -signal.SIGSEGV}[how]


def die_with_workers(folder: Path, samples: Samples, context: str | None = None) -> None:
    """Let a training with two workers die, or one of them; without a context as a fork of this process."""
    if context is None:
        import torch.utils.data  # noqa: F401, PLC0415  # once, and not in each fork

        child = os.fork()
        if not child:
            os.setsid()
            list(wrap(samples, folder, 2, "fork"))
            os._exit(77)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    else:
        numbers = samples.fatal, samples.how, samples.blocked, samples.step
        arguments = [sys.executable, str(SCRIPT), str(folder), "2", context, *map(str, numbers)]
        status = subprocess.run(
            arguments, check=False, timeout=300, start_new_session=True, capture_output=True
        ).returncode
    assert status == (-9 if samples.how == "group" else 1)


def begun_last(folder: Path) -> dict[int, int]:
    """Return which sample each reader began last, by its own words."""
    return {int(worker): int(index) for worker, index in map(str.split, (folder / "truth").read_text().splitlines())}


def next_start(folder: Path, workers: int, caplog: pytest.LogCaptureFixture) -> str:
    """Start the training again, up to its first batch, and return what it logs."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "resumable"):
        next(iter(wrap(list(range(LENGTH)), folder, 0, "fork" if workers else None)))
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("place", "how"), [(0, "kill"), (7, "kill"), (LENGTH - 1, "kill"), (4, "exit"), (13, "fault")], ids=str
)
def test_the_sample_that_was_read_is_named(
    place: int, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    die(tmp_path, ORDER[place], how)
    assert begun_last(tmp_path) == {-1: ORDER[place]}
    (record,) = flight.read(tmp_path / "flight")
    assert record.reading == ((None, ORDER[place]),)
    told = next_start(tmp_path, 0, caplog)
    assert f"crashed in epoch 0, step {place // BATCH}, while reading sample {ORDER[place]}; no state was" in told
    (record,) = flight.read(tmp_path / "flight")
    assert record.samples == ()
    assert "crashes in a row" not in told


@pytest.mark.parametrize("context", [None, pytest.param("spawn", marks=pytest.mark.long)])
def test_a_sample_that_is_read_ahead_is_named_whatever_batch_was_waited_for(
    context: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fatal = ORDER[5 * BATCH + 1]  # that worker 1 reads, before or after worker 0 is at the other one
    for count, step in enumerate((0, 2, 4)):
        blocked = ORDER[step * BATCH]
        die_with_workers(tmp_path, Samples(tmp_path, fatal, "group", blocked, step), context)
        assert begun_last(tmp_path) == {0: blocked, 1: fatal}
        (record,) = flight.read(tmp_path / "flight")
        assert record.reading == ((0, blocked), (1, fatal))
        assert (record.phase, record.step, record.crashes) == ("waiting", step, min(count, 1))
    told = next_start(tmp_path, 2, caplog)
    assert f"  worker 0 was reading sample {blocked}\n  worker 1 was reading sample {fatal}\n" in told
    assert f"These are 3 crashes in a row while sample {fatal} was read, so it is likely what crashes." in told
    assert "sampler=resumable.samplers.Subset" in told
    assert "strict=False" in told


def test_only_the_worker_that_died_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fatal = ORDER[3 * BATCH]
    die_with_workers(tmp_path, Samples(tmp_path, fatal, "kill", ORDER[0]), "fork")
    (record,) = flight.read(tmp_path / "flight")
    assert (record.ended, record.reading) == ("raised", ((1, fatal),))
    told = next_start(tmp_path, 2, caplog)
    assert f"worker 1 was reading sample {fatal}" in told
    assert "worker 0" not in told


def test_three_crashes_at_one_batch_and_other_samples_name_the_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for place in (6, 7, 6):
        die(tmp_path, ORDER[place], "kill")
    told = next_start(tmp_path, 0, caplog)
    assert f"while reading sample {ORDER[6]}" in told
    assert "These are 3 crashes in a row at this batch, so one of its samples may be what crashes" in told


class Deadly:
    """Their own indices; one of them kills the worker that reads it, or keeps it, as often as there are lives."""

    def __init__(self, folder: Path, fatal: int, how: str, lives: int) -> None:
        self.folder, self.fatal, self.how, self.lives = folder, fatal, how, lives

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index == self.fatal and len(deaths := list(self.folder.glob("death-*"))) < self.lives:
            (self.folder / f"death-{len(deaths)}").write_text("")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return index


def deadly(folder: Path, how: str = "kill", lives: int = 9, *, heals: bool = True, **options: Any) -> resumable.Loader:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds, and most tests do without

    data: Any = Deadly(folder, 11, how, lives)
    loader: Any = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=list, **options)
    death: Any = "restart" if heals else "error"
    return resumable.wrap(loader, flight_recorder=folder / "flight", identity="it", on_worker_death=death)


def samples_now(folder: Path) -> tuple[int, ...]:
    (record,) = flight.read(folder / "flight")
    return record.samples


@pytest.mark.usefixtures("no_death_of_before")
@pytest.mark.parametrize("persistent", [False, True], ids=["new", "persistent"])
def test_a_worker_that_was_healed_is_told_and_forgotten(
    persistent: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = deadly(tmp_path, lives=1, persistent_workers=persistent)
    for epoch in loader.epochs(2):
        assert [sample for batch in epoch for sample in batch] == (ORDER if epoch.number == 0 else loader_order(1))
        assert samples_now(tmp_path) == ()
    loader.close()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "\n  it was reading:   sample 11\n" in told
    assert samples_now(tmp_path) == ()


def loader_order(epoch: int) -> list[int]:
    order = resumable.wrap(list(range(LENGTH)), batch_size=BATCH, shuffle=True)
    return [sample for step in range(LENGTH // BATCH) for sample in order.sample_indices(epoch=epoch, step=step)]


@pytest.mark.usefixtures("no_death_of_before")
@pytest.mark.parametrize(
    ("how", "heals"), [("kill", False), pytest.param("hang", False, marks=pytest.mark.long), ("kill", True)]
)
def test_the_error_of_a_dead_worker_names_its_sample(how: str, heals: bool, tmp_path: Path) -> None:
    loader = deadly(tmp_path, how, heals=heals, timeout=3 if how == "hang" else 0)
    named = r"was reading:? +sample 11\n"
    with pytest.raises(resumable.errors.WorkerError, match=named):
        list(loader)
    assert samples_now(tmp_path) == (11,), "until other workers read"
    loader.close()


@pytest.mark.parametrize("persistent", [False, True], ids=["new", "persistent"])
def test_a_loop_that_is_left_leaves_no_sample(persistent: bool, tmp_path: Path) -> None:
    loader = deadly(tmp_path, lives=0, heals=False, persistent_workers=persistent)
    for step, _ in enumerate(loader):
        if step == 2:
            break
    loader.end_epoch()
    loader.close()
    assert samples_now(tmp_path) == ()


def test_an_exception_of_the_loop_accuses_no_sample(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        f"sys.path.insert(0, {str(SCRIPT.parent)!r}); from flight_samples_run import *\n"
        f"folder = Path({str(tmp_path)!r})\n"
        f"loader = wrap(Samples(folder, -1, 'kill', {ORDER[6]}), folder, 2, 'fork')\n"
        "for _ in loader:\n"
        f"    while '{ORDER[6]}' not in (folder / 'truth').read_text().split()[1::2]: time.sleep(0.01)\n"
        "    print(resumable.flight.read(folder / 'flight')[0].samples)\n"
        "    1 / 0"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert "ZeroDivisionError" in child.stderr
    assert str(ORDER[6]) in child.stdout
    (record,) = flight.read(tmp_path / "flight")
    assert (record.ended, record.samples) == ("raised", ())
