"""Hugging Face's datasets, memory-mapped: by index in a StatefulDataLoader, and as a shuffled stream in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.contenders.reading import read_to
from benchmarks.contenders.written import again, busy, length_of, sample, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Hugging"]


class Hugging:
    """Rows as tensors (`with_format("torch")`).

    Args:
        case: what to read.
        stream: `to_iterable_dataset` with a buffer of 1000, in place of `shuffle=True`.
    """

    def __init__(self, case: Case, *, stream: bool) -> None:
        def rows() -> Iterator[dict[str, Any]]:
            for number in range(length_of(case)):
                value = sample(number, case)
                yield {"x": value.numpy() if case.size else value}

        def write(folder: str) -> None:
            kind = datasets.Value("float32") if case.size else datasets.Value("int64")
            columns = {"x": datasets.List(kind, length=case.size // 4) if case.size else kind}
            made = datasets.Dataset.from_generator(
                rows, features=datasets.Features(columns), cache_dir=f"{folder}.cache", keep_in_memory=True
            )
            made.save_to_disk(folder, num_shards=8)

        data: Any = datasets.load_from_disk(written("arrow", case, write)).with_format("torch")
        self._seed, self._stream = 0, stream
        if stream:
            data = data.to_iterable_dataset(num_shards=8).shuffle(seed=0, buffer_size=1000)
        if case.cost:
            data = data.map(_Busy(case.cost)) if stream else data.with_transform(_BusyRows(case.cost))
        self._loader: Any = StatefulDataLoader(
            data,
            batch_size=case.batch,
            shuffle=None if stream else True,
            num_workers=case.workers,
            persistent_workers=case.workers > 0,
        )

    def start(self, state: Any = None) -> Iterator[Any]:
        """Begin an epoch, or go on."""
        if state is not None:
            self._loader.load_state_dict(state)
        return again(self._loader)

    def state(self) -> Any:
        """Return the state."""
        return self._loader.state_dict()

    def state_at(self, step: int) -> Any:
        """Read up to there."""
        return read_to(self, step)


class _Busy:
    """Takes a while for each row."""

    def __init__(self, cost: int) -> None:
        self._cost = cost

    def __call__(self, row: Any) -> Any:
        busy(self._cost)
        return row


class _BusyRows(_Busy):
    """Takes a while for each row of several."""

    def __call__(self, rows: Any) -> Any:
        import torch  # noqa: PLC0415  # for what the format would have made

        for _ in rows["x"]:
            busy(self._cost)
        return {"x": [torch.as_tensor(row) for row in rows["x"]]}
