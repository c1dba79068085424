"""Options: what `wrap` was told, and what an adapter made of it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from resumable._checks import Resume, check_batch_size, check_option
from resumable._introspection import ask
from resumable._ranks import Ranks
from resumable._seeds import GIVEN, STATE, Origin, find_seed, salted
from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._flight import Recorder
    from resumable._order.plan import Tail
    from resumable._order.world import World
    from resumable._randomness.keys import Randomness
    from resumable._ranks import Group
    from resumable.samplers import Sampler

__all__ = ["Options", "check_batch_size", "refuse_unknown"]


_BY_WRAP = Origin()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `wrap`, under the same names; None where the caller left one to the adapter.

    What an adapter is given has a seed and a name, and `origin` tells who said them. `ranks` and `recorder` are one
    object in all options that are made of these.

    Raises:
        ConfigurationError: an option is of a wrong type, or out of range.
    """

    seed: int | None = None
    name: str | None = None
    batch_size: int | None = None
    shuffle: bool | Literal["blocks"] | None = None
    sampler: Sampler | None = None
    tail: Tail | None = None
    randomness: Randomness | None = None
    transform: Callable[[Any], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    shard: bool | None = None
    identity: str | None = None
    world: World | None = None
    mesh: Group | None = None
    process_group: Group | None = None
    watch: bool = True
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
    on_worker_death: Literal["error", "restart"] = "error"
    streams: int | None = None
    order: Literal["feistel", "torch"] | None = None
    origin: Origin = _BY_WRAP
    ranks: Ranks = field(default_factory=Ranks, compare=False, repr=False)
    recorder: Recorder | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name in _NO_OPTIONS:
                continue
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                object.__setattr__(self, one.name, check_option(one.name, value))
        self._refuse_several_worlds()
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

    def _refuse_several_worlds(self) -> None:
        given = [name for name in ("world", "mesh", "process_group") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigurationError(
                f"{' and '.join(f'{name}=' for name in given)} were given, and each says which ranks divide the data.\n"
                "All but one would have no effect. Give one of them."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return the options of a mapping.

        Raises:
            UnsupportedError: there is no such option.
        """
        refuse_unknown({name: value for name, value in given.items() if name not in _NAMES})
        return cls(**given)

    @property
    def stream_seed(self) -> int:
        """The seed from which order and keys are computed: that of the loader, salted by the stream's name."""
        return salted(self.seed or 0, self.name or "")

    @property
    def known_as(self) -> str:
        """How the ranks know the stream among their others; evaluations apart, as one rank may have them alone."""
        name = self.name or ""
        return f"{name} for evaluation" if self.evaluation else name

    def settled(self, source: Any, *, suggested: str = "") -> Options:
        """Return the options with a seed and a name, and with a recorder if `flight_recorder` was given.

        Args:
            source: what is wrapped, which may have a seed.
            suggested: a name for what was given none.

        Raises:
            ConfigurationError: a seed was given, and the source has another one; or the folder of the flight recorder
                cannot be written to.
        """
        name, name_by = (suggested, "suggested" if suggested else "") if self.name is None else (self.name, GIVEN)
        named = replace(self, name=name)
        seed, seed_by = find_seed(source, self.seed, named.known_as, self.world)
        recorder = None
        if self.flight_recorder is not None:
            from resumable._flight import Recorder  # noqa: PLC0415  # a sixth of the import, which others do without

            recorder = Recorder(self.flight_recorder)
        return replace(named, seed=seed, origin=Origin(seed_by, name_by), recorder=recorder)

    def for_evaluation(self) -> Options:
        """Return the options of a second loader that evaluates on the same data; it finds its ranks by itself."""
        ranks = self.ranks.of_another_loader()
        return replace(self.unrecorded(), evaluation=True, ack="auto", ranks=ranks)

    def unrecorded(self) -> Options:
        """Return the options without a flight recorder."""
        return replace(self, flight_recorder=None, recorder=None)

    def of_state(self, seed: int, name: str) -> Options:
        """Return the options with the seed and the name of a state; what was given stays given."""
        origin = Origin(*(by if by == GIVEN else STATE for by in self.origin))
        return replace(self, seed=seed, name=name, origin=origin)

    @property
    def group(self) -> Group | None:
        """The ranks that divide the data, where a mesh or a process group was given."""
        return self.mesh or self.process_group

    def find_world(self) -> World:
        """Return the world that was given; else the one in which the stream was first used, or that is there now."""
        if self.world is not None:
            return self.world
        found = self.ranks.find(None, self.group)
        return found.world

    def decided(self, *, randomness: Randomness = "sample", tail: Tail | None = None) -> Options:
        """Return the options with a choice where the caller made none; adapters say where theirs differ.

        Args:
            randomness: how often the generators are seeded.
            tail: what happens with the last samples of an epoch; None: "partial", or "drop" where elements are batches,
                as ranks take whole rounds of those.
        """
        end: Tail = tail or ("drop" if self.batch_size is None else "partial")
        return replace(self, randomness=self.randomness or randomness, tail=self.tail or end)

    def ordered(self, source: Any, length: int) -> Options:
        """Return the options with a sampler in place of `shuffle="blocks"`, or that of a source that carries its order.

        Args:
            source: says the `sizes` of its shards, or its `resumable_order`.
            length: number of its samples.

        Raises:
            ConfigurationError: it does not, or something else was given that says the order, too.
        """
        if (carried := ask(type(source), "resumable_order")) is not None:
            return replace(self._carrying(source), sampler=carried(source, self.stream_seed))
        if self.sampler is not None and self.shuffle is not None:
            raise ConfigurationError(
                f"sampler={self.sampler!r} and shuffle={self.shuffle!r} were given, but only one of them can say the "
                "order.\nLeave shuffle out."
            )
        if self.shuffle != "blocks":
            return self
        from resumable.samplers.blocks import blocks_of_source  # noqa: PLC0415  # a part of the import that few need

        return replace(self, shuffle=None, sampler=blocks_of_source(source, length, self.stream_seed))

    def _carrying(self, source: Any) -> Options:
        """Return the options for a source that carries its order.

        Raises:
            ConfigurationError: another order was given.
        """
        for name, value in (("shuffle", self.shuffle or None), ("sampler", self.sampler), ("order", self.order)):
            if value is not None:
                raise ConfigurationError(
                    f"{name}={value!r} was given for {type(source).__qualname__}, which carries its own order.\n"
                    f"Its proportions would be lost. Leave {name} out: each source is shuffled already."
                )
        return replace(self, shuffle=None)

    def refuse(self, what: str, **reasons: str) -> None:
        """Refuse options that were given though they do not fit.

        Args:
            what: the thing that is wrapped, for the message.
            reasons: name of an option, and what to do instead.

        Raises:
            UnsupportedError: one of the options was given.
        """
        given = {one.name for one in fields(self) if _is_given(getattr(self, one.name), one.default)}
        for name, instead in reasons.items():
            if name in given:
                raise UnsupportedError(
                    f"the option {name} does not fit {what}: it was given as {getattr(self, name)!r}.\n"
                    f"It would be ignored, and the stream would be another one than you asked for. {instead}"
                )


def _is_given(value: object, default: object) -> bool:
    return value is not None if default is None else value != default


_NO_OPTIONS = {"origin", "ranks", "recorder"}
_NAMES = tuple(one.name for one in fields(Options) if one.name not in _NO_OPTIONS)


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse options that `wrap` does not have.

    Raises:
        UnsupportedError: there is one; the message names the one that was meant.
    """
    known = list(_NAMES)
    for name, value in options.items():
        from difflib import get_close_matches  # noqa: PLC0415  # only on the way to an error

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
    "device_mesh": "mesh",
    "group": "process_group",
    "pg": "process_group",
}
