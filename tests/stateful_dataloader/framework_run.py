"""Trainings by real frameworks that use torchdata's `StatefulDataLoader`, in a process that called `install()`.

Run as a script it is a server, as `run_server.py` says.
"""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import datasets
import pytorch_lightning as pl
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from run_server import Log, serve
from torch import nn
from torch.utils.data import DataLoader, Dataset

import resumable.torch
from resumable.integrations.lightning import ResumableCallback

SAMPLES, BATCH, EPOCHS = 20, 4, 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run.

    Args:
        folder: of the checkpoint and the log.
        kind: "accelerate", "accelerate, a stream" or "datasets"; "lightning", also with ", alone", which is without the
            callback, and ", epochs", which saves only at the end of each epoch.
        workers: of the DataLoader.
        die_at: the process kills itself after so many of its steps, once they are saved.
        port: unused, as there is one rank.
    """

    folder: str
    kind: str
    workers: int = 0
    die_at: int | None = None
    port: int = 0


class Samples(Dataset[Any]):
    """Samples that tell their number, and have been augmented."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index), torch.rand(()).item()]), "labels": torch.tensor(float(index % 3))}


class Net(nn.Module):
    """One layer, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layer(x / SAMPLES)[:, 0]
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Progress:
    """Writes down each step, and kills the process at the requested step."""

    def __init__(self, run: Run) -> None:
        self._log, self._die_at, self._done = Log(Path(run.folder, "log-0")), run.die_at, 0
        self._log.write("start")

    def trained(self, step: int, batch: torch.Tensor) -> None:
        self._log.write("train", step, batch.tolist())

    def saved(self) -> None:
        self._done += 1
        if self._done == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, model: nn.Module) -> None:
        self._log.write("end", [one.tolist() for one in model.parameters()])


def newest(folder: str) -> Path | None:
    found = sorted(Path(folder).glob("step-*"), key=lambda path: int(path.name[5:]))
    return found[-1] if found else None


def with_accelerate(run: Run, progress: Progress, *, streams: bool = False) -> None:
    """Save with `save_state` in each step, and load with `load_state`."""
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    torch.manual_seed(0)
    data: Any = numbers(1) if streams else Samples()
    loader: Any = DataLoader(data, BATCH, shuffle=None if streams else True, num_workers=run.workers)
    net = Net()
    loader, model, optimizer = accelerator.prepare(loader, net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    checkpoint, step = newest(run.folder), 0
    if checkpoint is not None:
        torch.manual_seed(os.getpid())
        accelerator.load_state(str(checkpoint))
        step = int(checkpoint.name[5:])
    steps = 6 if streams and run.workers else 5  # each of two workers has a smaller last batch
    for epoch in range(step // steps, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            progress.trained(step, batch["x"])
            accelerator.save_state(str(Path(run.folder, f"step-{step}")))
            progress.saved()
    progress.end(model)


def read(row: dict[str, Any]) -> dict[str, Any]:
    return Samples()[row["number"]]


def numbers(buffer: int) -> Any:
    """Stream a table in four shuffled shards, through a shuffle buffer."""
    table = datasets.Dataset.from_dict({"number": list(range(SAMPLES))})
    stream = table.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=buffer)
    return stream.map(read, remove_columns=["number"])


def with_datasets(run: Run, progress: Progress) -> None:
    """Loop by hand over a stream of `datasets`, as their documentation does."""
    torch.manual_seed(0)
    stream, model = numbers(5), Net()
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415  # as a script does

    loader = StatefulDataLoader(stream, batch_size=BATCH, num_workers=run.workers, resume="replay")
    checkpoint, step, first = Path(run.folder, "checkpoint.pt"), 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        step, first = saved["step"], saved["epoch"]
        loader.load_state_dict(saved["data"])
    for epoch in range(first, EPOCHS):
        stream.set_epoch(epoch)
        for batch in loader:
            step += 1
            progress.trained(step, batch["x"])
            torch.save({"step": step, "epoch": epoch, "data": loader.state_dict()}, str(checkpoint) + ".new")
            Path(str(checkpoint) + ".new").rename(checkpoint)
            progress.saved()
    progress.end(model)


class Module(pl.LightningModule):
    """Makes its train loader, as torchdata's users do.

    Args:
        run: the run.
        progress: of the run.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        super().__init__()
        self.net, self.run, self.noted = Net(), run, progress

    def train_dataloader(self) -> Any:
        after_last: Any = "next" if "alone" in self.run.kind else "empty"
        return resumable.torch.StatefulDataLoader(
            Samples(), BATCH, shuffle=True, num_workers=self.run.workers, after_last=after_last
        )

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        self.noted.trained(self.global_step + 1, batch["x"])
        loss: torch.Tensor = self.net(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


class Saver(pl.Callback):
    """Saves after each step, or only at the end of each epoch."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if "epochs" not in pl_module.run.kind:
            self._save(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if "epochs" in pl_module.run.kind:
            self._save(trainer, pl_module)

    @staticmethod
    def _save(trainer: Any, module: Module) -> None:
        trainer.save_checkpoint(Path(module.run.folder, f"step-{trainer.global_step}"))
        module.noted.saved()


def with_lightning(run: Run, progress: Progress) -> None:
    """Let Lightning's Trainer save and load, with the callback or alone."""
    checkpoint = newest(run.folder)
    torch.manual_seed(0 if checkpoint is None else os.getpid())
    callback = [] if "alone" in run.kind else [ResumableCallback(wrap=True)]
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=[*callback, Saver()], enable_checkpointing=False, **quiet
    )
    module = Module(run, progress)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|typing_extensions")
        trainer.fit(module, ckpt_path=checkpoint)
    progress.end(module.net)


def train(run: Run, _: int) -> None:
    progress = Progress(run)
    if run.kind == "datasets":
        with_datasets(run, progress)
    elif run.kind.startswith("lightning"):
        with_lightning(run, progress)
    else:
        with_accelerate(run, progress, streams=run.kind == "accelerate, a stream")


if __name__ == "__main__":
    resumable.torch.install()
    torch.optim.Adam(nn.Linear(1, 1).parameters())  # which imports a thousand modules, once for all runs
    datasets.disable_progress_bars()
    serve(Run, train, lambda _: 1)
