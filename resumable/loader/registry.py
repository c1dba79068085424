"""The table of adapters. It finds an adapter using the name of the source's type, so it imports no framework.

An entry holds the adapter's location and install command, and advice for two mistakes: passing a list of several
sources, or a function that returns one.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
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
from resumable._requirements import check_version
from resumable.errors import MissingDependencyError, PromiseWarning, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


__all__ = [
    "Entry",
    "entries_of",
    "find_dataset",
    "load",
    "load_iterable",
    "refuse_hidden",
    "refuse_hidden_epochs",
    "refuse_hidden_order",
    "refuse_list",
    "refuse_prepared",
    "refuse_returned",
    "register",
]


_DEEPEST = 8  # levels of datasets inside datasets


class Entry(NamedTuple):
    """The path of an adapter, how to install its framework, and advice for sources that are passed the wrong way.

    `package` is the framework's name on PyPI if versions that are too old are known.
    """

    path: str
    install: str
    package: str = ""
    in_a_list: tuple[str, str] = ("", "")  # the plural for messages, and how to combine several into one source
    returned: tuple[str, str] = ("", "")  # a description of one that a function returned, and what to do instead


_FFCV = Entry("resumable.backends.ffcv:adapt", pip_install("ffcv"))
_TORCH = Entry("resumable.backends.torch:adapt", pip_install("torch"), package="torch")
_SEQUENCE = Entry("resumable.backends.sequence:adapt", "")
_ITERABLE = Entry("resumable.backends.iterable:adapt", "")

_DALI = Entry(
    "resumable.backends.dali.iterators:adapt",
    pip_install("dali"),
    in_a_list=(
        "DALI iterators",
        "Combine them into one source, in the order that you want: wrap(resumable.backends.dali.in_turn(iterators)).",
    ),
)

_OF_DALI = Entry(
    "resumable.backends.dali.refusals:refuse_by_hand",
    pip_install("dali"),
    in_a_list=("DALI pipelines", "Pass all of them to one DALI iterator, such as DALIGenericIterator(pipelines, ...)."),
    returned=(
        "a DALI Pipeline, which does not say where an epoch ends",
        "Put it into a DALI iterator, such as DALIGenericIterator(pipeline, names, reader_name=...), and wrap that.",
    ),
)

_TFDS = Entry("resumable.backends.tfds:adapt", pip_install("tfds"))
_TFDATA = Entry(
    "resumable.backends.tfdata:adapt",
    pip_install("tf"),
    returned=(
        "a tf.data.Dataset. On resume it would be read again, without a check for randomness in it",
        "Pass the function to resumable.backends.tfdata: wrap(tfdata.source(function)).",
    ),
)
_OF_TFDATA = _TFDATA._replace(path="resumable.backends.tfdata:refuse_iterators")

_RAY = Entry("resumable.backends.ray:adapt", "pip install 'ray[data]'")
_OF_RAY = _RAY._replace(path="resumable.backends.ray:refuse")

_adapters: dict[str, Entry] = {
    "torch.utils.data.dataloader.DataLoader": _TORCH,
    "nvidia.dali.plugin.base_iterator._DaliBaseIterator": _DALI,
    "resumable.backends.dali.turns.InTurn": _DALI,
    "nvidia.dali.pipeline.Pipeline": _OF_DALI,
    "nvidia.dali.experimental.dynamic._ops.Reader": _OF_DALI._replace(in_a_list=("", ""), returned=("", "")),
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


# Datasets of other packages that need a wrapper when a DataLoader reads them.
_datasets: dict[str, Entry] = {
    "tensorflow_datasets.core.data_sources.base.BaseDataSource": _TFDS._replace(
        path="resumable.backends.tfds:GuardedSource"
    ),
}

# Objects with their own position that a plain source may contain. The key is the module that is loaded if they are
# used.
_hidden: dict[str, Entry] = {
    "nvidia.dali.pipeline": _DALI._replace(path="resumable.backends.dali.hidden:refuse_hidden"),
}
_PLAIN = (_SEQUENCE, _ITERABLE, _TORCH)
_ITERATED = "torch.utils.data.dataset.IterableDataset"

# From the name of a required parameter to the function that an adapter calls.
_parameters: dict[str, Entry] = {"checkpoints": _DALI}


def register(type_name: str, adapter: str, *, install: str = "") -> None:
    """Make `wrap` support a type. Its name is registered, so its framework is imported only on first use.

    Args:
        type_name: module and qualified name of the type or one of its bases, such as `"my_package.readers.Reader"`.
        adapter: `"module:function"`. The function takes the source and the `Options`, and returns a backend and the
            completed options, or None if it does not support the source.
        install: command that installs what the adapter needs; for the error message.

    A package can do the same without a call, with an entry point of the group `resumable.backends`: the type's name is
    its name, and the adapter its value.
    """
    _adapters[type_name] = Entry(adapter, install)


def entries_of(source: Any) -> Iterator[Entry]:
    """Yield the adapters to try, lazily: adapters of other packages are searched only if ours are not enough."""
    if issubclass(type(source), type):
        if not has(source, "__iter__"):
            raise UnsupportedError(
                f"expected an instance, got the class {source.__qualname__}.\n"
                f"A class has no batches. Create an instance, and wrap it: wrap({source.__qualname__}(...))."
            )
        yield _ITERABLE
        return
    if (entry := _by_parameter(source)) is not None:
        yield entry
        return
    yield from _by_name(source)
    if is_a(source, (str, bytes, bytearray, dict, set, frozenset)):
        return
    # An IterableDataset with a length inherits a __getitem__ that raises; PyTorch only iterates over it.
    if has(source, "__getitem__") and has(source, "__len__") and _ITERATED not in _names(source):
        yield _SEQUENCE
    if has(source, "__iter__") or has(source, "__next__") or callable(source):
        yield _ITERABLE


def refuse_hidden(source: Any, entry: Entry) -> None:
    """Reject a plain source that contains something which needs its own adapter to resume.

    Raises:
        UnsupportedError: its attributes or closures show such an object.
    """
    for module, inner in _hidden.items():
        if entry in _PLAIN and module in sys.modules:
            load(inner)(source)


def refuse_hidden_order(source: Any, what: str) -> None:
    """Reject a dataset that contains one with its own order, such as a `Subset` of a mixture.

    Args:
        source: the dataset. If it has an order itself, it is accepted.
        what: what it is, for the message.

    Raises:
        UnsupportedError: the dataset contains one, under the attribute names that PyTorch uses.

    Warns:
        PromiseWarning: it has one in another attribute.
    """
    if (inner := _inside(source, "resumable_order", 0)) is not None:
        mixture, around = qualname_of(type(inner)), qualname_of(type(source))
        raise UnsupportedError(
            f"{what} is a {around} around a {mixture}, which has its own order.\n"
            "It would be read by index, in a different order, and its proportions would be lost. Put the "
            f"{around} around the sources, and mix those."
        )
    if ask(type(source), "resumable_order") is not None:
        return
    for name, value in attributes_of(source).items():
        if ask(type(value), "resumable_order") is not None:
            mixture, around = qualname_of(type(value)), qualname_of(type(source))
            warnings.warn(
                f"{what} is a {around} that holds a {mixture} as {name}, which has its own order.\n"
                f"If it reads the {mixture} with its own index, the proportions are lost. Put the {around} around the "
                f"sources, and mix those. Or add a method to the {around}, if it passes its index on: def "
                f"resumable_order(self, seed): return self.{name}.resumable_order(seed).",
                PromiseWarning,
                stacklevel=5,
            )


def refuse_hidden_epochs(source: Any, what: str, *, evaluation: bool = False) -> None:
    """Reject a dataset that contains one whose samples differ in each epoch, and does not tell it the epoch.

    Args:
        source: the dataset. If it passes the epoch on, it is accepted.
        what: what it is, for the message.
        evaluation: each pass is epoch 0, so nothing is lost.

    Raises:
        UnsupportedError: the dataset contains one, under the attribute names that PyTorch uses.

    Warns:
        PromiseWarning: it has one in another attribute.
    """
    if evaluation or ask(type(source), "resumable_epochs") is not None:
        return
    inner, around = _inside(source, "resumable_epochs", 0), qualname_of(type(source))
    other = [one for one in attributes_of(source).values() if ask(type(one), "resumable_epochs") is not None]
    found = next((one for one in (inner, *other) if one is not None), None)
    if found is None or ask(type(found), "resumable_order") is not None:  # a mixture, see above
        return
    name = qualname_of(type(found))
    told = (
        f"{what} is a {around} around a {name}, whose samples differ in each epoch, and the {around} does not pass the "
        f"epoch on.\nEvery epoch would have the samples of epoch 0. Wrap the {name} itself: pass it a list of files "
        "instead of concatenating several, and a sampler such as resumable.samplers.Subset(indices, inner) to wrap() "
        f"instead of selecting some samples. Or add a method to the {around}, if it passes its index on: def "
        "resumable_epochs(self, sampler): return self.dataset.resumable_epochs(sampler)."
    )
    if inner is not None:
        raise UnsupportedError(told)
    warnings.warn(told, PromiseWarning, stacklevel=5)


def _inside(source: Any, method: str, deep: int) -> Any:
    """Return a dataset with a method that is inside this one, under the attribute names that PyTorch uses."""
    if ask(type(source), method) is not None:
        return source if deep else None
    kept = attributes_of(source)
    several = kept.get("datasets", ())
    inside = several.values() if type(several) is dict else several if is_exactly(several, (list, tuple)) else ()
    inside = [*inside, *([kept["dataset"]] if "dataset" in kept else [])] if deep < _DEEPEST else []
    return next((found for one in inside if (found := _inside(one, method, deep + 1)) is not None), None)


def refuse_list(source: Any) -> None:
    """Reject a list of sources, which would be mistaken for a list of batches.

    Raises:
        UnsupportedError: its first element is a source.
    """
    base: Any = next((base for base in (list, tuple) if issubclass(type(source), base)), None)
    first = base.__getitem__(source, 0) if base is not None and base.__len__(source) else None
    what, instead = next((_adapters[name].in_a_list for name in _names(first) if name in _adapters), ("", ""))
    if what:
        raise UnsupportedError(f"this is a list of {what}.\nEach of them would be mistaken for a batch. {instead}")


def refuse_prepared(source: Any) -> None:
    """Reject a DataLoader that Accelerate has prepared, and a Loader that an integration has prepared.

    Raises:
        UnsupportedError: the module of its class, or of a base class, shows it.
    """
    kind = type(source)
    if module_of(kind).startswith("resumable.integrations."):
        raise UnsupportedError(
            f"this is a {kind.__qualname__}, a Loader that is already prepared for a loop.\n"
            "Wrapping it would count its batches twice. Use it as is."
        )
    if any(module_of(base) == "accelerate.data_loader" for base in mro_of(kind)):
        raise UnsupportedError(
            f"this is a {kind.__qualname__}, a DataLoader that Accelerate has prepared.\n"
            "It divides the batches among the ranks and prefetches on its own, and a state would not include that. "
            "Wrap the original DataLoader, and prepare the result: "
            "resumable.integrations.accelerate.prepare(accelerator, resumable.wrap(loader))."
        )


def refuse_returned(name: str, produced: Any) -> None:
    """Reject the source that a function returned, if its adapter needs the function itself.

    Args:
        name: name of the function, for the message.
        produced: the returned source.

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
        elif not name.startswith("builtins.") and name in (others := _installed()):  # no package registers a list
            yield others[name]


