"""Options and sources of a wrong type end in an error that says so, before anything is read."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import resumable
from resumable import World, samplers
from resumable._options import Given, Options
from resumable.errors import ConfigurationError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES = list(range(8))
OPAQUE = [[], {}, np.array(["drop", "pad"]), torch.zeros(2), 1, True, b"drop", ("drop",), "Drop", ""]


@pytest.mark.parametrize("name", ["tail", "randomness", "ack", "on_change", "checks"])
@pytest.mark.parametrize("value", OPAQUE, ids=repr)
def test_what_is_none_of_the_names_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be one of .*, but it is"):
        resumable.wrap(SAMPLES, **{name: value})


def test_a_name_is_kept_as_a_plain_string() -> None:
    given: dict[str, Any] = {"tail": np.str_("pad"), "identity": np.str_("mine")}
    options = Options(**given)
    assert {type(options.tail), type(options.identity)} == {str}


@pytest.mark.parametrize("name", ["shuffle", "shard", "evaluation"])
@pytest.mark.parametrize("value", ["yes", "no", 0, 1, 0.0, [], np.array([True]), np.int64(0), torch.tensor(False)])
def test_what_only_counts_as_true_or_false_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f'{name} must be True, False or (None|"blocks"), but it is'):
        resumable.wrap(lambda: iter(SAMPLES), **{name: value})


@pytest.mark.parametrize("name", ["shuffle", "shard", "evaluation"])
@pytest.mark.parametrize("value", [True, False])
def test_numpys_truth_values_are_kept_as_pythons(name: str, value: bool) -> None:
    given: dict[str, Any] = {name: np.bool_(value)}
    assert getattr(Options(**given), name) is value


def test_none_leaves_a_choice_to_the_adapter() -> None:
    options = Options(shuffle=None, shard=None, evaluation=None)  # type: ignore[arg-type]  # wrap() does not check types
    assert (options.shuffle, options.shard, options.evaluation) == (None, None, False)


def test_false_of_any_kind_for_sharding() -> None:
    """A source that shards itself is believed, whatever kind of false says so."""
    false: Any = np.False_
    loader = resumable.wrap(lambda: iter(SAMPLES), shard=false, identity="own", world=World(1, 2))
    assert list(loader) == SAMPLES
    assert loader.state_dict()["rank"] == 1


class NoSpec(samplers.Sequential):
    spec = None  # type: ignore[assignment]  # that is the mistake


class HalfLength(samplers.Sequential):
    length: Any = 3.5

    def __init__(self) -> None:
        pass


class NumpyLength(HalfLength):
    length: Any = np.int64(8)


@pytest.mark.parametrize(
    "sampler", [[3, 1, 2], np.arange(3), "shuffle", 5, torch.utils.data.SequentialSampler(SAMPLES), NoSpec(8)]
)
def test_what_is_no_sampler_is_refused(sampler: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"sampler must be an object with length, .*\n.*Subset\(indices"
    ) as caught:
        resumable.wrap(SAMPLES, sampler=sampler)
    assert repr(sampler) in str(caught.value)


@pytest.mark.parametrize("kind", [samplers.Shuffle, samplers.Sequential, HalfLength])
def test_the_class_of_a_sampler_is_no_sampler(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"but it is <class '.*{kind.__name__}'>"):
        resumable.wrap(SAMPLES, sampler=kind)


def test_the_length_of_a_sampler_is_a_plain_integer() -> None:
    with pytest.raises(ConfigurationError, match=r"length of the sampler must be an integer of 1 or more.*3\.5"):
        resumable.wrap(SAMPLES, sampler=HalfLength())
    with pytest.raises(ConfigurationError, match=r"length of the sampler must be plain values.*int64\(8\)"):
        resumable.wrap(SAMPLES, sampler=NumpyLength())


@pytest.mark.parametrize("world", [(0, 2), 2, "0/2", World, {"rank": 0, "size": 2}])
def test_what_is_no_world_is_refused(world: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"world must be a World, .*, but it is .*\n.*World\(rank=0, size=2\)"):
        resumable.wrap(SAMPLES, world=world)


@pytest.mark.parametrize("name", ["transform", "collate"])
@pytest.mark.parametrize("value", [5, "list", [str], True])
def test_what_cannot_be_called_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be callable, but it is"):
        resumable.wrap(SAMPLES, **{name: value})


@pytest.mark.parametrize("identity", [5, "", {"path": "data"}, b"data", ("data", 1)])
def test_an_identity_is_a_name(identity: Any) -> None:
    with pytest.raises(ConfigurationError, match="identity must be a non-empty string, but it is"):
        resumable.wrap(SAMPLES, identity=identity)


@pytest.mark.parametrize("name", ["batch_size", "streams"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", [], np.array([1, 2])])
def test_a_count_is_an_integer_of_1_or_more(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be an integer of 1 or more, but it is") as caught:
        resumable.wrap(SAMPLES, **{name: value})
    assert "empty list" not in str(caught.value)


# ---------------------------------------------------------------------- sources


@pytest.mark.parametrize("source", [np.array(5), torch.tensor(3)], ids=repr)
def test_an_array_without_an_axis_is_no_sequence(source: Any) -> None:
    with pytest.raises(UnsupportedError, match="has no length: len.. of .*\n.*at least one dimension"):
        resumable.wrap(source)


class Long:
    """As long as it is told to be."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return int(self.length)

    def __iter__(self) -> Iterator[int]:
        return iter(SAMPLES)


