"""What the options of `wrap`, and what a backend says of its data, have to be; each check returns plain values."""

from __future__ import annotations

import json
import operator
import os
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from resumable._introspection import ask, attributes_of, is_exactly, qualname_of
from resumable._order.plan import Tail
from resumable._order.world import World
from resumable._randomness.keyed import check_seed
from resumable._randomness.keys import Randomness
from resumable._ranks import group_of_mesh, group_of_processes
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.samplers import Sampler
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["Resume", "check_batch_size", "check_option", "check_plain", "length_of", "refuse_hidden_order"]


Resume = Literal["state", "replay"]
_DEEPEST = 8  # datasets inside of datasets


def check_option(name: str, value: Any) -> Any:
    """Return the value of an option as a plain one.

    Raises:
        ConfigurationError: it is of a wrong type, or out of range.
    """
    return _CHECKS[name](name, value)


def check_batch_size(batch_size: object) -> int:
    """Return a batch size as a Python integer.

    Raises:
        ConfigurationError: it is no integer, or below 1.
    """
    return _check_count("batch_size", batch_size)


def check_plain(what: str, values: Any, required: Collection[str] = ()) -> None:
    """Refuse values that a state could not carry through JSON unchanged.

    Args:
        what: what they are, for the message.
        values: a mapping.
        required: names that must be among them.

    Raises:
        ConfigurationError: it is no mapping, a name is missing, or a value would change.
    """
    if not hasattr(values, "items") or not set(required) <= set(values):
        names = f" with {', '.join(map(repr, required))}" if required else ""
        raise ConfigurationError(
            f"{what} must be a dict{names}, but it is {values!r}.\n"
            "A state could not be told from one of other data. Use for instance {'name': 'images-v1'}."
        )
    for name, value in values.items():
        if not _survives({name: value}):
            raise ConfigurationError(
                f"{what} must be plain values that survive JSON unchanged, but {name!r} is {value!r}.\n"
                "A state that was saved as JSON would be refused as one of other data. Use strings as keys, a list "
                "instead of a tuple, and int() of a NumPy integer."
            )


def length_of(source: Any, name: str, instead: str = "Give something with at least one dimension and a len().") -> int:
    """Return `len(source)`.

    Args:
        source: has a length.
        name: of the source, for the message.
        instead: what to do if it has none.

    Raises:
        UnsupportedError: it has none.
        ConfigurationError: it is not a length that Python can count to. Its other errors are raised unchanged.
    """
    try:
        return len(source)
    except (TypeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{name} has no length: {error}.\nWhich samples there are could not be known. {instead}"
        ) from error
    except (OverflowError, ValueError) as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # the code of the source did, and not Python because of its answer
        raise ConfigurationError(
            f"the length of {name} is out of range: {error}.\n"
            "Positions are 64-bit integers and would overflow. Use a length from 0 to 2**62."
        ) from error


def refuse_hidden_order(source: Any, what: str) -> None:
    """Refuse a dataset with one inside of it that carries its own order, as a `Subset` of a mixture.

    Args:
        source: it; one that carries an order itself is let through.
        what: what it is, for the message.

    Raises:
        UnsupportedError: it is one.
    """
    if (inner := _ordered_inside(source, 0)) is not None:
        mixture, around = qualname_of(type(inner)), qualname_of(type(source))
        raise UnsupportedError(
            f"{what} is a {around} around a {mixture}, which carries its own order.\n"
            "It would be read by index, in another order, and its proportions would be lost. Put the "
            f"{around} around the sources, and mix those."
        )


def _ordered_inside(source: Any, deep: int) -> Any:
    """Return what carries an order among the datasets inside of one, as torch's own name them."""
    if ask(type(source), "resumable_order") is not None:
        return source if deep else None
    kept = attributes_of(source)
    several = kept.get("datasets", ())
    inside = several.values() if type(several) is dict else several if is_exactly(several, (list, tuple)) else ()
    inside = [*inside, *([kept["dataset"]] if "dataset" in kept else [])] if deep < _DEEPEST else []
    return next((found for one in inside if (found := _ordered_inside(one, deep + 1)) is not None), None)


