"""The options of `wrap`, and how an adapter completes them.

`Options` defines the options: names, types, defaults, checks. `Given` repeats them for type checkers.
"""

# ruff: noqa: RUF009  # `_option` returns a field of the dataclass

from __future__ import annotations

import json
import operator
import os
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

import numpy as np

from resumable._introspection import ask
from resumable._order.plan import Tail
from resumable._order.world import World
from resumable._randomness.keyed import check_seed
from resumable._randomness.keys import Randomness
from resumable._ranks import Group, Ranks, check_world
from resumable._ranks.seeds import GIVEN, STATE, Origin, find_seed, salted
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.samplers import Sampler
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from resumable._flight import Recorder

__all__ = ["Given", "Options", "check_choice", "check_count", "check_plain", "refuse_unknown", "signature_of_wrap"]

Resume = Literal["state", "replay", "replay_run"]
OnChange = Literal["keep_global", "keep_local", "continue"]
Checks = Literal["all", "data", "ranks", "none"]

_LONGEST = 1e6  # seconds; waiting for a lock accepts no more than a few centuries
_BY_WRAP = Origin()
_IN_THREADS = frozenset({"passed"})  # kinds of randomness that threads may use, because each sample has separate RNGs


# ---------------------------------------------------------------------- checks: each returns a plain value


def check_count(name: str, value: Any, meaning: str) -> int:
    """Return a count as a Python integer.

    Args:
        name: of the option, for the message.
        value: the value passed.
        meaning: what it counts, for the message.

    Raises:
        ConfigurationError: it is not an integer, or below 1.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be an integer of 1 or more, but it is {value!r}.\n{meaning}")
    return count


def check_choice(name: str, value: Any, known: tuple[str, ...], meaning: str) -> str:
    """Return one of several names as a plain string.

    Args:
        name: of the option, for the message.
        value: the value passed.
        known: the names.
        meaning: what the option selects, for the message.

    Raises:
        ConfigurationError: it is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.\n{meaning}")
    return known[known.index(value)]


def check_plain(what: str, values: Any, required: Collection[str] = ()) -> None:
    """Reject values that a state could not carry through JSON unchanged.

    Args:
        what: the values, for the message.
        values: a mapping.
        required: keys that must be present.

    Raises:
        ConfigurationError: it is not a mapping, a key is missing, or a value would change.
    """
    if not hasattr(values, "items") or not set(required) <= set(values):
        names = f" with {', '.join(map(repr, required))}" if required else ""
        raise ConfigurationError(
            f"{what} must be a dict{names}, but it is {values!r}.\n"
            "They identify the data in a state. Use for instance {'name': 'images-v1'}."
        )
    for name, value in values.items():
        if not _survives({name: value}):
            raise ConfigurationError(
                f"{what} must be plain values that survive JSON unchanged, but {name!r} is {value!r}.\n"
                "A state saved as JSON could not be loaded again: the data would seem to differ. Use strings as keys, "
                "a list instead of a tuple, and int() for a NumPy integer."
            )


