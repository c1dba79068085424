"""What the Trainer iterates over in place of a Loader.

The Trainer asks for an iterator more often than it reads one (to check the type, before it knows of a checkpoint, in
every epoch), reads ahead where there is no length, and begins short loaders again (`max_size_cycle`). A stream
delivers the batches of the Loader's epochs such that none of this matters: an iterator begins where training stands.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from resumable._order.cursor import Cursor
from resumable._state import without_settings
from resumable.errors import LoopError, StateMismatchError
from resumable.iteration import deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable.integrations.lightning.handed import Handed
    from resumable.loader import Loader

__all__ = ["TrainStream"]


class TrainStream:
    """A Loader as the Trainer's train loader: an epoch of the Trainer is one of the Loader, or several if it is cycled.

    Args:
        loader: acknowledges by itself no more from now on.
        name: its place in the Trainer's collection of loaders, for messages.
        number: the same as a number.
        handed: is told of each batch that is delivered.
        on_fetch: called before each batch is fetched.
        same_epoch: read the same epoch again and again (`overfit_batches`).
    """

    def __init__(  # noqa: PLR0913  # made in one place
        self,
        loader: Loader,
        name: str,
        number: int,
        handed: Handed,
        on_fetch: Callable[[], None],
        *,
        same_epoch: bool = False,
    ) -> None:
        self.loader, self.name = loader, name
        self._number, self._handed, self._on_fetch = number, handed, on_fetch
        self.stands_in_for: Any = loader
        self._acks = loader.ack_mode
        loader.progress.set_ack("manual")
        loader.progress.stand_together(False)  # ranks that were saved after an error on one of them catch up
        loader.progress.rewind()  # an interrupted run may have left batches without an answer
        if loader.epoch > loader.acknowledged.epoch:
            loader.end_epoch()  # nothing is left of it
        self._home = without_settings(loader.state_dict()) if same_epoch else None
        self._set_base()
        self._reading: _Pass | None = None  # the iterator that began last
        self.exhausted = False  # it came to the end of its epoch

    def _set_base(self) -> None:
        self.base = self.epoch = self.loader.acknowledged.epoch

    def __iter__(self) -> Iterator[Any]:
        return _Pass(self)

    def __len__(self) -> int:
        """Count the batches of the whole epoch.

        Raises:
            TypeError: the length is unknown before its end.
        """
        return self.loader.total_steps(self.epoch)

    def __repr__(self) -> str:
        return f"<TrainStream {self.name} of {self.loader!r}>"

    # ------------------------------------------------------------------ for the iterators

    def begin(self, reading: _Pass) -> int:
        """Get ready to deliver batches to a new iterator, and return the number of the Loader's epoch."""
        self._reading = reading
        if self.exhausted:  # the Trainer cycles
            self.exhausted = False
            return self.loader.cursor.epoch
        self._handed.forget(self._number)
        self.loader.progress.rewind()
        self.loader.progress.begin()
        return self.epoch

    def next_batch(self, reading: _Pass, epoch: int) -> Any:
        """Deliver a batch.

        Raises:
            StopIteration: the epoch is over.
            LoopError: a newer iterator has taken batches of this epoch.
        """
        self._on_fetch()
        if self._reading is not None and reading is not self._reading:
            raise LoopError(
                f"the train loader {self.name} of the Trainer was iterated over while the Trainer reads it.\n"
                "Those batches would be missing in the training. To look at a batch, call "
                "trainer.train_dataloader.peek(). To read all samples, make a DataLoader over "
                "trainer.train_dataloader.dataset."
            )
        if self._reading is None or self.exhausted:
            raise StopIteration
        if self.loader.cursor.epoch != epoch:
            self.exhausted = True
            raise StopIteration
        try:
            batch = deliver(self.loader, epoch)
        except StopIteration:
            self.exhausted = True
            raise
        self._handed.add(self._number)
        return batch

    @property
    def live_epoch(self) -> int:
        """The epoch of the Loader that is read now."""
        return self._reading.epoch if self._reading else self.epoch

    # ------------------------------------------------------------------ for the callback

    def ack(self) -> None:
        """Count the oldest batch as trained on."""
        self.loader.ack()
        self.epoch = self.loader.acknowledged.epoch

    def end_epoch(self) -> None:
        """Go to where the Trainer's next epoch begins: the next epoch of the Loader."""
        self.loader.progress.rewind()
        if self._home is not None:
            self.loader.load_state_dict(self._home)
        elif self.loader.acknowledged.epoch == self.epoch:
            self.loader.end_epoch()
        self.exhausted, self._reading = False, None
        self._set_base()

    def give_back(self) -> None:
        """Let the Loader acknowledge as it did before."""
        self.loader.progress.set_ack(self._acks)
        self.loader.progress.stand_together(True)

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes what `restore` takes, of where training stands now."""
        epoch, base, make = self.epoch, self.base, self.loader.progress.bookmark()
        return lambda: {"epoch": epoch, "base": base, "state": make()}

    def restore(self, saved: Mapping[str, Any], *, strict: bool) -> None:
        """Go to where a bookmark was taken."""
        try:
            self.loader.load_state_dict(saved["state"], strict=strict)
        except Exception as error:
            error.add_note(f"It is the train loader {self.name} of the Trainer.")
            raise
        self.epoch, self.base = saved["epoch"], saved["base"]
        self.exhausted, self._reading = False, None

    def go_to(self, epoch: int, batch: int) -> None:
        """Go to a batch of an epoch.

        Raises:
            UnsupportedError: it goes only to where it was before.
        """
        self.loader.seek(epoch=epoch, step=batch)
        self._set_base()

    def catch_up(self, target: Mapping[str, Any]) -> None:
        """Read on, and throw away, up to the place of another rank's bookmark.

        Raises:
            StateMismatchError: this stream has no such place.
        """
        loader, cursor = self.loader, Cursor.from_dict(target["state"]["cursor"])
        while _step(loader.acknowledged) < _step(cursor):
            epoch = loader.acknowledged.epoch
            with suppress(StopIteration), loader.progress.catching_up():
                deliver(loader, epoch)
                loader.ack()
        if _step(loader.acknowledged) != _step(cursor):
            raise StateMismatchError(
                f"the train loader {self.name} of this rank has no place {cursor}: it goes on at {loader.acknowledged}."
                "\nThe ranks would train on different steps. Resume from another checkpoint."
            )
        self.epoch, self.base = target["epoch"], target["base"]

    # Lightning saves what has these two. Without the callback, a checkpoint's own part is found by it.

    def state_dict(self) -> dict[str, Any]:
        """Return the Loader's state."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the Loader's state."""
        self.loader.load_state_dict(state_dict)
        self.exhausted, self._reading = False, None
        self._set_base()


def _step(cursor: Cursor) -> tuple[int, int]:
    """Return what all ranks have in common; their last batches may be of different sizes."""
    return cursor.epoch, cursor.step


class _Pass:
    """One iterator of a stream; nothing happens before its first `next()`."""

    def __init__(self, stream: TrainStream) -> None:
        self._stream = stream
        self.follows = -1
        self.epoch = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.epoch < 0:
            self.follows = self._stream.live_epoch
            self.epoch = self._stream.begin(self)
        return self._stream.next_batch(self, self.epoch)
