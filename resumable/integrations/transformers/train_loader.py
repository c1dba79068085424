"""A Loader as the Trainer sees a DataLoader: batches on the device, epochs by their numbers.

During a run, the Trainer alone gets batches: a loop of a callback's raises `LoopError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.iteration import deliver, taken_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.loader import Loader

__all__ = ["TrainLoader"]


class TrainLoader:
    """What the Trainer loops over: one epoch of a Loader per loop, from where it stands.

    Args:
        loader: delivers the batches.
        accelerator: of the Trainer; it says where batches go.
        is_done: whether all steps of the run are done, so that no batch is asked for any longer.
        in_run: whether the Trainer trains now.

    Attributes:
        loader: the Loader.
        dataset: the dataset of its `DataLoader`, where that is map-style.
    """

    def __init__(
        self, loader: Loader[Any], accelerator: Any, is_done: Callable[[], bool], in_run: Callable[[], bool]
    ) -> None:
        self.loader = loader
        self._accelerator, self._is_done, self._in_run = accelerator, is_done, in_run
        self._is_awaited = False  # the Trainer has set the epoch, and takes its iterator next
        self._number: int | None = None  # of the epoch that the Trainer is in
        self._epoch = 0  # the same, as the Loader counts

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

    def set_epoch(self, number: int) -> None:
        """Begin an epoch of the Trainer: the one that was begun before is over, also where it was left early."""
        if self._number is not None and number != self._number:
            self.end_epoch()
        self.loader.progress.rewind()
        self._number, self._epoch = number, self.loader.progress.begin()
        self._is_awaited = True

    def end_epoch(self) -> None:
        """Count the epoch as done; what was delivered of it and not trained on is lost with the rest."""
        progress = self.loader.progress
        progress.rewind()
        if self._number is not None and progress.acknowledged.epoch == self._epoch:
            self.loader.end_epoch()

    def __iter__(self) -> Iterator[Any]:
        """Deliver the rest of the epoch; nothing if all steps of the run are done.

        Raises:
            LoopError: at its first `next()`. The Trainer trains, and this loop is not the Trainer's.
        """
        is_the_trainers, self._is_awaited = self._is_awaited, False
        return self._read() if is_the_trainers else self._look()

    def _look(self) -> Iterator[Any]:
        if self._in_run():
            raise taken_away(self.loader.driver)
        yield from self._read()

    def _read(self) -> Iterator[Any]:
        from accelerate.utils import send_to_device  # noqa: PLC0415  # only who uses it pays for it

        self.loader.progress.rewind()
        accelerator, epoch = self._accelerator, self.loader.progress.begin()
        while not self._is_done():
            try:
                batch = deliver(self.loader, epoch)
            except StopIteration:
                return
            yield send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
