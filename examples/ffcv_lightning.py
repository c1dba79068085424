"""FFCV in Lightning's Trainer, which fails and resumes exactly: python examples/ffcv_lightning.py."""

import contextlib
import io
import logging
import tempfile
import warnings

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField, decoders
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Cutout, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from pytorch_lightning import LightningModule, Trainer, callbacks

import resumable
from resumable.integrations.lightning import ResumableCallback

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")  # its hints, which are for larger runs
images = [(np.random.default_rng(i).integers(0, 255, (32, 32, 3), np.uint8), i % 4) for i in range(60)]


class Model(LightningModule):
    """A linear classifier, which may fail."""

    def __init__(self, fail_at: int | None) -> None:
        super().__init__()
        self.net, self.fail_at = torch.nn.Linear(3 * 16 * 16, 4), fail_at

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Compute the loss."""
        assert self.global_step != self.fail_at
        return torch.nn.functional.cross_entropy(self.net(batch[0].flatten(1) / 255), batch[1].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(data: str, folder: str, fail_at: int | None = None) -> torch.Tensor:
    """Train three epochs of six batches, from the last checkpoint if there is one; return the weights."""
    torch.manual_seed(0)
    crop, model = decoders.RandomResizedCropRGBImageDecoder((16, 16)), Model(fail_at)
    pipelines = {"image": [crop, Cutout(4), ToTensor(), ToTorchImage()]}
    loader = Loader(data, batch_size=10, num_workers=1, order=OrderOption.RANDOM, pipelines=pipelines)
    trainer = Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[ResumableCallback(), callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_last=True)])  # fmt: skip  # noqa: E501
    trainer.fit(model, resumable.wrap(loader, seed=0), ckpt_path="last")
    return torch.nn.utils.parameters_to_vector(model.parameters())


with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
    fields, data = {"image": RGBImageField(), "label": IntField()}, f"{folder}/train.beton"
    DatasetWriter(data, fields, num_workers=1).from_indexed_dataset(images)
    with contextlib.suppress(AssertionError):
        train(data, f"{folder}/failed", fail_at=9)
    print("The same weights, bit for bit:", train(data, f"{folder}/failed").equal(train(data, f"{folder}/baseline")))
