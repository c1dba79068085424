"""Ray Data's iterables over batches: they share one name, and the limits of their order are checked.

Ray Data has no state to save, so its iterables are read again from the start of the epoch, up to the saved position.
This yields the same batches if the order is repeatable. On several ranks that is not known: blocks go to
whichever rank asks first.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from resumable.errors import PromiseWarning, UnsupportedError
from resumable.loader.registry import load_iterable

if TYPE_CHECKING:
    from resumable._options import Options

__all__ = ["adapt", "refuse"]

_NAME = "Ray Data"
_INSTEAD = (
    "Read the files by index instead (a Dataset in a DataLoader, resumable.sources), which resumes on any number of "
    "ranks. Or use a complete Dataset on each rank, with identity= for its data."
)


def adapt(source: Any, options: Options) -> Any:
    """Adapt the iterables that `iter_batches`, `iter_torch_batches` and `iter_rows` return.

    Raises:
        UnsupportedError: there are several ranks, and `shard` does not say whether each one reads all data or a part.

    Warns:
        PromiseWarning: there are several ranks, so the order is unknown.
    """
    ranks = options.find_world().size
    if ranks > 1 and options.shard is None:
        raise UnsupportedError(
            f"this is a Ray Data iterable, and there are {ranks} ranks.\n"
            "It does not say whether this rank gets all elements or only a shard, so samples would be lost or read "
            f"twice. Pass shard=False for a shard from ray.train.get_dataset_shard(). {_INSTEAD}"
        )
    if ranks > 1:
        warnings.warn(
            f"a Ray Data iterable on {ranks} ranks is read again from the start on resume, but its order may differ "
            "then: which blocks a rank gets depends on which rank asks first.\nAfter a resume, samples may be lost or "
            f"repeated. {_INSTEAD}",
            PromiseWarning,
            stacklevel=4,
        )
    return load_iterable()(source, dataclasses.replace(options, identity=options.identity or _NAME))


def refuse(source: Any, options: Options) -> Any:  # noqa: ARG001  # as adapters are called
    """Reject a Dataset or a DataIterator, which does not yield batches itself.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"this is a Ray Data {type(source).__qualname__}, which does not yield batches itself.\n"
        "Wrap an iterable over its batches: wrap(dataset.iter_torch_batches(batch_size=...))."
    )
