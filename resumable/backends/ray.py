"""What Ray Data gives to loops: iterables over batches, under a name of their own, and what they do not promise.

Ray Data has no state to save, so its iterables are read again from the beginning of the epoch and skipped through. That
gives the same batches where its order is repeatable. On several ranks that is not shown: blocks go to whichever
rank asks first.
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
    "ranks; or give each rank a whole Dataset, with identity= for its data."
)


def adapt(source: Any, options: Options) -> Any:
    """Adapt what `iter_batches`, `iter_torch_batches` and `iter_rows` return.

    Raises:
        UnsupportedError: there are several ranks, and it was not said whether each reads the whole data or a part.

    Warns:
        PromiseWarning: there are several ranks, so that nothing is known of the order.
    """
    ranks = options.find_world().size
    if ranks > 1 and options.shard is None:
        raise UnsupportedError(
            f"this is an iterable of Ray Data, and there are {ranks} ranks.\n"
            "It does not say whether it gives this rank all elements or the part of a shard, and samples would be lost "
            f"or read twice. Say shard=False for a shard of ray.train.get_dataset_shard(). {_INSTEAD}"
        )
    if ranks > 1:
        warnings.warn(
            f"an iterable of Ray Data on {ranks} ranks is read again from the beginning on resume, and its order is "
            "not known to be the same then: which blocks a rank gets depends on who asks first.\nAfter a resume, "
            f"samples may be lost or repeated. {_INSTEAD}",
            PromiseWarning,
            stacklevel=4,
        )
    return load_iterable()(source, dataclasses.replace(options, identity=options.identity or _NAME))


def refuse(source: Any, options: Options) -> Any:  # noqa: ARG001  # as adapters are called
    """Refuse a Dataset or a DataIterator, which are no iterables of batches yet.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"this is a {type(source).__qualname__} of Ray Data, which gives no batches by itself.\n"
        "Wrap what it gives to a loop: wrap(dataset.iter_torch_batches(batch_size=...))."
    )
