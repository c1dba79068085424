"""DALI in whole training runs: broken files, killed processes, chaos, and Lightning on one and two ranks."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from dali_pipelines import iterator, write_images
from pytorch_lightning.callbacks import OnExceptionCheckpoint

import resumable
from resumable.integrations.lightning import ResumableCallback
from resumable.testing import digest, rest_of_run

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


# ---------------------------------------------------------------------------------------------- failing samples


@pytest.mark.parametrize("asked", [True, False], ids=["states are taken", "no state was taken before"])
def test_a_corrupt_image_leaves_the_last_good_state(tmp_path: Path, asked: bool) -> None:
    write_images(tmp_path, 19)
    reader = {"file_root": str(tmp_path)}
    expected = rest_of_run(resumable.wrap(iterator(reader=reader), identity="digits"), 3)
    broken = tmp_path / "odd/0007.jpg"
    image = broken.read_bytes()
    broken.write_bytes(image[:20])
    loader = resumable.wrap(iterator(reader=reader, prepare_first_batch=False), identity="digits")
    got = []

    def run() -> None:
        for epoch in loader.epochs(3):
            for batch in epoch:
                got.append((epoch.number, digest(batch)))
                if asked:
                    loader.state_dict()

    with pytest.raises(RuntimeError, match="image_random_crop"):
        run()
    state = loader.state_dict()
    assert state["source_state"]["skip"] == 0, "what was read before the failure need not be read again"
    with pytest.raises(RuntimeError, match="image_random_crop"):
        run()  # nothing is skipped in silence
    assert loader.cursor.step == len(got) < 5
    broken.write_bytes(image)
    run()
    assert got == expected, "in the same process"
    fresh = resumable.wrap(iterator(reader=reader), identity="digits")
    fresh.load_state_dict(state)
    assert rest_of_run(fresh, 3) == expected[state["cursor"]["position"] :], "in another one"


def test_a_batch_that_a_failed_transform_had_is_given_again() -> None:
    expected = rest_of_run(resumable.wrap(iterator()), 1)
    failing = iter([False, False, True, *[False] * 9])

    def transform(batch: Any) -> Any:
        if next(failing):
            raise ZeroDivisionError
        return batch

    loader = resumable.wrap(iterator(), transform=transform)
    batches = iter(loader)
    with pytest.raises(ZeroDivisionError):
        list(batches)
    assert [digest(batch) for batch in loader] == [what for _, what in expected[2:]]


def test_a_state_is_loaded_by_torch_with_weights_only() -> None:
    loader = resumable.wrap(iterator(2))
    batches = iter(loader)
    next(batches)
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    rest = [digest(batch) for batch in batches]
    again = resumable.wrap(iterator(2))
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert [digest(batch) for batch in again] == rest


def test_the_loader_draws_nothing_ahead_to_tell_an_epochs_end() -> None:
    """`state_dict` after each batch must not make the training wait for the next one."""
    inner = iterator()
    loader, drawn = resumable.wrap(inner), []
    inner_next = type(inner).__next__

    class Counting(type(inner)):  # type: ignore[misc]  # made here
        def __next__(self) -> Any:
            drawn.append(1)
            return inner_next(self)

    inner.__class__ = Counting
    for number, _ in enumerate(loader, start=1):
        loader.state_dict()
        assert len(drawn) == number + (number == 5), "the end itself is drawn, which costs nothing"


# ---------------------------------------------------------------------------------------------- killed processes

_CHILD = """
import os, pickle, signal, sys
from pathlib import Path
import dali_pipelines, resumable
from resumable.testing import digest
folder, die = Path(sys.argv[1]), int(sys.argv[2])
loader = resumable.wrap(dali_pipelines.iterator(2, reader={"file_root": str(folder / "images")}))
if (folder / "state").exists():
    loader.load_state_dict(pickle.loads((folder / "state").read_bytes()))
for epoch in loader.epochs(3):
    for batch in epoch:
        if die == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        die -= 1
        with (folder / "seen").open("a") as seen:
            seen.write(digest(batch) + "\\n")
        (folder / "new").write_bytes(pickle.dumps(loader.state_dict()))
        (folder / "new").replace(folder / "state")
