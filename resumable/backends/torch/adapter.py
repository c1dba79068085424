"""Adapts a `DataLoader`: picks the backend and its options, and rejects loaders that would fail later."""

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
from resumable._randomness.passed import passing_on, refuse_without, takes_rng
from resumable._randomness.seeding import Seeding
from resumable._torch_private import iterates_its_own_way
from resumable._warn import warn
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
from resumable.loader.registry import find_dataset, refuse_hidden_epochs, refuse_hidden_order
from resumable.samplers.base import check_length, length_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._fetch.own_state import OwnState
    from resumable._options import Options
    from resumable._order.plan import Tail
    from resumable._randomness.passed import SampleRNG
    from resumable.protocols import Backend


__all__ = ["adapt"]


_GIVE_SAMPLER = (
    "Define __len__, or pass the DataLoader a custom sampler or batch_sampler: it determines the epoch, so no length "
    "is needed."
)
_ITS_OWN_WAY = (
    "{0} is a DataLoader with its own __iter__, so it is wrapped like any iterable: a resume reads the epoch again "
    "from its start, and seeds are per batch, not per sample.\nTo resume at any batch without reading, wrap a plain "
    "DataLoader with the same arguments, and move what {0} adds into collate_fn or your loop. If it reads ahead in a "
    'thread, start the thread over the Loader, with wrap(..., ack="manual"). To accept this, pass '
    'wrap(..., resume="replay").'
)
_WITHOUT_LOADER = (
    "Use a map-style dataset with __getitem__(index, rng). Or wrap the IterableDataset without the DataLoader, and "
    "move the random part into transform: wrap(dataset, transform=..., batch_size=...)."
)
_OWN_ORDER = "An IterableDataset determines its own order: shuffle in its __iter__ instead."
_DIVIDED = (
    "Samples are divided among the ranks by index. If each rank's dataset holds only that rank's samples, pass "
    "world=World(0, 1) and save one state per rank."
)


def adapt(loader: DataLoader[Any], options: Options) -> tuple[Backend, Options] | None:
    """Adapt a `DataLoader`. Returns None if a subclass overrides the iteration."""
    if iterates_its_own_way(type(loader)) and not is_torchs_own(loader):
        if state_methods(loader) is None and options.resume is None and not options.evaluation:
            warn(_ITS_OWN_WAY.format(qualname_of(type(loader))), PromiseWarning)
        return None
    _refuse_misuse(loader)
    _check(loader, options)
    if is_a(loader.dataset, IterableDataset):
        options.refuse(
            "a DataLoader over an IterableDataset", sampler=_OWN_ORDER, tail="Pass drop_last to the DataLoader."
        )
        options.refuse_passed("a DataLoader over an IterableDataset", _WITHOUT_LOADER)
        options = divided(loader.dataset, options)
        if state_methods(loader.dataset) is not None:
            options = replayed(loader.dataset, qualname_of(type(loader.dataset)), options)
        options = options.with_defaults()
        backend = TorchStreamBackend if options.streams is None else LogicalStreamBackend
        # The workers handle streams, and the replay of an epoch.
        resume = options.resume if options.resume == "replay_run" and options.streams is None else None
        return backend(loader, options), replace(options, resume=resume, streams=None)
    return _adapt_map_style(loader, options)


def _refuse_misuse(loader: DataLoader[Any]) -> None:
    """Reject a DataLoader whose dataset cannot be indexed, such as a DataLoader, a Loader or a generator.

    Raises:
        UnsupportedError: the dataset cannot be indexed.
    """
    inner = loader.dataset
    if is_a(inner, IterableDataset) or has(inner, "__getitem__") or has(inner, "__getitems__"):
        return
    name = qualname_of(type(inner))
    way = (
        "Wrap the inner loader: wrap(loader.dataset)"
        if is_a(inner, DataLoader)
        else (
            "Pass the DataLoader a dataset with __getitem__ and __len__, or an IterableDataset. Other iterables need "
            "no DataLoader: wrap(source, batch_size=...)"
        )
    )
    raise UnsupportedError(
        f"the dataset of this DataLoader is a {name}, which cannot be indexed.\n"
        f"Its first sample could not be read. {way}."
    )


