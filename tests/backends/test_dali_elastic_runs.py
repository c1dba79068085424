"""DALI fed by our sampler in real runs: killed, with workers, with Lightning, and many times in one process."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from dali_images import COUNT, Bytes, images, pixels, wrap

import resumable
from resumable.backends.dali import by_index as engine
from resumable.errors import WorkerError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).with_name("dali_hand_loop.py")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


def children(of: int) -> set[int]:
    """Return the processes below a process."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread or a process that has just ended
        for task in Path(f"/proc/{of}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for child in map(int, (task / "children").read_text().split()):
                    found |= {child} | children(child)
    return found


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def settled(condition: Any, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(condition())


@pytest.mark.slow
def test_a_hand_written_loop_survives_being_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    command = [sys.executable, str(SCRIPT), str(images()), "0"]
    found = resumable.chaos.run(
        command, points=2, directory="chaos", preload=["torch", "torch._dynamo", "nvidia.dali.plugin.pytorch"]
    )
    assert found.ok, found.timeline()
    assert len(found.outcomes) >= 2


# Its workers get stuck in a sample, where nobody asks whether the parent is there.
STUCK = """
import sys, time
import resumable
from resumable.backends import dali

class Stuck:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index >= 8:
            time.sleep(1000)
        return open(sys.argv[1], "rb").read()

def label(raw, label):
    return label

if __name__ == "__main__":
    source = dali.source(Stuck(), pipeline=label, outputs="label", py_num_workers=2, prefetch_queue_depth=1)
    for batch in resumable.wrap(source, batch_size=4):
        print("first", flush=True)
"""


@pytest.mark.slow
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    file = str(next(images().rglob("*.jpg")))
    child = subprocess.Popen([sys.executable, str(tmp_path / "stuck.py"), file], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "first"
        below = children(child.pid)
        assert len(below) >= 2, "two workers, and what watches over their memory"
        child.send_signal(signal.SIGKILL)
        child.wait()
        gone = settled(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
        for pid in below if not gone else ():
            os.kill(pid, signal.SIGKILL)
        assert gone, "workers are left"


@pytest.fixture
def nothing_below() -> Iterator[None]:
    before = children(os.getpid())
    yield
    gc.collect()
    assert settled(lambda: children(os.getpid()) <= before), "processes are left"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_below")
def test_workers_end_with_the_loader_and_are_kept_until_then() -> None:
    for data in (None, Bytes()):
        loader = wrap(data, py_num_workers=1, py_start_method="fork")
        before = children(os.getpid())
        run = [pixels(batch) for batch in loader]
        below = children(os.getpid()) - before
        assert len(below) == 1
        for _ in loader:
            break
        loader.seek(epoch=0)
        assert [pixels(batch) for batch in loader] == run
        assert children(os.getpid()) - before == below, "the same worker, after a break and a seek"
        del loader
        assert settled(lambda gone=below: not children(os.getpid()) & gone)


class Deadly(Bytes):
    """Kills the worker that reads one of its samples."""

    def __getitem__(self, index: int) -> Any:
        if index == 9 and os.environ.pop("DEADLY", ""):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_below")
def test_the_death_of_a_worker_is_told_and_can_be_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [pixels(batch) for batch in wrap(Bytes(), shuffle=False)]
    monkeypatch.setenv("DEADLY", "1")
    loader = wrap(Deadly(), shuffle=False, py_num_workers=1, py_start_method="fork")
    got: list[list[bytes]] = []
    with pytest.raises(WorkerError, match="a worker process died"):
        got.extend(map(pixels, loader))
    monkeypatch.delenv("DEADLY")
    got.extend(map(pixels, loader))
    assert got == whole


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_below")
def test_dead_dali_worker_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that dies while DALI works is forgotten, even if the error is kept."""
    loader = wrap(Bytes(), shuffle=False, py_num_workers=1, py_start_method="fork")
    whole = [pixels(batch) for batch in wrap(Bytes(), shuffle=False)]
    before, make = children(os.getpid()), vars(engine)["_tensor"]
    batches = iter(loader)
    got = [pixels(next(batches))]

    def kill(*arguments: Any, **options: Any) -> Any:
        for worker in children(os.getpid()) - before:
            os.kill(worker, signal.SIGKILL)
        settled(lambda: False, 30)  # PyTorch's handler raises here
        return make(*arguments, **options)

    monkeypatch.setattr(engine, "_tensor", kill)
    with pytest.raises(WorkerError, match="a worker process died") as error:
        next(batches)
    monkeypatch.undo()
    subprocess.run([sys.executable, "-c", ""], check=True)  # the end of any process calls the handler
    assert children(os.getpid()) <= before
    got += [pixels(batch) for batch in loader]
    assert got == whole
    assert error.value.__cause__ is not None, "it is still there, and all that it refers to"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_below")
def test_closed_it_has_no_workers_and_no_threads_and_goes_on() -> None:
    whole = [pixels(batch) for batch in wrap(Bytes(), shuffle=False)]
    gc.collect()
    before, threads_before = children(os.getpid()), threads()
    with wrap(Bytes(), shuffle=False, py_num_workers=1, py_start_method="fork") as loader:
        got = [pixels(next(iter(loader)))]
        assert children(os.getpid()) - before
        assert threads() > threads_before
        state = loader.state_dict()
    assert children(os.getpid()) <= before
    assert settled(lambda: threads() <= threads_before, 60)
    assert loader.state_dict() == state
    got += [pixels(batch) for batch in loader]
    assert got == whole
    loader.close()
    assert children(os.getpid()) <= before


class Collecting(Bytes):
    """Collects garbage where it reads, as Python may do at any time."""

    def __getitem__(self, index: int) -> Any:
        gc.collect()
        return super().__getitem__(index)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_below")
def test_forked_worker_frees_no_pipelines() -> None:
    """A forked worker does not free the pipelines of its parent."""
    whole = [pixels(batch) for batch in wrap(Bytes(), shuffle=False)]
    gc.disable()
    try:
        left: list[Any] = [wrap()]
        next(iter(left[0]))
        left.append(left)  # a cycle, so that only the collector frees it
        del left
        loader = wrap(Collecting(), shuffle=False, py_num_workers=1, py_start_method="fork")
        assert [pixels(batch) for batch in loader] == whole
    finally:
        gc.enable()


@pytest.mark.slow
def test_many_loaders_and_seeks_leave_nothing_behind() -> None:
    def use(loader: resumable.Loader) -> None:
        for _ in loader:
            break
        loader.seek(epoch=3, step=2)
        for _ in loader:
            pass

    for _ in range(10):
        use(wrap())
    before, memory = threads(), megabytes()
    for _ in range(50):
        use(wrap())
    assert threads() == before
    kept = wrap()
    for _ in range(200):
        use(kept)
    assert megabytes() - memory < 20
    del kept
    assert threads() == before


class Model(pl.LightningModule):
    """Weights that depend on every pixel, its order, and on dropout."""

    def __init__(self, fail_at: int | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(1200, 10))
        self.fail_at = fail_at

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        if self.global_step == self.fail_at:
            raise FloatingPointError
        return torch.nn.functional.cross_entropy(self.net(batch["data"] / 255), batch["label"].flatten().long())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(folder: Path, *, fail_at: int | None = None) -> torch.Tensor:
    model = Model(fail_at)
    saver = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_last=True)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(), saver],
    )  # fmt: skip
    trainer.fit(model, wrap(tail="partial"), ckpt_path="last")
    return torch.nn.utils.parameters_to_vector(model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning")
@pytest.mark.filterwarnings("ignore::pytorch_lightning.utilities.rank_zero.LightningDeprecationWarning")
def test_lightning_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    baseline = train(tmp_path / "baseline")
    for fail_at in (5, 10, 17):
        folder = tmp_path / f"failed-{fail_at}"
        with pytest.raises(FloatingPointError):
            train(folder, fail_at=fail_at)
        assert train(folder).equal(baseline)
    assert -(-COUNT // 4) * 3 == 18
