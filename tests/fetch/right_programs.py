"""Right programs that look suspicious: they remember, cache, open or randomize something, and none depends on its past.

A program takes a state to resume from. It returns its batches, and the states that it saved, each with the number of
batches before it: in the middle of an epoch, after an epoch's last batch, and between two epochs.
"""

from __future__ import annotations

import collections
import csv
import functools
import io
import itertools
import json
import logging
import mmap
import random
import sqlite3
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import resumable
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = tuple[list[str], list[tuple[int, Any]]]
    Program = Callable[[Any], Run]

__all__ = ["HEAVY", "LIGHT", "on_disk"]

LENGTH, EPOCHS, BATCH = 12, 3, 3
MIDDLE = 2  # batches of an epoch
DATA: Any = list(range(LENGTH))
TWICE: Any = DATA * 2
_folder = ""


@contextmanager
def on_disk() -> Iterator[None]:
    """Write the files that the programs read."""
    global _folder  # programs take only a state
    with tempfile.TemporaryDirectory() as _folder:
        path("lines.txt").write_text("".join(f"line {number}\n" for number in DATA))
        path("rows.csv").write_text("".join(f"{number},{number * number}\n" for number in DATA))
        path("rows.jsonl").write_text("".join(json.dumps({"x": number}) + "\n" for number in DATA))
        np.save(path("array.npy"), np.arange(LENGTH * 2).reshape(LENGTH, 2))
        np.arange(LENGTH * 32 + 1, dtype=np.uint16).tofile(path("tokens.bin"))
        with h5py.File(path("data.h5"), "w") as file:
            file["x"] = np.arange(LENGTH)
        connection = sqlite3.connect(path("rows.sqlite"))
        with connection:
            connection.execute("create table rows (number integer)")
            connection.executemany("insert into rows values (?)", [(number,) for number in DATA])
        connection.close()
        for number in DATA:
            Image.new("L", (4, 4), number).save(path(f"{number}.png"))
        yield


def path(name: str) -> Path:
    return Path(_folder, name)


