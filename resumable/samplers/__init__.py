"""Samplers: pure functions from a position in an epoch to a sample index.

A sampler has no state, needs O(1) memory in the length of the data, and can compute any range of any epoch:

    >>> from resumable.samplers import Shuffle
    >>> Shuffle(10, seed=0).indices(epoch=0, start=2, stop=6)
    array([7, 8, 0, 2])

Any object with the members of `Sampler` works, without a base class.
"""

from typing import TYPE_CHECKING, Any

from resumable.samplers.base import Sampler
from resumable.samplers.permutation import Permutation
from resumable.samplers.simple import Sequential, Shuffle, Subset, Uniform, Weighted

if TYPE_CHECKING:
    from resumable.samplers.blocks import Blocks, PagedShuffle, Window
    from resumable.samplers.mixture import Mixture

__all__ = [
    "Blocks",
    "Mixture",
    "PagedShuffle",
    "Permutation",
    "Sampler",
    "Sequential",
    "Shuffle",
    "Subset",
    "Uniform",
    "Weighted",
    "Window",
]


_LAZY = {
    "Blocks": "blocks",
    "PagedShuffle": "blocks",
    "Window": "blocks",
    "Mixture": "mixture",
}  # 10 % of the import


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # only on this path

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