"""


@pytest.mark.slow
def test_killed_and_gone_on_with_in_a_new_process(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 19)
    loader = resumable.wrap(iterator(2, reader={"file_root": str(tmp_path / "images")}))
    expected = [what for _, what in rest_of_run(loader, 3)]
    statuses = []
    for die in (2, 4, 99):
        words = [sys.executable, "-c", _CHILD, str(tmp_path), str(die)]
        statuses.append(subprocess.run(words, check=False, timeout=120).returncode)
    assert statuses == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert (tmp_path / "seen").read_text().split() == expected


@pytest.mark.slow
def test_a_hand_written_loop_under_chaos(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 19)
    report = resumable.chaos.run(
        [sys.executable, str(HERE / "dali_loop.py"), str(tmp_path / "images")],
        faults=["kill", "torn-write"],
        points=2,
        directory=tmp_path / "chaos",
        preload=["torch", "torch._dynamo", "nvidia.dali.plugin.pytorch", "sklearn.datasets"],
    )
    assert report.ok, report.timeline()
    assert len(report.outcomes) == 4


# ---------------------------------------------------------------------------------------------- Lightning


def lightning(folder: Path, world: int, *runs: str) -> None:
    if not (folder / "images").exists():
        write_images(folder / "images", 30)
    words = [sys.executable, str(HERE / "dali_train.py"), str(folder), str(world), *runs]
    child = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert child.returncode == 0, child.stdout + child.stderr


def trained(folder: Path, rank: int) -> list[Any]:
    return [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]


def later(events: list[Any]) -> Iterator[Any]:
    """The last record of each step: what the weights have seen."""
    return iter({event[2]: event for event in events}.values())


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_lightning_goes_on_at_the_exact_batch(tmp_path: Path, world: int) -> None:
    lightning(tmp_path, world, "baseline", "killed:5", "killed:9", "killed")
    for rank in range(world):
        expected, got = trained(tmp_path / "baseline", rank), trained(tmp_path / "killed", rank)
        assert len(expected) == 3 * (8 if world == 1 else 4)
        assert list(later(got)) == expected, "the same batches and the same losses"
        assert len(got) > len(expected) or world == 2, "a batch was trained on again, from the last checkpoint"
    if world == 2:
        first, second = (trained(tmp_path / "baseline", rank) for rank in range(2))
        assert not {event[3] for event in first} & {event[3] for event in second}, "the ranks have different shards"


class _Seeing(pl.LightningModule):
    def __init__(self, fail_at: int | None) -> None:
        super().__init__()
        self.net, self.fail_at, self.seen = torch.nn.Linear(300, 2), fail_at, list[Any]()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.fail_at:
            raise ZeroDivisionError
        self.seen.append((self.current_epoch, batch_idx, digest(batch)))
        return torch.as_tensor(self.net(batch[0]["data"].flatten(1)).sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def _seen(folder: Path, limit: int, fail_at: int | None = None) -> list[Any]:
    model = _Seeing(fail_at)
    trainer = pl.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(wrap=True), OnExceptionCheckpoint(folder)], limit_train_batches=limit,
    )  # fmt: skip
    with contextlib.suppress(ZeroDivisionError):
        trainer.fit(model, iterator(), ckpt_path="last")
    return model.seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:::pytorch_lightning")  # its hints
@pytest.mark.parametrize("limit", [2, 3])
def test_epochs_that_lightning_leaves_early(tmp_path: Path, limit: int) -> None:
    """The next one begins with the rest, before and after a resume."""
    baseline = _seen(tmp_path / "baseline", limit)
    alone = [digest(batch) for batch in iterator(auto_reset=False)]
    assert [what for epoch, _, what in baseline if epoch * limit < 5][:5] == alone
    for fail_at in range(len(baseline)):
        folder = tmp_path / str(fail_at)
        assert _seen(folder, limit, fail_at) + _seen(folder, limit) == baseline, f"failed at step {fail_at}"
