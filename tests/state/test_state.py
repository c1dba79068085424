"""States: those of released formats load for ever, those that contradict themselves never."""

from __future__ import annotations

import copy
import enum
import io
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from released_states import MAKERS, Reader, cases, rarely, run
from torch.utils.data import DataLoader

import resumable
from resumable.errors import ConfigurationError, ResumableError, StateFormatError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent / "states"
RELEASED = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


SOME = {"format2_data", "format2_snapshots"}  # which have some of the sources


@pytest.mark.filterwarnings("ignore:the state does not include")  # that is said of older ones
@pytest.mark.parametrize(
    ("version", "name"),
    [
        pytest.param(version, name, marks=[pytest.mark.slow] * ("workers" in name))
        for version, released in RELEASED.items()
        for name in MAKERS
        if any(case["name"] == name for case in released) or version not in SOME
    ],
)
def test_a_state_of_a_released_format_goes_on(version: str, name: str) -> None:
    known = [case for case in RELEASED[version] if case["name"] == name]
    assert known
    for case in known[:: 3 if "canaries" in version and "workers" in name else 1]:  # each takes new processes
        loader = MAKERS[name]()
        loader.load_state_dict(case["state"])
        assert list(run(loader, case["leave_at"])) == case["rest"], case["state"]


@pytest.mark.slow
def test_the_current_format_is_among_them() -> None:
    """And writes the same states: a format that changes needs a new number, and a file of its own."""
    released = RELEASED[f"format{resumable.wrap([1]).state_dict()['format']}"]
    assert list(cases()) == released


def test_every_state_has_the_same_keys() -> None:
    states = [case["state"] for version, cases in RELEASED.items() if version != "format1" for case in cases]
    for number in (2, 3):
        assert len({tuple(sorted(state)) for state in states if state["format"] == number}) == 1


def state_of(name: str, batches: int) -> dict[str, Any]:
    loader = MAKERS[name]()
    states = [loader.state_dict() for _ in zip(range(batches), loader, strict=False)]
    return copy.deepcopy(states[-1])


def set_batches(state: Any) -> None:
    state["source_state"]["snapshot"]["workers"][0]["batches"] += 1


def set_step(state: Any) -> None:
    state["source_state"]["snapshot"]["step"] += 1


