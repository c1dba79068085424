"""torchdata's `StatefulDataLoader`, with its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.contenders.plain import dataset_of
from benchmarks.contenders.reading import read_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Stateful"]


class Stateful:
    """Takes the options of a `DataLoader`."""

    def __init__(self, case: Case) -> None:
        dataset: Any = dataset_of(case)
        self._loader: Any = StatefulDataLoader(dataset, batch_size=case.batch, shuffle=True, num_workers=case.workers)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        if state is not None:
            self._loader.load_state_dict(state)
        batches: Iterator[Any] = iter(self._loader)
        return batches

    def state(self) -> Any:
        """Return the state."""
        return self._loader.state_dict()

    def state_at(self, step: int) -> Any:
        """Read up to a step."""
        return read_to(self, step)
