"""A training by Accelerate, as a program of its own; killed where it is told to, or run to its end.

Run as a script it is a server, as `run_server.py` says: so a run takes half a second and not five.
"""

from __future__ import annotations

import os
import random
import signal
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accelerate import Accelerator, notebook_launcher
from run_server import Log, serve
from torch import nn
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable.integrations.accelerate import last_whole_checkpoint, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES, BATCH, EPOCHS = 20, 2, 2
MIDDLE = 3  # batches of an epoch before the evaluation in its middle


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Args:
        folder: of the checkpoints, and of what the ranks write down.
        loader: name of the train loader, in `LOADERS`.
        world: number of ranks.
        accumulate: micro-batches per optimizer step.
        every: micro-batches between two saves.
        in_place: save into one folder, again and again.
        launched: the ranks are started by Accelerate's `notebook_launcher`.
        evaluates: evaluate on the train data, in the middle of each epoch and at its end.
        by_hand: step the optimizer where the loop says so, without `accelerator.accumulate`.
        die_at: each rank kills itself after so many micro-batches of this process, and after what was saved then.
        die_after_epoch: each rank saves and kills itself at the end of that epoch, after its evaluation.
        die_in: the main process kills itself within a save: in the how many of this process, at which file.
        torn: half of that file is written then, or nothing of it.
        port: for the ranks to find each other.
    """

    folder: str
    loader: str = "indexed"
    world: int = 1
    accumulate: int = 1
    every: int = 1
    in_place: bool = False
    launched: bool = False
    evaluates: bool = False
    by_hand: bool = False
    die_at: int | None = None
    die_after_epoch: int | None = None
    die_in: tuple[int, int] | None = None
    torn: bool = True
    port: int = 0


class Samples(Dataset[torch.Tensor]):
    """Samples that tell their number, and have been augmented."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item() + random.random()])


def generate() -> Iterator[torch.Tensor]:
    """The stream of one rank, and no length."""
    rank = int(os.environ.get("RANK", "0"))
    for number in range(SAMPLES):
        yield torch.tensor([100 * rank + number, torch.rand(()).item() + random.random()])


def indexed() -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(Samples(), batch_size=BATCH, shuffle=True, drop_last=True), seed=0)


def stream() -> resumable.Loader[Any]:
    return resumable.wrap(
        generate, batch_size=BATCH, shard=False, tail="drop", collate=torch.stack, seed=0, identity="numbers"
    )


def evaluation() -> resumable.Loader[Any]:
    """Seven samples, which two ranks share with one that is repeated."""
    return resumable.wrap(torch.arange(7), batch_size=2, tail="pad_ranks", evaluation=True)


LOADERS: dict[str, Callable[[], resumable.Loader[Any]]] = {"indexed": indexed, "stream": stream}