CONTRADICTIONS = {
    "a worker that gave more": ("stream, two workers", set_batches, "taken after 4 elements.*position 3"),
    "a sampler that gave more": ("sampler", set_step, "taken after 3 elements.*position 2"),
    "more to skip than there was": (
        "reader",
        lambda s: s["source_state"].update(skip=9),
        "skip must be an integer of 0",
    ),
    "more steps than samples": ("list", lambda s: s["cursor"].update(step=11), "position 4 is too small for 11 steps"),
    "a batch of no number of ranks": ("list", lambda s: s.update(global_batch=5), "global_batch is 5.*batch_size=2"),
    "a batch of too many ranks": (
        "list",
        lambda s: s.update(global_batch=1 << 22),
        "global_batch is 4194304.*batch_size=2",
    ),
    "an epoch of too many bits": (
        "list",
        lambda s: s["cursor"].update(epoch=1 << 63),
        r"epoch must be at most 2\*\*62",
    ),
    "no place in the epoch": ("list", lambda s: s["cursor"].update(position=400), "position 400 is after"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_place_that_contradicts_itself_is_refused(what: str) -> None:
    name, change, message = CONTRADICTIONS[what]
    state = state_of(name, 3 if "worker" in what else 2)
    change(state)
    loader = MAKERS[name]()
    before = loader.state_dict()
    with pytest.raises(StateFormatError, match=message):
        loader.load_state_dict({**state, "digest": None})
    assert loader.state_dict() == before


def test_so_is_one_of_format_1() -> None:
    found = [case for case in RELEASED["format1"] if case["name"] == "stream, two workers" and not case["leave_at"]]
    state = copy.deepcopy(found[2]["state"])
    state["native"]["snapshot"]["workers"][1]["batches"] += 1
    with pytest.raises(StateFormatError, match="taken after 4 elements.*position 3"):
        MAKERS["stream, two workers"]().load_state_dict(state)


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(values, (dict, list)) and values:
        for key in values if isinstance(values, dict) else range(len(values)):
            yield from leaves(values[key], (*path, key))
    else:
        yield path


def changed(state: Any, path: tuple[Any, ...]) -> Any:
    state = copy.deepcopy(state)
    *above, last = path
    place = state
    for key in above:
        place = place[key]
    value = place[last]
    flipped = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"
    place[last] = flipped
    return state


@pytest.mark.parametrize("name", MAKERS)
def test_no_field_can_change_unnoticed(name: str) -> None:
    state = state_of(name, 2)
    for path in leaves(state):
        loader = MAKERS[name]()
        before = loader.state_dict()
        with pytest.raises((StateFormatError, StateMismatchError)):
            loader.load_state_dict(changed(state, path))
        assert loader.state_dict() == before, path


NEWER: dict[str, tuple[str, Any, str]] = {
    "a field": ("list", lambda s: s.update(world={}), "the state has world,"),
    "two fields": ("function", lambda s: s.update({"a": 1, 7: 2}), "the state has a, 7,"),
    "an entry": ("list", lambda s: s["journal"].append([[0, 2], {"curriculum": 1}]), r"journal at \[0, 2\] has curric"),
    "a field of an entry": (
        "list",
        lambda s: s["journal"].append([[0, 2], {"global_batch": [1, 2], "by": "me"}]),
        r"journal at \[0, 2\] has by",
    ),
    "a field of the cursor": ("list", lambda s: s["cursor"].update(file=3), "its cursor has file"),
    "a field of the randomness": ("list", lambda s: s["randomness"].update(rounds=9), "its randomness has rounds"),
    "a field of the source's state": ("reader", lambda s: s["source_state"].update(ahead=2), "source_state has ahead"),
    "a field of the past": (
        "function",
        lambda s: s.update(past=json.dumps({"epoch": 1, "before": [], "values": "", "ended": {}, "next": 1})),
        "its past has next",
    ),
    "a field of an earlier epoch": (
        "reader",
        lambda s: s.update(
            cursor={"epoch": 1, "position": 0, "step": 0},
            source_state={
                "left_early": {"epoch": 0, "position": 2, "source_state": s["source_state"], "why": "break"},
                "skip": 0,
                "ended": False,
            },
        ),
        "its left_early has why",
    ),
}


@pytest.mark.parametrize("digest", ["kept", "edited"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("what", NEWER)
def test_what_only_a_newer_version_can_write_is_rejected(what: str, version: int, digest: str) -> None:
    name, change, message = NEWER[what]
    state = state_of(name, 2) | {"format": version}
    change(state)
    loader = MAKERS[name]()
    before = loader.state_dict()
    for strict in (True, False):
        with pytest.raises(StateFormatError, match=f"a newer version of resumable wrote the state: .*{message}"):
            loader.load_state_dict(state if digest == "kept" else {**state, "digest": None}, strict=strict)
    assert loader.state_dict() == before


def test_so_is_a_field_of_format_1() -> None:
    case = next(case for case in RELEASED["format1"] if case["name"] == "list")
    with pytest.raises(StateFormatError, match="a newer version .* the state has canaries"):
        MAKERS["list"]().load_state_dict({**case["state"], "canaries": []})


def test_what_a_trainer_keeps_next_to_a_state_is_its_own() -> None:
    loader = MAKERS["list"]()
    batches = [loader.state_dict() for _ in loader]
    checkpoint: dict[str, Any] = {"format": 9, "epoch": 3, "loader": batches[1], "rng": {}}
    loader.load_state_dict(checkpoint["loader"])
    assert loader.cursor.step == 2
    with pytest.raises(StateFormatError, match=r"the state has epoch(.|\n)*keep it next to the state"):
        loader.load_state_dict({**batches[1], "epoch": 3})


def test_state_changed_on_purpose() -> None:
    """A state that was changed on purpose says so by its digest."""
    state = state_of("list", 2)
    state["cursor"] = {"epoch": 1, "position": 2, "step": 1}
    loader = MAKERS["list"]()
    with pytest.raises(StateFormatError, match=r"digest does not match its fields.*\n.*set its 'digest' to None"):
        loader.load_state_dict(state)
    loader.load_state_dict({**state, "digest": None})
    assert (loader.cursor.epoch, loader.cursor.step) == (1, 1)


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    """A text of another type."""

    __slots__ = ()


CYCLE: list[Any] = [1]
CYCLE.append(CYCLE)
DEEP: Any = 1
for _ in range(60):
    DEEP = {"": [DEEP]}

# What a source may have in its state; all of it can be pickled, and the first half is changed by JSON.
IN_SNAPSHOTS: dict[str, Any] = {
    "numbers as keys": {10: "a", 9: "b", 1.5: "c", None: "d"},
    "a tuple": (1, (2, "x")),
    "an enum": {"level": Level.LOW},
    "a text of another type": Word("x"),
    "fractions": [0.1, -0.0, float("inf"), float("nan")],
    "NumPy's fractions": np.float64(0.1),
    "dicts in no order": {"b": 1, "a": 2},
    "surrogates": "\udc80",
    "NumPy's numbers": [np.int64(3), np.float32(0.1), np.bool_(True)],
    "bytes": b"\x00\xff",
    "a large number": 10**5000,
    "a set": {3, 1, 2},
    "a tensor": torch.arange(4),
    "an array": np.arange(4),
    "a generator": np.random.default_rng(0),
    "an object": Reader(3),
    "a cycle": CYCLE,
    "many levels": DEEP,
}
BY_JSON = list(IN_SNAPSHOTS)[:8]


class Holds:
    """A source whose state is anything."""

    def __init__(self, own: Any = None) -> None:
        self.own = own

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def state_dict(self) -> dict[str, Any]:
        return {"own": self.own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.own = state["own"]


@pytest.mark.parametrize("name", IN_SNAPSHOTS)
def test_a_snapshot_is_the_same_after_json_and_pickle(name: str) -> None:
    state = resumable.wrap(Holds(IN_SNAPSHOTS[name]), seed=0).state_dict()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    by_torch = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    by_pickle = pickle.loads(pickle.dumps(state))  # noqa: S301  # of this test
    for loaded in (state, by_pickle, by_torch, copy.deepcopy(state)):
        resumable.wrap(Holds(), seed=0).load_state_dict(loaded)
    if name in BY_JSON:
        resumable.wrap(Holds(), seed=0).load_state_dict(json.loads(json.dumps(state)))
    state["source_state"]["snapshot"]["own"] = "another"
    with pytest.raises(StateFormatError, match="digest does not match its fields"):
        resumable.wrap(Holds(), seed=0).load_state_dict(state)


def test_states_inside_of_one_another_end_somewhere() -> None:
    inner = {"snapshot": {"index": 1, "laps": 0}, "skip": 0, "ended": False}
    for depth in (300, 5000):
        source: Any = inner
        for epoch in range(depth):
            left = {"epoch": epoch, "position": 1, "source_state": source}
            source = {"left_early": left, "skip": 0, "ended": False}
        cursor = {"epoch": depth, "position": 0, "step": 0}
        state = {**state_of("reader", 1), "cursor": cursor, "source_state": source, "digest": None}
        with pytest.raises(StateFormatError):
            MAKERS["reader"]().load_state_dict(state)


@pytest.mark.parametrize(("ack", "steps"), [("auto", 1), ("manual", 1), ("manual", 1000)])
def test_a_state_does_not_grow_with_the_epochs_that_were_left(ack: Any, steps: int) -> None:
    def train(loader: resumable.Loader) -> Iterator[tuple[int, Any]]:
        for epoch in loader.epochs(40):
            for batch in epoch if epoch.number % 3 and loader.cursor.step < 2 else ():
                yield epoch.number, batch
                if loader.ack_mode == "manual":
                    loader.ack()
                if loader.cursor.step == 2:
                    break

    def fresh() -> resumable.Loader:
        return resumable.wrap(rarely(Reader(11), steps), ack=ack)

    whole, loader = list(train(fresh())), fresh()
    states = [loader.state_dict() for _ in train(loader)]
    assert max(len(json.dumps(state)) for state in states) < 1024
    first = 1 if loader.ack_mode == "auto" else 0
    for number in range(0, len(states), 7):
        resumed = fresh()
        resumed.load_state_dict(states[number])
        assert list(train(resumed)) == whole[number + first :]


def test_counters_only_grow() -> None:
    loader = resumable.wrap(list(range(7)), batch_size=2, tail="drop", seed=3)
    seen = [
        (state["global_step"], state["samples_seen"])
        for _ in range(2)
        for _ in loader
        for state in [loader.state_dict()]
    ]
    assert seen == [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10), (6, 12)]
    resumed = resumable.wrap(list(range(7)), batch_size=2, tail="drop", seed=3)
    resumed.load_state_dict(loader.state_dict())
    resumed.seek(epoch=0, step=1)
    next(iter(resumed))
    assert (resumed.state_dict()["global_step"], resumed.state_dict()["samples_seen"]) == (7, 14)


def test_what_is_raised_is_documented() -> None:
    wrongs: list[Any] = [
        7,
        "state",
        [],
        {"format": 2},
        {"format": 1},
        {"format": 1, "cursor": []},
        {"format": 2, "cursor": 1},
    ]
    for wrong in wrongs:
        with pytest.raises(ResumableError):
            MAKERS["list"]().load_state_dict(wrong)


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_place_a_replayed_sampler_never_reaches() -> None:
    """A place that a replayed sampler never reaches is rejected.

    When the next batch is asked for: no index is drawn before that.
    """
    samples: Any = list(range(6))
    loader = resumable.wrap(DataLoader(samples, batch_size=2, sampler=[3, 1, 2, 0, 4, 5]))
    state = next(loader.state_dict() for _ in loader)
    state |= {"cursor": {"epoch": 0, "position": 7, "step": 7}, "digest": None}
    loader.load_state_dict(state)
    with pytest.raises(
        StateMismatchError, match=r"before the position.*\n  elements before.*: +7\n  elements in the source: +3"
    ):
        next(iter(loader))


def test_damaged_format_is_not_an_older_one() -> None:
    """A state whose format was damaged is not taken for an older one.

    As that would be without a digest.
    """
    loader = MAKERS["function"]()
    with pytest.raises(StateFormatError, match="its format is 1, but it has a digest"):
        loader.load_state_dict({**state_of("function", 2), "format": 1})


HUGE = 10**5000


@pytest.mark.parametrize(
    "wrong", [HUGE, {"format": HUGE}, {"format": 2, "cursor": HUGE}], ids=["all", "format", "cursor"]
)
def test_what_cannot_be_printed_is_refused_by_name(wrong: Any) -> None:
    """Python prints no integers of more than 4300 digits."""
    with pytest.raises(StateFormatError, match="an? int that cannot be printed|missing"):
        MAKERS["list"]().load_state_dict(wrong)
    keys: dict[Any, Any] = {"format": 2, HUGE: 1}
    with pytest.raises(StateFormatError):
        MAKERS["list"]().load_state_dict(keys)


@pytest.mark.parametrize("field", ["format", "batch_size", "world_size", "within_batch"])
def test_so_it_is_in_the_state_of_a_sampler(field: str) -> None:
    sampler = resumable.ResumableSampler(4, 1, 0)
    before = sampler.state_dict()
    with pytest.raises(StateFormatError):
        sampler.load_state_dict({**before, field: HUGE})
    for wrong in (np.arange(3), torch.arange(3), HUGE):
        with pytest.raises(StateMismatchError, match="seed differs"):
            sampler.load_state_dict({**before, "sampler": {**before["sampler"], "seed": wrong}})
    with pytest.raises(StateFormatError):
        sampler.load_state_dict({**before, "sampler": {**before["sampler"], "length": torch.arange(3)}})
    assert sampler.state_dict() == before


def test_state_without_a_tail() -> None:
    """A state without a tail is not taken for one of an older version."""
    with pytest.raises(StateMismatchError, match="tail differs"):
        MAKERS["list"]().load_state_dict({**state_of("list", 2), "tail": None, "digest": None})


@pytest.mark.parametrize("strict", [True, False])
def test_a_global_batch_larger_than_the_data_is_refused_at_once(strict: bool) -> None:
    loader = resumable.wrap(list(range(7)), batch_size=2, tail="drop", seed=3)
    before = loader.state_dict()
    with pytest.raises(ConfigurationError, match="larger than the data"):
        loader.load_state_dict({**before, "global_batch": 8, "digest": None}, strict=strict)
    assert loader.state_dict() == before
    assert loader.epoch == 0


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_a_place_of_longer_data_is_followed_by_the_next_epoch() -> None:
    def fresh() -> resumable.Loader:
        return resumable.wrap(list(range(7)), batch_size=3, tail="carry", seed=3)

    state = {**fresh().state_dict(), "cursor": {"epoch": 0, "position": 1 << 53, "step": 5}, "digest": None}
    with pytest.raises(StateFormatError, match=r"is after the end of the epoch \(7 samples\)"):
        fresh().load_state_dict(state)
    loader = fresh()
    loader.load_state_dict(state, strict=False)
    assert len(next(iter(loader))) == 3
    assert loader.cursor.epoch == 1
