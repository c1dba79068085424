"""Trainings that evaluate on their training data in hooks; killed where they are told to, or run to their end.

Run as a script it is a server, as `run_server.py` says.
"""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from run_server import Log, serve
from sources import MAKERS
from torch.optim.swa_utils import update_bn
from trainer_runs import Model, fit, ids

if TYPE_CHECKING:
    from resumable import Loader

EPOCHS = 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Args:
        folder: of the checkpoints and the log.
        kind: of the train loader, in `MAKERS`.
        evaluates: after each batch and at each epoch's end.
        accumulate: batches per optimizer step.
        die_at: number of the event of this process at which it kills itself.
        port: of no use with one rank.
    """

    folder: str
    kind: str
    evaluates: bool = True
    accumulate: int = 1
    die_at: int | None = None
    port: int = 0


class Evaluated(Model):
    """Computes an output of the model, and the statistics of a copy, over the training data.

    Args:
        run: what is run.
        log: where the evaluations are written to.
        loader: the train loader.
    """

    def __init__(self, run: Run, log: Log, loader: Loader[Any]) -> None:
        super().__init__()
        self.run, self.log_file, self.loader = run, log, loader

    def evaluate(self) -> None:
        if not self.run.evaluates:
            return
        net = copy.deepcopy(self.net)
        with torch.random.fork_rng():  # the dropout of the copy
            update_bn((batch.reshape(-1, 1) for batch in self.loader.for_evaluation()), net)
        with torch.no_grad():
            seen = [ids(batch) for batch in self.loader.for_evaluation()]
            values = [net.eval()(torch.tensor(batch)[:, None]).mean().item() for batch in seen]
        self.log_file.write("evaluated", seen, values)

    def on_train_batch_end(self, *_: Any) -> None:
        self.evaluate()

    def on_train_epoch_end(self) -> None:
        self.evaluate()
        super().on_train_epoch_end()


class Events(list[Any]):
    """Events that are in the log when the process is killed."""

    def __init__(self, log: Log, die_at: int | None) -> None:
        self._log, self._die_at = log, die_at

    def append(self, event: Any) -> None:
        super().append(event)
        self._log.write(*event)
        if len(self) == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def start(run: Run, _: int) -> None:
    """Run a training in this process, from the newest checkpoint if there is one."""
    log, loader = Log(Path(run.folder, "log-0")), MAKERS[run.kind]()
    log.write("start")
    model = Evaluated(run, log, loader)
    model.events = Events(log, run.die_at)
    saver = ModelCheckpoint(run.folder, every_n_train_steps=1, save_last=True)
    options: dict[str, Any] = {"max_epochs": EPOCHS, "accumulate_grad_batches": run.accumulate}
    outcome = fit(model, loader, callbacks=[saver], checkpoint="last", **options)
    log.write("end", {name: tensor.tolist() for name, tensor in outcome.weights.items()}, outcome.draw)


if __name__ == "__main__":
    serve(Run, start, lambda _: 1)
