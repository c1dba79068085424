"""A Loader as Accelerate's loop sees a DataLoader: on the device, and saying when its epoch ends."""

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

_SAVED = "accelerator.save_state() and load_state() do that, for all prepared Loaders and with what belongs to them."
_NOT_HERE = {
    "ack": "Batches are acknowledged at the optimizer's steps.",
    "state_dict": _SAVED,
    "load_state_dict": _SAVED,
    "sampler": "What skip_first_batches() skips, load_state() has skipped already: leave it out.",
    "batch_sampler": "What skip_first_batches() skips, load_state() has skipped already: leave it out.",
}


def prepare(
    accelerator: Any, loader: Loader | PreparedLoader, *, device_placement: bool | None = None
) -> PreparedLoader:
    """Prepare a Loader for Accelerate, as `accelerator.prepare` does a DataLoader.

        loader = prepare(accelerator, resumable.wrap(DataLoader(...)))
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    What it gives moves batches to the device, and tells the accelerator which batch is the last one of an epoch, so
    that its gradients are stepped. A batch counts as trained on at the optimizer's step, and
    `accelerator.save_state` and `load_state` save and load the place: exact also within an accumulation, and the states
    of all ranks in one file.

    Args:
        accelerator: an `Accelerator`.
        loader: to train from; or (`evaluation=True`) to evaluate with, which `gather_for_metrics` understands.
        device_placement: move batches to the device; the accelerator's own setting by default.

    Returns:
        A `PreparedLoader`; the same one where the Loader was prepared before, unless `accelerator.free_memory()` was
        called since.

    Raises:
        UnsupportedError: it is no Loader, or a setting of the accelerator does not fit: `split_batches`,
            `dispatch_batches`, `data_seed`, or a way of distributing the model that was not tried.
        ConfigurationError: the ranks would get batches of different sizes, and `even_batches` is on; or the Loader has
            other ranks, or was prepared with another Accelerator.
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
    """A Loader in a loop of Accelerate. It has what the Loader has, but for its state, which `save_state` saves.

    Args:
        accelerator: with which it was prepared.
        loader: the Loader.
        session: all that are prepared to train from; None for one to evaluate with.
        place: move batches to the device.

    Attributes:
        loader: the Loader.
        end_of_dataloader: whether the batch that was delivered last is the last one of its epoch.
        remainder: how many samples of that batch, over all ranks, are no padding; 0 where there is none, and -1 before.
        newest: the loop that started last, which tells the accelerator of the end; None if it is over.
    """

    def __init__(self, accelerator: Any, loader: Loader, session: Session | None, *, place: bool) -> None:
        self.loader = loader
        self.end_of_dataloader, self.remainder = False, -1
        self.newest: object | None = None
        self._accelerator, self._of, self._place = accelerator, session, place

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of this epoch, or over the next one if nothing is left."""
        return self._evaluate() if self.loader.evaluation else _Delivery(self, self._session).read()

    def __len__(self) -> int:
        """Count the batches of the whole epoch, of which some may be done."""
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<PreparedLoader of {self.loader!r}>"

    @property
    def total_batch_size(self) -> int:
        """Samples per step over all ranks, as Accelerate calls it."""
        return self.loader.global_batch_size

    def __getattr__(self, name: str) -> Any:
        """Return what the Loader has, after the last optimizer step.

        Raises:
            AttributeError: it has no such thing, or not for a loop of Accelerate.
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
                "epochs() or steps() was called on a prepared Loader with evaluation=True, which has no place.\n"
                "Each loop over it begins at the beginning: loop by `for batch in loader`."
            )
        if self._of.prepared.get(self.loader) is not self:
            raise ConfigurationError(
                "the Loader was prepared before accelerator.free_memory() was called, and others were prepared since.\n"
                "Its place would not be saved. Prepare it again: loader = prepare(accelerator, loader)."
            )
        return self._of

    # ------------------------------------------------------------------ loops

    def epochs(self, total: int) -> EpochIterator[Any]:
        """Iterate over the epochs up to the number `total`, as `Loader.epochs` does.

        If it is resumed from a checkpoint that was saved after an epoch's last batch, it first returns that epoch, with
        no batch left. If gradients are accumulated over the end of an epoch, as with `sync_with_dataloader=False`, the
        next one follows anyway.

        Raises:
            ConfigurationError: an epoch is left by `break`, and some of its batches wait for an optimizer step.
            LoopError: a newer loop was started.
        """
        return self.loader.epochs_of(_Delivery(self, self._session), total)

    def steps(self, total: float) -> Generator[Any]:
        """Iterate over batches, through as many epochs as it takes, until `total` of them are delivered in the run.

        Raises:
            DataError: an epoch delivers no batch at all, and neither does the next one.
            LoopError: a newer loop was started.
        """
        return self.handing_out(self.loader.steps_of(_Delivery(self, self._session), total))

    def for_evaluation(self) -> PreparedLoader:
        """Return a prepared Loader over the same data to evaluate with, as `Loader.for_evaluation` does.

        Raises:
            ConfigurationError: the ranks would get batches of different sizes, and `even_batches` is on.
            UnsupportedError: the source cannot be opened a second time.
        """
        return prepare(self._accelerator, self.loader.for_evaluation(), device_placement=self._place)

    # ------------------------------------------------------------------ batches

    def handing_out(self, batches: Iterator[Any]) -> Generator[Any]:
        """Yield the batches on the device, and tell the accelerator that a loop is open."""
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
        """Say whether the batch that was just delivered is the last one, and how much of it is padding."""
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
    """Lets a loader tell the accelerator of its end as long as its loop is open."""

    def __init__(self, accelerator: Any, loader: PreparedLoader) -> None:
        self._accelerator, self._loader = accelerator, loader

    def __enter__(self) -> None:
        self._loader.end_of_dataloader, self._loader.remainder = False, -1
        self._loader.newest = self
        private.begin_loop(self._accelerator, self._loader)

    def __exit__(self, *_: object) -> None:
        if self._loader.newest is self:  # Accelerate drops all loops of a loader, so an older one leaves the newest
            self._loader.newest = None
            private.end_loop(self._accelerator, self._loader)


class _Delivery(Delivery[Any]):
    """Batches of a Loader that count once an optimizer has stepped."""

    def __init__(self, prepared: PreparedLoader, session: Session) -> None:
        super().__init__(prepared.loader)
        self._prepared, self._session = prepared, session

    def read(self, epoch: int | None = None) -> Iterator[Any]:
        return self._prepared.handing_out(BatchIterator(self, epoch))

    def check(self) -> None:
        """Let loops start: they are what delivers the batches of a prepared Loader."""

    def start(self) -> None:
        """Go back to the last optimizer step, unless the last loop reached its end: then an accumulation continues."""
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
                f"epoch {epoch} was left by break within an accumulation: {progress.in_flight} batches are not in the "
                "weights.\nTheir gradients would be added to those of the next epoch. Leave the loop when "
                "accelerator.sync_gradients is true, after the optimizer's step."
            )

    def deliver(self, epoch: int) -> Any:
        before = self.loader.progress.delivered
        self._session.note_boundary()
        batch = super().deliver(epoch)
        self._prepared.tell(before)
        return batch