def _survives(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class _Choice:
    """One of several names."""

    known: tuple[str, ...]
    meaning: str

    def __call__(self, name: str, value: Any) -> str:
        return check_choice(name, value, self.known, self.meaning)


@dataclass(frozen=True, slots=True)
class _Count:
    """An integer of 1 or more."""

    meaning: str

    def __call__(self, name: str, value: Any) -> int:
        return check_count(name, value, self.meaning)


@dataclass(frozen=True, slots=True)
class _Flag:
    """True or False, or one name instead."""

    meaning: str
    other: str | None = None

    def __call__(self, name: str, value: Any) -> bool | str:
        if isinstance(value, str) and self.other is not None:
            if value == self.other:
                return value
            raise ConfigurationError(
                f'{name} must be True, False or "{self.other}", but it is {value!r}.\n'
                f"The order would not be the one you asked for. {self.meaning}"
            )
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise ConfigurationError(
                f"{name} must be True, False or None, but it is {value!r}.\n"
                f'Other values would be converted to a bool: "no" would count as True. {self.meaning}'
            )
        return bool(value)


@dataclass(frozen=True, slots=True)
class _Function:
    """Any callable."""

    of: str

    def __call__(self, name: str, value: Any) -> Any:
        if not callable(value):
            raise ConfigurationError(
                f"{name} must be callable, but it is {value!r}.\n"
                f"It could not be called to make a batch. Pass a function of {self.of}."
            )
        return value


def _seed(_: str, value: Any) -> int:
    return check_seed(value)


def _identity(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(
            f"{name} must be a non-empty string, but it is {value!r}.\n"
            'It identifies the data in a state. Use for instance identity="images-v1".'
        )
    return str(value)


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _is_text(value):
        raise ConfigurationError(
            f"{name} must be a string of valid text, but it is {value!r}.\n"
            'Streams with different names have different order and randomness. Use for instance name="unlabelled".'
        )
    return str(value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _sampler(name: str, value: Any) -> Any:
    if isinstance(value, type) or not isinstance(value, Sampler):
        raise ConfigurationError(
            f"{name} must be an object with length, indices(epoch, start, stop) and spec(), but it is {value!r}.\n"
            "The order could not be computed from a position. Use one of resumable.samplers, such as Shuffle(length). "
            "For a list of indices, use Subset(indices, Sequential(len(indices)))."
        )
    check_length(value.length, "the length of the sampler")
    check_plain("the length of the sampler", {"length": value.length})
    return value


def _seconds(name: str, value: Any) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not 0 < value < _LONGEST:
        raise ConfigurationError(
            f"{name} must be a number of seconds above 0, but it is {value!r}.\n"
            "Longer waits for a batch are logged. Use for instance 60, or None to log nothing."
        )
    return float(value)


def _folder(name: str, value: Any) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not path or not isinstance(path, str):
        raise ConfigurationError(
            f"{name} must be the path of a folder, but it is {value!r}.\n"
            'The flight recorder writes its files there. Use for instance flight_recorder="runs/flight".'
        )
    return path


# ---------------------------------------------------------------------- the options


def _option(check: Callable[[str, Any], Any], default: Any = None) -> Any:
    """Return the dataclass field of an option, with its check."""
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `wrap`, under the same names; None if the caller left an option to the adapter.

    Every field with a `check` is an option: the signature and the messages of `wrap` are made from these fields. The
    methods that complete the options are called in this order, and each returns new options:

    1. `resolve_seed`, called by `wrap`, sets seed and name. An adapter gets options that have both.
    2. `resolve_sampler`, called by adapters of indexed sources, reduces the ways to set an order to one sampler.
    3. `with_defaults` fills in the options that neither caller nor adapter set. The adapter may call it itself.

    A loaded state with a different seed or name restarts at 2: `with_state` puts both into the options of 1.

    `origin` records who set seed and name. `ranks` and `recorder` are shared by all options derived from these.

    Raises:
        ConfigurationError: an option has the wrong type, or is out of range.
    """

    batch_size: int | None = _option(_Count("A step would have no samples: it counts samples per rank and step."))
    transform: Callable[..., Any] | None = _option(_Function("a sample"))
    collate: Callable[..., Any] | None = _option(_Function("a list of samples"))
    identity: str | None = _option(_identity)

    seed: int | None = _option(_seed)
    name: str | None = _option(_name)
    shuffle: bool | Literal["blocks"] | None = _option(
        _Flag(
            'True shuffles each epoch differently, False keeps the order of the source, "blocks" shuffles blocks of '
            "neighboring samples.",
            other="blocks",
        )
    )
    sampler: Sampler | None = _option(_sampler)
    order: Literal["feistel", "torch"] | None = _option(
        _Choice(("feistel", "torch"), "It selects the shuffle of a DataLoader: this package's, or PyTorch's.")
    )
    tail: Tail | None = _option(_Choice(get_args(Tail), "It says what to do with the last samples of an epoch."))

    randomness: Randomness | None = _option(
        _Choice(get_args(Randomness), "It says how often the global RNGs are seeded, or whether RNGs are passed.")
    )

    world: World | Group | None = _option(check_world)
    shard: bool | None = _option(_Flag("True divides one stream among the ranks, False leaves that to the source."))
    on_change: OnChange = _option(
        _Choice(
            get_args(OnChange),
            "It says what stays the same if the number of ranks or the batch size changes: the samples of a step, the "
            "samples of each rank, or only the order.",
        ),
        "keep_global",
    )

    ack: Literal["auto", "manual"] = _option(
        _Choice(("auto", "manual"), "It says when a batch counts as trained on."), "auto"
    )
    evaluation: bool = _option(_Flag("True starts each loop at the first batch of epoch 0."), False)
    resume: Resume | None = _option(
        _Choice(
            get_args(Resume),
            "It says whether a source is restored from its state, or read again up to the position: from the start of "
            "the epoch, or of the run.",
        )
    )
    streams: int | None = _option(
        _Count(
            "The dataset would not be read at all: it counts the logical streams over all ranks. Use a multiple of the "
            "number of ranks, such as 16."
        )
    )

    checks: Checks = _option(
        _Choice(
            get_args(Checks),
            'It says what is compared: the data with the saved state ("data"), the streams of the ranks with each '
            'other ("ranks"), both, or nothing.',
        ),
        "all",
    )
    on_worker_death: Literal["error", "restart"] = _option(
        _Choice(("error", "restart"), "It says what to do if a worker process dies or hangs."), "error"
    )
    stall_after: float | None = _option(_seconds)
    flight_recorder: str | None = _option(_folder)

    origin: Origin = _BY_WRAP
    ranks: Ranks = field(default_factory=Ranks, compare=False, repr=False)
    recorder: Recorder | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for one in _FIELDS:
            value = getattr(self, one.name)
            if value is not None or one.default is not None:
                object.__setattr__(self, one.name, one.metadata["check"](one.name, value))
        if self.evaluation and self.ack == "manual":
            raise UnsupportedError(
                'evaluation=True and ack="manual" cannot be combined: an evaluation loader has no position to save.\n'
                "There would be nothing to acknowledge. Leave ack out."
            )
        if self.evaluation and self.flight_recorder is not None:
            raise UnsupportedError(
                "evaluation=True and flight_recorder cannot be combined: an evaluation loader has no position to "
                "record.\nThe record would be empty. Leave flight_recorder out."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return the options in a mapping.

        Raises:
            UnsupportedError: an option does not exist.
        """
        refuse_unknown(given)
        return cls(**given)

    # ------------------------------------------------------------------ derived values

    @property
    def stream_seed(self) -> int:
        """The seed from which order and keys are computed: the loader's seed, salted with the stream's name."""
        return salted(self.seed or 0, self.name or "")

    @property
    def known_as(self) -> str:
        """The stream's name among the ranks; evaluations have a separate one, as one rank may run them alone."""
        name = self.name or ""
        return f"{name} for evaluation" if self.evaluation else name

    @property
    def replays(self) -> bool:
        """Whether a source is read again, even if it has a state."""
        return self.resume in {"replay", "replay_run"}

    @property
    def compares_data(self) -> bool:
        """Whether samples or elements are compared with those in a loaded state."""
        return self.checks in {"all", "data"}

    @property
    def compares_ranks(self) -> bool:
        """Whether the ranks compare their streams."""
        return self.checks in {"all", "ranks"}

    def find_world(self) -> World:
        """Return the world that the caller passed, else the one of the stream's first use, else the current."""
        return self.world if isinstance(self.world, World) else self.ranks.find(self.world).world

    def refuse(self, what: str, **reasons: str) -> None:
        """Reject options that do not fit the source.

        Args:
            what: the wrapped object, for the message.
            reasons: name of an option, and what to do instead.

        Raises:
            UnsupportedError: one of the options was passed.
        """
        defaults = {one.name: one.default for one in _FIELDS}
        for name, instead in reasons.items():
            value = getattr(self, name)
            if value is not None and (defaults[name] is None or value != defaults[name]):
                raise UnsupportedError(
                    f"the option {name} does not fit {what}, but {name}={value!r} was passed.\n"
                    f"It would have no effect. {instead}"
                )

    def refuse_passed(self, what: str, instead: str) -> None:
        """Reject `randomness="passed"` for a source that calls no Python function for each sample.

        Args:
            what: the wrapped object, for the message.
            instead: what to do instead.

        Raises:
            UnsupportedError: it was passed.
        """
        if self.randomness == "passed":
            raise UnsupportedError(
                f'randomness="passed" does not fit {what}.\n'
                f"No Python function makes its samples, so nothing would get their RNGs. {instead}"
            )

    # ------------------------------------------------------------------ completing the options, in this order

    def resolve_seed(self, source: Any, *, suggested: str = "") -> Options:
        """Return the options with a seed and a name, and with a recorder if `flight_recorder` is set.

        Args:
            source: the wrapped object, which may have a seed.
            suggested: a name to use if the caller passed none.

        Raises:
            ConfigurationError: the seed differs from the source's, or the folder of the flight recorder cannot be
                written to.
        """
        name, name_by = (suggested, "suggested" if suggested else "") if self.name is None else (self.name, GIVEN)
        named = replace(self, name=name)
        seed, seed_by = find_seed(source, self.seed, named.known_as, self.world)
        recorder = None
        if self.flight_recorder is not None:
            from resumable._flight import Recorder  # noqa: PLC0415  # a sixth of the import time, and rarely needed

            recorder = Recorder(self.flight_recorder)
        return replace(named, seed=seed, origin=Origin(seed_by, name_by), recorder=recorder)

    def resolve_sampler(self, source: Any, length: int) -> Options:
        """Return the options with a sampler for `shuffle="blocks"`, or for a source with an intrinsic order.

        Args:
            source: has the `sizes` of its shards, or a `resumable_order`.
            length: number of its samples.

        Raises:
            ConfigurationError: it has neither, or another option also sets the order.
        """
        if (carried := ask(type(source), "resumable_order")) is not None:
            self._refuse_order_beside(source)
            return replace(self, shuffle=None, sampler=carried(source, self.stream_seed))
        if self.sampler is not None and self.shuffle is not None:
            raise ConfigurationError(
                f"sampler={self.sampler!r} and shuffle={self.shuffle!r} were both passed, but only one of them can "
                "set the order.\nLeave shuffle out."
            )
        if self.shuffle != "blocks":
            return self
        from resumable.samplers.blocks import blocks_of_source  # noqa: PLC0415  # rarely needed

        return replace(self, shuffle=None, sampler=blocks_of_source(source, length, self.stream_seed))

    def _refuse_order_beside(self, source: Any) -> None:
        """Reject options that contradict the intrinsic order of a source.

        Raises:
            ConfigurationError: one was passed.
        """
        for name, value in (("shuffle", self.shuffle or None), ("sampler", self.sampler), ("order", self.order)):
            if value is not None:
                raise ConfigurationError(
                    f"{name}={value!r} was passed for a {type(source).__qualname__}, which defines its own order.\n"
                    f"Its proportions would be lost. Leave {name} out: each source is already shuffled."
                )

    def refuse_threads(self, what: str, instead: str) -> None:
        """Reject samples that several threads of a process read, unless the randomness needs no global RNG.

        Args:
            what: has the threads, for the message.
            instead: what to do, for the message.

        Raises:
            UnsupportedError: the threads would share the global RNGs.
        """
        if self.randomness not in _IN_THREADS:
            raise UnsupportedError(
                f"{what} share the global RNGs of random, numpy.random and torch, which are seeded for each sample.\n"
                f"Which thread gets which numbers would depend on the time, so no resume would be exact. {instead}"
            )

    def with_defaults(self, *, randomness: Randomness = "sample", tail: Tail | None = None) -> Options:
        """Return the options with a default for each choice the caller left open; adapters pass their own defaults.

        Args:
            randomness: how often the RNGs are seeded.
            tail: what to do with the last samples of an epoch. None means "partial", or "drop" if elements are batches,
                because ranks take complete rounds of those.
        """
        end: Tail = tail or ("drop" if self.batch_size is None else "partial")
        return replace(self, randomness=self.randomness or randomness, tail=self.tail or end)

    def with_state(self, seed: int, name: str) -> Options:
        """Return the options with the seed and the name of a state; `origin` still records what the caller passed."""
        origin = Origin(*(by if by == GIVEN else STATE for by in self.origin))
        return replace(self, seed=seed, name=name, origin=origin)

    def for_evaluation(self) -> Options:
        """Return the options of a second loader that evaluates on the same data; it finds its ranks independently."""
        ranks = self.ranks.of_another_loader()
        return replace(self.unrecorded(), evaluation=True, ack="auto", ranks=ranks)

    def unrecorded(self) -> Options:
        """Return the options without a flight recorder."""
        return replace(self, flight_recorder=None, recorder=None)


_FIELDS = tuple(one for one in fields(Options) if "check" in one.metadata)
_NAMES = [one.name for one in _FIELDS]
_OF_OTHERS = {  # names for an option in other libraries and in earlier versions of this one
    "collate_fn": "collate",
    "drop_last": "tail",
    "map": "transform",
    "num_samples": "sampler",
    **dict.fromkeys(("rank", "world_size", "mesh", "device_mesh", "process_group", "group", "pg"), "world"),
    **dict.fromkeys(("on_world_change", "on_batch_change"), "on_change"),
    **dict.fromkeys(("canary", "watch"), "checks"),
}


def refuse_unknown(given: Mapping[str, Any]) -> None:
    """Reject options that `wrap` does not have.

    Raises:
        UnsupportedError: there is one; the message suggests the option that was probably meant.
    """
    for name, value in given.items():
        if name in _NAMES:
            continue
        from difflib import get_close_matches  # noqa: PLC0415  # needed only for an error

        near = get_close_matches(_OF_OTHERS.get(name, name), _NAMES, n=1)
        meant = f"Did you mean {near[0]}?" if near else f"The options are {', '.join(_NAMES)}."
        raise UnsupportedError(
            f"wrap has no option {name}, but {name}={value!r} was passed.\nIt would have no effect. {meant}"
        )


def signature_of_wrap() -> Signature:
    """Return the signature of `wrap` that `help` shows: the source, and every option with type and default."""
    types = {name: kind.__forward_arg__ for name, kind in Given.__annotations__.items()}
    options = [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=types.get(one.name, str(one.type)))
        for one in _FIELDS
    ]
    source = Parameter("source", Parameter.POSITIONAL_OR_KEYWORD, annotation="Any")
    return Signature([source, *options], return_annotation="Loader")


class Given(TypedDict, total=False):
    """The options that do not affect the type of a batch, for type checkers; the overloads have the others."""

    identity: str | None
    seed: int | None
    name: str | None
    shuffle: bool | Literal["blocks"] | None
    sampler: Sampler | None
    order: Literal["feistel", "torch"] | None
    tail: Tail | None
    randomness: Randomness | None
    world: World | DeviceMesh | ProcessGroup | None
    shard: bool | None
    on_change: OnChange
    ack: Literal["auto", "manual"]
    evaluation: bool
    resume: Resume | None
    streams: int | None
    checks: Checks
    on_worker_death: Literal["error", "restart"]
    stall_after: float | None
    flight_recorder: str | os.PathLike[str] | None
