"""Datasets of Hugging Face's library: what its pipelines are made of, over tables in memory and over local files."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from datasets import Dataset, IterableDataset, concatenate_datasets, interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, Subset

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EPOCHS = 2
Run = list[tuple[int, Any]]


def table(size: int = 9, start: int = 0) -> Dataset:
    return Dataset.from_dict({"sample": [start + number for number in range(size)]})


def stream(size: int = 9, start: int = 0, shards: int = 5) -> IterableDataset:
    """The order of its shards is another one in epoch 1."""
    return table(size, start).to_iterable_dataset(num_shards=shards)


def shuffled(size: int = 4) -> IterableDataset:
    return stream().shuffle(seed=3, buffer_size=size)


def mixed(strategy: str, seed: int | None = None) -> IterableDataset:
    probabilities = None if seed is None else [0.7, 0.3]
    streams = [stream(), stream(6, 100)]
    strategies: dict[str, Any] = {"stopping_strategy": strategy}
    return interleave_datasets(streams, probabilities=probabilities, seed=seed, **strategies)


def repeating() -> IterableDataset:
    """In a replay of epoch 1, the canary is that of a sample that comes again elsewhere."""
    streams = [stream(11, shards=4), stream(6, 100, shards=4)]
    return interleave_datasets(streams, probabilities=[0.7, 0.3], seed=5, stopping_strategy="all_exhausted")


def twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"sample": row["sample"] * 2}


def drawn(row: dict[str, Any]) -> dict[str, Any]:
    return {"sample": row["sample"] * 1000 + random.randrange(1000)}


def each_twice(rows: dict[str, Any]) -> dict[str, Any]:
    return {"sample": [one for row in rows["sample"] for one in (row, row + 500)]}


def all_drawn(rows: dict[str, Any]) -> dict[str, Any]:
    return {"sample": [row * 1000 + random.randrange(1000) for row in rows["sample"]]}


def some(row: dict[str, Any]) -> bool:
    return bool(row["sample"] % 3)


def generated(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for number in range(2):
            yield {"sample": shard * 10 + number}


STREAMS: dict[str, Callable[[], IterableDataset]] = {
    "plain": stream,
    "one shard": partial(stream, shards=1),
    "shuffled": shuffled,
    "shuffled shards": partial(shuffled, 1),
    "map": lambda: stream().map(twice),
    "map that draws": lambda: stream().map(drawn),
    "map of batches": lambda: stream().map(each_twice, batched=True, batch_size=3),
    "filter": lambda: stream().filter(some),
    "shuffle, map, filter": lambda: shuffled().map(twice).filter(some),
    "batch": lambda: stream().batch(2),
    "take": lambda: stream().take(7),
    "skip": lambda: stream().skip(3),
    "repeat": lambda: stream(5).repeat(2),
    "torch": lambda: stream().with_format("torch"),
    "numpy, map": lambda: stream().with_format("numpy").map(twice),
    "interleave, first": lambda: mixed("first_exhausted"),
    "interleave, all": lambda: mixed("all_exhausted"),
    "interleave by chance, first": lambda: mixed("first_exhausted", 5),
    "interleave by chance, all": lambda: mixed("all_exhausted", 5),
    "interleave, shuffle": lambda: repeating().shuffle(seed=2, buffer_size=3),
    "interleave, shuffle shards": lambda: mixed("all_exhausted", 5).shuffle(seed=2, buffer_size=1),
    "concatenate": lambda: concatenate_datasets([stream(), stream(6, 100)]),
    "split": lambda: split_dataset_by_node(stream(shards=4), 0, 2),
    "split by samples": lambda: split_dataset_by_node(stream(), 1, 2),
    "generator": lambda: IterableDataset.from_generator(generated, gen_kwargs={"shards": [0, 1, 2, 3, 4]}),
}

TABLES: dict[str, Callable[[], Any]] = {
    "plain": table,
    "torch": lambda: table().with_format("torch"),
    "map": lambda: table().map(twice),
    "select": lambda: table().select([5, 3, 1, 7, 8, 0]),
    "shuffle": lambda: table().shuffle(seed=4),
    "concatenate": lambda: concatenate_datasets([table(), table(5, 100)]),
    "subset": lambda: Subset(table(), [1, 2, 5, 6, 7, 8]),
}
DRAWING: dict[str, Callable[[], Any]] = {
    "transform": lambda: table().with_transform(all_drawn),
    "subset of a transform": lambda: Subset(table().with_transform(all_drawn), [1, 2, 5, 6, 7, 8]),
}


def files(folder: Path, kind: str, count: int = 5) -> list[str]:
    """Write files of two rows each."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [str(folder / f"{number}.{kind}") for number in range(count)]
    for number, name in enumerate(names):
        part = table(2 + number % 2, 10 * number)
        if kind == "parquet":
            part.to_parquet(name)
        elif kind == "json":
            part.to_json(name)
        else:
            with pa.ipc.new_stream(name, part.data.schema) as writer:
                writer.write_table(part.data.table)
    return names


def streamed(kind: str, names: list[str]) -> IterableDataset:
    return load_dataset(kind, data_files=names, streaming=True, split="train")


def in_loader(data: Any, *, workers: int = 0, **options: Any) -> resumable.Loader[Any]:
    own: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
    wrapped = DataLoader(data, batch_size=2, num_workers=workers, collate_fn=list, **own)
    return resumable.wrap(wrapped, seed=0, **options)


def direct(data: Any, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(data, batch_size=2, seed=0, **options)


def golden(loader: resumable.Loader[Any]) -> tuple[Run, list[Any]]:
    run, states = Run(), [loader.state_dict()]
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            run.append((epoch.number, plain(batch)))
            states.append(loader.state_dict())
    return run, states


def rest(loader: resumable.Loader[Any], state: Any) -> Run:
    loader.load_state_dict(state)
    return [(epoch.number, plain(batch)) for epoch in loader.epochs(EPOCHS) for batch in epoch]


def plain(batch: Any) -> Any:
    if isinstance(batch, list):
        return [plain(one) for one in batch]
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return batch.tolist() if hasattr(batch, "tolist") else batch


def samples(run: Run) -> list[int]:
    return [row["sample"] for _, batch in run for row in batch]
