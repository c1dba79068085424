"""Known behaviour of Hugging Face datasets: they divide themselves among the ranks, and use no random numbers.

`IterableDataset.shuffle` fills a buffer. Its state records how far the stream was read, but not which elements the
buffer held, so the stream is replayed. The state does not show the buffer. So the stream itself is searched, also
inside a user's dataset.
"""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resumable._data import without_seed
from resumable._introspection import ask, has, is_exactly, module_of, mro_of, qualname_of
from resumable._requirements import check_version
from resumable.errors import ConfigurationError, PromiseWarning

if TYPE_CHECKING:
    from resumable._options import Options

__all__ = ["divided", "draws_nothing", "replayed"]


def divided(source: Any, options: Options) -> Options:
    """Return the options with `shard=False` for a stream that `split_dataset_by_node` has divided.

    Raises:
        MissingDependencyError: the version of `datasets` is too old.
        ConfigurationError: `shard=True` would divide it again, so no rank would read most of it.
    """
    if not module_of(type(source)).startswith("datasets."):
        return options
    check_version("datasets")
    ranks = ask(ask(source, "_distributed"), "world_size", 1)
    if ranks == 1:
        return options
    if options.shard:
        raise ConfigurationError(
            f"shard=True would divide the stream among the ranks again: split_dataset_by_node has already made {ranks} "
            "parts of it.\nNo rank would read most of the samples. Remove shard=True, or wrap the stream without "
            "split_dataset_by_node."
        )
    return replace(options, shard=False)


def draws_nothing(dataset: Any) -> bool:
    """Return whether reading samples uses no random numbers, so several can be read in one call."""
    kind = module_of(type(dataset)), qualname_of(type(dataset))
    if kind == ("torch.utils.data.dataset", "Subset"):
        return draws_nothing(dataset.dataset)
    if kind != ("datasets.arrow_dataset", "Dataset"):
        return False
    check_version("datasets")
    return bool(ask(dataset, "_format_type", "custom") != "custom")  # "custom" is a user's function


_LOSING = {("datasets.iterable_dataset", "BufferShuffledExamplesIterable")}
_MOST = 1000  # objects to inspect


def replayed(source: Any, name: str, options: Options) -> Options:
    """Return the options with `resume="replay"`, with a warning, if the source's state would lose a buffer.

    Args:
        source: has a state.
        name: of the source, for the message.
        options: as passed. If `resume` is set, it stays.
    """
    _say_without_seed(source, name)
    if options.resume is not None or not loses_buffer(source):
        return options
    warnings.warn(
        f"{name} shuffles in a buffer that is not in its state, so it is replayed: a resumed run continues with "
        "exactly the same elements, but reads the epoch again up to its position.\n"
        'Pass wrap(..., resume="replay") to accept this. To resume faster, shuffle only the shards: buffer_size=1.',
        PromiseWarning,
        stacklevel=5,
    )
    return replace(options, resume="replay")


def _say_without_seed(source: Any, name: str) -> None:
    if without_seed(source):
        warnings.warn(
            f"{name} is shuffled without a seed, so every run has a different order, and the next run will reject a "
            "state of this one.\nPass any seed: shuffle(seed=...).",
            PromiseWarning,
            stacklevel=6,
        )


def loses_buffer(source: Any) -> bool:
    """Return whether a source, or one inside it, has a buffer that its state does not include."""
    seen, waiting = set[int](), [source]
    while waiting and len(seen) < _MOST:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if _loses(thing):
            return True
        inside = gc.get_referents(thing)[:_MOST]
        waiting += [one for one in inside if has(type(one), "__iter__") and not is_exactly(one, (str, bytes))]
    return False


def _loses(thing: Any) -> bool:
    known = any((module_of(base), qualname_of(base)) in _LOSING for base in mro_of(type(thing)))
    return known and bool(ask(thing, "buffer_size") != 1)  # a buffer of 1 yields each element immediately
