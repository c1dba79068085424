"""A Loader as Accelerate's loop sees a DataLoader: on the device, and saying when its epoch ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from resumable._loops import refuse_unpacking, warn_of_no_step_left, warn_of_nothing_left
from resumable.errors import ConfigurationError, DataError, UnsupportedError
from resumable.integrations.accelerate import private
from resumable.integrations.accelerate.refusals import check, check_types
from resumable.integrations.accelerate.session import session_of
from resumable.iteration import Epoch, deliver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable._order.cursor import Cursor
    from resumable.integrations.accelerate.session import Session
    from resumable.loader import Loader

__all__ = ["PreparedLoader", "prepare"]

_EMPTY = 2  # epochs without a batch, one after the other, that no source may have
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
    known = next((one for one in session.prepared if one.loader is loader), None) if session else None
    if known is not None:
        return known
    place = accelerator.device_placement if device_placement is None else device_placement
    prepared = PreparedLoader(accelerator, loader, session, place=place)
    if session is None:
        loader.progress.share_evaluation()
    else:
        session.take(prepared)
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
    """

    def __init__(self, accelerator: Any, loader: Loader, session: Session | None, *, place: bool) -> None:
        self.loader = loader
        self.end_of_dataloader, self.remainder = False, -1
        self._accelerator, self._of, self._place = accelerator, session, place
        self._ended: int | None = None  # the epoch that came to its end, while some of it waits for a step
        self._gone_through = 0

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of this epoch, or over the next one where nothing is left."""
        if self.loader.evaluation:
            return self._evaluate()
        iter(self.loader)  # looks at the loop around; it reads nothing
        return self.read(None)

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
        if self not in self._of.prepared:
            raise ConfigurationError(
                "the Loader was prepared before accelerator.free_memory() was called, and others were prepared since.\n"
                "Its place would not be saved. Prepare it again: loader = prepare(accelerator, loader)."
            )
        return self._of

    # ------------------------------------------------------------------ loops

    def epochs(self, total: int) -> Iterator[Epoch[Any]]:
        """Iterate over the epochs up to the number `total`, as `Loader.epochs` does.

        Resumed from a checkpoint that was saved after an epoch's last batch, it first gives that epoch, with no batch
        left. Where gradients are accumulated over the end of an epoch, as with `sync_with_dataloader=False`, the next
        one follows all the same.

        Raises:
            ConfigurationError: an epoch is left by `break`, and some of its batches wait for an optimizer step.
        """
        progress = self.loader.progress
        self._session.settle()
        if self._number() >= total and self._gone_through >= total:
            warn_of_nothing_left(total)
        while (number := self._number()) < total:
            moves = progress.moves
            yield _PreparedEpoch.of(self, number)
            self._session.settle()
            if progress.moves == moves and self._number() == number:
                self._leave(number)
            self._gone_through = max(self._gone_through, number + 1)

    def steps(self, total: float) -> Iterator[Any]:
        """Iterate over batches, through as many epochs as it takes, until `total` of them are delivered in the run.

        Raises:
            DataError: an epoch gives no batch at all, and neither does the next one.
        """
        if self._delivered() >= total > 0 and self.loader.progress.moves == 0:
            warn_of_no_step_left(total, self._delivered())
        empty = 0
        while self._delivered() < total:
            before = self._delivered()
            for batch in self.read(None):
                yield batch
                if self._delivered() >= total:
                    self._session.settle()
                    return
            empty = empty + 1 if self._delivered() == before else 0
            if empty == _EMPTY:
                raise DataError(
                    f"{_EMPTY} epochs gave no batch at all, so that steps() would go on for ever.\n"
                    "Look whether the data is where it should be, and whether an epoch has enough samples for a batch."
                )

    def _delivered(self) -> int:
        return self.loader.global_step + self.loader.progress.in_flight

    def _number(self) -> int:
        """Return the epoch in which the loop stands, which may be after that of the weights."""
        progress = self.loader.progress
        carried = progress.in_flight and progress.delivered.epoch > progress.acknowledged.epoch
        return progress.delivered.epoch if carried else progress.acknowledged.epoch

    def _leave(self, number: int) -> None:
        progress = self.loader.progress
        if not progress.in_flight:
            self.loader.end_epoch()
        elif self._ended == number:
            progress.turn_over(number)
        else:
            raise ConfigurationError(
                f"epoch {number} was left by break within an accumulation: {progress.in_flight} batches are not in "
                "the weights.\nTheir gradients would be added to those of the next epoch. Leave the loop where "
                "accelerator.sync_gradients is true, after the optimizer's step."
            )

    # ------------------------------------------------------------------ batches

    def _begin(self) -> None:
        """Go to where a new loop begins: after the last optimizer step, or on where the last loop ended by itself."""
        progress = self.loader.progress
        self._session.settle()
        if not progress.in_flight:
            progress.begin()
        elif self._ended is not None:
            progress.turn_over(self._ended)
        else:
            self._session.go_back()
        self._ended = None

    def read(self, only: int | None) -> Iterator[Any]:
        """Deliver the batches of an epoch.

        Args:
            only: give none of another epoch; None for the one in which the loop stands.
        """
        session, progress = self._session, self.loader.progress
        self._begin()
        with _Telling(self._accelerator, self):
            moves, first = -1, True
            while True:
                session.settle()
                if progress.moves != moves:
                    moves, epoch, first = progress.moves, progress.delivered.epoch, True
                before = progress.delivered
                if before.epoch != epoch or only not in {None, epoch}:
                    return
                session.note_boundary()
                try:
                    batch = deliver(self.loader, epoch)
                except StopIteration:
                    if only is None and first and before.position and progress.delivered.epoch != epoch:
                        moves = -1
                        continue
                    self._ended = epoch if progress.in_flight else None
                    return
                first = False
                self._tell(before)
                yield self._placed(batch)

    def _evaluate(self) -> Iterator[Any]:
        progress = self.loader.progress
        with _Telling(self._accelerator, self):
            batches, before = iter(self.loader), None
            while (batch := next(batches, _END)) is not _END:
                self._tell(before)
                before = progress.delivered
                yield self._placed(batch)

    def _tell(self, before: Cursor | None) -> None:
        """Say whether the batch that was just delivered is the last one, and how much of it is padding."""
        progress = self.loader.progress
        after = progress.delivered
        self.end_of_dataloader, self.remainder = progress.is_last(), -1
        if self.end_of_dataloader:
            begin = 0 if before is None or before.epoch != after.epoch else before.position
            padding = progress.padding(begin, after.position)
            self.remainder = after.position - begin - padding if padding else 0

    def _placed(self, batch: Any) -> Any:
        if not self._place:
            return batch
        from accelerate.utils import send_to_device  # noqa: PLC0415  # only who uses it pays for it

        accelerator = self._accelerator
        return send_to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state of the Loader; for the session."""
        self.loader.load_state_dict(state)
        self._ended, self._gone_through = None, 0


_END: Any = object()


class _Telling:
    """Lets a loader tell the accelerator of its end as long as its loop is open."""

    def __init__(self, accelerator: Any, loader: PreparedLoader) -> None:
        self._accelerator, self._loader = accelerator, loader

    def __enter__(self) -> None:
        self._loader.end_of_dataloader, self._loader.remainder = False, -1
        private.begin_loop(self._accelerator, self._loader)

    def __exit__(self, *_: object) -> None:
        private.end_loop(self._accelerator, self._loader)


class _PreparedEpoch(Epoch[Any]):
    """One epoch of `PreparedLoader.epochs`: its batches, and its number."""

    _prepared: PreparedLoader

    @classmethod
    def of(cls, prepared: PreparedLoader, number: int) -> _PreparedEpoch:
        epoch = cls(prepared.loader, number)
        epoch._prepared = prepared
        return epoch

    def __iter__(self) -> Iterator[Any]:
        refuse_unpacking(sys._getframe(1), self.number)  # noqa: SLF001  # a loop cannot be told from it otherwise
        return self._prepared.read(self.number)
