"""Takes a `DataLoader` apart: which backend it needs, and with which options."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, IterDataPipe, MapDataPipe

from resumable.backends.torch.indexed import TorchBackend
from resumable.backends.torch.kept import KeptOrderBackend
from resumable.backends.torch.order import find_order, is_plain_batch_sampler, is_torchs_own
from resumable.backends.torch.stream import TorchStreamBackend
from resumable.errors import PromiseWarning, UnsupportedError
from resumable.reading import Reader
from resumable.registry import find_dataset
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from resumable.options import Options
    from resumable.protocols import Backend

__all__ = ["adapt"]


def adapt(loader: DataLoader[Any], options: Options) -> tuple[Backend, Options] | None:
    """Adapt a `DataLoader`; None where a subclass iterates in a way of its own."""
    if _iterates_its_own_way(type(loader)) and not is_torchs_own(loader):
        return None
    _check(loader, options)
    if isinstance(loader.dataset, IterableDataset):
        options.refuse(
            "a DataLoader over an IterableDataset", sampler=_OWN_ORDER, tail="Give drop_last to the DataLoader."
        )
        return TorchStreamBackend(loader, options), replace(options, randomness=options.randomness or "sample")
    return _adapt_map_style(loader, options)


_OWN_ORDER = "The dataset gives its samples in an order of its own."
_DIVIDED = (
    "The ranks get disjoint samples by their index. If the dataset of each rank has only that rank's samples, give "
    "world=World(0, 1), and each rank its own state."
)


def _iterates_its_own_way(kind: type[DataLoader[Any]]) -> bool:
    return kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator  # noqa: SLF001  # what loaders of graphs override


def _check(loader: DataLoader[Any], options: Options) -> None:
    options.refuse(
        "a DataLoader",
        batch_size="Give it to the DataLoader.",
        shuffle="Give it to the DataLoader.",
        transform="Put it into the dataset's __getitem__ or __iter__.",
        collate="Give collate_fn to the DataLoader.",
    )
    if not getattr(loader, "in_order", True):  # torch has it from 2.6 on
        raise UnsupportedError(
            "the DataLoader was made with in_order=False, so its batches come in the order in which workers finish.\n"
            "That order is another one in every run, and no state could tell it. Make it with in_order=True."
        )
    if isinstance(loader.dataset, (IterDataPipe, MapDataPipe)):
        raise UnsupportedError(
            "the DataLoader's dataset is a DataPipe, whose shuffling and sharding the DataLoader itself drives.\n"
            "They would not be driven here. Use a Dataset or an IterableDataset."
        )


def _adapt_map_style(loader: DataLoader[Any], options: Options) -> tuple[Backend, Options]:
    length = check_length(len(loader.dataset), "the length of the data")  # type: ignore[arg-type]  # map-style has one
    sampler, batch_size, drop_last = _batching(loader)
    if sampler is None:
        options.refuse(
            "a DataLoader with a batch sampler of its own",
            sampler="The batch sampler says what is in a batch; give batch_size to the DataLoader instead of it.",
        )
    order = None if sampler is None else find_order(sampler, length, options.seed)
    kept = order is None and options.sampler is None
    if not kept:
        options.refuse("a DataLoader whose samples have an order by index", shard=_DIVIDED)
    reader, options = _reader(loader, options)
    if kept:
        options.refuse("a DataLoader with a sampler of its own", tail="The sampler says what is in an epoch.")
        layers = (sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
        aware = any(isinstance(layer, DistributedSampler) for layer in layers)
        shard = False if aware and options.shard is None else options.shard
        return KeptOrderBackend(loader, reader, options), replace(options, shard=shard)
    drop_last = drop_last or (order is not None and order.drop_last)
    pads = order is not None and order.pads and not drop_last
    options = replace(
        options,
        batch_size=batch_size,
        sampler=options.sampler or (order and order.sampler),
        tail=options.tail or ("drop" if drop_last or batch_size is None else "pad" if pads else "partial"),
        world=options.world or (order and order.world),
    )
    return TorchBackend(loader, reader, options, length), options


def _batching(loader: DataLoader[Any]) -> tuple[Any, int | None, bool]:
    """Return the sampler of single indices (None: batches are the user's own), the batch size and `drop_last`."""
    batches: Any = loader.batch_sampler
    if batches is None:
        return loader.sampler, None, False
    if is_plain_batch_sampler(batches):
        return batches.sampler, batches.batch_size, batches.drop_last
    return None, None, False


def _reader(loader: DataLoader[Any], options: Options) -> tuple[Reader, Options]:
    """Make the reader that runs where the samples are read: in the workers, or in this process."""
    collates = loader.batch_sampler is not None
    dataset = find_dataset(loader.dataset)
    together = collates and options.randomness != "sample" and _reads_together(dataset)
    if together and options.randomness is None:
        warnings.warn(
            f"the dataset {type(loader.dataset).__qualname__} reads whole batches by __getitems__, so its randomness "
            "belongs to the batch: augmentations are exact after a resume, but change with the batch size and the "
            'number of ranks.\nGive wrap(..., randomness="batch") to accept it, or randomness="sample" to read the '
            "samples one by one.",
            PromiseWarning,
            stacklevel=6,
        )
    randomness = options.randomness or ("batch" if together else "sample")
    collate = loader.collate_fn
    reader = Reader(dataset, collate if collates else _First(collate), randomness, together)
    return reader, replace(options, randomness=randomness)


def _reads_together(dataset: Any) -> bool:
    """Tell whether a dataset reads batches; torch's own Subset has the method for every dataset inside of it."""
    inner = getattr(dataset, "dataset", None) if type(dataset).__module__ == "torch.utils.data.dataset" else None
    if inner is not None:
        return _reads_together(inner)
    return callable(getattr(dataset, "__getitems__", None))


class _First:
    """With `batch_size=None`, the one sample of a request is converted instead of collated."""

    def __init__(self, convert: Any) -> None:
        self._convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self._convert(samples[0])
