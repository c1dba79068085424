"""The Trainer's loaders for validation, test and prediction: each pass begins at the first batch of epoch 0."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from resumable._order.cursor import Cursor
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError
from resumable.integrations.lightning.loaders import LoaderView, loader_of, replace_loaders
from resumable.loader.iterators import EvaluationPass
from resumable.loader.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["EvaluationStreams"]

_begun: WeakSet[Loader] = WeakSet()  # Loaders that know the beginning of their passes, as they had one


class EvaluationStreams:
    """Lets each Loader that the Trainer evaluates with give the same pass each time, whatever was read before.

    Args:
        is_trained_on: tells whether a Loader is a train loader of this run, too.
        divide: lets a Loader divide its data as the strategy does.
        overfit: the run has `overfit_batches`.
    """

    def __init__(
        self, is_trained_on: Callable[[Loader], bool], divide: Callable[[Loader], None], *, overfit: bool = False
    ) -> None:
        self._is_trained_on, self._divide, self._overfit = is_trained_on, divide, overfit
        self._streams: dict[int, _EvaluationStream] = {}  # by the identity of their Loaders, which they keep alive

    def __call__(self, tree: Any) -> Any:
        """Replace the Loaders in the Trainer's collection of loaders."""
        return replace_loaders(tree, self._replace)

    def has(self, loader: Loader) -> bool:
        """Return whether a Loader is evaluated with."""
        return id(loader) in self._streams

    def give_back(self) -> None:
        """Bring the Loaders to where they were given."""
        for stream in self._streams.values():
            stream.give_back()
        self._streams.clear()

    def _replace(self, loader: Any, name: str) -> Any:
        loader = loader_of(loader)
        if not isinstance(loader, Loader):
            return loader
        self._divide(loader)
        if loader.evaluation:
            loader.progress.share_evaluation()
        if self._is_trained_on(loader):
            raise ConfigurationError(
                f"the Loader {loader!r} is given for training and for validation.\nEach validation would move the "
                "place of the training. Make a Loader for each."
            )
        if not self.has(loader):
            self._streams[id(loader)] = _EvaluationStream(loader, name)
        return LoaderView(self._streams[id(loader)], hides_dataset=self._overfit)


class _EvaluationStream:
    """A Loader as a loader for evaluation.

    Args:
        loader: moved by each pass; `give_back` brings it to where it is now.
        name: its place in the Trainer's collection of loaders, for messages.
    """

    def __init__(self, loader: Loader, name: str) -> None:
        self.loader = self.stands_in_for = loader
        moved = loader.cursor != Cursor() or loader.acknowledged != Cursor()
        keeps_place = not loader.evaluation  # with evaluation=True it starts over, wherever it was left
        self._place = loader.state_dict() if moved and keeps_place else None
        if self._place is not None and loader not in _begun:
            _go_to_beginning(loader, name, self._place)
        _begun.add(loader)

    def __iter__(self) -> Iterator[Any]:
        return EvaluationPass(self.loader)

    def __len__(self) -> int:
        """Count the batches.

        Raises:
            TypeError: the length is unknown before its end.
        """
        return self.loader.total_steps(0)

    def give_back(self) -> None:
        """Bring the Loader to where it was given."""
        if self._place is None:
            self.loader.progress.begin_again()
        else:
            resumed = self.loader.resumed
            self.loader.load_state_dict(self._place)
            self.loader.resumed = resumed  # as the script has loaded nothing


def _go_to_beginning(loader: Loader, name: str, place: Mapping[str, Any]) -> None:
    try:
        loader.seek(epoch=0)
    except UnsupportedError:
        loader.load_state_dict(place)  # so that its own state is known there, from where each pass begins
        warnings.warn(
            f"the Loader {name} was read before the Trainer evaluates with it, and cannot go back to its beginning: it "
            f"has a state of its own, and stands at {loader.cursor}.\nEach pass begins there. Wrap it with "
            "evaluation=True, and each begins at the first batch.",
            PromiseWarning,
            stacklevel=2,
        )
