"""Hugging Face's datasets, memory-mapped: by index in a StatefulDataLoader, and as a shuffled stream in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.contenders.reading import read_to
from benchmarks.contenders.written import again, busy, length_of, sample, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Hugging"]


class Hugging:
    """Rows of a number or of bytes, each converted to a tensor.

    Args:
        case: what to read.
        stream: `to_iterable_dataset` with a buffer of 1000, instead of `shuffle=True`.
    """

    def __init__(self, case: Case, *, stream: bool) -> None:
        def rows() -> Iterator[dict[str, Any]]:
            for number in range(length_of(case)):
                value = sample(number, case)
                yield {"x": value.numpy().tobytes() if case.size else value}

        def write(folder: str) -> None:
            columns = {"x": datasets.Value("large_binary" if case.size else "int64")}
            made = datasets.Dataset.from_generator(
                rows, features=datasets.Features(columns), cache_dir=f"{folder}.cache", keep_in_memory=True
            )
            made.save_to_disk(folder, num_shards=8)

        data: Any = datasets.load_from_disk(written("arrow", case, write))
        rows_of = _Rows(case.cost)
        if stream:
            data = (
                data.to_iterable_dataset(num_shards=8)
                .shuffle(
                    seed=0,
                    buffer_size=1000,
                    max_buffer_input_shards=4,  # 8 shards in 2 buffers: one for each worker
                )
                .map(rows_of.one)
            )
        else:
            data = data.with_transform(rows_of)
        self._loader: Any = StatefulDataLoader(
            data,
            batch_size=case.batch,
            shuffle=None if stream else True,
            num_workers=case.workers,
            persistent_workers=case.workers > 0,
        )

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        if state is not None:
            self._loader.load_state_dict(state)
        return again(self._loader)

    def state(self) -> Any:
        """Return the state."""
        return self._loader.state_dict()

    def state_at(self, step: int) -> Any:
        """Read up to a step."""
        return read_to(self, step)


class _Rows:
    """Converts rows to tensors, and takes time for each."""

    def __init__(self, cost: int) -> None:
        self._cost = cost

    def __call__(self, rows: Any) -> Any:
        """Convert several."""
        return {"x": [self._made(value) for value in rows["x"]]}

    def one(self, row: Any) -> Any:
        """Convert one."""
        return {"x": self._made(row["x"])}

    def _made(self, value: Any) -> Any:
        if self._cost:
            busy(self._cost)
        return torch.frombuffer(bytearray(value), dtype=torch.float32) if isinstance(value, bytes) else value
