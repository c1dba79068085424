"""A training by transformers' Trainer, as a program of its own; killed where it is told to, or run to its end.

Run as a script it is a server, as `run_server.py` says.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import datasets
import torch
from run_server import Log, serve
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments

import resumable
from resumable.integrations.transformers import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES, BATCH = 22, 2


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Args:
        folder: of the checkpoints, and of what the ranks write down.
        data: name of what is trained on, in `DATA`; or `sentences`, or `stream of sentences`, by TRL's SFTTrainer.
        world: number of ranks.
        arguments: of `TrainingArguments`.
        options: of `prepare`.
        alone: without `prepare`.
        evaluates: a callback evaluates on the train data, after each step and each epoch.
        patience: of early stopping.
        resume: from the newest checkpoint where there is one.
        die_at: each rank kills itself after so many micro-batches of this process.
        die_in: the main process kills itself within a save: in the how many of this process, before which file.
        die_after_save: each rank kills itself after so many saves of this process.
        port: for the ranks to find each other.
    """

    folder: str
    data: str = "samples"
    world: int = 1
    arguments: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    alone: bool = False
    evaluates: bool = False
    patience: int = 0
    resume: bool = True
    die_at: int | None = None
    die_in: tuple[int, str] | None = None
    die_after_save: int | None = None
    port: int = 0


class Samples(Dataset[dict[str, Any]]):
    """Samples that tell their number, and have been augmented."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= SAMPLES:
            raise IndexError(index)  # group_by_length iterates over it
        inputs = torch.tensor([index, torch.rand(()).item() + random.random()])
        return {"x": inputs, "labels": torch.tensor(float(index % 3)), "input_ids": [0] * (1 + index % 5)}


class Elements(IterableDataset[dict[str, Any]]):
    """The same as a stream, without a length."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from map(Samples().__getitem__, range(SAMPLES))


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Leave out what has another length in each sample."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in ("x", "labels")}


class Net(nn.Module):
    """Dropout, running means, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layers(x)[:, 0]
        return {"loss": (out - labels).pow(2).mean(), "logits": out}


class Features(nn.Module):
    """The model without its loss."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.layers = net.layers

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def table(size: int = SAMPLES) -> datasets.Dataset:
    """Make a table of Hugging Face's, one of whose columns the model does not take."""
    rows = {"number": list(range(size)), "name": [str(number) for number in range(size)]}
    return datasets.Dataset.from_dict(rows)


def read(row: dict[str, Any]) -> dict[str, Any]:
    inputs = torch.tensor([row["number"], torch.rand(()).item() + random.random()])
    return {"x": inputs, "labels": torch.tensor(float(row["number"] % 3))}


def read_all(rows: dict[str, Any]) -> dict[str, Any]:
    read_rows = [read({"number": number}) for number in rows["number"]]
    return {name: [row[name] for row in read_rows] for name in ("x", "labels")}


def parquet(folder: Path) -> datasets.IterableDataset:
    """Stream files, which the first rank to come writes; no batch of them has a single sample."""
    files = folder / "parquet"
    if not files.exists():
        part = Path(tempfile.mkdtemp(dir=folder))
        for number in range(4):
            table(24).shard(4, number).to_parquet(str(part / f"{number}.parquet"))
        with contextlib.suppress(OSError):
            part.rename(files)
    names = [str(path) for path in sorted(files.iterdir())]
    return datasets.load_dataset("parquet", data_files=names, streaming=True, split="train", cache_dir=str(folder))


