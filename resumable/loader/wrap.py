"""wrap(): the front door. It finds the backend of a thing, and puts a Loader before it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, Unpack, overload

from resumable._fetch import ElementFetcher, Fetcher, IndexedFetcher
from resumable._fetch.frameworks import inside_of
from resumable._introspection import ask, has, is_a, module_of, qualname_of
from resumable._options import Options, check_plain, signature_of_wrap
from resumable.errors import PromiseWarning, UnsupportedError
from resumable.loader.loader import Loader
from resumable.loader.registry import entries_of, load, refuse_hidden, refuse_list, refuse_prepared
from resumable.protocols import IndexedBackend, ReplayBackend
from resumable.samplers import Sequential, Shuffle
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    from resumable._options import Given
    from resumable.backends.tfds.source import TfdsSource
    from resumable.protocols import Backend


__all__ = ["make_loader", "wrap"]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
V = TypeVar("V")
Array = TypeVar("Array", bound="np.ndarray[Any, Any] | torch.Tensor")


class _MapStyle(Protocol[T_co]):
    """Samples by their index, as type checkers see them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


_Source: TypeAlias = "Iterable[T] | _MapStyle[T] | Callable[..., Iterable[T]]"


@overload
def wrap(source: DataLoader[T], **options: Unpack[Given]) -> Loader[T]: ...
@overload
def wrap(source: TfdsSource, *, batch_size: int | None = None, **options: Unpack[Given]) -> Loader[Any]: ...
@overload
def wrap(source: Array, *, batch_size: int, **options: Unpack[Given]) -> Loader[Array]: ...  # type: ignore[overload-overlap]  # arrays give arrays
@overload
def wrap(source: _Source[T], **options: Unpack[Given]) -> Loader[T]: ...
@overload
def wrap(source: _Source[T], *, batch_size: int, **options: Unpack[Given]) -> Loader[list[T]]: ...
@overload
def wrap(source: _Source[T], *, transform: Callable[[T], U], **options: Unpack[Given]) -> Loader[U]: ...
@overload
def wrap(
    source: _Source[T], *, transform: Callable[[T], U], batch_size: int, **options: Unpack[Given]
) -> Loader[list[U]]: ...
@overload
def wrap(
    source: _Source[T], *, collate: Callable[[list[T]], U], batch_size: int, **options: Unpack[Given]
) -> Loader[U]: ...
@overload
def wrap(
    source: _Source[T],
    *,
    transform: Callable[[T], U],
    collate: Callable[[list[U]], V],
    batch_size: int,
    **options: Unpack[Given],
) -> Loader[V]: ...
@overload
def wrap(
    source: Any,
    *,
    batch_size: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    **options: Unpack[Given],
) -> Loader[Any]: ...
def wrap(source: Any, **options: Any) -> Loader:
    """Make a data loader resumable.

    Args:
        source: a PyTorch `DataLoader`; a list, tuple, range, array, tensor or any object with `__getitem__` and
            `__len__`; a generator function or any iterable; an object with `state_dict`/`load_state_dict` or
            `get_state`/`set_state`; or a backend of your own. It is not changed.
        batch_size: samples per rank and step. Without it, the elements of a sequence or iterable are the batches. A
            `DataLoader` brings its own.
        transform: applied to each sample or element that is delivered, and to none that is skipped.
        collate: makes a batch of a list of samples; by default arrays and tensors give arrays and tensors, anything
            else gives lists.
        identity: a name for the data, which a state must have in common with it.
        seed: selects the order and the augmentations, together with the epoch. By default that of the `DataLoader`'s
            `DistributedSampler` or generator; else that of `torch.manual_seed`, below 2**32 and of rank 0; else 0. A
            loaded state brings its own.
        name: sets this stream apart from others of the same seed: order and augmentations are independent of theirs.
            Loaders whose batches meet in a step need names of their own.
        shuffle: another order in every epoch, for sequences. A `DataLoader` brings its own. "blocks": the blocks of the
            source's shards in another order, and their samples mixed in windows (`samplers.Blocks`), for any source,
            or dataset of a `DataLoader`, with an attribute `sizes`: the number of samples of each shard.
        sampler: an order of your own, for indexed sources.
        order: whose order a `DataLoader` with a sampler of torch gets: "feistel", that of this package, or "torch", the
            very samples in the very order that torch gives, if a seed says it. By default "feistel".
        tail: what happens with the last samples of an epoch: "drop", "partial", "pad", "carry", "pad_ranks" or
            "drop_ranks". By default "partial", or what the `DataLoader` says, or "drop" if the elements are the
            batches.
        randomness: how often the global generators are seeded: per "sample", per "batch", or "off".
        world: which ranks divide the data. A `World` says rank and number of ranks. A `DeviceMesh` of one dimension, as
            `mesh["dp"]`: the ranks along it divide the data, and those along the others read the same, as parts of one
            model do. A `ProcessGroup` of `torch.distributed`: its ranks. By default all ranks do, which are found out
            when the first batch is read or a state is loaded, and stay: from `torch.distributed`, else from the
            variables of `torchrun`, MPI's launchers or `srun`. The shares of the ranks may differ by one sample.
        shard: for sources without sample indices: whether the ranks divide one stream among them (True), or the source
            does so itself (False).
        on_change: what stays if a state is of another number of ranks or another batch size. "keep_global": the samples
            of a step over all ranks; another `batch_size` raises. "keep_local": the samples of each rank, so the global
            batch follows the number of ranks (`loader.accumulation` tells how many micro-batches then make a step of
            before); another `batch_size` raises. "continue": the order of the samples alone; it is cut into
            batches as `batch_size` and the number of ranks say now.
        ack: "auto" counts a batch as trained on once the next one is asked for, or a state is taken outside of an
            exception; "manual" once `Loader.ack` says so.
        evaluation: begin each loop at the first batch of epoch 0, in the same order. Such a loader has no place that
            could be saved. On several ranks it is divided as any other, which the log warns of unless `world` is given.
        resume: for sources that could do both: go on by the source's own "state", or "replay" the epoch up to the
            place. By default by the state, unless that is known to lose something. States fit either way.
        streams: for a `DataLoader` over an `IterableDataset`: read the dataset as so many logical streams, whatever the
            number of workers and ranks. The dataset sees them as workers (`get_worker_info()`), each epoch begins with
            fresh copies of it, and a state fits any number of workers. The ranks get the streams in turn.
        checks: what is compared: "data", some samples, or the element after a resume, with those that the state knows,
            so that other data and a source that continues elsewhere raise; "ranks", the streams of the ranks with each
            other, so that one that differs raises `RankMismatchError` and no rank waits for another; "all" or "none".
        on_worker_death: "restart" starts the workers of a `DataLoader` again if one dies, and reads again what was not
            delivered; likewise if one gives no answer for longer than the `timeout` of the `DataLoader`. The stream
            stays the same. By default that is an error.
        stall_after: log if `next()` waits for longer than so many seconds, with the batch, the worker and its stack.
        flight_recorder: a folder for one small file per rank. It says where each process is, and is still there
            after SIGKILL. The next start logs where the one before crashed, and how many steps are trained again;
            `resumable.flight.read` reads the files. Without it, none are written.
        **options: those above; another one raises, with the name of the one that was meant.

    Returns:
        The loader, at the beginning of epoch 0.

    Raises:
        UnsupportedError: the source cannot be wrapped, or an option does not fit it, or there is no such option.
        ConfigurationError: an option has a bad value, or the source is empty.
        MissingDependencyError: a framework is not installed.
    """
    given = Options.of(options).resolve_seed(source)
    return _loader(source, given, *_adapt(source, given))


