"""Lightning's Trainer over a split of TensorFlow Datasets, in a DataLoader; it fails and resumes."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from demo.digits import load_digits
from demo.tfds import write_tfds
from pytorch_lightning import LightningModule, Trainer, callbacks
from torch.utils.data import DataLoader

import resumable.backends.tfds
from resumable.integrations.lightning import ResumableCallback


class Model(LightningModule):
    """A classifier, which may fail."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.net, self.fail_at = torch.nn.Linear(64, 10), fail_at

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        """Compute the loss of a batch."""
        assert self.global_step != self.fail_at
        return torch.nn.functional.cross_entropy(self.net(batch[0].flatten(1) / 255), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(folder: str, data: Path, fail_at: int = -1) -> torch.Tensor:
    """Train two epochs of 8 batches, from the last checkpoint if there is one; return the weights."""
    torch.manual_seed(0)
    source = resumable.backends.tfds.source(data, "train[:512]", as_supervised=True)
    loader = DataLoader(source, 64, shuffle=True)  # num_workers=8 in real life
    saving = callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_last=True)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=2, accelerator="cpu", callbacks=[ResumableCallback(), saving], **quiet)
    trainer.fit(model := Model(fail_at), resumable.wrap(loader, seed=0), ckpt_path="last")
    return torch.nn.utils.parameters_to_vector(model.parameters())


if __name__ == "__main__":
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")  # its hints, which are for larger runs
    with tempfile.TemporaryDirectory() as root:
        baseline = train(f"{root}/baseline", written := write_tfds(load_digits(), Path(root, "data")))
        with contextlib.suppress(AssertionError):
            train(f"{root}/failed", written, fail_at=11)
        print("It failed at step 11. The same weights:", train(f"{root}/failed", written).equal(baseline))