def _by_parameter(source: Any) -> Entry | None:
    """Return the adapter of a function with a required parameter that only the adapter can pass."""
    signature = signature_of(source) if callable(source) and not has(source, "__iter__") else None
    if signature is None:
        return None
    needed = (name for name, one in signature.parameters.items() if one.default is one.empty)
    return next((_parameters[name] for name in needed if name in _parameters), None)


def _installed() -> dict[str, Entry]:
    """Find the adapters of other packages, once for each value of `sys.path`."""
    return _found_on(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _found_on(_: tuple[str, ...]) -> dict[str, Entry]:
    """Read a file of every installed package, which takes tens of ms."""
    from importlib.metadata import entry_points  # noqa: PLC0415  # slow to import, and needed here only

    return {point.name: Entry(point.value, "") for point in entry_points(group="resumable.backends")}


def find_dataset(dataset: Any) -> Any:
    """Return the object that reads a map-style dataset: the dataset, or a wrapper if it needs one; for adapters."""
    for name in _names(dataset):
        if name in _datasets:
            return load(_datasets[name])(dataset)
    return dataset


def load_iterable() -> Callable[..., Any]:
    """Import the adapter of plain iterables, for an adapter that adds to it."""
    return load(_ITERABLE)


def load(entry: Entry) -> Callable[..., Any]:
    """Import an adapter.

    Raises:
        MissingDependencyError: a framework that it needs is not installed, or too old.
    """
    if entry.package:
        check_version(entry.package)
    module, _, name = entry.path.partition(":")
    try:
        adapter: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        install = f"\nInstall it: {entry.install}" if entry.install else ""
        raise MissingDependencyError(
            f"the adapter {entry.path} needs {error.name}, which failed to import.{install}"
        ) from error
    return adapter
