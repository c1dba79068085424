"""wrap(): finds the backend for a source and returns a Loader that reads it."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, Unpack, overload

from resumable._fetch import ElementFetcher, Fetcher, IndexedFetcher
from resumable._fetch.frameworks import inside_of
from resumable._introspection import ask, has, is_a, length_or_none, module_of, qualname_of
from resumable._options import Options, check_plain, signature_of_wrap
from resumable._randomness.passed import passing, refuse_without
from resumable._requirements import check_version
from resumable.errors import PromiseWarning, UnsupportedError
from resumable.loader.loader import Loader
from resumable.loader.registry import entries_of, load, refuse_hidden, refuse_list, refuse_prepared
from resumable.protocols import IndexedBackend, ReplayBackend
from resumable.samplers import Sequential, Shuffle
from resumable.samplers.base import check_length
from resumable.samplers.simple import check_data_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    from resumable._options import Given
    from resumable._randomness.passed import SampleRNG
    from resumable.backends.tfds.source import TfdsSource
    from resumable.protocols import Backend


__all__ = ["made_of", "make_loader", "wrap"]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
V = TypeVar("V")
Array = TypeVar("Array", bound="np.ndarray[Any, Any] | torch.Tensor")


class _MapStyle(Protocol[T_co]):
    """Samples with an index, for type checkers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


_Transform: TypeAlias = "Callable[[T], U] | Callable[[T, SampleRNG], U]"
_Collate: TypeAlias = "Callable[[list[T]], U] | Callable[[list[T], SampleRNG], U]"
_Source: TypeAlias = "Iterable[T] | _MapStyle[T] | Callable[..., Iterable[T]]"