def _check(loader: DataLoader[Any], options: Options) -> None:
    shuffle = {} if options.shuffle == "blocks" else {"shuffle": "Pass it to the DataLoader."}
    options.refuse(
        "a DataLoader",
        **shuffle,
        batch_size="Pass it to the DataLoader.",
        transform="Apply it in the dataset's __getitem__ or __iter__.",
        collate="Pass collate_fn to the DataLoader.",
    )
    if not getattr(loader, "in_order", True):  # added in PyTorch 2.6
        raise UnsupportedError(
            "the DataLoader has in_order=False, so batches arrive in whatever order the workers finish.\n"
            "That order differs on every run, and no state can reproduce it. Use in_order=True."
        )
    method = getattr(loader, "worker_method", None)  # not in PyTorch 2.13 and earlier
    if loader.num_workers and method not in {None, "multiprocessing"}:
        options.refuse_threads(
            f"the workers of a DataLoader with worker_method={method!r}",
            'Use worker_method="multiprocessing", or randomness="passed".',
        )
    if is_a(loader.dataset, (IterDataPipe, MapDataPipe)):
        raise UnsupportedError(
            "the DataLoader's dataset is a DataPipe, which relies on the DataLoader for shuffling and sharding.\n"
            "resumable does neither for DataPipes. Use a Dataset or an IterableDataset."
        )