wrap.__signature__ = signature_of_wrap()  # type: ignore[attr-defined]  # a function has it, for `inspect` and `help`


def make_loader(source: Any, options: Options, *, suggested: str) -> Loader:
    """Return a Loader of a source, under a name unless its options have one; for integrations."""
    options = options.resolve_seed(source, suggested=suggested)
    return _loader(source, options, *_adapt(source, options))


def _loader(source: Any, given: Options, backend: Backend, options: Options) -> Loader:
    def again(seed: int, name: str, *, evaluation: bool = False) -> tuple[Fetcher, Options]:
        """Return what `wrap` makes of the source with the seed and the name of a state, or for evaluation."""
        wanted = given.with_state(seed, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PromiseWarning)  # they were given
            backend, options = _adapt(source, wanted.for_evaluation() if evaluation else wanted)
        return _fetcher(backend, options), options

    if options.order == "torch":  # an adapter that gives it takes it out
        options.refuse(f"a {qualname_of(type(source))}", order=_TORCHS)

    return Loader(_fetcher(backend, options), options, source, again)


def _adapt(source: Any, options: Options) -> tuple[Backend, Options]:
    if is_a(source, Loader):
        raise UnsupportedError("this is a Loader already.\nWrapping it twice would count its batches twice. Use it.")
    refuse_prepared(source)
    if _is_backend(source):
        options.refuse("a backend", identity=_BACKENDS_OWN)
        if isinstance(source, IndexedBackend):
            options.refuse("an indexed backend", transform=_BACKENDS_OWN, collate=_BACKENDS_OWN, shard=_BACKENDS_OWN)
        return source, options
    refuse_list(source)
    for entry in entries_of(source):
        refuse_hidden(source, entry)
        found: tuple[Backend, Options] | None = load(entry)(source, options)
        if found is not None:
            return found
    raise UnsupportedError(
        f"cannot wrap an object of the type {module_of(type(source))}.{qualname_of(type(source))}.\n"
        f"It is no source of batches.{_near(source)} Give a PyTorch DataLoader, a sequence, a generator function or "
        "another iterable, an object with state_dict and load_state_dict, or a backend of your own "
        "(resumable.register)."
    )


