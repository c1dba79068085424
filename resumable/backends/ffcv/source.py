"""A Loader of FFCV with the options that only this backend has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from resumable.backends.ffcv.operations import Mode
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from ffcv.loader import Loader

__all__ = ["Source", "source"]


@dataclass(frozen=True)
class Source:
    """What `source` returns; give it to `resumable.wrap`."""

    loader: Loader
    keyed: bool = True
    modes: Mapping[type, Mode] = field(default_factory=dict)
    on_nondeterministic: Literal["error", "warn"] = "error"
    content_hash: bool = False
    window: int | None = None


def source(
    loader: Loader,
    *,
    keyed: bool | Mapping[type, Mode] = True,
    on_nondeterministic: Literal["error", "warn"] = "error",
    content_hash: bool = False,
    window: int | None = None,
) -> Source:
    """Give a Loader of FFCV the options that `wrap` does not have.

        loader = resumable.wrap(source(Loader(...), content_hash=True), seed=0)

    Args:
        loader: FFCV's; it is not changed.
        keyed: whether to make random operations reproducible. False is the same as `wrap(..., randomness="off")`: the
            order of the samples is exact, and their augmentation is FFCV's own. A mapping from types of operations of
            your own to "sample", "batch", "late" or "plain" says how each is keyed.
        on_nondeterministic: what to do about operations that no key can make reproducible.
        content_hash: tell the file by all of its bytes, instead of its tables and 64 places of its content.
        window: pages that `OrderOption.QUASI_RANDOM` shuffles together; by default twice the samples of a step
            over all ranks.

    Raises:
        ConfigurationError: an option has a bad value.
    """
    modes = keyed if isinstance(keyed, Mapping) else {}
    for kind, mode in modes.items():
        if not isinstance(kind, type) or mode not in get_args(Mode) or mode == "mixup":
            raise ConfigurationError(
                f"keyed must map types of operations to sample, batch, late or plain, but it has {kind!r}: {mode!r}.\n"
                'Their randomness would not be what you meant. Use for instance keyed={MyFlip: "sample"}.'
            )
    if on_nondeterministic not in {"error", "warn"}:
        raise ConfigurationError(
            f"on_nondeterministic must be error or warn, but it is {on_nondeterministic!r}.\n"
            "It says what to do about operations that no key can make reproducible."
        )
    return Source(loader, keyed is not False, modes, on_nondeterministic, content_hash, window)
