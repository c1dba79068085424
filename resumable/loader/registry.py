"""The table of adapters: which one knows a type, found by the type's name, so that no framework is imported for it.

A row says where the adapter lives, what to install for it, and what to tell who gives several such things in a list, or
a function that returns one.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._distribution import pip_install
from resumable._introspection import (
    ask,
    attributes_of,
    has,
    is_a,
    is_exactly,
    module_of,
    mro_of,
    qualname_of,
    signature_of,
)
from resumable.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = [
    "Entry",
    "entries_of",
    "find_dataset",
    "load",
    "load_iterable",
    "refuse_hidden",
    "refuse_hidden_order",
    "refuse_list",
    "refuse_prepared",
    "refuse_returned",
    "register",
]


_DEEPEST = 8  # datasets inside of datasets


class Entry(NamedTuple):
    """Where an adapter lives, what to install for it, and where its things do not belong."""

    path: str
    install: str
    in_a_list: tuple[str, str] = ("", "")  # what several of them are called, and how to make one source of them
    returned: tuple[str, str] = ("", "")  # what one is called that a function returns, and what to do with the function


_FFCV = Entry("resumable.backends.ffcv:adapt", pip_install("ffcv"))
_TORCH = Entry("resumable.backends.torch:adapt", pip_install("torch"))
_SEQUENCE = Entry("resumable.backends.sequence:adapt", "")
_ITERABLE = Entry("resumable.backends.iterable:adapt", "")

_DALI = Entry(
    "resumable.backends.dali.iterators:adapt",
    pip_install("dali"),
    in_a_list=(
        "DALI iterators",
        "Make one source of them, in the order that you want: wrap(resumable.backends.dali.in_turn(iterators)).",
    ),
)

_TFDS = Entry("resumable.backends.tfds:adapt", pip_install("tfds"))
_TFDATA = Entry(
    "resumable.backends.tfdata:adapt",
    pip_install("tf"),
    returned=(
        "a tf.data.Dataset, which would be read again on resume, without a look at what is random in it",
        "Give the function by resumable.backends.tfdata: wrap(tfdata.source(function)).",
    ),
)
_OF_TFDATA = _TFDATA._replace(path="resumable.backends.tfdata:refuse_iterators")

_RAY = Entry("resumable.backends.ray:adapt", "pip install 'ray[data]'")
_OF_RAY = _RAY._replace(path="resumable.backends.ray:refuse")

_adapters: dict[str, Entry] = {
    "torch.utils.data.dataloader.DataLoader": _TORCH,
    "nvidia.dali.plugin.base_iterator._DaliBaseIterator": _DALI,
    "resumable.backends.dali.turns.InTurn": _DALI,
    "resumable.backends.dali.source.Source": Entry(
        "resumable.backends.dali.by_index:adapt", pip_install("dali", "torch")
    ),
    "resumable.backends.tfds.source.TfdsSource": _TFDS,
    "tensorflow_datasets.core.data_sources.base.BaseDataSource": _TFDS,
    "tensorflow_datasets.core.dataset_builder.DatasetBuilder": _TFDS,
    "tensorflow.python.data.ops.dataset_ops.DatasetV2": _TFDATA,
    "resumable.backends.tfdata.adapter.Source": _TFDATA,
    "tensorflow.python.data.ops.iterator_ops.OwnedIterator": _OF_TFDATA,
    "tensorflow.python.data.ops.dataset_ops.NumpyIterator": _OF_TFDATA,
    "tensorflow.python.distribute.input_lib.DistributedDataset": _OF_TFDATA,
    "tensorflow_datasets.core.dataset_utils._IterableDataset": _OF_TFDATA,
    "ffcv.loader.loader.Loader": _FFCV,
    "resumable.backends.ffcv.identity.Source": _FFCV,
    "ray.data.iterator._IterableFromIterator": _RAY,
    "ray.data.iterator.DataIterator": _OF_RAY,
    "ray.data.dataset.Dataset": _OF_RAY,
    "builtins.list": _SEQUENCE,
    "builtins.tuple": _SEQUENCE,
    "builtins.range": _SEQUENCE,
    "numpy.ndarray": _SEQUENCE,
    "torch.Tensor": _SEQUENCE,
}


# Datasets of other packages that are guarded by code of ours where a DataLoader reads them.
_datasets: dict[str, Entry] = {
    "tensorflow_datasets.core.data_sources.base.BaseDataSource": _TFDS._replace(
        path="resumable.backends.tfds:GuardedSource"
    ),
}

# What has a place of its own and may be inside of a plain source, by the module that is loaded where it is in use.
_hidden: dict[str, Entry] = {
    "nvidia.dali.plugin.base_iterator": _DALI._replace(path="resumable.backends.dali.hidden:refuse_hidden"),
}
_PLAIN = (_SEQUENCE, _ITERABLE, _TORCH)

# Functions that an adapter calls itself, by a parameter that they have to be called with.
_parameters: dict[str, Entry] = {"checkpoints": _DALI}


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


def entries_of(source: Any) -> Iterator[Entry]:
    """Yield the adapters to ask, lazily: those of other packages are looked for only where ours are not enough."""
    if issubclass(type(source), type):
        if not has(source, "__iter__"):
            raise UnsupportedError(
                f"this is the class {source.__qualname__} and no object of it, and its objects have no __iter__.\n"
                f"There would be no batches. Make one, and wrap that: wrap({source.__qualname__}(...))."
            )
        yield _ITERABLE
        return
    if (entry := _by_parameter(source)) is not None:
        yield entry
        return
    yield from _by_name(source)
    if is_a(source, (str, bytes, bytearray, dict, set, frozenset)):
        return
    if has(source, "__getitem__") and has(source, "__len__"):
        yield _SEQUENCE
    if has(source, "__iter__") or has(source, "__next__") or callable(source):
        yield _ITERABLE


def refuse_hidden(source: Any, entry: Entry) -> None:
    """Refuse a plain source that reads, inside of it, what only an adapter of its own could resume.

    Raises:
        UnsupportedError: it does, as far as its attributes and closures show.
    """
    for module, inner in _hidden.items():
        if entry in _PLAIN and module in sys.modules:
            load(inner)(source)


def refuse_hidden_order(source: Any, what: str) -> None:
    """Refuse a dataset with one inside of it that carries its own order, as a `Subset` of a mixture.

    Args:
        source: it; one that carries an order itself is let through.
        what: what it is, for the message.

    Raises:
        UnsupportedError: it is one.
    """
    if (inner := _ordered_inside(source, 0)) is not None:
        mixture, around = qualname_of(type(inner)), qualname_of(type(source))
        raise UnsupportedError(
            f"{what} is a {around} around a {mixture}, which carries its own order.\n"
            "It would be read by index, in another order, and its proportions would be lost. Put the "
            f"{around} around the sources, and mix those."
        )


def _ordered_inside(source: Any, deep: int) -> Any:
    """Return what carries an order among the datasets inside of one, as torch's own name them."""
    if ask(type(source), "resumable_order") is not None:
        return source if deep else None
    kept = attributes_of(source)
    several = kept.get("datasets", ())
    inside = several.values() if type(several) is dict else several if is_exactly(several, (list, tuple)) else ()
    inside = [*inside, *([kept["dataset"]] if "dataset" in kept else [])] if deep < _DEEPEST else []
    return next((found for one in inside if (found := _ordered_inside(one, deep + 1)) is not None), None)


