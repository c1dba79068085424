"""Lightning with an NVIDIA DALI iterator fails and resumes exactly: python examples/dali_lightning.py."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from pathlib import Path

import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy
from PIL import Image
from pytorch_lightning import LightningModule, Trainer, callbacks
from sklearn.datasets import load_digits

from resumable.integrations.lightning import ResumableCallback

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")  # its hints, which are for larger runs


@pipeline_def(batch_size=32, num_threads=2, device_id=None, seed=0)  # type: ignore[untyped-decorator]  # DALI's
def digits(root: str) -> object:
    """Read, decode and crop at random; with several ranks, pass num_shards and shard_id to the reader."""
    jpegs, labels = fn.readers.file(file_root=root, random_shuffle=True, pad_last_batch=True, name="Reader")
    images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.GRAY, random_area=[0.6, 1.0])
    return fn.crop_mirror_normalize(fn.resize(images, resize_x=8, resize_y=8), mean=[128.0], std=[64.0]), labels


class Model(LightningModule):
    """Does not depend on this package; it may fail."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.net, self.fail_at = torch.nn.Linear(64, 10), fail_at

    def training_step(self, batch: list[dict[str, torch.Tensor]]) -> torch.Tensor:  # noqa: D102  # Lightning's
        assert self.global_step != self.fail_at
        return torch.nn.functional.cross_entropy(self.net(batch[0]["data"].flatten(1)), batch[0]["label"][:, 0].long())

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102  # Lightning's
        return torch.optim.SGD(self.parameters(), lr=0.1)


with tempfile.TemporaryDirectory() as root:
    for number, (pixels, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        Path(root, "images", str(label)).mkdir(exist_ok=True, parents=True)
        Image.fromarray((pixels.reshape(8, 8) * 15).astype("uint8")).save(f"{root}/images/{label}/{number}.jpg")
    for run, fail_at in ("baseline", -1), ("failed", 75), ("failed", -1):
        torch.manual_seed(0)
        reader = {"reader_name": "Reader", "last_batch_policy": LastBatchPolicy.PARTIAL}
        data, model = DALIClassificationIterator(digits(f"{root}/images"), **reader), Model(fail_at)
        quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        saving = [ResumableCallback(wrap=True), callbacks.OnExceptionCheckpoint(f"{root}/{run}")]
        with contextlib.suppress(AssertionError):
            Trainer(max_epochs=2, callbacks=saving, **quiet).fit(model, data, ckpt_path="last")  # type: ignore[arg-type]  # flags
        print(f"{run}: {model.global_step} steps, weights {model.net.weight.abs().sum().item():.10f}")
