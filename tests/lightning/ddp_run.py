"""Starts training runs whose ranks are real processes, and writes down what each of them trains on.

Run as a script it is a server: it imports everything once and forks the ranks of each run, so that a run takes one
second and not six. A request and its answer are one line of JSON each.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable
from resumable.errors import PromiseWarning
from resumable.integrations.lightning import ResumableCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES = 24
TIMEOUT = timedelta(seconds=15)  # of the process group


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Args:
        log: rank 0 writes to this path with `-0` after it, and so on.
        checkpoints: folder.
        loader: name of the train loader, in `LOADERS`.
        world: number of ranks.
        epochs: of the Trainer.
        every: optimizer steps between two saves.
        save_on_exception: save then, too.
        resume: the Trainer's `ckpt_path`.
        dropout: in the model.
        norm: a normalisation with running means in the model.
        validate: have a validation loader.
        die_at: each rank sends itself a signal before it trains on its batch of this number.
        die_of: that signal.
        die_rank: the only rank that does so.
        preemption: the callback's option.
        reload: the model makes the loader, again every so many epochs.
        fail: rank that raises an error, at which point, and after how many batches.
        options: of the Trainer.
        port: for the ranks to find each other.
    """

    log: str
    checkpoints: str
    loader: str = "indexed"
    world: int = 2
    epochs: int = 3
    every: int | None = 2
    save_on_exception: bool = False
    resume: str | None = None
    dropout: bool = True
    norm: bool = True
    validate: bool = False
    die_at: int | None = None
    die_of: int = signal.SIGKILL
    die_rank: int | None = None
    preemption: bool = False
    reload: int = 0
    fail: tuple[int, str, int] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    port: int = 0


# ---------------------------------------------------------------------- data


def sample(number: int) -> torch.Tensor:
    """A sample that tells its number, and has been augmented."""
    return torch.tensor([number, torch.rand(()).item() + random.random()])


class Samples(Dataset[torch.Tensor]):
    def __init__(self, length: int, first: int = 0) -> None:
        self.length, self.first = length, first

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return sample(self.first + index)


class Chain(IterableDataset[torch.Tensor]):
    """A stream in which each number follows from the one before, over the epochs' borders too.

    Args:
        length: samples of an epoch.
        by_rank: another stream on each rank.
    """

    def __init__(self, length: int, *, by_rank: bool = True) -> None:
        self.length, self.by_rank = length, by_rank
        self.given, self.number = 0, -1

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.number < 0:
            self.number = distributed.get_rank() if self.by_rank and distributed.is_initialized() else 0
        while self.given < self.length:
            self.given += 1
            self.number = (75 * self.number + 74) % 65537
            yield sample(self.number)
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given, "number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given, self.number = state["given"], state["number"]


class Coarse(Chain):
    """Wants no snapshot for every batch."""

    snapshot_every = 4


class Ragged(Chain):
    """Rank 0 has one sample less, and as many batches."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.length = SAMPLES // 2 - (distributed.get_rank() == 0)
        return super().__iter__()


def generate(epoch: int) -> Iterator[torch.Tensor]:
    """The whole stream on every rank, and no length."""
    yield from map(sample, random.Random(epoch).sample(range(SAMPLES), SAMPLES))


def generate_own(epoch: int) -> Iterator[torch.Tensor]:
    """Every second sample of it."""
    order = random.Random(epoch).sample(range(SAMPLES), SAMPLES)
    yield from map(sample, order[distributed.get_rank() if distributed.is_initialized() else 0 :: 2])


def generate_uneven(epoch: int) -> Iterator[torch.Tensor]:
    """The same, and rank 1 has two batches less."""
    yield from islice(generate_own(epoch), SAMPLES // 2 - 4 * (distributed.get_rank() == 1))


class Batches:
    """The same as an object that gives batches."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for first in range(0, SAMPLES, 2):
            yield torch.stack([sample(first), sample(first + 1)])