def refuse_list(source: Any) -> None:
    """Refuse a list of sources, which would be taken for a list of batches.

    Raises:
        UnsupportedError: it is one, by its first element.
    """
    base: Any = next((base for base in (list, tuple) if issubclass(type(source), base)), None)
    first = base.__getitem__(source, 0) if base is not None and base.__len__(source) else None
    what, instead = next((_adapters[name].in_a_list for name in _names(first) if name in _adapters), ("", ""))
    if what:
        raise UnsupportedError(f"this is a list of {what}.\nEach of them would be taken for a batch. {instead}")


def refuse_prepared(source: Any) -> None:
    """Refuse a DataLoader that Accelerate has prepared, and a Loader that an integration has.

    Raises:
        UnsupportedError: it is one, by the module of its class or of a base of that.
    """
    kind = type(source)
    if module_of(kind).startswith("resumable.integrations."):
        raise UnsupportedError(
            f"this is a {kind.__qualname__}, a Loader that was prepared for a loop already.\n"
            "Wrapping it would count its batches twice. Use it as it is."
        )
    if any(module_of(base) == "accelerate.data_loader" for base in mro_of(kind)):
        raise UnsupportedError(
            f"this is a {kind.__qualname__}, a DataLoader that Accelerate has prepared.\n"
            "It divides the batches among the ranks and fetches ahead by itself, which no state would tell. Wrap the "
            "DataLoader before, and prepare that: resumable.integrations.accelerate.prepare(accelerator, "
            "resumable.wrap(loader))."
        )


def refuse_returned(name: str, produced: Any) -> None:
    """Refuse what a function returns, where an adapter needs the function itself.

    Args:
        name: of the function, for the message.
        produced: what it returned.

    Raises:
        UnsupportedError: there is such an adapter.
    """
    what, instead = next((_adapters[one].returned for one in _names(produced) if one in _adapters), ("", ""))
    if what:
        raise UnsupportedError(f"{name} returned {what}.\n{instead}")


def _names(thing: Any) -> list[str]:
    return [f"{module_of(base)}.{qualname_of(base)}" for base in mro_of(type(thing))]


def _by_name(source: Any) -> Iterator[Entry]:
    for name in _names(source):
        if name in _adapters:
            yield _adapters[name]
        elif not name.startswith("builtins.") and name in (others := _installed()):  # a list is of no package
            yield others[name]


def _by_parameter(source: Any) -> Entry | None:
    """Return the adapter of a function that has to be called with something that only the adapter has."""
    signature = signature_of(source) if callable(source) and not has(source, "__iter__") else None
    if signature is None:
        return None
    needed = (name for name, one in signature.parameters.items() if one.default is one.empty)
    return next((_parameters[name] for name in needed if name in _parameters), None)


def _installed() -> dict[str, Entry]:
    """Find the adapters of other packages, once for each path on which modules are found."""
    return _found_on(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _found_on(_: tuple[str, ...]) -> dict[str, Entry]:
    """Read a file of every installed package, which takes tens of milliseconds."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import, and needed here only

    return {point.name: Entry(point.value, "") for point in entry_points(group="resumable.backends")}


def find_dataset(dataset: Any) -> Any:
    """Return what reads a map-style dataset: itself, or code of ours around a dataset that needs care; for adapters."""
    for name in _names(dataset):
        if name in _datasets:
            return load(_datasets[name])(dataset)
    return dataset


def load_iterable() -> Callable[..., Any]:
    """Import the adapter of plain iterables, for one that has more to say of them."""
    return load(_ITERABLE)


def load(entry: Entry) -> Callable[..., Any]:
    """Import an adapter.

    Raises:
        MissingDependencyError: it needs a framework that is not installed.
    """
    module, _, name = entry.path.partition(":")
    try:
        adapter: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        install = f"\nInstall it: {entry.install}" if entry.install else ""
        raise MissingDependencyError(
            f"the adapter {entry.path} needs {error.name}, which failed to import.{install}"
        ) from error
    return adapter
