"""What the Trainer iterates over in place of a Loader.

The Trainer asks for an iterator more often than it reads one (to check the type, before it knows of a checkpoint, in
every epoch), reads ahead if there is no length, and starts short loaders again (`max_size_cycle`). A stream delivers
the batches of the Loader's epochs such that none of this matters: an iterator starts where training is. Only the
iterators that the Trainer holds get batches. A loop of the user's over `trainer.train_dataloader` raises `LoopError`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from resumable._order.cursor import Cursor
from resumable._state import without_settings
from resumable.errors import StateMismatchError
from resumable.iteration import deliver, taken_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable.integrations.lightning.handed import Handed
    from resumable.loader import Loader

__all__ = ["TrainStream"]

_NAME = "Lightning's Trainer"


class TrainStream:
    """A Loader as the Trainer's train loader: an epoch of the Trainer is one of the Loader, or several if it is cycled.

    Args:
        loader: delivers nothing to loops of the user's from now on, until `give_back`.
        name: its place in the Trainer's collection of loaders, for messages.
        number: the same as a number.
        handed: is told of each batch that is delivered.
        on_fetch: called before each batch is fetched.
        is_the_trainers: tells whether the Trainer holds an iterator.

    Raises:
        ConfigurationError: another training has the Loader.
        UnsupportedError: batches of it are in flight, and its source cannot go back.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # made in one place
        self,
        loader: Loader,
        name: str,
        number: int,
        handed: Handed,
        on_fetch: Callable[[], None],
        is_the_trainers: Callable[[TrainStream, Iterator[Any]], bool],
    ) -> None:
        loader.drive(_NAME)
        self.loader, self.name = loader, name
        self._number, self._handed, self._on_fetch = number, handed, on_fetch
        self._is_the_trainers = is_the_trainers
        self.stands_in_for: Any = loader
        self._home: dict[str, Any] | None = None
        self._reading: _Pass | None = None  # the iterator that started last
        self.exhausted = False  # it came to the end of its epoch
        self._is_given_back = False
        self._set_base()

    def begin_run(self, *, same_epoch: bool) -> None:
        """Get ready to train.

        Args:
            same_epoch: read the same epoch again and again (`overfit_batches`).
        """
        loader = self.loader
        loader.progress.stand_together(False)  # ranks that were saved after an error on one of them catch up
        if loader.progress.following.epoch > loader.acknowledged.epoch:
            loader.end_epoch()  # nothing is left of it
        self._home = without_settings(loader.state_dict()) if same_epoch else None
        self._set_base()

    def _set_base(self) -> None:
        self.base = self.epoch = self.loader.acknowledged.epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader) if self._is_given_back else _Pass(self)

    def for_evaluation(self) -> Loader:
        """Return a Loader over the same data to evaluate with, as `Loader.for_evaluation` does."""
        return self.loader.for_evaluation()

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
        """Get ready to deliver batches to a new iterator, and return the number of the Loader's epoch.

        Raises:
            LoopError: it is the user's.
            UnsupportedError: the Trainer dropped batches that it had fetched, and the source cannot go back.
        """
        progress = self.loader.progress
        if self._is_given_back or not self._is_the_trainers(self, reading):
            raise taken_away(_NAME)
        if self.exhausted:  # the Trainer cycles
            self._reading, self.exhausted = reading, False
            return progress.delivered.epoch
        progress.rewind()
        progress.begin()
        self._handed.forget(self._number)
        self._reading = reading
        return self.epoch

    def next_batch(self, reading: _Pass, epoch: int) -> Any:
        """Deliver a batch.

        Raises:
            StopIteration: the epoch is over, or another iterator has begun.
        """
        self._on_fetch()
        if reading is not self._reading or self.exhausted:
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

    # ------------------------------------------------------------------ for the callback

    def ack(self) -> None:
        """Count the oldest batch as trained on."""
        self.loader.ack()
        self.epoch = self.loader.acknowledged.epoch

    def end_epoch(self) -> None:
        """Go to where the Trainer's next epoch starts: the Loader's next epoch. What was fetched ahead is skipped."""
        self.loader.progress.rewind(leaves=True)
        if self._home is not None:
            self.loader.load_state_dict(self._home)
        elif self.loader.acknowledged.epoch == self.epoch:
            self.loader.end_epoch()
        self.exhausted, self._reading = False, None
        self._set_base()

    def give_back(self) -> None:
        """Let loops over the Loader continue after the last batch that is in the weights."""
        if not self._is_given_back:
            self._is_given_back = True
            self.loader.give_back()
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
        self._epoch = -1

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._epoch < 0:
            self._epoch = self._stream.begin(self)
        return self._stream.next_batch(self, self._epoch)