class LongSequence(Long):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("source", [range(2**63), LongSequence(2**63), LongSequence(-1), Long(2**64), Long(-1)])
def test_a_length_that_python_cannot_count_to_is_refused(source: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"length of {type(source).__name__} is out of range: "):
        resumable.wrap(source)


@pytest.mark.parametrize("error", [TypeError("unknown"), NotImplementedError("unknown")], ids=repr)
def test_an_iterable_need_not_know_its_length(error: Exception) -> None:
    assert list(resumable.wrap(Long(error))) == SAMPLES
    with pytest.raises(UnsupportedError, match="LongSequence has no length: unknown"):
        resumable.wrap(LongSequence(error))


@pytest.mark.parametrize("make", [lambda: None, lambda: 5, lambda: np.array(5)], ids=["none", "number", "array"])
def test_function_that_returns_nothing(make: Callable[[], Any]) -> None:
    """A function that returns nothing to iterate over is named."""
    loader = resumable.wrap(make, identity="make")
    with pytest.raises(UnsupportedError, match="make provides nothing to iterate over: got an object of the type"):
        next(iter(loader))


@pytest.mark.parametrize("source", [range, functools.partial(range, "a")], ids=repr)
def test_failed_call_and_error_inside(source: Any) -> None:
    """A call that fails is told from an error inside of the function."""
    with pytest.raises(UnsupportedError, match="could not be called: .*\n.*functools.partial"):
        next(iter(resumable.wrap(source)))

    def broken() -> Any:
        return math.sqrt("4")  # type: ignore[arg-type]  # that is the mistake

    with pytest.raises(TypeError, match="must be real number") as caught:
        next(iter(resumable.wrap(broken)))
    assert not isinstance(caught.value, UnsupportedError)


class Endless:
    """Has `__next__`, and is no iterator all the same."""

    def __next__(self) -> int:
        return 1


@pytest.mark.parametrize("source", [torch.nn.Linear(1, 1), Endless()], ids=lambda source: type(source).__name__)
def test_object_that_cannot_be_iterated(source: Any) -> None:
    """An object that continues but cannot be iterated over is rejected."""
    with pytest.raises(UnsupportedError, match="provides nothing to iterate over: got an object of the type"):
        resumable.wrap(source)


def test_states_with_numpys_kinds_of_options_survive_json() -> None:
    options: dict[str, Any] = {"batch_size": np.int64(2), "seed": np.uint8(3), "shuffle": np.True_}
    options |= {"tail": np.str_("drop"), "on_change": np.str_("continue")}
    loader = resumable.wrap(SAMPLES, **options)
    next(iter(loader))
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))


# ---------------------------------------------------------------------- one list

NAMES = [one.name for one in dataclasses.fields(Options) if "check" in one.metadata]


def test_type_checkers_know_every_option() -> None:
    """Those that say nothing of the type of a batch are listed once more; the overloads of `wrap` have the others."""
    of_batch = ["batch_size", "transform", "collate"]
    assert sorted(NAMES) == sorted([*Given.__annotations__, *of_batch])
    known = {one.name: one.type for one in dataclasses.fields(Options)}
    differ = {name for name, kind in Given.__annotations__.items() if kind.__forward_arg__ != known[name]}
    assert differ == {"world", "flight_recorder"}  # a check makes a group of the one, and a string of the other


def test_help_shows_every_option_with_its_default() -> None:
    source, *shown = inspect.signature(resumable.wrap).parameters.values()
    assert source.name == "source"
    assert {one.name: one.default for one in shown} == {name: getattr(Options(), name) for name in NAMES}
    assert {one.kind for one in shown} == {inspect.Parameter.KEYWORD_ONLY}


def test_every_option_is_explained_once() -> None:
    documented = re.findall(
        r"^    (\w+): ", (inspect.getdoc(resumable.wrap) or "").partition("Returns:")[0], re.MULTILINE
    )
    assert documented == ["source", *NAMES]
    page = (Path(__file__).parents[2] / "docs/reference/api/wrap.md").read_text(encoding="utf-8")
    table = page.partition("## Options of `wrap`")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == NAMES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *[(name, "world") for name in ("mesh", "process_group", "device_mesh", "rank")],
        *[(name, "checks") for name in ("canary", "watch")],
        *[(name, "on_change") for name in ("on_world_change", "on_batch_change")],
        *[("collate_fn", "collate"), ("sed", "seed"), ("origin", None), ("uneven", None)],
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_was_meant(name: str, meant: str | None) -> None:
    given: dict[str, Any] = {name: 1}
    told = f"Did you mean {meant}\\?" if meant else "The options are batch_size, .*, flight_recorder\\."
    with pytest.raises(UnsupportedError, match=f"wrap has no option {name}, but {name}=1 was passed.\n.*{told}"):
        resumable.wrap(SAMPLES, **given)
