"""Lightning makes a train loader again from its attributes, as for `overfit_batches` and several ranks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from framework_loops import Noisy
from torch.utils.data import SequentialSampler

from resumable.torch import StatefulDataLoader


class Model(pl.LightningModule):
    """Notes the samples of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.ones(1)), list[Any]()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen.append(batch[0].tolist())
        loss: torch.Tensor = (self.weight * batch[1]).pow(2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("in_module", [False, True])
def test_options_stay(in_module: bool) -> None:
    model = Model()
    options: dict[str, Any] = {"identity": "noisy", "checks": "none"}

    def make() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(Noisy(), 4, shuffle=True, after_last="next", **options)

    if in_module:
        model.train_dataloader = make  # type: ignore[method-assign]
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=2, overfit_batches=2, accelerator="cpu", enable_checkpointing=False, **quiet)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning")
        trainer.fit(model, None if in_module else make())
    made: Any = trainer.train_dataloader
    assert isinstance(made, StatefulDataLoader)
    assert isinstance(made.sampler, SequentialSampler)
    assert (made.options, made.after_last) == (options, "next")
    assert model.seen == 2 * [[0, 1, 2, 3], [4, 5, 6, 7]]
