"""A run of the Lightning Trainer, with and without the callback."""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

import resumable
from benchmarks.case import Case
from benchmarks.contenders.plain import plain_loader
from resumable.integrations.lightning import ResumableCallback

__all__ = ["Fit"]


class Fit:
    """Trains on the same loader repeatedly.

    Args:
        resumable: whether to wrap the loader, and pass the callback to the Trainer.
        batches: per turn.
        step: milliseconds of busy waiting per training step.
        buffers: number of buffers of four numbers, kept at every step; None for a normalization with three.
        randomness: of the wrapped loader.
    """

    def __init__(
        self, *, resumable: bool, batches: int, step: float, buffers: int | None = None, randomness: Any = "sample"
    ) -> None:
        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric")
        self._resumable, self._case, self._step = resumable, Case(batches * 64), step
        self._buffers, self._randomness = buffers, randomness
        self.turn()

    def turn(self) -> float:
        """Return the µs per batch of one epoch."""
        clock = _Clock()
        trainer, loader = self._make(clock)
        trainer.fit(_Module(self._step, self._buffers), loader)
        return (clock.end - clock.begin) / self._case.batches * 1e6

    def save(self) -> float:
        """Return the milliseconds of one `trainer.save_checkpoint()` after an epoch."""
        trainer, loader = self._make(_Clock())
        trainer.fit(_Module(0), loader)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            trainer.save_checkpoint(Path(folder) / "saved.ckpt")
            return (time.perf_counter() - begin) * 1e3

    def _make(self, clock: pl.Callback) -> tuple[Any, Any]:
        loader: Any = plain_loader(self._case)
        callbacks: list[Any] = [clock]
        if self._resumable:
            loader, callbacks = resumable.wrap(loader, randomness=self._randomness), [clock, ResumableCallback()]
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            callbacks=callbacks,
        )
        return trainer, loader


class _Clock(pl.Callback):
    begin = end = 0.0

    def on_train_start(self, *_: Any) -> None:
        self.begin = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self.end = time.perf_counter()


class _Module(pl.LightningModule):
    """A minimal model with a normalization whose running means must be kept, or with many buffers."""

    def __init__(self, step: float, buffers: int | None = None) -> None:
        super().__init__()
        self._step = step * 1e-3
        layers = [torch.nn.Linear(1, 1)] if buffers is not None else [torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1)]
        self.layers = torch.nn.Sequential(*layers)
        for number in range(buffers or 0):
            self.register_buffer(f"kept_{number}", torch.zeros(4))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        end = time.perf_counter() + self._step
        while time.perf_counter() < end:
            pass
        loss: torch.Tensor = self.layers(batch.reshape(-1, 1).float()).mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-6)
