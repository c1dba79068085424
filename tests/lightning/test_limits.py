"""What Lightning itself does not resume: it is named, and the way out that the warning names is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from pytorch_lightning.callbacks import BackboneFinetuning, StochasticWeightAveraging
from sources import indexed
from trainer_runs import Model, SaveAlways, check_rest, fit

from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from pathlib import Path


def test_averages_that_cannot_be_resumed_are_named() -> None:
    with pytest.warns(PromiseWarning, match="StochasticWeightAveraging"):
        fit(Model(), indexed(), callbacks=[StochasticWeightAveraging(0.1)], max_epochs=2)


@pytest.mark.slow
def test_rounded_weights_are_named(tmp_path: Path) -> None:
    """Rounded weights are named, and unrounded ones continue exactly."""
    saver = SaveAlways(tmp_path)
    whole = fit(Model().double(), indexed(), callbacks=[saver], precision="64-true", max_epochs=2)
    rest = fit(Model().double(), indexed(), checkpoint=saver.saved[3], precision="64-true", max_epochs=2)
    check_rest(whole, rest, trained=3, begins="train")
    with pytest.warns(PromiseWarning, match="64-true.*\\n.*rounded") as told:
        rest = fit(Model(), indexed(), checkpoint=saver.saved[3], precision="64-true", max_epochs=2)
    assert len(told) == 1
    weight = "net.0.weight"
    assert not torch.equal(whole.weights[weight], rest.weights[weight]), "Lightning rounds no more: drop the warning"


class Tuned(Model):
    """Its backbone is trained from the second epoch on."""

    def __init__(self, *, unfreezes: bool) -> None:
        super().__init__()
        self.backbone, self.unfreezes = self.net[0], unfreezes

    def on_train_start(self) -> None:
        if self.unfreezes and self.current_epoch >= 1:
            self.backbone.requires_grad_(requires_grad=True)

    def configure_optimizers(self) -> Any:
        head = [*self.net[1].parameters(), *self.net[4].parameters()]
        return torch.optim.SGD(head, lr=0.1, momentum=0.9)


@pytest.mark.slow
def test_frozen_layers_are_named(tmp_path: Path) -> None:
    """Layers that stay frozen are named, and a module can unfreeze them."""

    def tuning() -> Any:
        return BackboneFinetuning(unfreeze_backbone_at_epoch=1, backbone_initial_lr=0.1)

    saver = SaveAlways(tmp_path)
    with pytest.warns(PromiseWarning, match="BackboneFinetuning.*\\n.*the layers stay frozen"):
        whole = fit(Tuned(unfreezes=True), indexed(), callbacks=[tuning(), saver])
    with pytest.warns(PromiseWarning, match="frozen"):
        rest = fit(Tuned(unfreezes=True), indexed(), callbacks=[tuning()], checkpoint=saver.saved[7])
    check_rest(whole, rest, trained=7, begins="train")
    with pytest.warns(PromiseWarning, match="frozen"):
        rest = fit(Tuned(unfreezes=False), indexed(), callbacks=[tuning()], checkpoint=saver.saved[7])
    assert not torch.equal(whole.weights["net.0.weight"], rest.weights["net.0.weight"]), "drop the warning"