@overload
def wrap(source: DataLoader[T], **options: Unpack[Given]) -> Loader[T]: ...
@overload
def wrap(source: TfdsSource, *, batch_size: int | None = None, **options: Unpack[Given]) -> Loader[Any]: ...
@overload
def wrap(source: Array, *, batch_size: int, **options: Unpack[Given]) -> Loader[Array]: ...  # type: ignore[overload-overlap]  # arrays to arrays
@overload
def wrap(source: _Source[T], **options: Unpack[Given]) -> Loader[T]: ...
@overload
def wrap(source: _Source[T], *, batch_size: int, **options: Unpack[Given]) -> Loader[list[T]]: ...
@overload
def wrap(source: _Source[T], *, transform: _Transform[T, U], **options: Unpack[Given]) -> Loader[U]: ...
@overload
def wrap(
    source: _Source[T], *, transform: _Transform[T, U], batch_size: int, **options: Unpack[Given]
) -> Loader[list[U]]: ...
@overload
def wrap(source: _Source[T], *, collate: _Collate[T, U], batch_size: int, **options: Unpack[Given]) -> Loader[U]: ...
@overload
def wrap(
    source: _Source[T],
    *,
    transform: _Transform[T, U],
    collate: _Collate[U, V],
    batch_size: int,
    **options: Unpack[Given],
) -> Loader[V]: ...
@overload
def wrap(
    source: Any,
    *,
    batch_size: int | None = None,
    transform: Callable[..., Any] | None = None,
    collate: Callable[..., Any] | None = None,
    **options: Unpack[Given],
) -> Loader[Any]: ...
def wrap(source: Any, **options: Any) -> Loader:
    """Make a data loader resumable.

    Args:
        source: a PyTorch `DataLoader`; a list, tuple, range, array, tensor or any object with `__getitem__` and
            `__len__`; a generator function or any iterable; an object with `state_dict`/`load_state_dict` or
            `get_state`/`set_state`; or a custom backend. It is not modified.
        batch_size: samples per rank and step. Without it, the elements of a sequence or iterable are the batches. A
            `DataLoader` sets its own.
        transform: applied to each sample or element that is delivered, and to none that is skipped.
        collate: makes a batch from a list of samples. By default, batches of an array or tensor are arrays or tensors,
            and all others are lists.
        identity: a name for the data. A state loads only if its name for the data is the same.
        seed: selects the order and the augmentations, together with the epoch. The default is the seed of the
            `DataLoader`'s `DistributedSampler` or generator, else the seed of `torch.manual_seed` (below 2**32, taken
            from rank 0), else 0. A loaded state overrides it.
        name: distinguishes this stream from others with the same seed: order and augmentations are independent of
            theirs. Loaders that are read together, one batch of each per step, need different names.
        shuffle: a different order in every epoch, for sequences. A `DataLoader` sets its own. "blocks" shuffles the
            blocks of the source's shards, and mixes their samples in windows (`samplers.Blocks`). It works for any
            source, or dataset of a `DataLoader`, with an attribute `sizes`: the number of samples in each shard.
        sampler: a custom order, for indexed sources.
        order: the order of a `DataLoader` with a PyTorch sampler: "feistel", from this package, or "torch", which is
            exactly PyTorch's order and needs a known seed. By default "feistel".
        tail: what happens to the last samples of an epoch: "drop", "partial", "pad", "carry", "pad_ranks" or
            "drop_ranks". By default "partial", or what the `DataLoader` is set to, or "drop" if the elements are the
            batches.
        randomness: how often the global RNGs are seeded: per "sample", per "batch", or "off". With "passed", none is
            seeded: a dataset gets the RNG of each sample as `__getitem__(index, rng)`, `transform` as
            `transform(sample, rng)`, and `collate` (or `collate_fn`) as `collate(samples, rng)`, if it has such a
            parameter. `rng` is a `SampleRNG`, a `numpy.random.Generator`.
        world: which ranks divide the data. A `World` sets rank and number of ranks. With a one-dimensional
            `DeviceMesh` such as `mesh["dp"]`, the ranks along it divide the data, and the ranks along the other
            dimensions read the same data, as the parts of one model do. A `ProcessGroup` of `torch.distributed` means
            its ranks. By default, all ranks divide the data. They are detected when the first batch is read or a state
            is loaded, and fixed from then on: from `torch.distributed`, else from the environment variables of
            `torchrun`, MPI launchers or `srun`. The shares of two ranks differ by at most one sample.
        shard: for sources without sample indices: True if the ranks divide one stream among them, False if the source
            divides itself.
        on_change: what stays the same if a state was saved with a different number of ranks or batch size.
            "keep_global": the samples per step over all ranks; a different `batch_size` raises. "keep_local": the
            samples per rank, so the global batch follows the number of ranks (`loader.accumulation` says how many
            micro-batches then make one of the earlier steps); a different `batch_size` raises. "continue": only the
            order of the samples; the current `batch_size` and number of ranks divide it into batches.
        ack: "auto" counts a batch as trained on when it is delivered, unless a state is taken while an exception from
            after the delivery is being handled; "manual" counts it when `Loader.ack` is called.
        evaluation: start each loop at the first batch of epoch 0, in the same order. Such a loader has no position to
            save. With several ranks it is divided like any other loader, and the log warns about it unless `world` is
            set.
        resume: for sources that support both: restore the source's own "state", or "replay" the epoch up to the
            saved position. By default the state, unless it is known to be incomplete. States work with both settings.
            "replay_run" also reads all earlier epochs again: for sources that depend on how often they were iterated.
        streams: for a `DataLoader` over an `IterableDataset`: read the dataset as this many logical streams, with any
            number of workers and ranks. The dataset sees the streams as workers (`get_worker_info()`), each epoch
            starts with fresh copies of the dataset, and a state loads with any number of workers. The streams are
            assigned to the ranks round-robin.
        checks: what is compared. "data": some samples, or the element after a resume, with the state, so different
            data, or a source that continues elsewhere, raise. "ranks": the streams of the ranks with each other, so
            a rank that differs raises `RankMismatchError` and no rank waits for it. "all" or "none".
        on_worker_death: "restart" restarts the workers of a `DataLoader` if one dies, or does not answer within the
            `timeout` of the `DataLoader`, and reads what was not delivered again. The stream stays the same. By
            default both are errors.
        stall_after: log if `next()` waits longer than this many seconds, with the batch, the worker and its stack.
        flight_recorder: a folder for one small file per rank, which says where each process is and survives SIGKILL.
            The next run logs where the previous one crashed, and how many steps are trained again;
            `resumable.flight.read` reads the files. By default, no files are written.
        **options: the options above. An unknown one raises an error that suggests the closest name.

    Returns:
        The loader, at the start of epoch 0.

    Raises:
        UnsupportedError: the source cannot be wrapped, or an option does not fit it or does not exist.
        ConfigurationError: an option has a bad value, or the source is empty.
        MissingDependencyError: a framework is not installed, or too old.
    """
    source, own = made_of(source)
    given = Options.of({**own, **options}).resolve_seed(source)
    return _loader(source, given, *_adapt(source, given))


wrap.__signature__ = signature_of_wrap()  # type: ignore[attr-defined]  # a function has it, for `inspect` and `help`