def _survives(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


_CHOICES = {
    "tail": (get_args(Tail), "It says what happens with the last samples of an epoch."),
    "randomness": (get_args(Randomness), "It says how often the global generators are seeded."),
    "ack": (("auto", "manual"), "It says when a batch counts as trained on."),
    "on_worker_death": (("error", "restart"), "It says what to do where a worker process dies or hangs."),
    "on_batch_change": (("error", "continue"), "It says what to do with a state of another batch size."),
    "on_world_change": (("keep_global", "keep_local"), "It says what stays where the number of ranks has changed."),
    "order": (("feistel", "torch"), "It says whose shuffle a DataLoader gets: that of this package, or torch's own."),
    "resume": (
        get_args(Resume),
        "It says whether a source goes on by its own state, or is read again up to its place.",
    ),
}

_COUNTS = {
    "batch_size": "A step would have no samples. It counts samples per rank and step.",
    "streams": "The dataset would be read as no stream at all. It counts the logical streams over all ranks; use one "
    "that the number of ranks divides, such as 16.",
    "snapshot_every": "It counts the steps from one snapshot of the source to the next. Use 1 where snapshots are "
    "cheap; with more, fewer are taken and what lies between is replayed.",
}

_FLAGS = {
    "shard": "True lets the ranks divide one stream among them, False leaves it to the source.",
    "evaluation": "True begins each loop at the beginning of epoch 0.",
    "uneven": "True lets the shares of the ranks differ by one sample.",
    "watch": "True compares the ranks with each other, False does not.",
    "canary": "True compares samples after a resume with those that the state knows, False does not.",
}

_SHUFFLE = (
    'True gives another order in every epoch, False that of the source, "blocks" another order of its blocks of '
    "neighbouring samples."
)

_LONGEST = 1e6  # seconds; what waits for a lock takes no more than some centuries

_FUNCTIONS = {"transform": "a function of a sample", "collate": "a function of a list of samples"}


def _check_choice(name: str, value: Any) -> str:
    known, meaning = _CHOICES[name]
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, but it is {value!r}.\n{meaning}")
    return str(known[known.index(value)])


def _check_count(name: str, value: Any) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be an integer of 1 or more, but it is {value!r}.\n{_COUNTS[name]}")
    return count


def _check_flag(name: str, value: Any) -> bool:
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise ConfigurationError(
            f"{name} must be True, False or None, but it is {value!r}.\n"
            f'Anything else would count as true or false by chance ("no" as true). {_FLAGS.get(name, _SHUFFLE)}'
        )
    return bool(value)


def _check_shuffle(name: str, value: Any) -> bool | str:
    if isinstance(value, str):
        if value != "blocks":
            raise ConfigurationError(
                f'{name} must be True, False or "blocks", but it is {value!r}.\n'
                f"The stream would have another order than you asked for. {_SHUFFLE}"
            )
        return value
    return _check_flag(name, value)


def _check_function(name: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigurationError(
            f"{name} must be callable, but it is {value!r}.\nNo batch could be made with it. Give {_FUNCTIONS[name]}."
        )
    return value


def _check_identity(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(
            f"{name} must be a string that is not empty, but it is {value!r}.\n"
            'It is the name by which a state knows its data. Use for instance identity="images-v1".'
        )
    return str(value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _check_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _is_text(value):
        raise ConfigurationError(
            f"{name} must be a string of text, but it is {value!r}.\n"
            'It sets the order and the randomness of this stream apart from others. Use for instance name="unlabelled".'
        )
    return str(value)


def _check_seconds(name: str, value: Any) -> float:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not 0 < value < _LONGEST:
        raise ConfigurationError(
            f"{name} must be a number of seconds above 0, but it is {value!r}.\n"
            "It is the time after which a wait for a batch is logged. Use for instance 60, or None for never."
        )
    return float(value)


def _check_sampler(name: str, value: Any) -> Any:
    if isinstance(value, type) or not isinstance(value, Sampler):
        raise ConfigurationError(
            f"{name} must be an object with length, indices(epoch, start, stop) and spec(), but it is {value!r}.\n"
            "The order could not be computed from a position. Use one of resumable.samplers, such as Shuffle(length); "
            "a list of indices is Subset(indices, Sequential(len(indices)))."
        )
    check_length(value.length, "the length of the sampler")
    check_plain("the length of the sampler", {"length": value.length})
    return value


def _check_folder(name: str, value: Any) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not path or not isinstance(path, str):
        raise ConfigurationError(
            f"{name} must be the path of a folder, but it is {value!r}.\n"
            'No record of this run could be kept. Use for instance flight_recorder="runs/flight".'
        )
    return path


def _check_world(name: str, value: Any) -> World:
    if not isinstance(value, World):
        raise ConfigurationError(
            f"{name} must be a World, but it is {value!r}.\n"
            "Which share of the data belongs to this rank could not be known. Use for instance World(rank=0, size=2)."
        )
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "seed": lambda _, value: check_seed(value),
    "name": _check_name,
    "sampler": _check_sampler,
    "shuffle": _check_shuffle,
    "identity": _check_identity,
    "stall_after": _check_seconds,
    "world": _check_world,
    "mesh": group_of_mesh,
    "process_group": group_of_processes,
    "flight_recorder": _check_folder,
    **dict.fromkeys(_CHOICES, _check_choice),
    **dict.fromkeys(_COUNTS, _check_count),
    **dict.fromkeys(_FLAGS, _check_flag),
    **dict.fromkeys(_FUNCTIONS, _check_function),
}