def _is_backend(source: Any) -> bool:
    """Return whether a source says what a backend does; not what a mock says, which answers to any name."""
    reads = ask(source, "read") is not None or ask(source, "open") is not None
    return reads and is_a(source, (IndexedBackend, ReplayBackend)) and not issubclass(type(source), type)


def _near(source: Any) -> str:
    """Say what is missing to one that looks like a source."""
    if is_a(source, dict):
        return " A dict has names and no samples by an index: wrap what gives a sample of it, or its values."
    if has(source, "__getitem__") and not has(source, "__len__"):
        return " It has __getitem__ and no __len__, so which samples there are is not known: give it one."
    return ""


def _fetcher(backend: Backend, options: Options) -> Fetcher:
    options = options.with_defaults()
    assert options.tail is not None
    assert options.randomness is not None
    if not inside_of(backend).restarts_workers:
        what = "a source that is read without the workers of a DataLoader, or as logical streams"
        options.refuse(what, on_worker_death=_NO_WORKERS)
    check_plain("the identity of the backend", backend.identity)
    options.refuse(f"a source of the kind {backend.kind}", streams=_STREAMS)
    if not isinstance(backend, IndexedBackend):
        options.refuse("a source without sample indices", sampler=_OWN_ORDER, shuffle=_OWN_ORDER)
        if options.tail not in {"drop", "partial"}:
            raise UnsupportedError(
                f'tail="{options.tail}" needs sample indices, and this source has none.\n'
                'The samples to fill up with could not be read. Use tail="drop" or "partial".'
            )
        return ElementFetcher(backend, options.tail, options.randomness, options)
    options.refuse("a source that is read by index", resume="It goes to any place by itself.")
    length = check_length(backend.length, "the length of the data")
    check_plain("the length of the backend", {"length": backend.length})
    order = Shuffle(length, seed=options.stream_seed) if options.shuffle else Sequential(length)
    sampler = options.resolve_sampler(backend, length).sampler or order
    check_plain("the spec() of the sampler", sampler.spec(), required={"name"})
    return IndexedFetcher(backend, sampler, options.tail, options.randomness, options)


_NO_WORKERS = (
    "Only the worker processes of a PyTorch DataLoader can be started again, and not with streams=. Start the script "
    "again after a crash, and go on from its checkpoint."
)
_TORCHS = "It is for a map-style DataLoader with a sampler of torch. Leave it out."
_BACKENDS_OWN = "The backend itself says what its batches and its identity are."
_STREAMS = "It is for a DataLoader over an IterableDataset, which divides itself over its workers."
_OWN_ORDER = "It gives its elements in an order of its own; shuffle inside of it, or give a sequence."