def made_of(source: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return what a source that contains a Loader was made of, a `DataLoader` and options; else the source."""
    arguments = ask(type(source), "resumable_arguments")
    return (None if arguments is None else arguments(source)) or (source, {})


def make_loader(source: Any, options: Options, *, suggested: str) -> Loader:
    """Return a Loader of a source, under a name unless its options have one; for integrations."""
    options = options.resolve_seed(source, suggested=suggested)
    return _loader(source, options, *_adapt(source, options))


def _loader(source: Any, given: Options, backend: Backend, options: Options) -> Loader:
    def again(seed: int, name: str, *, evaluation: bool = False) -> tuple[Fetcher, Options]:
        """Build fetcher and options again, with the seed and the name from a state, or for evaluation."""
        wanted = given.with_state(seed, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PromiseWarning)  # `wrap` has warned already
            backend, options = _adapt(source, wanted.for_evaluation() if evaluation else wanted)
        return _fetcher(backend, options), options

    if options.order == "torch":  # an adapter that supports it resets it
        options.refuse(f"a {qualname_of(type(source))}", order=_TORCHS)

    fetcher = _fetcher(backend, options)
    if given.sampler is not None and isinstance(backend, IndexedBackend):
        _check_sampler(given.sampler, source, backend.length)
    return Loader(fetcher, options, source, again)


def _check_sampler(sampler: Any, source: Any, length: int) -> None:
    """Reject a sampler that was made for a different number of samples; some datasets do not know theirs."""
    dataset = ask(source, "dataset")
    if dataset is None or length_or_none(dataset):
        check_data_length(sampler, length)


def _adapt(source: Any, options: Options) -> tuple[Backend, Options]:
    if is_a(source, Loader):
        raise UnsupportedError(
            "this is already a Loader.\nWrapping it twice would count its batches twice. Use it as is."
        )
    check_version("numpy")
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
        f"cannot wrap an object of type {module_of(type(source))}.{qualname_of(type(source))}.\n"
        f"It is not a source of batches.{_near(source)} Pass a PyTorch DataLoader, a sequence, a generator function or "
        "another iterable, an object with state_dict and load_state_dict, or a custom backend (resumable.register)."
    )


def _is_backend(source: Any) -> bool:
    """Return whether a source implements a backend. A mock does not, although it answers to any name."""
    reads = ask(source, "read") is not None or ask(source, "open") is not None
    return reads and is_a(source, (IndexedBackend, ReplayBackend)) and not issubclass(type(source), type)


def _near(source: Any) -> str:
    """Say what a near miss lacks."""
    if is_a(source, dict):
        return " A dict has keys, not samples with an index: wrap its values, or an object that returns one sample."
    if has(source, "__getitem__") and not has(source, "__len__"):
        return " It has __getitem__ but no __len__, so its number of samples is unknown: add __len__."
    return ""


def _fetcher(backend: Backend, options: Options) -> Fetcher:
    options = options.with_defaults()
    if options.randomness != "off" and not _has_lock():
        options.refuse_threads("the threads of a free-threaded Python", _WITH_LOCK)
    if not inside_of(backend).restarts_workers:
        what = "a source that is read without the workers of a DataLoader, or as logical streams"
        options.refuse(what, on_worker_death=_NO_WORKERS)
    check_plain("the identity of the backend", backend.identity)
    options.refuse(f"a source of the kind {backend.kind}", streams=_STREAMS)
    if options.randomness == "passed" and not inside_of(backend).passes_rng:
        options = _passed(backend, options)
    assert options.tail is not None
    assert options.randomness is not None
    if not isinstance(backend, IndexedBackend):
        options.refuse("a source without sample indices", sampler=_OWN_ORDER, shuffle=_OWN_ORDER)
        if options.tail not in {"drop", "partial"}:
            raise UnsupportedError(
                f'tail="{options.tail}" needs sample indices, which this source does not have.\n'
                'The samples to fill up the last batch could not be read. Use tail="drop" or "partial".'
            )
        return ElementFetcher(backend, options.tail, options.randomness, options)
    options.refuse("a source that is read by index", resume="It can start at any position without a state.")
    length = check_length(backend.length, "the length of the data")
    check_plain("the length of the backend", {"length": backend.length})
    order = Shuffle(length, seed=options.stream_seed) if options.shuffle else Sequential(length)
    sampler = options.resolve_sampler(backend, length).sampler or order
    check_plain("the spec() of the sampler", sampler.spec(), required={"name"})
    return IndexedFetcher(backend, sampler, options.tail, options.randomness, options)


def _passed(backend: Backend, options: Options) -> Options:
    """Return the options of a source whose elements the Loader transforms, with functions that take an RNG.

    Raises:
        UnsupportedError: the source makes its samples itself, or no function takes an RNG.
    """
    if isinstance(backend, IndexedBackend):
        options.refuse_passed(f"a backend of the kind {backend.kind}", _KEYS)
    functions = {"transform": options.transform, "collate": options.collate}
    looked_for = {"transform(element, rng)": options.transform, "collate(elements, rng)": options.collate}
    refuse_without(f"the source {backend.identity.get('source', backend.kind)}", looked_for)
    made: dict[str, Any] = {name: None if one is None else passing(one) for name, one in functions.items()}
    return replace(options, **made)


_KEYS = "Let it make a resumable.SampleRNG(key) from each of request.keys, and leave randomness out."


def _has_lock() -> bool:
    """Return whether this Python has its global lock; a free-threaded one (3.13 and later) may run without."""
    asked = getattr(sys, "_is_gil_enabled", None)
    return asked is None or bool(asked())


_WITH_LOCK = 'Start it with the environment variable PYTHON_GIL=1, or use randomness="passed" or "off".'
_NO_WORKERS = (
    "Only the worker processes of a PyTorch DataLoader can be restarted, and not with streams=. After a crash, restart "
    "the script and resume from its checkpoint."
)
_TORCHS = "It is for a map-style DataLoader with a PyTorch sampler. Remove it."
_BACKENDS_OWN = "The backend itself defines its batches and its identity."
_STREAMS = "It is for a DataLoader over an IterableDataset, which divides itself among its workers."
_OWN_ORDER = "The source has its own order. Shuffle inside it, or pass a sequence."
