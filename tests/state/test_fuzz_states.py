"""States that were damaged at random: refused by a documented error, or loaded without harm.

A state that is accepted though its digest was left alone gives the batches of the state that it was made from. One
whose digest was taken out, as of a state that was edited by hand, may give others; it may not fail in an undocumented
way, nor hang.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import signal
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from fuzz_sources import DOCUMENTED, MAKERS, TheirError, one_lookup, rest

from resumable.errors import PromiseWarning, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable import Loader

EPOCHS, BATCHES = 3, 6  # of the runs that the states are from; drawn after a load
CASES = 400  # per seed
SECONDS = 10.0  # of the processor, for a case; most take a millisecond
FOLDER = Path(__file__).parent / "states"
OFTEN = ("cursor", "journal", "source_state", "source_state", "source_state", "canary", "global_batch", "batch_size")
Path_ = tuple[Any, ...]


class HungError(BaseException):
    """A case took too long; no `except Exception` may stop it."""


# ---------------------------------------------------------------------- states as they were saved


@functools.cache
def originals(kind: str) -> list[dict[str, Any]]:
    """Return the states at every step, in runs of whole epochs and of epochs that are left."""
    loaders = [(MAKERS[kind](ack=ack), leave_at) for ack in ("auto", "manual") for leave_at in (None, 1)]
    return [state for loader, leave_at in loaders for state in [loader.state_dict(), *states(loader, leave_at)]]


@functools.cache
def rest_after(kind: str, number: int) -> list[Any]:
    """Return what a run gives that loads one of these."""
    loader = MAKERS[kind]()
    loader.load_state_dict(originals(kind)[number])
    return rest(loader, BATCHES)


def states(loader: Loader, leave_at: int | None) -> Iterator[dict[str, Any]]:
    for epoch in loader.epochs(EPOCHS):
        for _ in epoch:
            yield loader.state_dict()  # with ack="manual", that of one batch before
            if loader.ack_mode == "manual":
                loader.ack()
            if loader.cursor.step == leave_at:
                break
        yield loader.state_dict()


@functools.cache
def released() -> list[dict[str, Any]]:
    """Return states of other loaders, and of an older format."""
    return [case["state"] for path in sorted(FOLDER.glob("*.json")) for case in json.loads(path.read_text())]


# ---------------------------------------------------------------------- damage


def nested(depth: int) -> Any:
    value: Any = {}
    for level in range(depth):
        value = [value] if level % 2 else {"source_state": value}
    return value


_NUMBERS = (0, 1, 2, -1, 3, 7, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**5000)  # the last cannot be printed
_FRACTIONS = (0.0, -0.0, 1.0, 2.5, 1e308, float("nan"), float("inf"), 1j)
_TEXTS = ("", "0", "1", "x" * 3000, "\ud800", "\0", "partial", "drop", b"1")
_ARRAYS = (np.int64(2), np.arange(3), np.array([]), torch.tensor(2), torch.arange(3))
_INSIDE: tuple[Any, ...] = (
    (),
    [],
    {},
    [[0, 0], {"global_batch": [2, 3]}],
    {1: 2, "a": 3},
    {0, 1},
    nested(3),
    nested(300),
)
JUNK: tuple[Any, ...] = (None, True, False, *_NUMBERS, *_FRACTIONS, *_TEXTS, *_ARRAYS, *_INSIDE, nested(5000), object())


def junk(rng: random.Random) -> Any:
    """Return a value of any sort, which nothing else has."""
    return copied(rng.choice(JUNK))


def copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except RecursionError:  # it is never changed
        return value


def paths(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the places of all values inside of one."""
    if len(path) > 12:
        return
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from paths(value[key], (*path, key))


def at(value: Any, path: Path_) -> Any:
    for key in path:
        value = value[key]
    return value


def nudged(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return rng.choice([True, False, None])
    if isinstance(value, int):
        return rng.choice(
            [value + 1, value - 1, -value, value * 2, value + 7, value << 10, float(value & 7), hex(value)]
        )
    if isinstance(value, str):
        return rng.choice([value[1:], value + "x", value.upper(), value[::-1], [value]])
    if isinstance(value, list):
        return rng.choice([value[:-1], value[1:], value * 2, value[::-1], value + value[:1], tuple(value)])
    if isinstance(value, dict):
        return rng.choice([list(value), list(value.items()), {**value, "more": 1}, {**value, 0: 1}, {"state": value}])
    return value


class Damage:
    """Changes a state in a few random ways, and keeps a list of them."""

    def __init__(self, kind: str, number: int, rng: random.Random) -> None:
        self.state: Any = copy.deepcopy(originals(kind)[number])
        self._others, self._rng = originals(kind), rng
        self.done: list[str] = []

    def do(self) -> Any:
        rng = self._rng
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            rng.choice(
                [self._junk, self._junk, self._nudge, self._nudge, self._nudge, self._drop, self._swap, self._splice]
            )()
        if rng.random() < 0.4:
            self.state["digest"] = None
            self.done.append("digest taken out")
        if rng.random() < 0.02:
            self.state = rng.choice([junk(rng), junk(rng), [self.state], {"loader": self.state}])
            self.done.append("the whole")
        return self.state

    def _path(self) -> Path_:
        name = self._rng.choice([*self.state, *(one for one in OFTEN if one in self.state)])
        return self._rng.choice([(name,), *((name, *path) for path in paths(self.state[name]))])

    def _junk(self) -> None:
        self._put(self._path(), junk(self._rng))

    def _nudge(self) -> None:
        path = self._path()
        self._put(path, nudged(at(self.state, path), self._rng))

    def _drop(self) -> None:
        *above, last = self._path()
        del at(self.state, tuple(above))[last]
        self.done.append(f"{[*above, last]} dropped")

    def _swap(self) -> None:
        """Put one value of the state in another place of it."""
        self._put(self._path(), copied(at(self.state, self._path())))

    def _splice(self) -> None:
        """Put what another state has at a place there, too; that of the same loader, or of another."""
        rng = self._rng
        donor = rng.choice(rng.choice([self._others, released()]))
        path = rng.choice([(name, *more) for name in donor for more in [(), *paths(donor[name])]])
        if path[:-1] in {(), *paths(self.state)} and isinstance(at(self.state, path[:-1]), dict):
            self._put(path, copy.deepcopy(at(donor, path)))

    def _put(self, path: Path_, value: Any) -> None:
        *above, last = path
        at(self.state, tuple(above))[last] = value
        self.done.append(f"{[*path]} = {shown(value)}")


def shown(value: Any) -> str:
    try:
        return repr(value)[:200]
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} that cannot be printed"


