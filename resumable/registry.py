"""wrap(): finds the backend for a thing, by the names of its types, without importing any framework."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Unpack, overload

from resumable._distribution import pip_install
from resumable.checks import check_plain
from resumable.errors import ConfigurationError, MissingDependencyError, UnsupportedError
from resumable.feeds import ElementFeed, Feed, IndexedFeed
from resumable.loader import Loader
from resumable.options import Options
from resumable.protocols import IndexedBackend, ReplayBackend
from resumable.samplers import Sequential, Shuffle
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    from resumable._wrap_types import Given, Source
    from resumable.backends.tfds.source import TfdsSource
    from resumable.protocols import Backend
    from resumable.randomness import Randomness
    from resumable.samplers import Sampler
    from resumable.schedule import Tail
    from resumable.world import World

__all__ = ["register", "wrap"]

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
Array = TypeVar("Array", bound="np.ndarray[Any, Any] | torch.Tensor")


class Entry(NamedTuple):
    """Where an adapter lives, and what to install for it."""

    path: str
    install: str


_FFCV = Entry("resumable.backends.ffcv:adapt", pip_install("ffcv"))
_SEQUENCE = Entry("resumable.backends.sequence:adapt", "")
_ITERABLE = Entry("resumable.backends.iterable:adapt", "")

_DALI = Entry("resumable.backends.dali.native.adapter:adapt", pip_install("dali"))

_TFDS = Entry("resumable.backends.tfds:adapt", pip_install("tfds"))
_TFDATA = Entry("resumable.backends.tfdata:adapt", pip_install("tf"))
_OF_TFDATA = _TFDATA._replace(path="resumable.backends.tfdata:refuse_iterators")

_adapters: dict[str, Entry] = {
    "torch.utils.data.dataloader.DataLoader": Entry("resumable.backends.torch:adapt", pip_install("torch")),
    "nvidia.dali.plugin.base_iterator._DaliBaseIterator": _DALI,
    "resumable.backends.dali.native.turns.InTurn": _DALI,
    "resumable.backends.dali.elastic.source.Source": Entry(
        "resumable.backends.dali.elastic.backend:adapt", pip_install("dali", "torch")
    ),
    "resumable.backends.tfds.source.TfdsSource": _TFDS,
    "tensorflow_datasets.core.data_sources.base.BaseDataSource": _TFDS,
    "tensorflow_datasets.core.dataset_builder.DatasetBuilder": _TFDS,
    "tensorflow.python.data.ops.dataset_ops.DatasetV2": _TFDATA,
    "resumable.backends.tfdata.source.Source": _TFDATA,
    "tensorflow.python.data.ops.iterator_ops.OwnedIterator": _OF_TFDATA,
    "tensorflow.python.data.ops.dataset_ops.NumpyIterator": _OF_TFDATA,
    "tensorflow.python.distribute.input_lib.DistributedDataset": _OF_TFDATA,
    "tensorflow_datasets.core.dataset_utils._IterableDataset": _OF_TFDATA,
    "ffcv.loader.loader.Loader": _FFCV,
    "resumable.backends.ffcv.source.Source": _FFCV,
    "builtins.list": _SEQUENCE,
    "builtins.tuple": _SEQUENCE,
    "builtins.range": _SEQUENCE,
    "numpy.ndarray": _SEQUENCE,
    "torch.Tensor": _SEQUENCE,
}


# Datasets of other packages that are guarded by code of ours where a DataLoader reads them.
_datasets: dict[str, Entry] = {
    "tensorflow_datasets.core.data_sources.base.BaseDataSource": _TFDS._replace(path="resumable.backends.tfds:guard"),
}


def register(type_name: str, adapter: str, *, install: str = "") -> None:
    """Make `wrap` know a type, by its name, so that its framework is imported on first use only.

    Args:
        type_name: module and qualified name of the type or one of its bases, such as `"my_package.readers.Reader"`.
        adapter: `"module:function"`; the function takes the thing and the `Options`, and returns a backend with the
            options completed, or None where the thing is none of its business.
        install: command that installs what the adapter needs; for the error message.

    A package can do the same without any call by an entry point of the group `resumable.backends` with the type's name
    as its name and the adapter as its value.
    """
    _adapters[type_name] = Entry(adapter, install)


@overload
def wrap(source: DataLoader[T], **options: Unpack[Given]) -> Loader[T]: ...
@overload
def wrap(source: TfdsSource, *, batch_size: int | None = None, **options: Unpack[Given]) -> Loader[Any]: ...
@overload
def wrap(source: Array, *, batch_size: int, **options: Unpack[Given]) -> Loader[Array]: ...  # type: ignore[overload-overlap]  # arrays give arrays
@overload
def wrap(source: Source[T], **options: Unpack[Given]) -> Loader[T]: ...
@overload
def wrap(source: Source[T], *, batch_size: int, **options: Unpack[Given]) -> Loader[list[T]]: ...
@overload
def wrap(source: Source[T], *, transform: Callable[[T], U], **options: Unpack[Given]) -> Loader[U]: ...
@overload
def wrap(
    source: Source[T], *, transform: Callable[[T], U], batch_size: int, **options: Unpack[Given]
) -> Loader[list[U]]: ...
@overload
def wrap(
    source: Source[T], *, collate: Callable[[list[T]], U], batch_size: int, **options: Unpack[Given]
) -> Loader[U]: ...
@overload
def wrap(
    source: Source[T],
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
def wrap(  # noqa: PLR0913  # the one front door; every option has a default
    source: Any,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    sampler: Sampler | None = None,
    tail: Tail | None = None,
    randomness: Randomness | None = None,
    transform: Callable[[Any], Any] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    shard: bool | None = None,
    identity: str | None = None,
    world: World | None = None,
    ack: Literal["auto", "manual"] = "auto",
    on_batch_change: Literal["error", "continue"] = "error",
    uneven: bool = False,
    snapshot_every: int | None = None,
) -> Loader:
    """Make a data loader resumable.

    Args:
        source: a PyTorch `DataLoader`; a list, tuple, range, array, tensor or any object with `__getitem__` and
            `__len__`; a generator function or any iterable; an object with `state_dict`/`load_state_dict` or
            `get_state`/`set_state`; or a backend of your own. It is not changed.
        seed: selects the order and the augmentations, together with the epoch.
        batch_size: samples per rank and step. Without it, the elements of a sequence or iterable are the batches. A
            `DataLoader` brings its own.
        shuffle: another order in every epoch, for sequences. A `DataLoader` brings its own.
        sampler: an order of your own, for indexed sources.
        tail: what happens with the last samples of an epoch: "drop", "partial", "pad" or "carry". By default
            "partial", or what the `DataLoader` says, or "drop" where the elements are the batches.
        randomness: how often the global generators are seeded: per "sample", per "batch", or "off".
        transform: applied to each sample or element that is handed over, and to none that is skipped.
        collate: makes a batch of a list of samples; by default arrays and tensors give arrays and tensors, anything
            else gives lists.
        shard: for sources without sample indices: whether the ranks divide one stream among them (True), or the source
            does so itself (False).
        identity: a name for the data, which a state must have in common with it.
        world: rank and world size; found out when the loader is first used, by default.
        ack: "auto" counts a batch as trained on once it is handed over, "manual" once `Loader.ack` says so.
        on_batch_change: what to do with a state of another global batch: refuse it, or keep the order of the samples
            and move the borders of the batches.
        uneven: let the shares of the ranks differ by one sample.
        snapshot_every: least number of steps between two snapshots of a source with a state of its own, where they are
            costly; what lies between is replayed. By default every state has its own, and with `ack="manual"` so has
            every batch, unless the backend knows that to be costly.

    Returns:
        The loader, at the beginning of epoch 0.

    Raises:
        UnsupportedError: the source cannot be wrapped, or an option does not fit it.
        ConfigurationError: an option has a bad value, or the source is empty.
        MissingDependencyError: a framework is not installed.
    """
    options = Options(
        seed=seed,
        batch_size=batch_size,
        shuffle=shuffle,
        sampler=sampler,
        tail=tail,
        randomness=randomness,
        transform=transform,
        collate=collate,
        shard=shard,
        identity=identity,
        world=world,
        ack=ack,
        on_batch_change=on_batch_change,
        uneven=uneven,
        snapshot_every=snapshot_every,
    )
    backend, options = _adapt(source, options)
    return Loader(_feed(backend, options), options)


def _adapt(source: Any, options: Options) -> tuple[Backend, Options]:
    if isinstance(source, Loader):
        raise UnsupportedError("this is a Loader already.\nWrapping it twice would count its batches twice. Use it.")
    if isinstance(source, (IndexedBackend, ReplayBackend)) and not isinstance(source, type):
        options.refuse("a backend", identity=_BACKENDS_OWN)
        if isinstance(source, IndexedBackend):
            options.refuse("an indexed backend", transform=_BACKENDS_OWN, collate=_BACKENDS_OWN, shard=_BACKENDS_OWN)
        return source, options
    _refuse_list_of_iterators(source)
    for entry in _entries(source):
        found: tuple[Backend, Options] | None = _load(entry)(source, options)
        if found is not None:
            return found
    raise UnsupportedError(
        f"cannot wrap an object of the type {type(source).__module__}.{type(source).__qualname__}.\n"
        "It is no source of batches. Give a PyTorch DataLoader, a sequence, a generator function or another iterable, "
        "an object with state_dict and load_state_dict, or a backend of your own (resumable.register)."
    )


def _entries(source: Any) -> Iterator[Entry]:
    """Yield the adapters to ask, lazily: those of other packages are looked for only where ours are not enough."""
    if isinstance(source, type):
        yield _ITERABLE
        return
    if _wants_checkpoints(source):
        yield _DALI
        return
    others: dict[str, Entry] | None = None
    for base in type(source).__mro__:
        name = f"{base.__module__}.{base.__qualname__}"
        if name in _adapters:
            yield _adapters[name]
            continue
        others = _installed() if others is None else others
        if name in others:
            yield others[name]
    if isinstance(source, (str, bytes, bytearray, dict, set, frozenset)):
        return
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        yield _SEQUENCE
    if hasattr(source, "__iter__") or hasattr(source, "__next__") or callable(source):
        yield _ITERABLE


def _refuse_list_of_iterators(source: Any) -> None:
    """Refuse a list of DALI iterators, which would be taken for a list of batches."""
    first = source[0] if isinstance(source, (list, tuple)) and source else None
    if any(_adapters.get(f"{base.__module__}.{base.__qualname__}") is _DALI for base in type(first).__mro__):
        raise UnsupportedError(
            "this is a list of DALI iterators.\nEach of them would be taken for a batch. Make one source of them, in "
            "the order that you want: wrap(resumable.backends.dali.in_turn(iterators))."
        )


def _wants_checkpoints(source: Any) -> bool:
    """Tell whether this is a function that makes a DALI iterator at checkpoints, which it has to be called with."""
    if not callable(source) or hasattr(source, "__iter__"):
        return False
    try:
        parameter = inspect.signature(source).parameters.get("checkpoints")
    except (TypeError, ValueError):  # some functions made in C do not tell
        return False
    return parameter is not None and parameter.default is parameter.empty


def _installed() -> dict[str, Entry]:
    """Find the adapters of other packages: a file of every installed package is read for it."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import, and needed here only

    return {point.name: Entry(point.value, "") for point in entry_points(group="resumable.backends")}


