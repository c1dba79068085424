"""Options: what `wrap` was told, and what an adapter made of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from resumable._checks import Resume, check_batch_size, check_option
from resumable._order.world import World
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._order.plan import Tail
    from resumable._randomness.keys import Randomness
    from resumable.samplers import Sampler

__all__ = ["Options", "check_batch_size", "refuse_unknown"]


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
    on_world_change: Literal["keep_global", "keep_local"] = "keep_global"
    uneven: bool = False
    snapshot_every: int | None = None
    evaluation: bool = False
    resume: Resume | None = None
    canary: bool = True
    flight_recorder: str | None = None
    stall_after: float | None = None
    order: Literal["feistel", "torch"] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, check_option(field.name, value))
        if self.evaluation and self.ack == "manual":
            raise UnsupportedError(
                'evaluation=True and ack="manual" were given, but an evaluation has no place that could be saved.\n'
                "There would be nothing to acknowledge. Leave ack out."
            )
        if self.evaluation and self.flight_recorder is not None:
            raise UnsupportedError(
                "evaluation=True and flight_recorder were given, but an evaluation has no place to record.\n"
                "After a crash there would be nothing to tell. Leave flight_recorder out."
            )

    def find_world(self) -> World:
        """Return the world that was given, or the one that is there now."""
        return self.world or World.detect()

    def decided(self, *, randomness: Randomness = "sample", tail: Tail | None = None) -> Options:
        """Return the options with a choice where the caller made none; adapters say where theirs differ.

        Args:
            randomness: how often the generators are seeded.
            tail: what happens with the last samples of an epoch; None: "partial", or "drop" where elements are batches,
                as ranks take whole rounds of those.
        """
        end: Tail = tail or ("drop" if self.batch_size is None else "partial")
        return replace(self, randomness=self.randomness or randomness, tail=self.tail or end)

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


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse options that `wrap` does not have.

    Raises:
        UnsupportedError: there is one; the message names the one that was meant.
    """
    known = [field.name for field in fields(Options)]
    for name, value in options.items():
        near = get_close_matches(_OF_OTHERS.get(name, name), known, n=1)
        meant = f"Did you mean {near[0]}?" if near else f"The options are {', '.join(known)}."
        raise UnsupportedError(
            f"wrap has no option {name}; it was given as {value!r}.\nIt would have no effect. {meant}"
        )


_OF_OTHERS = {
    "collate_fn": "collate",
    "drop_last": "tail",
    "map": "transform",
    "num_samples": "sampler",
    "rank": "world",
    "world_size": "world",
}