def train(run: Run, rank: int | None) -> None:  # noqa: C901, PLR0915  # one training, from top to bottom
    """Train as one of the ranks, from the last whole checkpoint if there is one."""
    rank = int(os.environ["RANK"]) if rank is None else rank
    folder = Path(run.folder)
    log = Log(folder / f"log-{rank}")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1 if run.by_hand else run.accumulate)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    adam = torch.optim.Adam(net.parameters(), 0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(adam, 0.05, total_steps=40)
    loader, test = prepare(accelerator, LOADERS[run.loader]()), prepare(accelerator, evaluation())
    model, optimizer, scheduler = accelerator.prepare(net, adam, cycle)
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    place = last_whole_checkpoint(folder)
    if run.in_place and (folder / "checkpoint").is_dir():
        place = str(folder / "checkpoint")
    if place is not None:
        accelerator.load_state(place)
    log.write("start", loader.global_step)
    saves = _Saves(run, accelerator, first=0 if place is None or run.in_place else int(place.rpartition("_")[2]))
    done = 0

    def step() -> None:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    averaged = torch.optim.swa_utils.AveragedModel(net)

    def evaluate() -> None:
        """Evaluate on the train data, and renew the running means of an average of the weights."""
        seen = [accelerator.gather_for_metrics(batch)[:, 0].tolist() for batch in loader.for_evaluation()]
        log.write("evaluated", seen)
        averaged.update_parameters(net)
        with torch.random.fork_rng():  # the dropout of the model itself
            torch.optim.swa_utils.update_bn(loader.for_evaluation(), averaged)

    for epoch in loader.epochs(EPOCHS):
        for number, batch in epoch.enumerate():
            with accelerator.accumulate(model):
                loss = model(batch).pow(2).mean() + random.random() * model(batch).mean()
                accelerator.backward(loss)
                if not run.by_hand:
                    step()
            if run.by_hand and (number + 1) % run.accumulate == 0:
                step()
            done += 1
            log.write("train", epoch.number, batch[:, 0].tolist(), loss.item(), accelerator.sync_gradients)
            if done % run.every == 0:
                saves.save()
            if done == run.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if run.evaluates and number == MIDDLE:
                evaluate()
        if run.evaluates:
            evaluate()
        if run.die_after_epoch == epoch.number:
            saves.save()
            os.kill(os.getpid(), signal.SIGKILL)
        scores = [accelerator.gather_for_metrics(batch).tolist() for batch in test]
        log.write("end of epoch", epoch.number, scores)
    log.write("end", _outcome(accelerator, model, adam, cycle, loader))


def _outcome(accelerator: Any, model: Any, adam: Any, cycle: Any, loader: Any) -> dict[str, Any]:
    weights = {name: tensor.tolist() for name, tensor in accelerator.unwrap_model(model).state_dict().items()}
    moments = [[value.tolist() for value in state.values()] for state in adam.state.values()]
    rates = {name: value for name, value in cycle.state_dict().items() if not callable(value) and name[0] != "_"}
    draws = [torch.rand(()).item(), random.random()]
    steps = [accelerator.step, cycle.last_epoch, cycle._step_count, loader.global_step]
    return {"weights": weights, "moments": moments, "rates": str(rates), "draws": draws, "steps": steps}


class _Saves:
    """Saves checkpoints, within one of which the main process kills itself."""

    def __init__(self, run: Run, accelerator: Accelerator, *, first: int) -> None:
        self._run, self._accelerator, self._number, self._count = run, accelerator, first, 0

    def save(self) -> None:
        self._number, self._count = self._number + 1, self._count + 1
        name = "checkpoint" if self._run.in_place else f"checkpoint_{self._number}"
        if self._run.die_in is not None and self._run.die_in[0] == self._count and self._accelerator.is_main_process:
            _die_at_file(self._run.die_in[1], torn=self._run.torn)
        self._accelerator.save_state(str(Path(self._run.folder, name)))


def _die_at_file(number: int, *, torn: bool) -> None:
    """Die when so many files were written by torch.save; the model is written before."""
    written, save = 0, torch.save

    def half(content: Any, path: Any, *rest: Any, **options: Any) -> None:
        nonlocal written
        written += not isinstance(path, BytesIO)  # as what the ranks send each other
        if written > number:
            whole = BytesIO()
            save(content, whole)
            if torn:
                Path(path).write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        save(content, path, *rest, **options)

    torch.save = half  # type: ignore[assignment]  # Accelerate calls it like this


def start(run: Run, rank: int) -> None:
    """Train as one of the ranks, or have Accelerate start them."""
    if run.launched:
        warnings.simplefilter("default")  # the launcher has its own
        notebook_launcher(train, (run, None), num_processes=run.world, use_port=str(run.port))
    else:
        train(run, rank)


if __name__ == "__main__":
    torch.optim.Adam(nn.Linear(1, 1).parameters())  # which imports a thousand modules, once for all runs
    iter(indexed())
    serve(Run, start, lambda run: 1 if run.launched else run.world)
