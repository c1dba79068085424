"""Finds the loaders in what a user gives the Trainer, and makes Loaders of them where that is asked for."""

from __future__ import annotations

import sys
from copy import copy
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from resumable._options import Options
from resumable._wrap import make_loader as make_named
from resumable.errors import UnsupportedError
from resumable.integrations.lightning.shown import loader_of
from resumable.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["make_loader", "replace_loaders"]

THE_ONLY = "(the only one)"


def replace_loaders(tree: Any, replace: Callable[[Any, str], Any]) -> Any:
    """Replace each loader in the Trainer's collection of them.

    Args:
        tree: a loader; dictionaries, lists and tuples of loaders, nested as they like; or a CombinedLoader. It is left
            as it is, so a loop over the user's CombinedLoader does not read what the Trainer reads.
        replace: is given a loader and the name of its place.

    Returns:
        The same collection of what `replace` returned.
    """
    if _is_combined(tree):
        _, names = _flatten(tree.iterables)
        pairs = zip(tree.flattened, names, strict=True)
        combined = copy(tree)
        combined.flattened = [replace(loader, name) for loader, name in pairs]
        return combined
    leaves, names = _flatten(tree)
    replaced = [replace(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    _, spec = pytree.tree_flatten(tree, is_leaf=_is_data)
    return pytree.tree_unflatten(replaced, spec)


def _flatten(tree: Any) -> tuple[list[Any], list[str]]:
    pairs, _ = pytree.tree_flatten_with_path(tree, is_leaf=_is_data)
    return [leaf for _, leaf in pairs], [pytree.keystr(path) or THE_ONLY for path, _ in pairs]


def _is_combined(tree: Any) -> bool:
    return hasattr(tree, "flattened") and hasattr(tree, "iterables")


def _is_data(node: Any) -> bool:
    """Return whether a list or tuple holds batches and not loaders: anything in it that cannot be iterated for batches.

    The Trainer alone takes a list of tensors for a collection of loaders, one per tensor.
    """
    if not isinstance(node, (list, tuple)):
        return False
    return not node or any(isinstance(leaf, _values()) for leaf in pytree.tree_leaves(node))


def _values() -> tuple[type, ...]:
    return (int, float, str, bytes, type(None), sys.modules["torch"].Tensor, sys.modules["numpy"].ndarray)


def make_loader(source: Any, name: str, wrap: bool | Mapping[str, Any], *, world_size: int, overfit: bool) -> Loader:
    """Return the Loader of a train loader.

    Args:
        source: what the user gave: a Loader, or something to wrap.
        name: its place in the Trainer's collection, for messages.
        wrap: whether to wrap what is no Loader; or the options for it.
        world_size: number of ranks.
        overfit: no shuffling (`overfit_batches`).

    Raises:
        UnsupportedError: it is no Loader, and is not to be wrapped or cannot be.
    """
    source = loader_of(source)
    if isinstance(source, Loader):
        if source.evaluation:
            raise UnsupportedError(
                f"the train loader {name} was wrapped with evaluation=True, each loop over which begins at the "
                "beginning.\nA resumed run would train on its first batches again. Wrap it without evaluation=True."
            )
        return source
    if wrap is False:
        raise UnsupportedError(
            f"the train loader {name} is no resumable Loader but a {type(source).__module__}."
            f"{type(source).__qualname__}.\nA resumed run would begin its data again, in the middle of an epoch. Give "
            "the Trainer resumable.wrap(loader), or use ResumableCallback(wrap=True)."
        )
    options = dict(wrap) if wrap is not True else {}
    if _has_plain_order(source):
        if world_size > 1 and not source.drop_last:
            options.setdefault("tail", "pad")  # equal shares, as by the DistributedSampler that Lightning injects
        if overfit:
            source = _without_shuffling(source)
    try:
        return make_named(source, Options.of(options), suggested="train" if name == THE_ONLY else f"train{name}")
    except Exception as error:
        error.add_note(f"It is the train loader {name} of the Trainer, which ResumableCallback(wrap=...) wraps.")
        raise


def _has_plain_order(source: Any) -> bool:
    """Return whether it is a DataLoader made with `batch_size` and with or without `shuffle`, and no sampler."""
    data = sys.modules["torch"].utils.data
    if not isinstance(source, data.DataLoader) or isinstance(source.dataset, data.IterableDataset):
        return False
    return source.batch_size is not None and type(source.sampler) in {data.SequentialSampler, data.RandomSampler}


def _without_shuffling(source: Any) -> Any:
    """Return a DataLoader like this one that reads its dataset from front to back."""
    data = sys.modules["torch"].utils.data
    names = "dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "worker_init_fn"
    return data.DataLoader(**{name: getattr(source, name) for name in names}, shuffle=False)
