"""What is said about a pipeline besides the options of `wrap`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resumable._options import check_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.backends.tfdata.elements import Convert
    from resumable.backends.tfdata.strategy import Choice

__all__ = ["Source", "source"]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A pipeline for `wrap`; made by `source`."""

    pipeline: Any
    strategy: Choice = "auto"
    assume_pure: bool = False
    convert: Convert = "numpy"
    snapshot_every: int | None = None


def source(
    pipeline: Any | Callable[..., Any],
    *,
    strategy: Choice = "auto",
    assume_pure: bool = False,
    convert: Convert = "numpy",
    snapshot_every: int | None = None,
) -> Source:
    """Say more about a `tf.data` pipeline, for `wrap(source(...))`.

    Args:
        pipeline: a `tf.data.Dataset`, or a function that returns one. A function with a parameter `epoch` is called for
            each epoch, so that none depends on earlier ones; any other one is called once.
        strategy: how it is resumed: by TensorFlow's "symbolic" or "explicit" state, or by "replay", which rereads it
            up to the place. "auto" takes what works; where both states do, the one that is estimated to cost less per
            step, and after a load that of the state.
        assume_pure: the Python functions, variables and tables in it give the same for the same element in every run.
            It cannot be checked.
        convert: what the elements become: "numpy" arrays, or "torch" tensors of their own memory.
        snapshot_every: steps between two states that are taken in advance (`ack="manual"`); by default 100.

    Returns:
        What `wrap` takes.

    Raises:
        ConfigurationError: `snapshot_every` is no integer of 1 or more.
    """
    if snapshot_every is not None:
        snapshot_every = check_count("snapshot_every", snapshot_every, "It counts steps.")
    return Source(pipeline, strategy, assume_pure, convert, snapshot_every)
