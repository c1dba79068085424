"""A Loader with the interface of the Trainer's dataloader: batches on the device, `set_epoch` for each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.integrations.accelerate.session import to_device
from resumable.loader.iterators import deliver, taken_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.loader.loader import Loader

__all__ = ["DRIVER", "HINT", "TrainLoader"]

DRIVER = "resumable.integrations.transformers.prepare()"
HINT = "In a callback, use `train_dataloader.for_evaluation()`."


class TrainLoader:
    """The Trainer's train dataloader. Each loop reads one epoch of a Loader, from the current position.

    The Trainer sets the number of an epoch, then asks for one iterator. During a run, only that iterator gets batches,
    and other loops raise `LoopError`, for example in a callback. Before the first run, a loop only inspects the data:
    the run delivers the same batches again. After a run, it is a loop over the Loader.

    Args:
        loader: the Loader.
        accelerator: of the Trainer. It determines the device.
        is_done: returns whether all steps of the run are done. No more batches are delivered then.
        may_look: returns whether the Trainer controls the Loader, and no run has started.

    Attributes:
        loader: the Loader.
        dataset: the dataset of its `DataLoader`, if that is map-style.
    """

    def __init__(
        self, loader: Loader[Any], accelerator: Any, is_done: Callable[[], bool], may_look: Callable[[], bool]
    ) -> None:
        self.loader = loader
        self._accelerator, self._is_done, self._may_look = accelerator, is_done, may_look
        self._number: int | None = None  # the Trainer's epoch
        self._epoch = 0  # the Loader's number of that epoch
        self._is_next = False  # the Trainer has set an epoch, so the next iterator is the Trainer's

    def __len__(self) -> int:
        """Count the micro-batches of an epoch."""
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<TrainLoader of {self.loader!r}>"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the Loader's source.

        Raises:
            AttributeError: the Loader does not have it.
        """
        if name in {"dataset", "batch_size", "num_workers", "collate_fn"}:
            return getattr(self.loader, name)
        raise AttributeError(f"'TrainLoader' object has no attribute {name!r}", name=name, obj=self)

    def for_evaluation(self) -> TrainLoader:
        """Return a loader over the same data for evaluation, with batches on the device.

        Raises:
            UnsupportedError: the source cannot be opened a second time.
        """
        return TrainLoader(self.loader.for_evaluation(), self._accelerator, self._is_done, self._may_look)

    def set_epoch(self, number: int) -> None:
        """Start an epoch of the Trainer. The previous epoch is over, even if it was left early."""
        if self._number is not None and number != self._number:
            self.end_epoch()
        self.loader.progress.rewind()
        self._number, self._epoch, self._is_next = number, self.loader.progress.begin(), True

    def end_epoch(self) -> None:
        """Count the epoch as done. Batches that were not trained on are skipped, even if they were delivered."""
        progress = self.loader.progress
        progress.rewind(leaves=True)
        if self._number is not None and progress.acknowledged.epoch == self._epoch:
            self.loader.end_epoch()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch. It is empty if the run has reached its last step.

        Raises:
            LoopError: the iterator is not the Trainer's, and a run is in progress or a different one uses the Loader.
        """
        is_the_trainers, self._is_next = self._is_next, False
        if is_the_trainers:
            return self._placed(self._rest(self._epoch))
        if not self.loader.driver:
            return self._placed(iter(self.loader))
        self._check_look()
        return self._placed(self._look())

    def _rest(self, epoch: int) -> Iterator[Any]:
        while not self._is_done():
            try:
                batch = deliver(self.loader, epoch)
            except StopIteration:
                return
            yield batch

    def _look(self) -> Iterator[Any]:
        self._check_look()
        self.loader.progress.rewind()
        for batch in self._rest(self.loader.progress.begin()):
            yield batch
            self._check_look()

    def _check_look(self) -> None:
        if not self._may_look():
            raise taken_away(DRIVER, HINT)

    def _placed(self, batches: Iterator[Any]) -> Iterator[Any]:
        return (to_device(self._accelerator, batch) for batch in batches)
