"""The Trainer's train loaders, each as a stream."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable._order.cursor import Cursor
from resumable._twins import tell_twins_of
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.integrations.lightning import private
from resumable.integrations.lightning.handed import Handed
from resumable.integrations.lightning.shares import divide_as_strategy
from resumable.integrations.lightning.shown import ShownTrainLoader, given_for
from resumable.integrations.lightning.sources import make_loader, replace_loaders
from resumable.integrations.lightning.streams import TrainStream
from resumable.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["TrainLoaders"]


class TrainLoaders:
    """The streams that the Trainer reads, which of their batches it holds, and their lengths.

    Args:
        trainer: the Trainer.
        wrap: whether to wrap train loaders that are no Loaders, or the options for it.
        on_fetch: called before a batch is fetched.
        resume: brings new streams to the checkpoint's place; tells whether there is one.
        is_evaluated: tells whether a Loader is one for validation, too.
    """

    def __init__(
        self,
        trainer: Any,
        wrap: bool | Mapping[str, Any],
        on_fetch: Callable[[], None],
        resume: Callable[[list[TrainStream]], bool],
        is_evaluated: Callable[[Loader], bool],
    ) -> None:
        self._is_evaluated = is_evaluated
        self._trainer, self._wrap, self._on_fetch, self._resume = trainer, wrap, on_fetch, resume
        self.streams: list[TrainStream] = []
        self.handed = Handed()
        self._lengths: list[float] = []

    def make(self, tree: Any) -> Any:
        """Put streams in the place of what the Trainer was given; called whenever it asks for its loaders."""
        before, self.streams = self.streams, []
        for stream in before:
            stream.give_back()
        self.handed.clear()
        tree = replace_loaders(tree, self._stream)
        tell_twins_of([stream.loader for stream in self.streams])
        if not self._resume(self.streams):
            self._keep_counting(before)
        self._lengths = self._count()
        return tree

    def _stream(self, source: Any, name: str) -> ShownTrainLoader:
        trainer, number = self._trainer, len(self.streams)
        overfit = trainer.overfit_batches > 0
        loader = make_loader(source, name, self._wrap, world_size=trainer.world_size, overfit=overfit)
        divide_as_strategy(loader, trainer)
        if self._is_evaluated(loader):
            raise ConfigurationError(
                f"the Loader {loader!r} is given for training and for validation.\nEach validation would move the "
                "place of the training. Make a Loader for each."
            )
        if self.has(loader):
            raise ConfigurationError(
                f"the train loader {name} is given to the Trainer twice.\nBoth would take batches of one stream. Make "
                "a Loader for each place."
            )
        is_the_trainers = partial(private.holds, trainer)
        stream = TrainStream(loader, name, number, self.handed, self._on_fetch, is_the_trainers)
        stream.stands_in_for = given_for(source)
        self.streams.append(stream)
        stream.begin_run(same_epoch=overfit)
        return ShownTrainLoader(stream)

    def has(self, loader: Loader) -> bool:
        """Return whether a Loader is one of the train loaders."""
        return any(stream.loader is loader for stream in self.streams)

    def _keep_counting(self, before: list[TrainStream]) -> None:
        """Let loaders that were made again continue with the epoch's number.

        That is done by `reload_dataloaders_every_n_epochs`, and by another `fit` for what the callback wraps.
        """
        for number, new in enumerate(self.streams):
            old = before[number] if number < len(before) else None
            if old is not None:
                epoch = 0 if new.loader is old.loader else old.base
            else:
                epoch = 0 if isinstance(new.stands_in_for, Loader) else self._trainer.current_epoch
            if epoch and new.loader.acknowledged == Cursor():
                with suppress(UnsupportedError):  # a source with a state of its own starts where it was made to
                    new.go_to(epoch, 0)

    def _count(self) -> list[float]:
        return [len(stream) if stream.loader.is_sized else float("inf") for stream in self.streams]

    def begin_epoch(self) -> None:
        """Tell the Trainer the lengths of the epoch, where they differ from the last one's."""
        lengths = self._count()
        if lengths != self._lengths:
            self._lengths = lengths
            private.set_lengths(self._trainer, lengths)

    def ack(self, batches: Iterable[Iterable[int]]) -> None:
        """Count batches of the Trainer as being in the weights."""
        for loaders in batches:
            for number in loaders:
                self.streams[number].ack()

    def end_epoch(self) -> None:
        """Go to where the Trainer's next epoch begins."""
        self.handed.clear()
        for stream in self.streams:
            stream.end_epoch()

    def bookmarks(self) -> list[Callable[[], dict[str, Any]]]:
        """Return functions that make the states of where training stands now."""
        return [stream.bookmark() for stream in self.streams]

    def consumed(self) -> list[bool]:
        """Return which loaders have been begun again in this epoch."""
        return [stream.epoch > stream.base for stream in self.streams]

    def leave_states(self, loop: dict[str, Any]) -> None:
        """Leave in a checkpoint's own part the states of those loaders that the user has wrapped, and of no others.

        What the callback wrapped is a plain loader without it, which Lightning finds no state for.

        Args:
            loop: the fit loop's `state_dict` in the checkpoint.
        """
        states = loop.pop("combined_loader", [])
        pairs = zip(states, self.streams, strict=False)  # before the loaders were asked for, there are none
        if kept := [state for state, stream in pairs if isinstance(stream.stands_in_for, Loader)]:
            loop["combined_loader"] = kept

    def give_back(self) -> None:
        """Let loops over the Loaders continue where training ended."""
        for stream in self.streams:
            stream.give_back()