# ---------------------------------------------------------------------- what may come of it


def theirs(value: Any, *, inside: bool = False) -> list[str]:
    """Return what of a state is a user's own: the snapshots, without the fields that the library keeps in them."""
    if not isinstance(value, dict):
        return [shown(value)] if inside else []
    if inside and not {"workers", "order"} & set(value):
        return [shown(value)]
    found = []
    for key, one in value.items():
        if inside and key == "workers":
            found += [shown([one.get("state"), one.get("iterator")]) for one in one if isinstance(one, dict)]
        elif inside and key == "order":
            found.append(shown(one))
        elif not inside and key in {"source_state", "left_early"}:
            found += theirs(one)
        elif not inside and key == "snapshot":
            found += theirs(one, inside=True)
    return found


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise HungError after so much time of the processor; the clock would count what other processes take."""

    def ring(_: int, __: Any) -> None:
        raise HungError

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def assert_same_run(state: Any, original: Any) -> None:
    """See that what has to be the same in both runs is, but for what states of an earlier version do not have."""
    for group in ("backend", "sampler", "randomness"):
        found = dict(state[group])  # which may be a list of pairs
        kept = {name: value for name, value in original[group].items() if name != "parameters" or name in found}
        assert found == kept, f"accepted with another {group}"
    assert state["tail"] == original["tail"], "accepted with another tail"
    assert state.get("rank") == original["rank"], "accepted with another rank"


def outcome(kind: str, number: int, state: Any, ack: str, *, strict: bool) -> str:
    """Load a state and go on, and say how that ended.

    Raises:
        AssertionError: it is accepted though it gives other batches; or refused, and something was changed.
    """
    loader, original = MAKERS[kind](ack=ack), originals(kind)[number]
    before = loader.state_dict()
    try:
        loader.load_state_dict(state, strict=strict)
    except (*DOCUMENTED, TheirError) as error:
        assert loader.state_dict() == before, "refused, and the place was moved"
        return "refused by a user's object" if isinstance(error, TheirError) else "refused"
    if strict:
        assert_same_run(state, original)
    assert str(loader.cursor) in repr(loader)
    assert (loader.epoch, loader.accumulation) >= (0, None if loader.accumulation is None else 1)
    loader.state_dict()
    untouched = strict and isinstance(state, dict) and state.get("digest") == original["digest"]
    try:
        found = rest(loader, BATCHES)
        loader.state_dict()
    except DOCUMENTED:
        assert not untouched or theirs(state) != theirs(original), "accepted, and refused at the first batch"
        return "refused later"
    except TheirError:
        return "refused by a user's object"
    if untouched:
        known, own = theirs(original), theirs(state)
        if own == known or not own:
            wanted = rest_after(kind, number)
            assert found == wanted, f"accepted, and gives {found} instead of {wanted}"
    return "accepted"


def case(seed: int) -> str:
    """Run a case, which its seed alone decides.

    Raises:
        AssertionError: what came of it was none of what may come.
    """
    rng = random.Random(seed)
    kind = rng.choice([*MAKERS])
    number = rng.randrange(len(originals(kind)))
    damage, ack, strict = Damage(kind, number, rng), rng.choice(["auto", "manual"]), rng.random() < 0.9
    where = f"case {seed}, {kind!r}, ack={ack!r}, strict={strict}, {originals(kind)[number]}: "
    try:
        state = damage.do()
        with limited(SECONDS):
            return outcome(kind, number, state, ack, strict=strict)
    except (Exception, HungError) as error:
        raise AssertionError(f"{where}{'; '.join(damage.done)}: {type(error).__name__}: {str(error)[:500]}") from error


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), one_lookup():
        for category in (StateMismatchWarning, PromiseWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", "Using a non-tuple sequence", UserWarning)  # a tensor in place of a dict
        yield


@pytest.mark.parametrize("kind", MAKERS)
def test_the_snapshot_of_another_loader_is_refused_or_harmless(kind: str) -> None:
    donors = [state for other in MAKERS for state in originals(other)[:6] if state["source_state"] is not None]
    with quiet():
        for number in (0, 1, len(originals(kind)) - 1):
            for donor in donors:
                source = {**copy.deepcopy(donor["source_state"]), "skip": 0}
                state = {**originals(kind)[number], "source_state": source, "digest": None}
                with limited(SECONDS):
                    outcome(kind, number, state, "auto", strict=True)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 26))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_state_is_refused_or_harmless(seed: int) -> None:
    with quiet():
        outcomes = Counter(case(seed * CASES + number) for number in range(CASES))
    assert outcomes["refused"] > CASES // 2
    assert outcomes["accepted"] > CASES // 20
