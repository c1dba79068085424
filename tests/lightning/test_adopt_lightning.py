"""`resumable.adopt` with checkpoints of real Trainers without the callback: the rest is that of Lightning's own run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from trainer_runs import SaveAlways

import resumable
from resumable import adopt
from resumable.errors import ConfigurationError, StateMismatchError, StateMismatchWarning, UnsupportedError
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = 3
Make = Callable[[], DataLoader[Any]]


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    @property
    def trained(self) -> int:
        return len(self.seen)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen.append(batch.flatten().long().tolist())
        loss: torch.Tensor = self.net(batch.reshape(-1, 1) * 0.01).mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(loader: Any, *callbacks: Any, checkpoint: Path | None = None, **options: Any) -> list[list[int]]:
    module = Module()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    given: dict[str, Any] = {"max_epochs": EPOCHS, "accelerator": "cpu", "devices": 1, **quiet, **options}
    pl.Trainer(callbacks=list(callbacks), **given).fit(module, loader, ckpt_path=checkpoint, weights_only=False)
    return module.seen


def data(length: int) -> Any:
    return torch.arange(length, dtype=torch.float32)


def shuffled(length: int, kind: Any = DataLoader, **more: Any) -> DataLoader[Any]:
    loader: DataLoader[Any] = kind(data(length), 4, shuffle=True, generator=torch.Generator().manual_seed(3), **more)
    return loader


LOADERS: dict[str, Make] = {
    "distributed": lambda: DataLoader(data(12), 4, sampler=DistributedSampler(data(12), 1, 0, seed=7)),
    "generator": lambda: shuffled(11),
    "torchdata": lambda: shuffled(12, StatefulDataLoader),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end", "on_train_end"])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_from_every_checkpoint_on(make: Make, hook: str, tmp_path: Path) -> None:
    saved = SaveAlways(tmp_path, hook)
    whole = train(make(), saved)
    assert len(whole) == EPOCHS * 3
    assert saved.saved
    for trained, path in saved.saved.items():
        loader = resumable.wrap(make(), order="torch")
        adoption = adopt(loader, torch.load(path, weights_only=False))
        assert adoption.by == "Lightning's Trainer"
        assert loader.global_step == trained
        rest = [batch.flatten().long().tolist() for epoch in loader.epochs(EPOCHS + 1) for batch in epoch]
        assert rest[: len(whole) - trained] == whole[trained:]
        assert len(rest) == len(whole) - trained + 3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_run_goes_on_in_a_trainer_with_the_callback(tmp_path: Path) -> None:
    saved = SaveAlways(tmp_path)
    whole = train(LOADERS["distributed"](), saved)
    loader = resumable.wrap(LOADERS["distributed"](), order="torch")
    with pytest.warns(StateMismatchWarning, match="batch 2 of epoch 1"):
        rest = train(loader, ResumableCallback(strict=False), checkpoint=saved.saved[5])
    assert rest == whole[5:]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_the_trainer_drew_otherwise_is_refused(tmp_path: Path) -> None:
    """It does not ask for more after the last batch, so a plain sampler's generator is elsewhere than in a loop."""
    saved = SaveAlways(tmp_path)
    whole = train(shuffled(12), saved)
    plain = shuffled(12)
    assert whole[:3] == [batch.long().tolist() for batch in plain]
    assert whole[3:6] != [batch.long().tolist() for batch in plain]
    loader = resumable.wrap(shuffled(12), order="torch")
    with pytest.raises(UnsupportedError, match="does not ask for another batch after the last one"):
        adopt(loader, torch.load(saved.saved[2], weights_only=False))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_restarted_job_is_refused_by_its_state(tmp_path: Path) -> None:
    """A restarted job is rejected if its loader's state tells."""
    saved = SaveAlways(tmp_path)
    train(shuffled(12, StatefulDataLoader), saved)
    again = SaveAlways(tmp_path / "again")
    train(shuffled(12, StatefulDataLoader), again, checkpoint=saved.saved[4])
    with pytest.raises(StateMismatchError, match="was restarted"):
        adopt(
            resumable.wrap(shuffled(12, StatefulDataLoader), order="torch"),
            torch.load(again.saved[5], weights_only=False),
        )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_cut_epochs_that_decide_the_order(tmp_path: Path) -> None:
    """Epochs that were cut are rejected if the order depends on them."""
    saved = SaveAlways(tmp_path)
    whole = train(LOADERS["distributed"](), saved, limit_train_batches=2)
    state = torch.load(saved.saved[3], weights_only=False)
    loader = resumable.wrap(LOADERS["distributed"](), order="torch")
    adopt(loader, state)
    assert next(iter(loader)).flatten().long().tolist() == whole[3]
    with pytest.raises(
        StateMismatchError, match="3 batches at step 1 of epoch 1, but epochs of 3 batches would make that 4"
    ):
        adopt(resumable.wrap(shuffled(11), order="torch"), state)
    with pytest.raises(ConfigurationError, match="in epoch 1, but epoch=0 was passed"):
        adopt(loader, state, epoch=0)
