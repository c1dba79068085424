"""tf.data pipelines in whole trainings: under the chaos harness, and in Lightning."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

CHAOS = """
import os, sys
from tfdata_pipelines import interleaved
import numpy as np
import resumable

loader = resumable.wrap(interleaved(parallel=2))
store = resumable.CheckpointStore("checkpoints")
total = 0
if (last := store.latest()) is not None:
    loader.load_state_dict(last["loader"])
    total = last["total"]
for epoch in loader.epochs(2):
    for batch in epoch:
        total = (total * 31 + int(batch.sum())) % 1_000_003
        step = epoch.number * 100 + loader.cursor.step
        store.save(step, {"total": total, "loader": loader.state_dict()})
print(total)
"""


def test_chaos_finds_no_lost_batch(tmp_path: Path) -> None:
    from resumable import chaos  # noqa: PLC0415  # starts processes

    script = tmp_path / "train.py"
    script.write_text(CHAOS)
    report = chaos.run(
        [sys.executable, str(script)], points=1, directory=tmp_path / "chaos", preload=["tensorflow"], jobs=2
    )
    assert report.ok, report.timeline()


def test_lightning_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    torch = import_module("torch")
    lightning = import_module("pytorch_lightning")
    from tfdata_pipelines import structured  # noqa: PLC0415  # imports TensorFlow

    import resumable  # noqa: PLC0415  # after what may be missing
    from resumable.backends import tfdata  # noqa: PLC0415
    from resumable.integrations.lightning import ResumableCallback  # noqa: PLC0415
    from resumable.testing import digest  # noqa: PLC0415

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]  # of an optional import
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer = torch.nn.Linear(2, 1)
            self.seen = list[str]()

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen.append(digest(batch))
            return self.layer(batch[0]["image"]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def train(path: Path | None = None) -> Model:
        model, loader = Model(), resumable.wrap(tfdata.source(structured(), convert="torch"))
        saving = lightning.callbacks.ModelCheckpoint(
            dirpath=tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1
        )
        trainer = lightning.Trainer(
            max_epochs=3,
            callbacks=[ResumableCallback(), saving],
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice
            trainer.fit(model, loader, ckpt_path=path)
        return model

    whole = train()
    assert len(whole.seen) == len(set(whole.seen)) == 9
    resumed = train(tmp_path / "step=4.ckpt")
    assert resumed.seen == whole.seen[4:]
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))
