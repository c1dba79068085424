"""Options: what `wrap` was told, and what an adapter made of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from resumable.checks import check_batch_size, check_option
from resumable.errors import UnsupportedError
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.randomness import Randomness
    from resumable.samplers import Sampler
    from resumable.schedule import Tail

__all__ = ["Options", "check_batch_size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `wrap`, under the same names; None where the caller left one to the adapter.

    Raises:
        ConfigurationError: an option is of a wrong type, or out of range.
    """

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
    snapshot_every: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, check_option(field.name, value))

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
