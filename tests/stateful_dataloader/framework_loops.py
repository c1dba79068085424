"""Training loops in the shape of frameworks that use torchdata's `StatefulDataLoader`.

Each is a function of a checkpoint, or None, and of the step after which it is killed. It returns the batches that it
trained on, and the checkpoint of its last step. Each sample of `Noisy` has a random augmentation.
"""

from __future__ import annotations

import asyncio
import io
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader.sampler import RandomSampler, StatefulDistributedSampler

from resumable.torch import StatefulDataLoader

EPOCHS, STEPS, BATCH = 3, 5, 4  # steps of an epoch
TOTAL = EPOCHS * STEPS

Checkpoint = dict[str, Any]
Batch = list[list[float]]
Outcome = tuple[list[Batch], Checkpoint | None]


class Noisy(Dataset[Any]):
    """Twenty samples: their index, and a random number."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(()).item()


class Settings(NamedTuple):
    """Settings that tests vary."""

    after_last: str = "empty"
    num_workers: int = 0

    def loader(self, kind: type[StatefulDataLoader[Any]] = StatefulDataLoader, **arguments: Any) -> Any:
        own = {"num_workers": self.num_workers, "after_last": self.after_last}
        return kind(arguments.pop("dataset", None) or Noisy(), **{"batch_size": BATCH, **own, **arguments})


Loop = Callable[[Checkpoint | None, int, Settings], Outcome]


def values(batch: Any) -> Any:
    return [torch.as_tensor(part).tolist() for part in batch]


def through_a_file(state: Any, *, weights_only: bool = True) -> Any:
    """Return what a checkpoint file would have."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def verl_ppo(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """The epoch is step // len(loader); the state is always loaded."""
    sampler = RandomSampler(Noisy(), generator=torch.Generator().manual_seed(5))
    loader, step = settings.loader(sampler=sampler, drop_last=True), 0
    if checkpoint:
        step = checkpoint["step"]
        loader.load_state_dict(checkpoint["data"])
    seen: list[Batch] = []
    for _ in range(step // len(loader), EPOCHS):
        for batch in loader:
            step += 1
            seen.append(values(batch))
            if step == stop:
                return seen, {"step": step, "data": through_a_file(loader.state_dict())}
    return seen, None


def verl_sft(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """A `DistributedSampler`, whose epoch is set at the start of each epoch."""
    sampler: Any = DistributedSampler(Noisy(), num_replicas=1, rank=0, shuffle=True, drop_last=True)
    loader, step = settings.loader(sampler=sampler, drop_last=True), 0
    if checkpoint:
        step = checkpoint["step"]
        loader.load_state_dict(checkpoint["data"])
    seen: list[Batch] = []
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            seen.append(values(batch))
            if step == stop:
                return seen, {"step": step, "data": through_a_file(loader.state_dict())}
    return seen, None


def nemo_rl(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """Shuffled without a generator; the checkpoint has an epoch number, so it counts on an empty epoch."""
    loader, step, epoch = settings.loader(shuffle=True, drop_last=True), 0, 0
    if checkpoint:
        step, epoch = checkpoint["step"], checkpoint["epoch"]
        loader.load_state_dict(checkpoint["data"])
    seen: list[Batch] = []
    while epoch < EPOCHS:
        for batch in loader:
            step += 1
            seen.append(values(batch))
            if step == stop:
                return seen, {"step": step, "epoch": epoch, "data": through_a_file(loader.state_dict())}
        epoch += 1
    return seen, None


class RankedLoader(StatefulDataLoader[Any]):
    """A subclass that makes its own sampler."""

    def __init__(self, dataset: Any, *, dp_rank: int, dp_size: int, **arguments: Any) -> None:
        sampler = StatefulDistributedSampler(dataset, dp_size, dp_rank, shuffle=True, seed=42, drop_last=True)
        super().__init__(dataset, sampler=sampler, **arguments)
        self.dp_rank = dp_rank


def automodel(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """A subclass, saved because of its class."""
    loader: Any = settings.loader(RankedLoader, dp_rank=0, dp_size=1)
    step = first = 0
    assert StatefulDataLoader in type(loader).__mro__
    if checkpoint:
        step, first = checkpoint["step"], checkpoint["epoch"]
        loader.load_state_dict(checkpoint["data"])
    seen: list[Batch] = []
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            seen.append(values(batch))
            if step == stop:
                return seen, {"step": step, "epoch": epoch, "data": through_a_file(loader.state_dict())}
    return seen, None


class EpochLoader(StatefulDataLoader[Any]):
    """A subclass that passes the epoch on to its sampler."""

    def set_epoch(self, epoch: int) -> None:
        sampler: Any = self.sampler
        sampler.set_epoch(epoch)


def veomni(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """A thread reads ahead and takes a state after each batch; an `iter()` is thrown away after an epoch's end."""
    sampler = StatefulDistributedSampler(Noisy(), num_replicas=1, rank=0, shuffle=True, seed=0)
    loader, step = settings.loader(EpochLoader, sampler=sampler, drop_last=True), 0
    if checkpoint:
        step = checkpoint["step"]
        loader.load_state_dict(checkpoint["data"])
        if step % STEPS == 0:
            iter(loader)
    seen: list[Batch] = []
    for epoch in range(step // STEPS, EPOCHS):
        loader.set_epoch(epoch)
        batches: Iterator[Any] = iter(loader)
        ready: queue.Queue[Any] = queue.Queue(maxsize=1)
        thread = threading.Thread(target=_read, args=(loader, batches, ready), daemon=True)
        thread.start()
        while (read := ready.get()) is not None:
            if isinstance(read, Exception):
                raise read
            step += 1
            seen.append(read[0])
            if step == stop:
                while isinstance(ready.get(), tuple):
                    pass  # a thread that read on would use the global RNG together with the resumed run
                return seen, {"step": step, "data": through_a_file(read[1])}
        thread.join()
    return seen, None


def _read(loader: Any, batches: Iterator[Any], ready: queue.Queue[Any]) -> None:
    try:
        for batch in batches:
            ready.put((values(batch), loader.state_dict()))
        ready.put(None)
    except Exception as error:  # noqa: BLE001  # the training raises it
        ready.put(error)


def skyrl_sft(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """One iterator by hand, replaced when it is exhausted."""
    loader = settings.loader(shuffle=True, generator=torch.Generator().manual_seed(42))
    step = 0
    if checkpoint:
        step = checkpoint["step"]
        loader.load_state_dict(checkpoint["data"])
    batches, seen = iter(loader), list[Batch]()
    while step < TOTAL:
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        step += 1
        seen.append(values(batch))
        if step == stop:
            return seen, {"step": step, "data": through_a_file(loader.state_dict())}
    return seen, None


def areal(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """An endless cycle, which counts its epochs from 0 in each process."""
    sampler: Any = DistributedSampler(Noisy(), num_replicas=1, rank=0, shuffle=True, drop_last=True)
    loader, step = settings.loader(sampler=sampler, drop_last=True), 0
    if checkpoint:
        step = checkpoint["step"]
        loader.load_state_dict(checkpoint["data"])
    seen: list[Batch] = []
    for epoch in range(EPOCHS + 1):
        sampler.set_epoch(epoch)
        for batch in loader:
            step += 1
            seen.append(values(batch))
            if step == stop:
                return seen, {"step": step, "data": through_a_file(loader.state_dict())}
            if step == TOTAL:
                return seen, None
    raise AssertionError("the cycle ended before the training")


def accelerate(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """Accelerate with `use_stateful_dataloader=True`, which reads one batch ahead and writes into the state."""
    from accelerate import Accelerator, DataLoaderConfiguration  # noqa: PLC0415  # after the class is replaced

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    generator = torch.Generator().manual_seed(42)
    plain: Any = DataLoader(Noisy(), BATCH, shuffle=True, generator=generator, num_workers=settings.num_workers)
    loader, step = accelerator.prepare(plain), 0
    if checkpoint:
        step = checkpoint["step"]
        loader.load_state_dict(checkpoint["data"])
        loader.iteration = step // STEPS
    seen: list[Batch] = []
    for _ in range(step // STEPS, EPOCHS):
        for batch in loader:
            step += 1
            seen.append(values(batch))
            if step == stop:
                return seen, {"step": step, "data": through_a_file(loader.state_dict())}
    return seen, None


def skyrl_async(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    """Generators take single samples ahead of the training; each epoch starts from the state of the unused loader.

    The checkpoint lists the samples that were trained on, and its state of the loader is replaced right away. The
    iterator of the first epoch is older than both states.
    """
    return asyncio.run(_skyrl_async(checkpoint, stop, settings))


async def _skyrl_async(checkpoint: Checkpoint | None, stop: int, settings: Settings) -> Outcome:
    loader = settings.loader(batch_size=1, shuffle=True, generator=torch.Generator().manual_seed(42), drop_last=True)
    unused, lock = loader.state_dict(), asyncio.Lock()
    batches, done, step, first = iter(loader), set[int](), 0, 0
    if checkpoint:
        step, first, done = checkpoint["step"], checkpoint["epoch"], set(checkpoint["done"])
        loader.load_state_dict(checkpoint["data"])
        loader.load_state_dict(unused)
    seen: list[Batch] = []
    for epoch in range(first, EPOCHS):
        ready, slots = asyncio.Queue[Any](), asyncio.Semaphore(2 * BATCH)
        generators = [asyncio.create_task(_generate(batches, done, lock, ready, slots)) for _ in range(3)]
        for _ in range(step, (epoch + 1) * STEPS):
            samples = [await ready.get() for _ in range(BATCH)]
            done |= {sample[0][0] for sample in samples}
            step += 1
            seen.append(samples)
            for _ in samples:
                slots.release()
            if step == stop:
                data = through_a_file(await asyncio.to_thread(loader.state_dict))
                await _end(generators)
                return seen, {"step": step, "epoch": epoch, "done": list(done), "data": data}
        await _end(generators)
        loader.load_state_dict(unused)
        batches = iter(loader)
        done.clear()
    return seen, None


async def _generate(
    batches: Iterator[Any], done: set[int], lock: asyncio.Lock, ready: asyncio.Queue[Any], slots: asyncio.Semaphore
) -> None:
    while await slots.acquire():
        async with lock:
            while (batch := next(batches, None)) is not None and int(batch[0]) in done:
                pass
        if batch is None:
            return
        ready.put_nowait(values(batch))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


LOOPS: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (verl_ppo, verl_sft, nemo_rl, automodel, veomni, skyrl_sft, skyrl_async, areal, accelerate)
}
