"""What `wrap` and the adapter of DataLoaders ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.backends.tfds.backend import TfdsBackend
from resumable.backends.tfds.data_sources import GuardedSource
from resumable.backends.tfds.source import TfdsSource
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from resumable._options import Options

__all__ = ["adapt", "guard"]


def adapt(thing: Any, options: Options) -> tuple[TfdsBackend, Options]:
    """Adapt a source of ours, or a data source of TensorFlow Datasets.

    Raises:
        UnsupportedError: it is a builder, which has several splits.
    """
    if hasattr(thing, "as_dataset"):
        raise UnsupportedError(
            f"this is the builder of {thing.info.full_name}, which has the splits {', '.join(thing.info.splits)}.\n"
            "Which of them to read is not known. Wrap resumable.backends.tfds.source(builder, split), or for a "
            "DataLoader give it that as its dataset."
        )
    options.refuse(
        "a split of TensorFlow Datasets",
        shard="The ranks get disjoint samples by their index, whatever the files are.",
    )
    source = thing if isinstance(thing, TfdsSource) else guard(thing)
    options = options.with_defaults()
    return TfdsBackend(source, options), options


def guard(source: Any) -> GuardedSource:
    """Return what reads a data source of TensorFlow Datasets where it can be read."""
    return GuardedSource(source)