def _adapt_map_style(loader: DataLoader[Any], options: Options) -> tuple[Backend, Options]:
    options.refuse(
        "a DataLoader over a map-style dataset",
        resume="A map-style dataset resumes at any position without reading the samples before it.",
        streams="The order of a map-style dataset never depends on the number of workers or ranks.",
    )
    _refuse_other_order(loader)
    refuse_hidden_epochs(loader.dataset, "the dataset of this DataLoader", evaluation=bool(options.evaluation))
    sampler, batch_size, drop_last = _batching(loader)
    length = _length(loader.dataset, sampler, options)
    options = options.resolve_sampler(loader.dataset, length or 0)
    if sampler is None:
        options.refuse(
            "a DataLoader with a custom batch sampler",
            sampler="The batch sampler determines the batches: pass batch_size to the DataLoader instead.",
        )
    order = None if sampler is None else find_order(sampler, length or 0, options.stream_seed)
    interleaved = options.order == "torch"
    if interleaved:
        order, options = torchs_order(loader, sampler, order, options), replace(options, order=None)
    kept = order is None and options.sampler is None
    own_state_of_dataset = _state_of_dataset(loader, kept=kept)
    if not kept:
        options.refuse("a DataLoader over a map-style dataset without a custom sampler", shard=_DIVIDED)
    reader, options = _reader(loader, options)
    if own_state_of_dataset is not None:
        reader.seeding.own.forget("dataset")  # its own state restores its RNGs
    if kept:
        options.refuse("a DataLoader with a custom sampler", tail="The sampler determines the length of an epoch.")
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
    """Reject shuffling of a dataset that carries its own order, such as a mixture.

    Raises:
        ConfigurationError: the DataLoader shuffles it, or such a dataset is nested inside its dataset.
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
            f"the DataLoader uses a {given}, but its dataset, a {type(loader.dataset).__qualname__}, carries its own "
            "order.\nIts proportions would be lost. Create the DataLoader without shuffle and samplers, or with "
            "DistributedSampler(..., shuffle=False): each source is already shuffled."
        )


def _batching(loader: DataLoader[Any]) -> tuple[Any, int | None, bool]:
    """Return the sampler of single indices (None for custom batches), the batch size and `drop_last`."""
    batches: Any = loader.batch_sampler
    if batches is None:
        return loader.sampler, None, False
    if is_plain_batch_sampler(batches):
        return batches.sampler, batches.batch_size, batches.drop_last
    return None, None, False


def _length(dataset: Any, sampler: Any, options: Options) -> int | None:
    """Return the number of samples; None if the order is custom and the number is unknown.

    Args:
        dataset: may lack `__len__`, as PyTorch only asks the sampler.
        sampler: yields single indices; None for custom batches.
        options: may contain a sampler.

    Raises:
        UnsupportedError: the number is unknown but needed.
        ConfigurationError: the dataset is empty.
    """
    known = length_or_none(dataset)
    if not known:
        known = length_by(sampler) if options.sampler is None else options.sampler.length
    if not known and (sampler is None or kind_of(sampler) is None) and options.shuffle != "blocks":
        return length_or_none(dataset)
    name = f"the dataset {name_of(dataset, None)}"
    return check_length(known or length_of(dataset, name, _GIVE_SAMPLER), "the length of the data")


def _state_of_dataset(loader: DataLoader[Any], *, kept: bool) -> OwnState | None:
    """Return functions that get and set the state of a map-style dataset, if it has one that can be saved.

    Args:
        loader: the user's.
        kept: whether a custom sampler determines the order.

    Warns:
        PromiseWarning: the dataset has a state that cannot be saved.
    """
    if loader.num_workers:
        reason = "the workers read the samples, and each worker has its own copy of the dataset"
        return own_state(
            loader.dataset, unless=reason, advice=", or read without workers (num_workers=0)", stacklevel=7
        )
    return own_state(loader.dataset, unless="the DataLoader uses a custom sampler" if kept else None, stacklevel=7)


def _tails(order: Order | None, world: World | None, batch_size: int | None, *, drop_last: bool) -> tuple[Tail, Tail]:
    """Return the tail of a `DataLoader`, and the tail that earlier versions used for it."""
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
    """Return whether the samples that pad the ranks to equal length complete one more batch."""
    return -(-length // ranks) // batch_size > length // (ranks * batch_size)


def _reader(loader: DataLoader[Any], options: Options) -> tuple[Reader, Options]:
    """Make the reader, which runs in the workers or in this process."""
    collates = loader.batch_sampler is not None
    dataset = find_dataset(loader.dataset)
    passes = None
    if options.randomness == "passed":
        passes = passing_on(dataset)
        functions = {"__getitem__(index, rng) of its dataset": passes, "collate_fn(samples, rng)": loader.collate_fn}
        refuse_without(f"the DataLoader over the dataset {qualname_of(type(loader.dataset))}", functions)
    recorder = None if loader.num_workers else options.recorder  # workers do not record
    still = collates and draws_nothing(dataset)
    one_by_one = passes is not None or (options.randomness == "sample" and not (still and recorder is None))
    together = collates and not one_by_one and _reads_together(dataset)
    if together and options.randomness is None and not still:
        warnings.warn(
            f"the dataset {qualname_of(type(loader.dataset))} reads whole batches with __getitems__, so its randomness "
            "is per batch: augmentations resume exactly, but change with the batch size and the number of ranks.\n"
            'Pass wrap(..., randomness="batch") to accept this, or randomness="sample" to read each sample separately.',
            PromiseWarning,
            stacklevel=6,
        )
    randomness = options.with_defaults(randomness="batch" if together else "sample").randomness
    assert randomness is not None
    collate: Callable[..., Any] = collating(loader.collate_fn)
    seeding = Seeding({"dataset": dataset, "collate": loader.collate_fn})
    mixes = randomness == "passed" and takes_rng(collate)
    collate = collate if collates else partial(_convert_first, collate)
    reader = Reader(dataset, collate, randomness, together, seeding, recorder, passes, mixes)
    return reader, replace(options, randomness=randomness)


def _convert_first(convert: Callable[..., Any], samples: list[Any], *rng: SampleRNG) -> Any:
    """Convert the single sample of a request: the collate function for `batch_size=None`."""
    return convert(samples[0], *rng)


def _reads_together(dataset: Any) -> bool:
    """Return whether a dataset reads whole batches. PyTorch's `Subset` has the method whatever it contains.

    A dataset with `resumable_prefetch` reads each sample separately, with its own random numbers.
    """
    inner = ask(dataset, "dataset") if module_of(type(dataset)) == "torch.utils.data.dataset" else None
    if inner is not None:
        return _reads_together(inner)
    return callable(ask(dataset, "__getitems__")) and ask(type(dataset), "resumable_prefetch") is None
