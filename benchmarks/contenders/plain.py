"""PyTorch's own `DataLoader`, as everybody writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from benchmarks.case import Virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Plain", "plain_loader"]


def plain_loader(case: Case) -> DataLoader[Any]:
    """Make the loader that is compared, and wrapped."""
    dataset: Any = Virtual(case.length, case.cost)
    return DataLoader(dataset, batch_size=case.batch, shuffle=True, num_workers=case.workers)


class Plain:
    """It has no state: what it does at a resume is to begin the epoch again."""

    def __init__(self, case: Case) -> None:
        self._loader = plain_loader(case)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Begin an epoch."""
        assert state is None
        return iter(self._loader)

    def state(self) -> Any:
        """There is none."""

    def state_at(self, step: int) -> Any:
        """There is none."""
