"""Takes a `DataLoader` apart: which backend it needs, and with which options; refuses one that would fail late."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    SequentialSampler,
)

from resumable._fetch.hugging_face import divided, draws_nothing, replayed
from resumable._fetch.own_state import own_state, state_methods
from resumable._fetch.reader import Reader
from resumable._introspection import ask, has, is_a, length_or_none, module_of, qualname_of
from resumable._naming import name_of
from resumable._order.world import World
from resumable._randomness.seeding import Seeding
from resumable.backends.torch.collate import collating
from resumable.backends.torch.custom_sampler import CustomOrderBackend
from resumable.backends.torch.logical_streams import LogicalStreamBackend
from resumable.backends.torch.map_style import TorchBackend
from resumable.backends.torch.orders import (
    Order,
    find_order,
    is_plain_batch_sampler,
    is_torchs_own,
    kind_of,
    length_by,
    torchs_order,
)
from resumable.backends.torch.stream import TorchStreamBackend
from resumable.errors import ConfigurationError, PromiseWarning, UnsupportedError
from resumable.loader.registry import find_dataset, refuse_hidden_order
from resumable.samplers.base import check_length, length_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._fetch.own_state import OwnState
    from resumable._options import Options
    from resumable._order.plan import Tail
    from resumable.protocols import Backend


__all__ = ["adapt"]


_GIVE_SAMPLER = (
    "Define __len__; or pass the DataLoader a custom sampler or batch_sampler, which says what there is: then it needs "
    "no length."
)
_OWN_ORDER = "The dataset gives its samples in an order of its own."
_DIVIDED = (
    "The ranks get disjoint samples by their index. If the dataset of each rank has only that rank's samples, give "
    "world=World(0, 1), and each rank its own state."
)


def adapt(loader: DataLoader[Any], options: Options) -> tuple[Backend, Options] | None:
    """Adapt a `DataLoader`; None where a subclass iterates in a way of its own."""
    if _iterates_its_own_way(type(loader)) and not is_torchs_own(loader):
        return None
    _refuse_misuse(loader)
    _check(loader, options)
    if is_a(loader.dataset, IterableDataset):
        options.refuse(
            "a DataLoader over an IterableDataset", sampler=_OWN_ORDER, tail="Give drop_last to the DataLoader."
        )
        options = divided(loader.dataset, options)
        if state_methods(loader.dataset) is not None:
            options = replayed(loader.dataset, qualname_of(type(loader.dataset)), options)
        options = options.with_defaults()
        backend = TorchStreamBackend if options.streams is None else LogicalStreamBackend
        # The workers replay, and know the streams.
        return backend(loader, options), replace(options, resume=None, streams=None)
    return _adapt_map_style(loader, options)


def _iterates_its_own_way(kind: type[DataLoader[Any]]) -> bool:
    return kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator  # noqa: SLF001  # what loaders of graphs override


def _refuse_misuse(loader: DataLoader[Any]) -> None:
    """Refuse a DataLoader over what has no samples by an index, such as a DataLoader, a Loader or a generator.

    Raises:
        UnsupportedError: it is one.
    """
    inner = loader.dataset
    if is_a(inner, IterableDataset) or has(inner, "__getitem__") or has(inner, "__getitems__"):
        return
    name = qualname_of(type(inner))
    way = (
        "Wrap the inner one: wrap(loader.dataset)"
        if is_a(inner, DataLoader)
        else (
            "Give the DataLoader a dataset with __getitem__ and __len__, or an IterableDataset; what can be iterated "
            "needs no DataLoader: wrap(source, batch_size=...)"
        )
    )
    raise UnsupportedError(
        f"the dataset of this DataLoader is a {name}, which has no samples by an index.\n"
        f"Its first sample could not be read. {way}."
    )


def _check(loader: DataLoader[Any], options: Options) -> None:
    shuffle = {} if options.shuffle == "blocks" else {"shuffle": "Give it to the DataLoader."}
    options.refuse(
        "a DataLoader",
        **shuffle,
        batch_size="Give it to the DataLoader.",
        transform="Put it into the dataset's __getitem__ or __iter__.",
        collate="Give collate_fn to the DataLoader.",
    )
    if not getattr(loader, "in_order", True):  # torch has it from 2.6 on
        raise UnsupportedError(
            "the DataLoader was made with in_order=False, so its batches come in the order in which workers finish.\n"
            "That order is another one in every run, and no state could tell it. Make it with in_order=True."
        )
    if is_a(loader.dataset, (IterDataPipe, MapDataPipe)):
        raise UnsupportedError(
            "the DataLoader's dataset is a DataPipe, whose shuffling and sharding the DataLoader itself drives.\n"
            "They would not be driven here. Use a Dataset or an IterableDataset."
        )


def _adapt_map_style(loader: DataLoader[Any], options: Options) -> tuple[Backend, Options]:
    options.refuse(
        "a DataLoader over a map-style dataset",
        resume="It goes to any place without reading what is before.",
        streams="Its order does not depend on the number of workers or ranks anyway.",
    )
    _refuse_other_order(loader)
    sampler, batch_size, drop_last = _batching(loader)
    length = _length(loader.dataset, sampler, options)
    options = options.resolve_sampler(loader.dataset, length or 0)
    if sampler is None:
        options.refuse(
            "a DataLoader with a batch sampler of its own",
            sampler="The batch sampler says what is in a batch; give batch_size to the DataLoader instead of it.",
        )
    order = None if sampler is None else find_order(sampler, length or 0, options.stream_seed)
    interleaved = options.order == "torch"
    if interleaved:
        order, options = torchs_order(loader, sampler, order, options), replace(options, order=None)
    kept = order is None and options.sampler is None
    own_state_of_dataset = _state_of_dataset(loader, kept=kept)
    if not kept:
        options.refuse("a DataLoader whose samples have an order by index", shard=_DIVIDED)
    reader, options = _reader(loader, options)
    if own_state_of_dataset is not None:
        reader.seeding.own.forget("dataset")  # which brings back what it draws from
    if kept:
        options.refuse("a DataLoader with a sampler of its own", tail="The sampler says what is in an epoch.")
        layers = (sampler, loader.batch_sampler, ask(loader.batch_sampler, "sampler"))
        aware = any(is_a(layer, DistributedSampler) for layer in layers)
        shard = False if aware and options.shard is None else options.shard
        return CustomOrderBackend(loader, reader, options, length), replace(options, shard=shard)
    assert length is not None
    world = options.world or (order and order.world)
    tail, made_before = _tails(order, world if isinstance(world, World) else None, batch_size, drop_last=drop_last)
    older = None if options.tail else made_before
    options = replace(
        options,
        batch_size=batch_size,
        sampler=options.sampler or (order and order.sampler),
        world=world,
    ).with_defaults(tail=tail)
    backend = TorchBackend(
        loader, reader, options, length, own_state=own_state_of_dataset, older_tail=older, interleaved=interleaved
    )
    return backend, options


def _refuse_other_order(loader: DataLoader[Any]) -> None:
    """Refuse a DataLoader that shuffles a dataset that carries its own order, such as a mixture.

    Raises:
        ConfigurationError: it does, or such a dataset is inside of its own.
    """
    refuse_hidden_order(loader.dataset, "the dataset of this DataLoader")
    if ask(type(loader.dataset), "resumable_order") is None:
        return
    sampler, plain = loader.sampler, loader.batch_sampler is None or is_plain_batch_sampler(loader.batch_sampler)
    kind = kind_of(sampler)
    divides = kind is DistributedSampler and not ask(sampler, "shuffle", True)
    if not plain or not (kind is SequentialSampler or divides):
        given = qualname_of(type(sampler if plain else loader.batch_sampler))
        raise ConfigurationError(
            f"the DataLoader has a {given}, and its dataset, a {type(loader.dataset).__qualname__}, carries its own "
            "order.\nIts proportions would be lost. Make the DataLoader without shuffle and samplers, or with "
            "DistributedSampler(..., shuffle=False): each source is shuffled already."
        )


def _batching(loader: DataLoader[Any]) -> tuple[Any, int | None, bool]:
    """Return the sampler of single indices (None: batches are the user's own), the batch size and `drop_last`."""
    batches: Any = loader.batch_sampler
    if batches is None:
        return loader.sampler, None, False
    if is_plain_batch_sampler(batches):
        return batches.sampler, batches.batch_size, batches.drop_last
    return None, None, False


def _length(dataset: Any, sampler: Any, options: Options) -> int | None:
    """Return the number of samples; None if the order is a user's own, and nothing else says what there is.

    Args:
        dataset: need not say it, as PyTorch only asks a sampler.
        sampler: of single indices; None if the batches are the user's own.
        options: may have a sampler.

    Raises:
        UnsupportedError: nothing says it.
        ConfigurationError: there are none.
    """
    known = length_or_none(dataset)
    if not known:
        known = length_by(sampler) if options.sampler is None else options.sampler.length
    if not known and (sampler is None or kind_of(sampler) is None) and options.shuffle != "blocks":
        return length_or_none(dataset)
    name = f"the dataset {name_of(dataset, None)}"
    return check_length(known or length_of(dataset, name, _GIVE_SAMPLER), "the length of the data")


def _state_of_dataset(loader: DataLoader[Any], *, kept: bool) -> OwnState | None:
    """Return how to get and set what a map-style dataset remembers, where it has a state that can be saved.

    Args:
        loader: the user's.
        kept: it keeps the order of a sampler of its user's own.

    Warns:
        PromiseWarning: it has one, and that cannot be saved.
    """
    if loader.num_workers:
        reason = "samples are read by workers, each of which has a copy of it"
        return own_state(
            loader.dataset, unless=reason, advice=", or read without workers (num_workers=0)", stacklevel=7
        )
    return own_state(
        loader.dataset, unless="the DataLoader keeps the order of a sampler of your own" if kept else None, stacklevel=7
    )


def _tails(order: Order | None, world: World | None, batch_size: int | None, *, drop_last: bool) -> tuple[Tail, Tail]:
    """Return the tail of a `DataLoader`, and the one that earlier versions made of it."""
    if order is None or order.tails is None:
        tail: Tail = "drop" if drop_last or batch_size is None else "partial"
        return tail, tail
    tails = order.tails
    if not drop_last:
        return tails.keeping, tails.older if batch_size else "drop"
    ranks = world and tails.keeping == "pad_ranks" and world.size
    if ranks and batch_size and _fills_up(order.sampler.length, ranks, batch_size):
        return "pad", "drop"
    return tails.dropping, "drop"


def _fills_up(length: int, ranks: int, batch_size: int) -> bool:
    """Return whether samples that are repeated to give each rank as many make another whole batch of the last ones."""
    return -(-length // ranks) // batch_size > length // (ranks * batch_size)


def _reader(loader: DataLoader[Any], options: Options) -> tuple[Reader, Options]:
    """Make the reader that runs where the samples are read: in the workers, or in this process."""
    collates = loader.batch_sampler is not None
    dataset = find_dataset(loader.dataset)
    recorder = None if loader.num_workers else options.recorder  # a worker writes no record
    still = collates and draws_nothing(dataset)
    one_by_one = options.randomness == "sample" and not (still and recorder is None)
    together = collates and not one_by_one and _reads_together(dataset)
    if together and options.randomness is None and not still:
        warnings.warn(
            f"the dataset {qualname_of(type(loader.dataset))} reads whole batches by __getitems__, so its randomness "
            "belongs to the batch: augmentations are exact after a resume, but change with the batch size and the "
            'number of ranks.\nGive wrap(..., randomness="batch") to accept it, or randomness="sample" to read the '
            "samples one by one.",
            PromiseWarning,
            stacklevel=6,
        )
    randomness = options.with_defaults(randomness="batch" if together else "sample").randomness
    assert randomness is not None
    collate = collating(loader.collate_fn)
    seeding = Seeding({"dataset": dataset, "collate": loader.collate_fn})
    collate = collate if collates else partial(_convert_first, collate)
    reader = Reader(dataset, collate, randomness, together, seeding, recorder)
    return reader, replace(options, randomness=randomness)


def _convert_first(convert: Callable[[Any], Any], samples: list[Any]) -> Any:
    """Stand for a collate function with `batch_size=None`: the one sample of a request is converted."""
    return convert(samples[0])


def _reads_together(dataset: Any) -> bool:
    """Return whether a dataset reads batches; torch's own Subset has the method for every dataset inside of it.

    One that can be told what it will be asked for reads its samples one by one, each with a randomness of its own.
    """
    inner = ask(dataset, "dataset") if module_of(type(dataset)) == "torch.utils.data.dataset" else None
    if inner is not None:
        return _reads_together(inner)
    return callable(ask(dataset, "__getitems__")) and ask(type(dataset), "resumable_prefetch") is None
