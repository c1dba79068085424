"""The objects that the Trainer holds instead of Loaders, such as `trainer.train_dataloader`: they show the same.

Hooks read `dataset` or `batch_size`, and Lightning searches for `sampler`. The Loader itself answers: whatever it shows
or rejects is shown or rejected here, with the same advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Protocol

    from resumable.integrations.lightning.streams import TrainStream
    from resumable.loader import Loader

    class _Stream(Protocol):
        loader: Loader
        stands_in_for: Any

        def __iter__(self) -> Iterator[Any]: ...

        def __len__(self) -> int: ...


__all__ = ["ShownLoader", "ShownTrainLoader", "given_for", "loader_of", "stream_of"]


class ShownLoader:
    """A Loader with iterators of a stream.

    Args:
        stream: of the Loader.
        hides_dataset: up to the first iterator. With `overfit_batches`, Lightning makes a new DataLoader over the
            dataset of everything that shows one, and raises if that is not a DataLoader. Only then does it iterate.
    """

    def __init__(self, stream: _Stream, *, hides_dataset: bool = False) -> None:
        self._stream, self._hides_dataset = stream, hides_dataset

    def __iter__(self) -> Iterator[Any]:
        self._hides_dataset = False
        return iter(self._stream)

    def __len__(self) -> int:
        """Count the batches of the whole epoch.

        Raises:
            TypeError: the length is unknown before its end.
        """
        return len(self._stream)

    def __bool__(self) -> bool:
        """A Loader is true, even if its length is unknown."""
        return True

    def __repr__(self) -> str:
        return f"<{self._stream.loader!r}, held by the Trainer>"

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the Loader.

        Raises:
            AttributeError: the Loader does not show it; the message says what to do instead.
        """
        # Frameworks mark their own objects with names that start with "_", and a copy has no stream yet.
        if name.startswith("_") or (name == "dataset" and self._hides_dataset):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self._stream.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the Loader.

        Raises:
            AttributeError: the Loader rejects it, because its batches would stay what they are.
        """
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._stream.loader, name, value)


class ShownTrainLoader(ShownLoader):
    """The same for training. The Trainer saves the state of each loader that has these two methods.

    A run without the callback loads it; with the callback, its own part of the checkpoint is loaded instead.
    """

    _stream: TrainStream

    def state_dict(self) -> dict[str, Any]:
        """Return the Loader's state."""
        return self._stream.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the Loader's state."""
        self._stream.load_state_dict(state_dict)


def stream_of(held: Any) -> Any:
    """Return the stream of a Loader that the Trainer holds; None if it is held as it was given."""
    return vars(held)["_stream"] if isinstance(held, ShownLoader) else None


def loader_of(held: Any) -> Any:
    """Return the Loader of an object that the Trainer holds, or the object itself if it holds none."""
    return vars(held)["_stream"].loader if isinstance(held, ShownLoader) else held


def given_for(held: Any) -> Any:
    """Return the loader that the user passed for an object that the Trainer holds."""
    return vars(held)["_stream"].stands_in_for if isinstance(held, ShownLoader) else held
