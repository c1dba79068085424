"""`StatefulDataLoader`, torchdata's and ours, with its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchdata.stateful_dataloader import StatefulDataLoader

import resumable.torch
from benchmarks.contenders.plain import dataset_of
from benchmarks.contenders.reading import read_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["DropIn", "Stateful"]


class Stateful:
    """Takes the options of a `DataLoader`."""

    kind: Any = StatefulDataLoader

    def __init__(self, case: Case) -> None:
        dataset: Any = dataset_of(case)
        self._loader: Any = self.kind(dataset, batch_size=case.batch, shuffle=True, num_workers=case.workers)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Begin an epoch, or go on."""
        if state is not None:
            self._loader.load_state_dict(state)
        batches: Iterator[Any] = iter(self._loader)
        return batches

    def state(self) -> Any:
        """Return the state."""
        return self._loader.state_dict()

    def state_at(self, step: int) -> Any:
        """Read up to there."""
        return read_to(self, step)


class DropIn(Stateful):
    """The class of this package, with exact augmentation."""

    kind: Any = resumable.torch.StatefulDataLoader
