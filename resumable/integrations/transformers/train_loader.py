"""A Loader as the Trainer sees a DataLoader: batches on the device, epochs by their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.integrations.accelerate.session import to_device
from resumable.loader.iterators import deliver, taken_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.loader.loader import Loader

__all__ = ["DRIVER", "TrainLoader"]

DRIVER = "resumable.integrations.transformers.prepare()"


class TrainLoader:
    """What the Trainer loops over: one epoch of a Loader per loop, from where it is.

    The Trainer tells the number of an epoch, and then asks for one iterator. During a run, only that one gets batches.
    A loop of the user's, such as in a callback, raises `LoopError`. Before the first run, a loop is a look at the data:
    the run delivers its batches again. After a run, it is a loop over the Loader.

    Args:
        loader: delivers the batches.
        accelerator: of the Trainer; it says where batches go.
        is_done: whether all steps of the run are done, so that no batch is requested any longer.
        may_look: whether the Trainer drives the Loader, and no run has started.

    Attributes:
        loader: the Loader.
        dataset: the dataset of its `DataLoader`, where that is map-style.
    """

    def __init__(
        self, loader: Loader[Any], accelerator: Any, is_done: Callable[[], bool], may_look: Callable[[], bool]
    ) -> None:
        self.loader = loader
        self._accelerator, self._is_done, self._may_look = accelerator, is_done, may_look
        self._number: int | None = None  # of the epoch that the Trainer is in
        self._epoch = 0  # the same, as the Loader counts
        self._is_next = False  # the Trainer has told the number of an epoch, and asks for the iterator now

    def __len__(self) -> int:
        """Count the micro-batches of an epoch."""
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<TrainLoader of {self.loader!r}>"

    def __getattr__(self, name: str) -> Any:
        """Return what the Loader shows of its source.

        Raises:
            AttributeError: it shows no such thing.
        """
        if name in {"dataset", "batch_size", "num_workers", "collate_fn"}:
            return getattr(self.loader, name)
        raise AttributeError(f"'TrainLoader' object has no attribute {name!r}", name=name, obj=self)

    def for_evaluation(self) -> TrainLoader:
        """Return the same data to evaluate with, on the device, as `Loader.for_evaluation` does.

        Raises:
            UnsupportedError: the source cannot be opened a second time.
        """
        return TrainLoader(self.loader.for_evaluation(), self._accelerator, self._is_done, self._may_look)

    def set_epoch(self, number: int) -> None:
        """Start an epoch of the Trainer: the one that was started before is over, also if it was left early."""
        if self._number is not None and number != self._number:
            self.end_epoch()
        self.loader.progress.rewind()
        self._number, self._epoch, self._is_next = number, self.loader.progress.begin(), True

    def end_epoch(self) -> None:
        """Count the epoch as done; what was delivered of it and not trained on is skipped with the rest."""
        progress = self.loader.progress
        progress.rewind(leaves=True)
        if self._number is not None and progress.acknowledged.epoch == self._epoch:
            self.loader.end_epoch()

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch; over nothing, if the run has come to its last step.

        Raises:
            LoopError: a run reads the Loader, and this is not its iterator; or a different training drives it.
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
            raise taken_away(DRIVER)

    def _placed(self, batches: Iterator[Any]) -> Iterator[Any]:
        return (to_device(self._accelerator, batch) for batch in batches)
