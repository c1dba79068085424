"""Runs over splits of TensorFlow Datasets that are killed and started again, against the baseline ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tfds_builders import folder
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable.backends import tfds as backend
from resumable.integrations.lightning import ResumableCallback
from resumable.testing import digest

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """
import random
import sys

import numpy as np

import resumable
import resumable.backends.tfds

root, file_format = sys.argv[1:]
source = resumable.backends.tfds.source(root, "train[:48]", index_dir="indices", as_supervised=True, verify=True)


def augment(sample):
    image, label = sample
    return image.astype(np.float64) + random.random(), label


loader = resumable.wrap(source, batch_size=8, shuffle=True, transform=augment, seed=3)
store = resumable.CheckpointStore("checkpoints", keep=2)
weights, step = np.zeros((16, 16, 3)), 0
if (saved := store.latest()) is not None:
    weights, step = np.array(saved["weights"]), saved["step"]
    loader.load_state_dict(saved["loader"])
for epoch in loader.epochs(2):
    for images, labels in epoch:
        weights = weights * 0.9 + (images * labels[:, None, None, None]).mean(0)
        step += 1
        if step % 2 == 0:
            store.save(step, {"weights": weights.tolist(), "step": step, "loader": loader.state_dict()})
store.save(step, {"weights": weights.tolist(), "step": step, "loader": loader.state_dict()})
"""


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_a_loop_that_is_killed_by_the_chaos_runner(file_format: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    command = [sys.executable, str(script), folder("shapes", file_format), file_format]
    report = resumable.chaos.run(
        command, points=1, random=1, directory=tmp_path / "chaos", preload=["tensorflow_datasets"], limit=200
    )
    assert report.ok, report
    assert len(report.outcomes) == 2


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_random_steps_of_a_longer_run(workers: int) -> None:
    """Epochs of 2440 samples, resumed at random steps, on changing numbers of ranks."""
    source = backend.source(
        folder("shapes", "tfrecord"), "train", index_dir=False, fields=["label"], repeats=40, add_tfds_id=True
    )

    def make(world: World | None = None) -> resumable.Loader:
        if not workers:
            return resumable.wrap(
                source, batch_size=60 // (world or World()).size, shuffle=True, tail="carry", world=world
            )
        reading = DataLoader(source, batch_size=60 // (world or World()).size, shuffle=True, num_workers=workers)
        return resumable.wrap(reading, tail="carry", world=world)

    loader, whole, states = make(), [], []
    for epoch in loader.epochs(2):
        for batch in epoch:
            whole.append(list(batch["tfds_id"]))
            states.append(loader.state_dict())
    assert len(whole) == 82
    for step in np.random.default_rng(workers).integers(0, 80, 3 if workers else 12).tolist():
        for size in (2,) if workers else (1, 3):
            ranks = [make(World(rank, size)) for rank in range(size)]
            for rank in ranks:
                rank.load_state_dict(states[step])
            following = [next(iter(rank))["tfds_id"] for rank in ranks]
            assert [name for batch in following for name in batch] == whole[step + 1]


def trained(path: Path, fail_at: int | None, workers: int) -> Any:
    import pytorch_lightning as lightning  # noqa: PLC0415  # takes seconds

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10))
            self.seen: list[str] = []

        def training_step(self, batch: Any, _number: int) -> torch.Tensor:
            if self.global_step == fail_at:
                raise FloatingPointError
            self.seen.append(digest(batch))
            images, labels = batch
            return torch.nn.functional.cross_entropy(self.net(images.float() / 255), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    torch.manual_seed(0)
    model = Model()
    source = backend.source(folder("digits", "tfrecord"), "train", index_dir=False, as_supervised=True)
    loader = resumable.wrap(DataLoader(source, batch_size=16, shuffle=True, num_workers=workers), seed=5)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ResumableCallback(),
            lightning.callbacks.ModelCheckpoint(path, every_n_train_steps=3, save_last=True),
        ],
    )
    try:
        trainer.fit(model, loader, ckpt_path="last")
    except FloatingPointError:
        return None
    return model.seen, torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(ckpt_path|many workers|Checkpoint directory|number of training batches)")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_of_lightnings_trainer(workers: int, tmp_path: Path) -> None:
    whole, weights = trained(tmp_path / "baseline", None, workers)
    assert len(whole) == 16
    for step in (4, 8, 11):
        assert trained(tmp_path / str(step), step, workers) is None
        rest, resumed = trained(tmp_path / str(step), None, workers)
        assert rest == whole[-len(rest) :]
        assert len(rest) == 16 - step // 3 * 3
        assert torch.equal(resumed, weights)