def own_loader() -> resumable.Loader[Any]:
    data = DataLoader(Samples(), BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    return resumable.wrap(data, seed=5)


def stream() -> Iterator[dict[str, Any]]:
    rank = int(os.environ.get("RANK", "0"))
    for index in range(SAMPLES):
        yield {"x": torch.tensor([index + 100.0 * rank, random.random()]), "labels": torch.tensor(1.0)}


def own_streams() -> resumable.Loader[Any]:
    options: dict[str, Any] = {"shard": False, "tail": "drop", "identity": "numbers"}
    return resumable.wrap(stream, batch_size=BATCH, collate=collate, seed=5, **options)


DATA: dict[str, tuple[Callable[[Path], Any], Callable[[], Any] | None]] = {
    "samples": (lambda _: Samples(), None),
    "elements": (lambda _: Elements(), None),
    "loader": (lambda _: Samples(), own_loader),
    "streams": (lambda _: Samples(), own_streams),
    "table": (lambda _: table().with_transform(read_all), None),
    "parquet": (lambda folder: parquet(folder).map(read, remove_columns=["number"]), None),
    "shuffled parquet": (lambda folder: parquet(folder).shuffle(seed=3, buffer_size=5).map(read), None),
}


class Logging(TrainerCallback):  # type: ignore[misc]
    def __init__(self, log: Log, run: Run) -> None:
        self.log, self.run, self.saves = log, run, 0
        self.trainer: Any = None

    def on_epoch_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self.log.write("end of epoch", state.global_step)

        self.evaluate()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.evaluate()

    def evaluate(self) -> None:
        if self.run.evaluates:
            assert self.trainer is not None
            batches = self.trainer.callback_handler.train_dataloader.for_evaluation()
            seen = [batch["x"][:, 0].tolist() for batch in batches]
            self.log.write("evaluated", seen)
            averaged = torch.optim.swa_utils.AveragedModel(Features(self.trainer.model))
            with torch.random.fork_rng():  # the dropout of the model itself
                torch.optim.swa_utils.update_bn((batch["x"] for batch in batches), averaged)

    def on_save(self, *_: Any, **__: Any) -> None:
        self.saves += 1
        if self.saves == self.run.die_after_save:
            os.kill(os.getpid(), signal.SIGKILL)


def train(run: Run, rank: int) -> None:
    """Train as one of the ranks, from the last whole checkpoint if there is one."""
    folder = Path(run.folder)
    log = Log(folder / f"log-{rank}")
    defaults: dict[str, Any] = {
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "learning_rate": 0.01,
        "num_train_epochs": 2,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 4,
        "remove_unused_columns": False,
        "logging_steps": 3,
        "save_steps": 1,
        "seed": 7,
        "lr_scheduler_type": "cosine",
        **({"ddp_backend": "gloo"} if run.world > 1 else {}),
    }
    torch.manual_seed(0)
    callbacks: list[Any] = [Logging(log, run)]
    if run.patience:
        callbacks.append(EarlyStoppingCallback(run.patience))
    loader: Callable[[], resumable.Loader[Any]] | None = None
    if "sentences" in run.data:
        from trainer_sft import make_trainer  # noqa: PLC0415  # it imports TRL, which takes seconds

        defaults |= {"remove_unused_columns": True, "num_train_epochs": 2}
        stream = run.data.startswith("stream")
        trainer = make_trainer(folder / "out", callbacks, stream=stream, **{**defaults, **run.arguments})
    else:
        args = TrainingArguments(str(folder / "out"), **{**defaults, **run.arguments})
        dataset, loader = DATA[run.data]
        trainer = Trainer(Net(), args, collate, dataset(folder.parent), Samples(), callbacks=callbacks)
    callbacks[0].trainer = trainer
    done, step = 0, trainer.training_step

    def noted(model: Any, inputs: dict[str, Any], *rest: Any) -> Any:
        nonlocal done
        loss = step(model, inputs, *rest)
        done += 1
        log.write("train", trainer.state.global_step, next(iter(inputs.values())).tolist(), loss.item())
        if done == run.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss

    trainer.training_step = noted
    if not run.alone:
        prepare(trainer, *([] if loader is None else [loader()]), **run.options)
    if run.die_in is not None and rank == 0:
        _die_in(trainer, *run.die_in)
    there = run.resume and any((folder / "out").glob("checkpoint-*"))
    log.write("start", there)
    trainer.train(resume_from_checkpoint=True if there else None)
    weights = {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()}
    moments = [[value.tolist() for value in state.values()] for state in trainer.optimizer.state.values()]
    kept = [
        {name: value for name, value in one.items() if "time" not in name and "per_second" not in name}
        for one in trainer.state.log_history
        if "train_runtime" not in one
    ]
    draws = [torch.rand(()).item(), random.random()]
    log.write(
        "end",
        {
            "weights": weights,
            "moments": moments,
            "logs": kept,
            "draws": draws,
            "rate": trainer.lr_scheduler.get_last_lr(),
            "step": trainer.state.global_step,
            "epoch": trainer.state.epoch,
            "best": trainer.state.best_metric,
        },
    )


def request(**values: Any) -> Run:
    """Read what is asked for, and import what it needs into the server, which is there for the next ones, too."""
    run = Run(**values)
    if "sentences" in run.data:
        import trainer_sft  # noqa: F401, PLC0415  # likewise
    return run


def _die_in(trainer: Trainer, count: int, before: str) -> None:
    """Die in a save, where a part of it is about to be written."""
    owner: Any = TrainerState if before == "save_to_json" else trainer
    original, saves = getattr(owner, before), 0

    def dying(*arguments: Any, **options: Any) -> Any:
        nonlocal saves
        saves += 1
        if saves == count:
            if before == "save_to_json":
                Path(arguments[1]).write_text('{"best_global_step": null,', encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(owner, before, dying)


if __name__ == "__main__":
    torch.optim.Adam(nn.Linear(1, 1).parameters())  # which imports a thousand modules, once for all runs
    iter(own_loader())
    datasets.disable_progress_bars()
    serve(request, train, lambda run: run.world)