OWN: dict[str, Any] = {"seed": 0, "shard": False}
ELEMENTS: dict[str, Any] = {"seed": 0, "batch_size": 2, "collate": torch.stack, "tail": "drop"}
LOADERS: dict[str, Callable[[], Any]] = {
    "indexed": lambda: resumable.wrap(DataLoader(Samples(SAMPLES), batch_size=2, shuffle=True), seed=0),
    # Each rank has a stream of its own.
    "chain": lambda: resumable.wrap(Chain(SAMPLES // 2), **ELEMENTS, shard=False),
    "dataset": lambda: resumable.wrap(DataLoader(Chain(SAMPLES // 2), batch_size=2), **OWN),
    "workers": lambda: resumable.wrap(DataLoader(Chain(SAMPLES // 4), batch_size=2, num_workers=2), **OWN),
    "ragged": lambda: resumable.wrap(Ragged(SAMPLES // 2), **{**ELEMENTS, "tail": "partial"}, shard=False),
    "uneven": lambda: resumable.wrap(generate_uneven, **ELEMENTS, shard=False),
    "coarse": lambda: resumable.wrap(Coarse(SAMPLES // 2), **ELEMENTS, shard=False),
    "replayed": lambda: resumable.wrap(generate_own, **ELEMENTS, shard=False),
    # Each rank has the whole stream, which is divided among them.
    "whole": lambda: resumable.wrap(Chain(SAMPLES, by_rank=False), **ELEMENTS),
    "function": lambda: resumable.wrap(generate, **ELEMENTS),
    # These are given to the Trainer as they are.
    "plain": lambda: DataLoader(Samples(SAMPLES - 1), batch_size=2, shuffle=True),
    "batches": Batches,
}
PLAIN = {"plain", "batches"}


# ---------------------------------------------------------------------- one rank


class PlannedError(RuntimeError):
    """Thrown by a test inside of a run."""


class Log:
    """Lines of JSON, each of which is safe from a SIGKILL once it is written."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # open as long as its process

    def write(self, kind: str, *values: Any) -> None:
        self._file.write(json.dumps([kind, *values]) + "\n")
        self._file.flush()


class Model(pl.LightningModule):
    def __init__(self, log: Log, run: Run) -> None:
        super().__init__()
        torch.manual_seed(5)
        norm = nn.BatchNorm1d(8) if run.norm else nn.Identity()
        self.net = nn.Sequential(nn.Linear(2, 8), norm, nn.Dropout(0.5 * run.dropout), nn.Tanh(), nn.Linear(8, 1))
        self.log_file, self.trained, self.die_at = log, 0, run.die_at
        self.die_of = run.die_of
        self.is_map_style = run.loader in {"indexed", "plain"}

    def train_dataloader(self) -> Any:
        data = Samples(SAMPLES, 100 * self.current_epoch + self.trainer.global_step)
        return resumable.wrap(DataLoader(data, batch_size=2, shuffle=True), seed=0)

    def on_train_epoch_start(self) -> None:
        held = self.trainer.train_dataloader
        assert isinstance(getattr(held, "dataset", None), Samples) == self.is_map_style
        assert not hasattr(held, "sampler")  # Lightning would put a DistributedSampler in its place

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.trained == self.die_at:
            os.kill(os.getpid(), self.die_of)
        loss: torch.Tensor = (self.net(batch * 0.01) - 1).pow(2).mean()
        self.trained += 1
        ids = [int(number) for number in batch[:, 0].tolist()]
        self.log_file.write("train", self.current_epoch, batch_idx, self.global_step, ids, loss.item())
        return loss

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        score = self.net(batch * 0.01).mean() + torch.rand(())
        self.log_file.write("validation", batch_idx, [int(number) for number in batch[:, 0].tolist()], score.item())
        self.log("score", score, sync_dist=True)

    def on_train_epoch_end(self) -> None:
        self.log_file.write("epoch end", self.current_epoch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.trainer.interrupted:
            self.log_file.write("dumped")  # after all callbacks

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}


class Fail(Callback):
    """Raises an error in a hook, once its rank has trained on some batches."""

    def __init__(self, log: Log, hook: str, trained: int) -> None:
        self._log, self._trained = log, trained
        setattr(self, hook, self._raise)

    def _raise(self, trainer: Any, module: Any, *_: Any) -> None:
        if module.trained == self._trained:
            self._log.write("raised")
            raise PlannedError


def make_trainer(run: Run, rank: int, log: Log) -> Any:
    save = ModelCheckpoint(
        run.checkpoints,
        filename="{step}",
        save_top_k=-1,
        save_last=run.every is not None,
        every_n_train_steps=run.every or 10**9,
        save_on_train_epoch_end=False,
        save_on_exception=run.save_on_exception,
        enable_version_counter=False,
    )
    callbacks: list[Any] = [ResumableCallback(wrap=run.loader in PLAIN, preemption=run.preemption), save]
    if run.fail is not None and run.fail[0] == rank:
        callbacks.append(Fail(log, *run.fail[1:]))
    strategy: Any = DDPStrategy(process_group_backend="gloo", timeout=TIMEOUT) if run.world > 1 else "auto"
    return pl.Trainer(
        **{
            "accelerator": "cpu",
            "devices": run.world,
            "strategy": strategy,
            "max_epochs": run.epochs,
            "callbacks": callbacks,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "reload_dataloaders_every_n_epochs": run.reload,
            **run.options,
        }
    )


def train(run: Run, rank: int) -> None:
    """Train as one of the ranks."""
    log = Log(f"{run.log}-{rank}")
    torch.set_num_threads(1)
    if run.world > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(run.port)}
        os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank), "WORLD_SIZE": str(run.world)}
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", PromiseWarning)
    warnings.showwarning = lambda message, category, *_, **__: log.write("warning", category.__name__, str(message))
    try:
        trainer, model = make_trainer(run, rank, log), Model(log, run)
        if run.die_rank not in (None, rank):
            model.die_at = None
        torch.manual_seed(100 + rank)
        random.seed(200 + rank)
        validation = DataLoader(Samples(6), batch_size=1) if run.validate else None
        loader = None if run.reload else LOADERS[run.loader]()
        trainer.fit(model, loader, validation, ckpt_path=run.resume)
    except BaseException as error:
        log.write("error", type(error).__name__, str(error))
        raise
    weights = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    momenta = [state["momentum_buffer"].tolist() for state in trainer.optimizers[0].state.values()]
    log.write("end", {"weights": weights, "momenta": momenta, "draws": [torch.rand(()).item(), random.random()]})


# ---------------------------------------------------------------------- the server


def fork(work: Callable[[], None], output: Path) -> int:
    """Do some work in a process of its own, and return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # the process ends here in any case
        traceback.print_exc()
    finally:
        os._exit(code)


class Server:
    """Answers requests; the ranks of one run at a time."""

    def __init__(self) -> None:
        self._alive: dict[int, int] = {}  # process numbers by rank

    def start(self, **values: Any) -> None:
        """Start the ranks of a run."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            run = Run(**{**values, "port": free.getsockname()[1]})
        for rank in range(run.world):
            self._alive[rank] = fork(partial(train, run, rank), Path(f"{run.log}-{rank}.out"))

    def kill(self, *, rank: int) -> None:
        """Kill a rank, unless it has ended."""
        if rank in self._alive:
            os.kill(self._alive[rank], signal.SIGKILL)

    def wait(self, *, seconds: float) -> bool:
        """Wait for the ranks to end, and tell whether they have."""
        deadline = time.monotonic() + seconds
        while self._reap() and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self._alive

    def _reap(self) -> int:
        for rank, pid in list(self._alive.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._alive[rank]
        return len(self._alive)

    def stop(self) -> None:
        """Kill what is left."""
        for rank in list(self._alive):
            self.kill(rank=rank)
        self.wait(seconds=10)


def serve() -> None:
    """Answer requests until there are no more."""
    server = Server()
    gc.freeze()  # or each rank would copy what it shares with this process
    try:
        for line in sys.stdin:
            request, arguments = json.loads(line)
            print(json.dumps(getattr(server, request)(**arguments)), flush=True)  # noqa: T201  # the answer
    finally:
        server.stop()


if __name__ == "__main__":
    serve()
