"""MosaicML's StreamingDataset over local files, in a StreamingDataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from benchmarks.contenders.reading import read_to
from benchmarks.contenders.written import again, busy, length_of, sample, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Streaming"]


class _Dataset(StreamingDataset):  # type: ignore[misc]  # it has no types
    def __init__(self, cost: int, **options: Any) -> None:
        super().__init__(**options)
        self._cost = cost

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)["x"]
        if self._cost:
            busy(self._cost)
        return value if isinstance(value, int) else torch.from_numpy(value.copy())


class Streaming:
    """Shuffled with py1s, its fastest method that mixes all shards; workers persist between epochs."""

    def __init__(self, case: Case) -> None:
        def write(folder: str) -> None:
            column = {"x": f"ndarray:float32:{case.size // 4}" if case.size else "int"}
            with MDSWriter(out=folder, columns=column, size_limit=1 << 26) as writer:
                for number in range(length_of(case)):
                    value = sample(number, case)
                    writer.write({"x": value.numpy() if case.size else value})

        folder = written("mds", case, write)
        options = {"local": folder, "shuffle": True, "shuffle_algo": "py1s", "shuffle_seed": 0}
        dataset = _Dataset(case.cost, batch_size=case.batch, num_canonical_nodes=1, **options)
        self._loader = StreamingDataLoader(
            dataset, batch_size=case.batch, num_workers=case.workers, persistent_workers=case.workers > 0
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