def find_dataset(dataset: Any) -> Any:
    """Return what reads a map-style dataset: itself, or code of ours around a dataset that needs care; for adapters."""
    for base in type(dataset).__mro__:
        entry = _datasets.get(f"{base.__module__}.{base.__qualname__}")
        if entry is not None:
            return _load(entry)(dataset)
    return dataset


def _load(entry: Entry) -> Callable[..., Any]:
    module, _, name = entry.path.partition(":")
    try:
        adapter: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        install = f"\nInstall it: {entry.install}" if entry.install else ""
        raise MissingDependencyError(
            f"the adapter {entry.path} needs {error.name}, which failed to import.{install}"
        ) from error
    return adapter


def _feed(backend: Backend, options: Options) -> Feed:
    randomness = options.randomness or "sample"
    check_plain("the identity of the backend", backend.identity)
    if not isinstance(backend, IndexedBackend):
        options.refuse("a source without sample indices", sampler=_OWN_ORDER, shuffle=_OWN_ORDER)
        tail = options.tail or ("drop" if options.batch_size is None else "partial")
        if tail in {"pad", "carry"}:
            raise UnsupportedError(
                f'tail="{tail}" needs sample indices, and this source has none.\n'
                'The samples to fill up with could not be read. Use tail="drop" or "partial".'
            )
        return ElementFeed(backend, tail, randomness, options)
    length = check_length(backend.length, "the length of the data")
    check_plain("the length of the backend", {"length": backend.length})
    if options.sampler is not None and options.shuffle is not None:
        raise ConfigurationError(
            f"sampler={options.sampler!r} and shuffle={options.shuffle} were given, but only one of them can say the "
            "order.\nLeave shuffle out."
        )
    order = Shuffle(length, seed=options.seed) if options.shuffle else Sequential(length)
    tail = options.tail or ("drop" if options.batch_size is None else "partial")
    sampler = options.sampler or order
    check_plain("the spec() of the sampler", sampler.spec(), required={"name"})
    return IndexedFeed(backend, sampler, tail, randomness, options)


_BACKENDS_OWN = "The backend itself says what its batches and its identity are."
_OWN_ORDER = "It gives its elements in an order of its own; shuffle inside of it, or give a sequence."
