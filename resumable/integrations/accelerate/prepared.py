"""`prepare` makes a Loader work with Accelerate: batches on the device, and a report at the end of each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError, UnsupportedError
from resumable.integrations.accelerate import private
from resumable.integrations.accelerate.session import Session, check, check_types, session_of, to_device
from resumable.loader.iterators import BatchIterator, Delivery

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from resumable._order.cursor import Cursor
    from resumable.loader.iterators import EpochIterator
    from resumable.loader.loader import Loader

__all__ = ["PreparedLoader", "prepare"]

_SAVED = "Use accelerator.save_state() and load_state() instead: they include the states of all prepared Loaders."
_SKIPPED = "If this is for skip_first_batches(), remove that call: load_state() has already moved the Loader."
_NOT_HERE = {
    "ack": "Batches are acknowledged automatically when the optimizer steps.",
    "state_dict": _SAVED,
    "load_state_dict": _SAVED,
    "sampler": _SKIPPED,
    "batch_sampler": _SKIPPED,
}


def prepare(
    accelerator: Any, loader: Loader | PreparedLoader, *, device_placement: bool | None = None
) -> PreparedLoader:
    """Prepare a Loader for Accelerate, as `accelerator.prepare` does a DataLoader.

        loader = prepare(accelerator, resumable.wrap(DataLoader(...)))
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    The prepared Loader moves batches to the device, and tells the accelerator which batch is the last of an epoch, so
    its gradients are applied. Batches are acknowledged when the optimizer steps. `accelerator.save_state` and
    `load_state` include the position, with the states of all ranks in one file. A resume is exact even within an
    accumulation.

    Args:
        accelerator: an `Accelerator`.
        loader: the Loader to train from; or a Loader with `evaluation=True`, which works with `gather_for_metrics`.
        device_placement: whether to move batches to the device. The default is the accelerator's setting.

    Returns:
        A `PreparedLoader`. If the Loader was prepared before, this is the same object, unless
        `accelerator.free_memory()` was called since.

    Raises:
        UnsupportedError: `loader` is not a Loader, or the accelerator uses `split_batches`, `dispatch_batches`,
            `data_seed`, or a way of distributing the model that was not tested.
        ConfigurationError: the ranks would get batches of different sizes while `even_batches` is on; the Loader has
            different ranks; or a different Accelerator has prepared it.
        MissingDependencyError: Accelerate is not installed.
    """
    check_types(accelerator, loader, PreparedLoader)
    if isinstance(loader, PreparedLoader):
        loader = loader.loader
    private.check_names(accelerator)
    check(accelerator, loader)
    session = None if loader.evaluation else session_of(accelerator)
    if session is not None and loader in session.prepared:
        known: PreparedLoader = session.prepared[loader]
        return known
    place = accelerator.device_placement if device_placement is None else device_placement
    prepared = PreparedLoader(accelerator, loader, session, place=place)
    if session is None:
        loader.progress.share_evaluation()
    else:
        session.take(loader, prepared)
    return prepared


class PreparedLoader:
    """A Loader for Accelerate. It has the Loader's attributes, except for its state, which `save_state` saves.

    Args:
        accelerator: the Accelerator that it was prepared with.
        loader: the Loader.
        session: of all Loaders to train from; None for evaluation.
        place: whether to move batches to the device.

    Attributes:
        loader: the Loader.
        end_of_dataloader: whether the last delivered batch is the last one of its epoch.
        remainder: number of samples in that batch over all ranks, without padding; 0 if it has no padding, -1 before
            the epoch's last batch.
        newest: the loop that started last. It reports the epoch's end to the accelerator. None if it is over.
    """

    def __init__(self, accelerator: Any, loader: Loader, session: Session | None, *, place: bool) -> None:
        self.loader = loader
        self.end_of_dataloader, self.remainder = False, -1
        self.newest: object | None = None
        self._accelerator, self._of, self._place = accelerator, session, place

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of this epoch, or over the next one if no batch is left."""
        return self._evaluate() if self.loader.evaluation else _Delivery(self, self._session).read()

    def __len__(self) -> int:
        """Count the batches of the whole epoch, including those that are done."""
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<PreparedLoader of {self.loader!r}>"

    @property
    def total_batch_size(self) -> int:
        """Samples per step over all ranks. The name is Accelerate's."""
        return self.loader.global_batch_size

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the Loader, as of the last optimizer step.

        Raises:
            AttributeError: the Loader does not have it, or a prepared Loader does not support it.
        """
        if name.startswith("_") or name == "loader":
            raise AttributeError(name)
        if name in _NOT_HERE:
            raise AttributeError(
                f"'PreparedLoader' object has no attribute {name!r}.\n{_NOT_HERE[name]}", name=name, obj=self
            )
        if self._of is not None:
            self._of.settle()
        return getattr(self.loader, name)

    @property
    def _session(self) -> Session:
        if self._of is None:
            raise UnsupportedError(
                "epochs() or steps() was called on a prepared Loader with evaluation=True, which has no position.\n"
                "Each loop over it starts at the first batch. Use `for batch in loader`."
            )
        if self._of.prepared.get(self.loader) is not self:
            raise ConfigurationError(
                "accelerator.free_memory() was called after this Loader was prepared, and other Loaders were prepared "
                "since.\n"
                "Its position would not be saved. Prepare it again: loader = prepare(accelerator, loader)."
            )
        return self._of

    # ------------------------------------------------------------------ loops

    def epochs(self, total: int) -> EpochIterator[Any]:
        """Iterate over the epochs up to the number `total`, as `Loader.epochs` does.

        After a resume from a checkpoint that was saved after an epoch's last batch, it first returns that epoch, with
        no batch left. Gradients may be accumulated across epochs (`sync_with_dataloader=False`).

        Raises:
            ConfigurationError: `break` left an epoch while some of its batches were waiting for an optimizer step.
            LoopError: a newer loop was started.
        """
        return self.loader.epochs_of(_Delivery(self, self._session), total)

    def steps(self, total: float) -> Generator[Any]:
        """Iterate over batches, across epochs, until the run has delivered `total` of them.

        Raises:
            DataError: two epochs in a row have no batches.
            LoopError: a newer loop was started.
        """
        return self.handing_out(self.loader.steps_of(_Delivery(self, self._session), total))

    def for_evaluation(self) -> PreparedLoader:
        """Return a prepared Loader over the same data for evaluation, as `Loader.for_evaluation` does.

        Raises:
            ConfigurationError: the ranks would get batches of different sizes while `even_batches` is on.
            UnsupportedError: the source cannot be opened a second time.
        """
        return prepare(self._accelerator, self.loader.for_evaluation(), device_placement=self._place)

    # ------------------------------------------------------------------ batches

    def handing_out(self, batches: Iterator[Any]) -> Generator[Any]:
        """Yield batches on the device. The loop is open in the accelerator meanwhile."""
        with _OpenLoop(self._accelerator, self):
            for batch in batches:
                yield self._placed(batch)
            self._session.settle()

    def _evaluate(self) -> Iterator[Any]:
        progress = self.loader.progress
        with _OpenLoop(self._accelerator, self):
            batches, before = iter(self.loader), None
            while (batch := next(batches, _END)) is not _END:
                self.tell(before)
                before = progress.delivered
                yield self._placed(batch)

    def tell(self, before: Cursor | None) -> None:
        """Set `end_of_dataloader` and `remainder` for the batch that was just delivered."""
        progress = self.loader.progress
        after = progress.delivered
        self.end_of_dataloader, self.remainder = progress.is_last(), -1
        if self.end_of_dataloader:
            begin = 0 if before is None or before.epoch != after.epoch else before.position
            padding = progress.padding(begin, after.position)
            self.remainder = after.position - begin - padding if padding else 0

    def _placed(self, batch: Any) -> Any:
        return to_device(self._accelerator, batch) if self._place else batch


_END: Any = object()


class _OpenLoop:
    """Registers a loop in the accelerator while it is open, so the accelerator sees its end."""

    def __init__(self, accelerator: Any, loader: PreparedLoader) -> None:
        self._accelerator, self._loader = accelerator, loader

    def __enter__(self) -> None:
        self._loader.end_of_dataloader, self._loader.remainder = False, -1
        self._loader.newest = self
        private.begin_loop(self._accelerator, self._loader)

    def __exit__(self, *_: object) -> None:
        if self._loader.newest is self:  # Accelerate would drop all loops of the loader
            self._loader.newest = None
            private.end_loop(self._accelerator, self._loader)


class _Delivery(Delivery[Any]):
    """Delivers a Loader's batches, and acknowledges them when an optimizer has stepped."""

    def __init__(self, prepared: PreparedLoader, session: Session) -> None:
        super().__init__(prepared.loader)
        self._prepared, self._session = prepared, session

    def read(self, epoch: int | None = None) -> Iterator[Any]:
        return self._prepared.handing_out(BatchIterator(self, epoch))

    def check(self) -> None:
        """Allow loops to start: a prepared Loader delivers its batches in loops."""

    def start(self) -> None:
        """Go back to the last optimizer step if the last loop was left early; else an accumulation continues."""
        self._session.settle()
        progress = self.loader.progress
        if progress.in_flight and progress.delivered.step:
            self._session.go_back()

    def settle(self) -> None:
        self._session.settle()

    def leave(self, epoch: int) -> None:
        progress = self.loader.progress
        if not progress.in_flight:
            self.loader.end_epoch()
        elif progress.delivered.epoch == epoch:
            raise ConfigurationError(
                f"`break` left epoch {epoch} in the middle of an accumulation: {progress.in_flight} batches are not in "
                "the weights yet.\nTheir gradients would be added to the next epoch's. Leave the loop after an "
                "optimizer step, when accelerator.sync_gradients is true."
            )

    def deliver(self, epoch: int) -> Any:
        before = self.loader.progress.delivered
        self._session.note_boundary()
        batch = super().deliver(epoch)
        self._prepared.tell(before)
        return batch
