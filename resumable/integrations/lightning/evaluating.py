"""The Trainer's loaders for validation, test and prediction: each pass starts at the first batch of epoch 0."""

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

_begun: WeakSet[Loader] = WeakSet()  # Loaders that were evaluated before and remember where their passes start


class EvaluationStreams:
    """Makes each evaluation Loader of the Trainer repeat the same pass, no matter what was read before.

    Args:
        is_trained_on: returns whether a Loader is also a train loader of this run.
        divide: makes a Loader divide its data as the strategy does.
        overfit: the run has `overfit_batches`.
    """

    def __init__(
        self, is_trained_on: Callable[[Loader], bool], divide: Callable[[Loader], None], *, overfit: bool = False
    ) -> None:
        self._is_trained_on, self._divide, self._overfit = is_trained_on, divide, overfit
        self._streams: dict[int, _EvaluationStream] = {}  # keys: id() of their Loaders, which they keep alive

    def __call__(self, tree: Any) -> Any:
        """Replace the Loaders in the Trainer's collection of loaders."""
        return replace_loaders(tree, self._replace)

    def has(self, loader: Loader) -> bool:
        """Return whether a Loader is used for evaluation."""
        return id(loader) in self._streams

    def give_back(self) -> None:
        """Move the Loaders back to the positions that they had before."""
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
                f"the Loader {loader!r} is used for both training and validation.\nEach validation would move the "
                "training position. Create a separate Loader for validation."
            )
        if not self.has(loader):
            self._streams[id(loader)] = _EvaluationStream(loader, name)
        return LoaderView(self._streams[id(loader)], hides_dataset=self._overfit)


class _EvaluationStream:
    """A Loader as an evaluation loader of the Trainer.

    Args:
        loader: the Loader. Each pass moves it; `give_back` moves it back.
        name: key of the loader in the Trainer's collection, for messages.
    """

    def __init__(self, loader: Loader, name: str) -> None:
        self.loader = self.stands_in_for = loader
        moved = loader.cursor != Cursor() or loader.acknowledged != Cursor()
        has_position = not loader.evaluation  # with evaluation=True, each loop starts over
        self._before = loader.state_dict() if moved and has_position else None
        if self._before is not None and loader not in _begun:
            _go_to_start(loader, name, self._before)
        _begun.add(loader)

    def __iter__(self) -> Iterator[Any]:
        return EvaluationPass(self.loader)

    def __len__(self) -> int:
        """Count the batches.

        Raises:
            TypeError: the length is unknown before the pass ends.
        """
        return self.loader.total_steps(0)

    def give_back(self) -> None:
        """Move the Loader back to the position that it had before."""
        if self._before is None:
            self.loader.progress.begin_again()
        else:
            resumed = self.loader.resumed
            self.loader.load_state_dict(self._before)
            self.loader.resumed = resumed  # the script itself has not loaded anything


def _go_to_start(loader: Loader, name: str, state: Mapping[str, Any]) -> None:
    try:
        loader.seek(epoch=0)
    except UnsupportedError:
        loader.load_state_dict(state)  # each pass starts there, so its source must know its state there
        warnings.warn(
            f"evaluation loader {name} was read before this evaluation, and its source cannot go back to the first "
            f"batch.\nEach pass starts at {loader.cursor}. To start each pass at the first batch, wrap the source with "
            "evaluation=True.",
            PromiseWarning,
            stacklevel=2,
        )
