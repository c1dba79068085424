"""LitData's StreamingDataset over local files, in its StreamingDataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import litdata
from litdata.streaming.cache import Cache

from benchmarks.contenders.reading import read_to
from benchmarks.contenders.written import again, busy, length_of, sample, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Lit"]


class _Dataset(litdata.StreamingDataset):  # type: ignore[misc]  # it has no types
    def __init__(self, cost: int, **options: Any) -> None:
        super().__init__(**options)
        self._cost = cost

    def __getitem__(self, index: Any) -> Any:
        value = super().__getitem__(index)
        if self._cost:
            busy(self._cost)
        return value


class Lit:
    """Shuffled, in chunks of 64 MB; workers persist between epochs."""

    def __init__(self, case: Case) -> None:
        def write(folder: str) -> None:
            cache = Cache(folder, chunk_bytes="64MB")
            for number in range(length_of(case)):
                cache[number] = sample(number, case)
            cache.done()
            cache.merge()

        folder = written("lit", case, write)
        dataset = _Dataset(case.cost, input_dir=folder, shuffle=True, seed=0)
        self._loader = litdata.StreamingDataLoader(
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
