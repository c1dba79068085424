"""Both names of Lightning, what of it is used that it does not document, and the type of the callback."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import lightning.pytorch as lp
import pytest
import pytorch_lightning as pl
from trainer_runs import make_trainer

from resumable.errors import UnsupportedError
from resumable.integrations.lightning import CheckedCheckpointIO, ResumableCallback, private

if TYPE_CHECKING:
    from pathlib import Path

_RUN = """
import json, sys, warnings
warnings.simplefilter("ignore")
import {package} as pl
from {package}.callbacks import ModelCheckpoint
import torch
import resumable
from resumable.integrations.lightning import ResumableCallback

class Model(pl.LightningModule):
    def __init__(self, fails=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.seen, self.fails = torch.nn.Linear(1, 1), [], fails
    def training_step(self, batch, index):
        if len(self.seen) == self.fails:
            raise OSError
        self.seen.append(batch.flatten().tolist())
        return torch.nn.functional.dropout(self.layer(batch), 0.5).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.001)

def run(model, folder, **options):
    data = [torch.tensor([float(number)]) for number in range(10)]
    loader = resumable.wrap(data, batch_size=2, shuffle=True, collate=torch.stack)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[ResumableCallback(), ModelCheckpoint(folder, every_n_train_steps=3, save_last=True)],
    )
    trainer.fit(model, loader, **options)
    return [model.seen, [round(value, 9) for value in (model.layer.weight.item(), torch.rand(()).item())]]

torch.manual_seed(1)
whole = run(Model(), "whole")
try:
    run(Model(fails=7), "saved")
except OSError:
    pass
rest = run(Model(), "saved", ckpt_path="last")
packages = [name for name in ("lightning", "pytorch_lightning") if name in sys.modules]
print(json.dumps([whole, rest, packages, isinstance(ResumableCallback(), pl.Callback)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_either_package_alone(package: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", _RUN.format(package=package)]
    output = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert output.returncode == 0, output.stderr
    (seen, end), (rest, rest_end), packages, is_callback = json.loads(output.stdout.splitlines()[-1])
    assert rest == seen[6:]
    assert rest_end == end
    assert packages == [package.partition(".")[0]], "the other package was imported too"
    assert is_callback


_NONE = """
import sys
sys.modules["lightning"] = sys.modules["lightning.pytorch"] = sys.modules["pytorch_lightning"] = None
from resumable.errors import MissingDependencyError
from resumable.integrations.lightning import ResumableCallback
try:
    ResumableCallback()
except MissingDependencyError as error:
    print(error)
"""


@pytest.mark.slow
def test_neither_package() -> None:
    output = subprocess.run([sys.executable, "-c", _NONE], capture_output=True, text=True, check=True)
    assert 'pip install "resumable-data[lightning]"' in output.stdout


def test_it_is_a_callback_of_each_package_before_one_is_made() -> None:
    assert issubclass(ResumableCallback, pl.Callback)
    assert issubclass(ResumableCallback, lp.Callback)
    assert isinstance(ResumableCallback(), pl.Callback)
    assert isinstance(ResumableCallback(), lp.Callback)


_LATE = """
import sys
import resumable
from resumable.integrations.lightning import ResumableCallback as Early
assert not {"torch", "lightning", "lightning_fabric", "pytorch_lightning"} & set(sys.modules)
class Own(Early):
    pass
import pytorch_lightning as pl
from resumable.integrations.lightning import ResumableCallback
assert ResumableCallback is Early and issubclass(Own, pl.Callback)
made = Own()
import lightning.pytorch as lp
Own()
assert isinstance(made, pl.Callback) and isinstance(made, lp.Callback)
"""


@pytest.mark.slow
def test_lightning_is_imported_late_and_first_under_one_name() -> None:
    output = subprocess.run([sys.executable, "-c", _LATE], capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr


_CONFIG = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "callbacks": [
        {"class_path": "resumable.integrations.lightning.ResumableCallback", "init_args": {"wrap": {"seed": 3}}}
    ],
    "plugins": [{"class_path": "resumable.integrations.lightning.CheckedCheckpointIO"}],
}


@pytest.mark.slow
@pytest.mark.parametrize("package", [pl, lp])
@pytest.mark.filterwarnings("ignore")  # hints of Lightning and jsonargparse
def test_lightning_s_command_line(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = importlib.import_module(f"{package.__name__}.cli")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    made = cli.LightningCLI(package.LightningModule, args={"trainer": _CONFIG}, run=False, save_config_callback=None)
    (callback,) = (one for one in made.trainer.callbacks if isinstance(one, ResumableCallback))
    assert callback.wrap == {"seed": 3}
    assert isinstance(made.trainer.strategy.checkpoint_io, CheckedCheckpointIO)


def test_subclass_of_the_callback() -> None:
    """A subclass is a callback with the same part of the checkpoint."""

    class Own(ResumableCallback):
        pass

    assert isinstance(Own(), pl.Callback)
    assert isinstance(Own(), Own)
    assert Own().state_key == "ResumableCallback"


def test_every_private_name_is_there() -> None:
    """Fails when a new Lightning renames one; the message says which."""
    private.check_names(make_trainer([]))


@pytest.mark.parametrize("name", ["_data_fetcher", "max_batches"])
def test_a_missing_name_is_named(name: str) -> None:
    trainer = make_trainer([])
    delattr(trainer.fit_loop, name)
    message = rf"pytorch-lightning is not supported: its Trainer has no fit_loop\.{name}"
    with pytest.raises(UnsupportedError, match=message):
        private.check_names(trainer)


def test_the_names_in_a_checkpoint(tmp_path: Path) -> None:
    """The counters that are written back, as a new Lightning could name them otherwise."""
    trainer = make_trainer([])
    loop: dict[str, Any] = trainer.fit_loop.state_dict()
    assert {"epoch_progress", "epoch_loop.batch_progress", "state_dict"} <= set(loop)
    assert set(loop["epoch_progress"]) == {"current", "total"}
    assert set(loop["epoch_progress"]["current"]) == {"ready", "started", "processed", "completed"}
    assert set(loop["epoch_loop.batch_progress"]) == {"current", "total", "is_last_batch"}