def looped(
    make: Callable[[], resumable.Loader[Any]], before: Callable[[int], object] = lambda _: None, *, back: bool = True
) -> Program:
    """Return a program with the usual loop. After a resume, it goes `back` to the state in the same process."""

    def run(state: Any) -> Run:
        loader = make()
        if state is None:
            return read(loader)
        loader.load_state_dict(state)
        found = read(loader)
        if back:
            loader.load_state_dict(state)
            assert read(loader)[0] == found[0]
        return found

    def read(loader: resumable.Loader[Any]) -> Run:
        seen, states = list[str](), list[tuple[int, Any]]()
        for epoch in loader.epochs(EPOCHS):
            before(epoch.number)
            for batch in epoch:
                seen.append(digest(batch))
                if loader.cursor.step in {MIDDLE, LENGTH // BATCH} and epoch.number < EPOCHS - 1:
                    states.append((len(seen), loader.state_dict()))
            states.append((len(seen), loader.state_dict()))
        return seen, states

    return run


def endless(make: Callable[[], resumable.Loader[Any]]) -> Program:
    """Return a program that counts steps, as an infinite source has no second epoch."""

    def run(state: Any) -> Run:
        loader, seen, states = make(), list[str](), list[tuple[int, Any]]()
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader.steps(EPOCHS * LENGTH // BATCH):
            seen.append(digest(batch))
            states.append((len(seen), loader.state_dict()))
        return seen, states[1::2]

    return run


def acknowledged(make: Callable[[], resumable.Loader[Any]]) -> Program:
    """Return a program that accumulates two batches, and acknowledges them after its optimizer step."""

    def run(state: Any) -> Run:
        loader, seen, states = make(), list[str](), list[tuple[int, Any]]()
        if state is not None:
            loader.load_state_dict(state)
        for epoch in loader.epochs(EPOCHS):
            for number, batch in enumerate(epoch):
                seen.append(digest(batch))
                if number % 2:
                    loader.ack(2)
                    states.append((len(seen), loader.state_dict()))
        return seen, states

    return run


def evaluated(make: Callable[[], resumable.Loader[Any]]) -> Program:
    """Return a program that evaluates on the same data before each epoch."""
    made = list[resumable.Loader[Any]]()

    def kept() -> resumable.Loader[Any]:
        made.append(make())
        return made[-1]

    return looped(kept, lambda _: collections.deque(made[-1].for_evaluation(), 0))


def peeking(make: Callable[[], resumable.Loader[Any]]) -> Program:
    """Return a program that shows the first batch of each epoch before the epoch starts."""
    made = list[resumable.Loader[Any]]()

    def kept() -> resumable.Loader[Any]:
        made.append(make())
        return made[-1]

    return looped(kept, lambda _: made[-1].peek())


def told(make: Callable[[], Any]) -> Program:
    """Return a program whose loop tells its sampler each epoch, as with a plain DataLoader."""
    made = list[Any]()

    def kept() -> resumable.Loader[Any]:
        made.append(make())
        return wrap(DATA, sampler=made[-1])

    def tell(epoch: int) -> None:
        made[-1].set_epoch(epoch)

    return looped(kept, tell)


def of(dataset: Any, **options: Any) -> Program:
    """Return a program over a dataset that is made anew in each process."""
    shuffle = {} if "sampler" in options or issubclass(dataset, IterableDataset) else {"shuffle": True}
    return looped(lambda: wrap(dataset(), **shuffle, **options))


def wrap(dataset: Any, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(dataset, batch_size=BATCH, **options), seed=0, identity="data")


def with_sampler(make: Callable[[], Any]) -> Program:
    return looped(lambda: wrap(DATA, sampler=make()))


# ---------------------------------------------------------------------- datasets


class Indexed(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index


class GeneratorPerWorker(Indexed):
    """Makes its generator when it reads its first sample, from the RNG that the Loader seeds."""

    generator: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.generator is None:
            self.generator = np.random.default_rng(np.random.randint(1 << 30))
        return index + self.generator.random()


class GeneratorOfItsOwn(Indexed):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return index + self.generator.random()


class SeededByIndex(Indexed):
    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng(index).random()


class CachesSamples(Indexed):
    def __init__(self) -> None:
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = torch.full((2,), index)
        return self.cache[index] * random.random()


class CachesByDecorator(Indexed):
    @functools.lru_cache(4)  # noqa: B019  # as people write it
    def _read(self, index: int) -> Any:
        return torch.full((2,), index)

    def __getitem__(self, index: int) -> Any:
        return self._read(index)


class CachedLength(Indexed):
    @functools.cached_property
    def table(self) -> Any:
        return np.arange(LENGTH) ** 2

    def __getitem__(self, index: int) -> Any:
        return self.table[index]


class CountsAndLogs(Indexed):
    """Statistics without an effect, of a dataset that is read by index."""

    def __init__(self) -> None:
        self.counts = collections.Counter[int]()
        self.log, self.lock = logging.getLogger("right"), threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.counts[index] += 1
        self.log.debug("read %d", index)
        return index


class OpensFile(Indexed):
    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = path("array.npy").open("rb")
        self.file.seek(index)
        return self.file.read(4)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class MapsFile(Indexed):
    mapped: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.mapped is None:
            self.mapped = np.load(path("array.npy"), mmap_mode="r")
        return torch.from_numpy(np.array(self.mapped[index]))


class MapsBytes(Indexed):
    mapped: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.mapped is None:
            with path("lines.txt").open("rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.mapped[index]


class OpensH5(Indexed):
    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(path("data.h5"), "r")
        return int(self.file["x"][index])


class Connects(Indexed):
    connection: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.connection is None:
            self.connection = sqlite3.connect(path("rows.sqlite"))
        return self.connection.execute("select number from rows where rowid = ?", [index + 1]).fetchone()[0]

    def __del__(self) -> None:
        if self.connection is not None:
            self.connection.close()


class Pictures(Indexed):
    def __getitem__(self, index: int) -> Any:
        picture = Image.open(path(f"{index}.png"))
        flipped = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else picture
        return np.asarray(flipped).copy()


@dataclass
class Sample:
    image: torch.Tensor
    name: str


class Objects(Indexed):
    def __getitem__(self, index: int) -> Any:
        return Sample(torch.rand(2), f"sample {index}")


def apart(samples: list[Any]) -> list[Any]:
    return samples


# ---------------------------------------------------------------------- samplers


class OfEpoch(Sampler[int]):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        yield from random.Random(self.epoch).sample(range(LENGTH), LENGTH)


class Endless(Sampler[int]):
    """As in detectron2 and nanoGPT."""

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(5)
        while True:
            yield from torch.randperm(LENGTH, generator=generator).tolist()


class Remembering(OfEpoch):
    """Has a state with its position."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        order = random.Random(self.epoch).sample(range(LENGTH), LENGTH)
        while self.at < LENGTH:
            self.at += 1
            yield order[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class ByLength(OfEpoch):
    """Batches of similar lengths, in random order."""

    def __iter__(self) -> Iterator[Any]:
        batches = [DATA[begin : begin + BATCH] for begin in range(0, LENGTH, BATCH)]
        random.Random(self.epoch).shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return LENGTH // BATCH


class Draws(OfEpoch):
    """Draws from the RNG that the Loader seeds."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(LENGTH).tolist()


def curriculum() -> Program:
    """The loop tells its sampler the stage of each epoch."""
    made = list[Any]()

    class Staged(OfEpoch):
        stage = 0

        def __iter__(self) -> Iterator[int]:
            order = sorted(range(LENGTH), key=lambda number: (number * (self.stage + 1)) % 7)
            yield from order

    def make() -> resumable.Loader[Any]:
        made.append(Staged())
        return wrap(DATA, sampler=made[-1])

    return looped(make, lambda epoch: setattr(made[-1], "stage", epoch))


# ---------------------------------------------------------------------- streams


class StagedStream(IterableDataset[Any]):
    stage = 0

    def __iter__(self) -> Iterator[Any]:
        for number in DATA:
            yield self.stage, number


def staged_in_workers() -> Program:
    """The loop sets the stage of a dataset, from which workers start in each epoch."""
    made = list[Any]()

    def make() -> resumable.Loader[Any]:
        made.append(StagedStream())
        return wrap(made[-1], num_workers=1)

    return looped(make, lambda epoch: setattr(made[-1], "stage", epoch))


class Divided(IterableDataset[Any]):
    """Divides itself among workers, each with its own generator of the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        generator = np.random.default_rng([self.epoch, worker])
        for number in DATA[worker::workers]:
            yield number + generator.random()


class ShuffleBuffer(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        buffer = list[int]()
        for number in DATA:
            buffer.append(number)
            if len(buffer) == 4:
                yield buffer.pop(random.randrange(4))
        random.shuffle(buffer)
        yield from buffer


class KeepsFileOpen(IterableDataset[Any]):
    file: Any = None

    def __iter__(self) -> Iterator[Any]:
        if self.file is None:
            self.file = path("lines.txt").open(encoding="utf-8")
        self.file.seek(0)
        for line in self.file:
            yield len(line) + random.random()

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class Parses(IterableDataset[Any]):
    """Keeps what it has parsed, and the columns of its file."""

    columns: Any = None

    def __init__(self) -> None:
        self.rows = list[Any]()

    def __iter__(self) -> Iterator[Any]:
        if not self.rows:
            with path("rows.csv").open(encoding="utf-8") as file:
                self.rows = list(csv.reader(file))
            self.columns = len(self.rows[0])
        yield from (int(row[1]) for row in self.rows)


class PositionInState(IterableDataset[Any]):
    at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < LENGTH:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Reopens:
    """Counts in an iterator that is made anew, and remembers the last one."""

    last: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.last = iter(DATA)
        return self.last  # type: ignore[no-any-return]  # it is one


class Progress:
    """Shows how far it is, in each epoch anew."""

    def __init__(self) -> None:
        self.files, self.current, self.done = ["a", "b", "c"], "", 0

    def __iter__(self) -> Iterator[Any]:
        self.done = 0
        for name in self.files:
            self.current = name
            for number in range(LENGTH // 3):
                self.done += 1
                yield self.current, number


class Measures:
    """Knows when its pass started, for the log."""

    started = rate = 0.0

    def __iter__(self) -> Iterator[Any]:
        self.started = time.perf_counter()
        for done, number in enumerate(DATA, start=1):
            self.rate = done / (time.perf_counter() - self.started)
            yield number


class Ticks:
    """Knows when its pass started, with a clock so coarse that passes share a time."""

    clock = itertools.count()
    started = 0

    def __iter__(self) -> Iterator[Any]:
        self.started = next(self.clock) // 6
        return iter(DATA)


class Bar:
    """Keeps the bar of its last pass."""

    bar: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.bar = tqdm(DATA, file=io.StringIO())
        yield from self.bar


class ReadsRows:
    """Keeps a reader, and what it knows of its file."""

    def __init__(self) -> None:
        self.frame = pd.read_csv(path("rows.csv"), names=["x", "y"])
        self.last: Any = None

    def __iter__(self) -> Iterator[Any]:
        for row in self.frame.sample(frac=1, random_state=np.random.randint(99)).itertuples():
            self.last = row
            yield row.x


def around() -> Iterator[Any]:
    for batch in SHUFFLED:
        yield batch * random.random()


SHUFFLED = DataLoader(DATA, batch_size=1, shuffle=True)


def with_model() -> Program:
    """Hard samples come first, as the model that is trained says. The state of a program has the weights."""

    def run(state: Any) -> Run:
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.zeros_(model.bias)

        def hardest() -> Iterator[Any]:
            with torch.no_grad():
                losses = model(torch.arange(float(LENGTH))[:, None]).flatten()
            yield from ((losses - 2).abs().argsort() + 0.0).tolist()

        loader = resumable.wrap(hardest, batch_size=BATCH, seed=0, identity="data")
        seen, states = list[str](), list[tuple[int, Any]]()
        if state is not None:
            model.load_state_dict(state["model"])
            loader.load_state_dict(state["loader"])

        def save() -> None:
            weights = {name: value.clone() for name, value in model.state_dict().items()}
            states.append((len(seen), {"model": weights, "loader": loader.state_dict()}))

        for epoch in loader.epochs(EPOCHS):
            for batch in epoch:
                seen.append(digest(batch))
                if loader.cursor.step == MIDDLE:
                    save()
            with torch.no_grad():
                model.weight.sub_(0.3)
                model.bias.add_(1)
            save()
        return seen, states

    return run


def lines() -> Iterator[Any]:
    with path("rows.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def weights() -> Iterator[Any]:
    generator = random.Random(7)
    for number in DATA:
        yield number, generator.random()


def iterable(make: Callable[[], Any], **options: Any) -> Program:
    return looped(lambda: resumable.wrap(make(), batch_size=BATCH, seed=0, identity="data"), **options)


# ---------------------------------------------------------------------- libraries


def hugging_face(change: Callable[[Any], Any], **options: Any) -> Program:
    def make() -> resumable.Loader[Any]:
        import datasets  # noqa: PLC0415  # takes a second

        rows = datasets.Dataset.from_dict({"x": DATA, "text": [f"row {number}" for number in DATA]})
        return wrap(change(rows), **options)

    return looped(make)


def halves(stream: Any) -> Any:
    import datasets  # noqa: PLC0415  # takes a second

    return datasets.interleave_datasets([stream.take(6), stream.skip(6)])


def torchdata_nodes() -> resumable.Loader[Any]:
    from torchdata.nodes import Batcher, IterableWrapper, Loader  # noqa: PLC0415  # one program needs it

    return resumable.wrap(
        Loader(Batcher(IterableWrapper(DATA), BATCH), restart_on_stop_iteration=False), seed=0, identity="data"
    )


def grain() -> resumable.Loader[Any]:
    import grain.python as library  # noqa: PLC0415  # one program needs it

    return resumable.wrap(library.MapDataset.source(DATA).shuffle(seed=1).batch(BATCH).to_iter_dataset(), seed=0)


def mixture() -> resumable.Loader[Any]:
    mixed = resumable.mix({"a": range(30), "b": range(9)}, weights={"a": 0.5, "b": 0.5}, num_samples=LENGTH)
    return resumable.wrap(mixed, batch_size=BATCH, seed=0)


def tokens() -> resumable.Loader[Any]:
    return wrap(resumable.Tokens(path("tokens.bin"), 32, dtype="uint16"), shuffle=True)


LIGHT: dict[str, Program] = {
    "own generator": of(GeneratorOfItsOwn),
    "generator seeded with the index": of(SeededByIndex),
    "cache of samples": of(CachesSamples),
    "cached method": of(CachesByDecorator),
    "cached property": of(CachedLength),
    "statistics, a log and a lock": of(CountsAndLogs),
    "lazily opened file": of(OpensFile),
    "lazily mapped array": of(MapsFile),
    "lazily mapped bytes": of(MapsBytes),
    "lazily opened h5py": of(OpensH5),
    "lazily connected database": of(Connects),
    "pictures of PIL": of(Pictures),
    "dataclasses": of(Objects, collate_fn=apart),
    "concatenated parts": looped(lambda: wrap(ConcatDataset([Subset(CachesSamples(), range(6))] * 2), shuffle=True)),
    "evaluation after each epoch": evaluated(lambda: wrap(CachesSamples(), shuffle=True)),
    "gradient accumulation": acknowledged(
        lambda: resumable.wrap(DataLoader(DATA, batch_size=BATCH, shuffle=True), seed=0, ack="manual")
    ),
    "sampler of weights": with_sampler(lambda: WeightedRandomSampler([1.0] * LENGTH, LENGTH)),
    "sampler with a generator": looped(
        lambda: resumable.wrap(
            DataLoader(DATA, BATCH, sampler=RandomSampler(DATA, generator=torch.Generator().manual_seed(3)))
        )
    ),
    "sampler of a part": looped(
        lambda: resumable.wrap(DataLoader(TWICE, BATCH, sampler=SubsetRandomSampler(range(6, 18))), seed=0)
    ),
    "sampler of ranks": with_sampler(lambda: DistributedSampler(DATA, 1, 0)),
    "sampler with set_epoch": with_sampler(OfEpoch),
    "sampler with the global RNG": with_sampler(Draws),
    "sampler with a state": with_sampler(Remembering),
    "sampler without an end": endless(lambda: wrap(DATA, sampler=Endless())),
    "batches of similar lengths": looped(lambda: resumable.wrap(DataLoader(DATA, batch_sampler=ByLength()), seed=0)),
    "batch sampler around a sampler": looped(
        lambda: resumable.wrap(DataLoader(DATA, batch_sampler=BatchSampler(OfEpoch(), BATCH, drop_last=False)), seed=0)
    ),
    "curriculum": curriculum(),
    "stream of lines in an open file": of(KeepsFileOpen),
    "stream that keeps what it parsed": of(Parses),
    "stream with a shuffle buffer": of(ShuffleBuffer),
    "stream with a state": of(PositionInState),
    "stream of several": looped(lambda: wrap(ChainDataset([ShuffleBuffer(), KeepsFileOpen()]))),
    "stream without an end": endless(
        lambda: resumable.wrap(lambda: itertools.cycle(DATA), batch_size=BATCH, seed=0, identity="data")
    ),
    "iterator that is kept": iterable(Reopens),
    "progress of a pass": iterable(Progress),
    "lines of JSON": iterable(lambda: lines),
    "generator made in each pass": iterable(lambda: weights),
    "sampler that the loop tells the epoch": told(OfEpoch),
    "sampler of ranks that the loop tells the epoch": told(lambda: DistributedSampler(DATA, 1, 0)),
    "a loop that seeds the RNGs": looped(lambda: wrap(GeneratorOfItsOwn(), shuffle=True), torch.manual_seed),
    "a loop that seeds the RNGs, over a stream": looped(lambda: wrap(ShuffleBuffer()), random.seed),
    "a loop that peeks": peeking(lambda: wrap(ShuffleBuffer())),
    "source that measures its speed": iterable(Measures),
    "source with a coarse clock": iterable(Ticks),
    "source with a progress bar": iterable(Bar, back=False),  # it cannot be copied
    "source that uses the model": with_model(),
    "source around a DataLoader": iterable(lambda: around),
    "reader of a library's objects": iterable(ReadsRows),
    "Hugging Face rows": hugging_face(lambda rows: rows.with_format("torch"), shuffle=True),
    "Hugging Face rows, mapped": hugging_face(
        lambda rows: rows.map(lambda row: {"y": row["x"] + 1}).with_format("torch", columns=["y"]), shuffle=True
    ),
    "Hugging Face stream": hugging_face(lambda rows: rows.to_iterable_dataset(num_shards=2)),
    "Hugging Face stream, mapped": hugging_face(
        lambda rows: rows.to_iterable_dataset().map(lambda row: {"y": row["x"] + 1}).filter(lambda row: row["x"] != 4)
    ),
    "Hugging Face streams, interleaved": hugging_face(lambda rows: halves(rows.to_iterable_dataset())),
    "torchdata's nodes": looped(torchdata_nodes),
    "mixture": looped(mixture),
    "packed tokens": looped(tokens),
}


# ---------------------------------------------------------------------- with processes, or a large import


def trainer(state: Any) -> Run:
    """Train with Lightning; a state is the path of a checkpoint."""
    import lightning  # noqa: PLC0415  # takes seconds

    from resumable.integrations.lightning import ResumableCallback  # noqa: PLC0415  # needs it

    seen, states = list[str](), list[tuple[int, Any]]()
    folder = tempfile.mkdtemp(dir=_folder)

    class Saves(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
            if number + 1 == MIDDLE:
                self._save(trainer)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self._save(trainer)

        def _save(self, trainer: Any) -> None:
            name = f"{folder}/{trainer.global_step}.ckpt"
            trainer.save_checkpoint(name)
            states.append((len(seen), name))

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            seen.append(digest(batch))
            return self.layer(batch.float()[:, None]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    silent: Any = dict.fromkeys(
        ("enable_progress_bar", "enable_model_summary", "logger", "enable_checkpointing"), False
    )
    fit = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        callbacks=[ResumableCallback(), Saves()],
        default_root_dir=folder,
        **silent,
    )
    fit.fit(Model(), wrap(CachesSamples0(), shuffle=True), ckpt_path=state)
    return seen, states


class CachesSamples0(CachesSamples):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


def accelerated(state: Any) -> Run:
    """Train with Accelerate; a state is the folder of a checkpoint."""
    from accelerate import Accelerator  # noqa: PLC0415  # takes seconds

    from resumable.integrations.accelerate import prepare  # noqa: PLC0415  # needs it

    accelerator = Accelerator(cpu=True)
    loader = prepare(accelerator, wrap(CachesSamples0(), shuffle=True))
    model, optimizer = torch.nn.Linear(1, 1), None
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    seen, states = list[str](), list[tuple[int, Any]]()
    if state is not None:
        accelerator.load_state(state)
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            seen.append(digest(batch))
            accelerator.backward(model(batch.float()[:, None]).mean())
            optimizer.step()
            optimizer.zero_grad()
            if loader.cursor.step in {MIDDLE, LENGTH // BATCH}:
                states.append((len(seen), accelerator.save_state(tempfile.mkdtemp(dir=_folder))))
    return seen, states


def dali_files() -> resumable.Loader[Any]:
    from nvidia.dali import fn, pipeline_def  # noqa: PLC0415  # takes seconds
    from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy  # noqa: PLC0415

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=1, enable_checkpointing=True)  # type: ignore[untyped-decorator]  # DALI's
    def pictures() -> Any:
        files = [str(path(f"{number}.png")) for number in DATA]
        data, label = fn.readers.file(files=files, random_shuffle=True, name="Reader", pad_last_batch=True)
        picture = fn.decoders.image(data, device="cpu")
        return fn.flip(picture, horizontal=fn.random.coin_flip()), label

    return resumable.wrap(
        DALIGenericIterator(
            pictures(), ["x", "y"], reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
        )
    )


def tfdata() -> resumable.Loader[Any]:
    import tensorflow as tf  # noqa: PLC0415  # takes seconds

    rows = tf.data.Dataset.range(LENGTH).cache().shuffle(5, seed=1)
    return resumable.wrap(rows.map(lambda x: x * 2, num_parallel_calls=2).batch(BATCH).prefetch(1))


HEAVY: dict[str, Program] = {
    "stage of a stream in workers": staged_in_workers(),
    "generator made in each worker": of(GeneratorPerWorker, num_workers=2, persistent_workers=True),
    "cache in workers": of(CachesSamples, num_workers=2, persistent_workers=True),
    "file opened in each worker": of(OpensFile, num_workers=2),
    "stream divided among workers": of(Divided, num_workers=2),
    "streams for any workers": looped(
        lambda: resumable.wrap(DataLoader(Divided(), batch_size=BATCH // 3, num_workers=2), seed=0, streams=3)
    ),
    "sampler with a state, and workers": looped(lambda: wrap(DATA, sampler=Remembering(), num_workers=2)),
    "stream in persistent workers": of(ShuffleBuffer, num_workers=2, persistent_workers=True),
    "Hugging Face stream in workers": hugging_face(lambda rows: rows.to_iterable_dataset(num_shards=4), num_workers=2),
    "grain": looped(grain),
    "Lightning": trainer,
    "Accelerate": accelerated,
    "DALI": looped(dali_files),
    "tf.data": looped(tfdata),
}
