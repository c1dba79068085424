"""A Trainer whose workers are killed, in training and in validation: weights and events are those of the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from pytorch_lightning.callbacks import Callback
from torch.utils.data import DataLoader
from trainer_runs import Model, Outcome, check_rest, fit

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_death_of_before")]


class Kills(Callback):
    """Kills a worker in every third batch of the training, and in each validation."""

    def __init__(self, workers: Callable[[], list[BaseProcess]]) -> None:
        self.workers = workers
        self.killed = 0

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if module.trained % 3 == 1:
            self._kill()

    def on_validation_batch_end(self, trainer: Any, module: Any, *about: Any) -> None:
        if about[2] == 0:
            self._kill()

    def _kill(self) -> None:
        for worker in self.workers()[-1:]:
            worker.kill()
            worker.join()
            self.killed += 1


def run(*callbacks: Callback) -> Outcome:
    def loader(count: int, **options: Any) -> Any:
        samples: Any = torch.arange(count, dtype=torch.float32)
        source: Any = DataLoader(samples, num_workers=2, persistent_workers=True, **options)
        return resumable.wrap(source, seed=0, on_worker_death="restart")

    with loader(18, batch_size=2, shuffle=True) as training, loader(8, batch_size=2) as validation:
        return fit(Model(), training, validation, callbacks=[*callbacks])


def test_a_training_whose_workers_are_killed(
    caplog: pytest.LogCaptureFixture, own_children: Callable[[], list[BaseProcess]]
) -> None:
    kills = Kills(own_children)
    baseline, harmed = run(), run(kills)
    check_rest(baseline, harmed, trained=0, begins="epoch start")
    assert kills.killed >= 12
    assert sum("restarted" in record.getMessage() for record in caplog.records) > 3
