"""Options: what `wrap` was told, and what an adapter made of it."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from resumable.errors import ConfigurationError, UnsupportedError
from resumable.randomness import Randomness
from resumable.schedule import Tail
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.samplers import Sampler

__all__ = ["Options", "check_batch_size", "check_choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `wrap`, under the same names; None where the caller left one to the adapter."""

    seed: int = 0
    batch_size: int | None = None
    shuffle: bool | None = None
    sampler: Sampler | None = None
    tail: Tail | None = None
    randomness: Randomness | None = None
    transform: Callable[[Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    shard: bool | None = None
    identity: str | None = None
    world: World | None = None
    ack: Literal["auto", "manual"] = "auto"
    on_batch_change: Literal["error", "continue"] = "error"
    uneven: bool = False
    snapshot_every: int = 1

    def find_world(self) -> World:
        """Return the world that was given, or the one that is there now."""
        return self.world or World.detect()

    def refuse(self, what: str, **reasons: str) -> None:
        """Refuse options that were given though they do not fit.

        Args:
            what: the thing that is wrapped, for the message.
            reasons: name of an option, and what to do instead.

        Raises:
            UnsupportedError: one of the options was given.
        """
        given = {field.name for field in fields(self) if getattr(self, field.name) is not None}
        for name, instead in reasons.items():
            if name in given:
                raise UnsupportedError(
                    f"the option {name} does not fit {what}: it was given as {getattr(self, name)!r}.\n"
                    f"It would be ignored, and the stream would be another one than you asked for. {instead}"
                )


_CHOICES = {
    "tail": (get_args(Tail), "It says what happens with the last samples of an epoch."),
    "randomness": (get_args(Randomness), "It says how often the global generators are seeded."),
    "ack": (("auto", "manual"), "It says when a batch counts as trained on."),
    "on_batch_change": (("error", "continue"), "It says what to do with a state of another global batch."),
}


def check_choice(name: str, value: Any) -> Any:
    """Return the value of an option that has names to choose from.

    Raises:
        ConfigurationError: it is none of them.
    """
    known, meaning = _CHOICES[name]
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.\n{meaning}")
    return value


def check_batch_size(batch_size: object) -> int:
    """Return a batch size as a Python integer.

    Raises:
        ConfigurationError: it is no integer, or below 1.
    """
    try:
        value = operator.index(batch_size)  # type: ignore[arg-type]  # what is no integer raises
    except TypeError:
        value = 0
    if value < 1 or isinstance(batch_size, bool):
        raise ConfigurationError(
            f"batch_size must be an integer of 1 or more, but it is {batch_size!r}.\n"
            "A step would have no samples. It counts samples per rank and step."
        )
    return value
