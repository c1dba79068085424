"""Mixtures as functions of the position: exact proportions, own epochs, phases, and sources that leave."""

from __future__ import annotations

import json
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from resumable.errors import ConfigurationError
from resumable.samplers import Mixture
from resumable.samplers.timeline import Counts

SIZES = {"web": 1000, "code": 100, "math": 37}
WEIGHTS = {"web": 0.7, "code": 0.2, "math": 0.1}


def stream(mixture: Mixture, start: int, stop: int) -> tuple[Any, Any]:
    """The indices and sources of places, over all epochs."""
    parts = []
    while start < stop:
        epoch, position = divmod(start, mixture.length)
        last = min(mixture.length, position + stop - start)
        parts.append((mixture.indices(epoch, position, last), mixture.sources(epoch, position, last)))
        start += last - position
    indices, sources = zip(*parts, strict=True)
    return np.concatenate(indices), np.concatenate(sources)


def assert_own_epochs(mixture: Mixture, sizes: dict[str, int], indices: Any, sources: Any) -> None:
    """Each source gives all of its samples once before one comes again, in an order that differs."""
    first = 0
    for number, size in enumerate(sizes.values()):
        own = indices[sources == number] - first
        laps = [own[start : start + size].tolist() for start in range(0, len(own), size)]
        for lap in laps[:-1]:
            assert sorted(lap) == list(range(size))
        assert not laps or len(set(laps[-1])) == len(laps[-1])
        assert size < 10 or all(one != other for one, other in pairwise(laps))
        first += size


# ---------------------------------------------------------------------- proportions


@pytest.mark.parametrize("window", [1, 10, 64, 256])
def test_every_window_has_the_proportions(window: int) -> None:
    mixture = Mixture(SIZES, weights=WEIGHTS, window=window)
    _, sources = stream(mixture, 0, 200 * window)
    counts = np.stack([np.bincount(part, minlength=3) for part in sources.reshape(200, window)])
    assert np.abs(counts - window * np.array([0.7, 0.2, 0.1])).max() < 2
    steps = np.arange(1, 201)[:, None] * window
    assert np.abs(np.cumsum(counts, 0) - steps * np.array([0.7, 0.2, 0.1])).max() < 2


def test_whole_shares_are_exact() -> None:
    mixture = Mixture(SIZES, weights={"web": 5, "code": 2, "math": 1}, window=64)
    _, sources = stream(mixture, 0, 64 * 500)
    assert (np.sort(sources.reshape(500, 64)) == np.repeat([0, 1, 2], [40, 16, 8])).all()


@pytest.mark.parametrize("count", [3, 10, 50, 300])
def test_a_window_of_256_is_near_its_shares_with_many_sources(count: int) -> None:
    shares = np.random.default_rng(count).dirichlet(np.ones(count))
    names = [f"s{number}" for number in range(count)]
    mixture = Mixture(dict.fromkeys(names, 999), weights=dict(zip(names, shares.tolist(), strict=True)), window=256)
    _, sources = stream(mixture, 0, 256 * 100)
    counts = np.stack([np.bincount(part, minlength=count) for part in sources.reshape(100, 256)])
    assert np.abs(counts - 256 * shares).max() < 3.5
    assert np.abs(np.cumsum(counts, 0) - np.arange(1, 101)[:, None] * 256 * shares).max() < 3.5


def test_a_window_is_dealt_at_random() -> None:
    """Each place of a window has each source as often as its share, and windows differ."""
    mixture = Mixture(SIZES, weights={"web": 3, "code": 1, "math": 0.0001}, window=8)
    _, sources = stream(mixture, 0, 8 * 4000)
    table = sources.reshape(-1, 8) == 1
    assert np.abs(table.mean(axis=0) - 0.25).max() < 0.03
    assert len(np.unique(table, axis=0)) > 25


def test_counts_are_monotone_and_add_up_however_large() -> None:
    shares = [0.5, 1e-30, 0.0, 0.3, 0.2]
    counts = Counts(shares, 7)
    numbers = np.concatenate([np.arange(3000), 2**61 + np.arange(3000)])
    table = counts.at(numbers)
    assert (table.sum(axis=1) == numbers).all()
    steps = np.diff(table, axis=0)
    assert np.delete(steps, 2999, axis=0).min() == 0
    assert np.delete(steps, 2999, axis=0).max() == 1
    assert not table[:, 2].any()
    for number in (0, 17, 2999, 2**61 + 5):
        assert counts.after(number) == counts.at(np.array([number]))[0].tolist()


# ---------------------------------------------------------------------- any place


def random_case(seed: int) -> tuple[dict[str, int], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    sizes = {f"s{number}": int(rng.integers(1, 300)) for number in range(rng.integers(1, 8))}
    starts = [0, *sorted(rng.choice(np.arange(1, 3000), 3, replace=False).tolist())]

    def weights() -> dict[str, float]:
        return {name: float(rng.choice([0, 0.001, 0.1, 1, 3.7])) + 1e-3 * (name == "s0") for name in sizes}

    phases = [(start, weights()) for start in starts]
    phases[-1] = starts[-1], {name: weight + 0.01 for name, weight in phases[-1][1].items()}
    return sizes, {"weights": phases, "window": int(rng.integers(1, 200)), "seed": seed}


@pytest.mark.parametrize("seed", range(12))
def test_any_place_is_as_in_the_whole_stream(seed: int) -> None:
    sizes, given = random_case(seed)
    whole = Mixture(sizes, **given)
    indices, sources = stream(whole, 0, 5000)
    assert_own_epochs(whole, sizes, indices, sources)
    fresh = pickle.loads(pickle.dumps(Mixture(sizes, **given)))  # noqa: S301  # our own
    rng = np.random.default_rng(seed)
    for start in rng.integers(0, 4900, 25).tolist():
        stop = start + int(rng.integers(1, 100))
        assert (stream(fresh, start, stop)[0] == indices[start:stop]).all()
        counts = np.bincount(sources[:start], minlength=len(sizes)).tolist()
        assert list(fresh.consumed(*divmod(start, fresh.length)).values()) == counts
    assert whole.indices(0, 0, 0).shape == (0,)


def test_seed_and_name_select_the_order() -> None:
    one = Mixture(SIZES, seed=1, window=8).indices(0, 0, 200).tolist()
    assert one == Mixture(SIZES, seed=1, window=8).indices(0, 0, 200).tolist()
    assert one != Mixture(SIZES, seed=2, window=8).indices(0, 0, 200).tolist()
    alike = Mixture({"a": 50, "b": 50}, window=10)
    indices, sources = stream(alike, 0, 100)
    assert indices[sources == 0].tolist() != (indices[sources == 1] - 50).tolist()


# ---------------------------------------------------------------------- phases


@pytest.mark.parametrize("cut", [1, 63, 64, 100, 999, 1137, 2500])
def test_a_phase_changes_nothing_before_it_and_begins_exactly(cut: int) -> None:
    given: dict[str, Any] = {"window": 64, "seed": 5, "num_samples": 1024}
    before = stream(Mixture(SIZES, weights=[(0, WEIGHTS)], **given), 0, 4000)
    sizes = {**SIZES, "new": 20}
    phases: list[tuple[int, dict[str, float]]] = [(0, WEIGHTS), (cut, {"code": 1, "new": 3})]
    joined = Mixture(sizes, weights=phases, **given)
    indices, sources = stream(joined, 0, 4000)
    assert (indices[:cut] == before[0][:cut]).all()
    assert set(sources[cut:].tolist()) == {1, 3}
    assert_own_epochs(joined, sizes, indices, sources)
    border = -(-cut // 64) * 64
    for window in sources[border : border + 640].reshape(10, 64):
        assert abs(int((window == 1).sum()) - 16) <= 1


def test_windows_stay_on_one_grid_through_phases() -> None:
    """Batches after a phase that begins inside of one have exact proportions, too."""
    mixture = Mixture({"a": 100, "b": 100}, weights=[(0, {"a": 1, "b": 1}), (37, {"a": 1, "b": 3})], window=16)
    _, sources = stream(mixture, 48, 48 + 1600)
    assert ((sources.reshape(100, 16) == 0).sum(axis=1) == 4).all()


# ---------------------------------------------------------------------- sources that leave


@pytest.mark.parametrize("seed", range(8))
def test_sources_leave_after_their_epochs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = {f"s{number}": int(rng.integers(1, 200)) for number in range(5)}
    weights = {name: float(rng.uniform(0.05, 1)) for name in sizes}
    epochs = {name: int(rng.integers(1, 4)) for name in list(sizes)[1:]}
    mixture = Mixture(sizes, weights=weights, epochs=epochs, window=int(rng.integers(1, 64)), seed=seed)
    indices, sources = stream(mixture, 0, 20_000)
    assert_own_epochs(mixture, sizes, indices, sources)
    counts = np.bincount(sources, minlength=5).tolist()
    assert counts[1:] == [epochs[name] * size for name, size in list(sizes.items())[1:]]
    assert counts[0] == 20_000 - sum(counts[1:])


@pytest.mark.parametrize("window", [1, 7, 64])
def test_where_all_leave_an_epoch_is_the_whole_mixture(window: int) -> None:
    mixture = Mixture(SIZES, weights=WEIGHTS, epochs={"web": 1, "code": 2, "math": 3}, window=window)
    assert mixture.length == 1000 + 200 + 111
    for epoch in range(3):
        indices = mixture.indices(epoch, 0, mixture.length)
        assert sorted(np.bincount(indices).tolist()) == [1] * 1000 + [2] * 100 + [3] * 37
    assert_own_epochs(mixture, SIZES, *stream(mixture, 0, 3 * mixture.length))
    assert mixture.consumed(2, 0) == {"web": 2000, "code": 400, "math": 222}


@pytest.mark.parametrize("window", [1, 7, 64])
def test_stop_ends_with_the_first_used_up(window: int) -> None:
    """Stop ends with the last sample of the first source that is used up."""
    mixture = Mixture(SIZES, weights=WEIGHTS, epochs=1, at_end="stop", window=window)
    sources = mixture.sources(0, 0, mixture.length)
    assert np.bincount(sources)[2] == 37
    assert sources[-1] == 2
    assert (np.bincount(sources) <= list(SIZES.values())).all()
    assert_own_epochs(mixture, SIZES, *stream(mixture, 0, 5 * mixture.length))


def test_a_source_leaves_in_the_phases_to_come() -> None:
    phases = [(0, {"a": 1, "b": 1}), (300, {"a": 1, "b": 1}), (1000, {"b": 9, "a": 1})]
    mixture = Mixture({"a": 100, "b": 50}, weights=phases, epochs={"b": 2}, window=10)
    _, sources = stream(mixture, 0, 3000)
    assert (sources == 1).sum() == 100
    assert not (sources[220:] == 1).any()


def test_a_source_is_used_up_right_where_a_phase_begins() -> None:
    mixture = Mixture({"a": 100, "b": 50}, weights=[(0, {"a": 1}), (100, {"b": 1})], epochs={"a": 1}, window=8)
    assert mixture.sources(0, 90, 110).tolist() == [0] * 10 + [1] * 10


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": {"web": 1, "code": 1}}, r"no weight was passed for 'math'(.|\n)*never be read"),
        ({"weights": {**WEIGHTS, "mth": 1}}, r"contain 'mth', but the sources are 'web', 'code', 'math'"),
        ({"weights": {**WEIGHTS, "web": -0.5}}, r"the weight of 'web' must be .* but it is -0\.5"),
        ({"weights": {**WEIGHTS, "web": float("nan")}}, "but it is nan"),
        ({"weights": {**WEIGHTS, "web": True}}, "but it is True"),
        ({"weights": {**WEIGHTS, "web": "1"}}, "but it is '1'"),
        ({"weights": dict.fromkeys(SIZES, 0)}, "the weights are all 0"),
        ({"weights": [0.7, 0.2, 0.1]}, "or a list of phases, but they are"),
        ({"weights": []}, r"must start at 0(.|\n)*start at \[\]"),
        ({"weights": [(5, WEIGHTS)]}, r"they start at \[5\]"),
        ({"weights": [(0, WEIGHTS), (9, WEIGHTS), (9, WEIGHTS)]}, r"they start at \[0, 9, 9\]"),
        ({"weights": [(0, WEIGHTS), (9, {"web": -1})]}, "of the phase at 9 must be a finite number"),
        ({"weights": [(0, {"web": 1}), (9, {"code": 1})]}, "no weight was passed for 'math'"),
        ({"epochs": {"webb": 1}}, "epochs contains 'webb', but the sources are"),
        ({"epochs": {"web": 0}}, "the epochs of 'web' must be an integer of 1 or more, but they are 0"),
        ({"epochs": 1.5}, "but they are 1.5"),
        ({"at_end": "restart"}, 'at_end must be "leave" or "stop", but it is \'restart\''),
        ({"at_end": "stop"}, "no source would be used up"),
        ({"epochs": 1, "num_samples": 5}, "num_samples=5 was passed, but the mixture ends after 1137"),
        ({"weights": [(0, WEIGHTS), (5000, WEIGHTS)], "epochs": 1}, "ends at sample 1137(.|\n)*planned at 5000"),
        ({"window": 0}, "the window of a mixture must be an integer of 1 or more, but it is 0"),
        ({"window": 2**21}, "must be at most"),
        ({"num_samples": 0}, "num_samples must be an integer of 1 or more"),
        ({"seed": -1}, "the seed must be"),
    ],
)
def test_what_makes_no_mixture_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Mixture(SIZES, **given)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "must be a mapping with a name for each"),
        ([1000, 100], "must be a mapping with a name for each"),
        ({1: 1000}, "must be a mapping with a name for each"),
        ({"web": 0}, "the length of the source 'web' must be an integer of 1 or more, but it is 0"),
        ({"web": 2**61, "code": 2**62}, "the length of all sources together must be at most"),
    ],
)
def test_sources_that_cannot_be_mixed_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Mixture(sizes)


def test_positions_outside_of_an_epoch_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"positions 0\.\.1137 were requested"):
        Mixture(SIZES, window=16).indices(0, 0, 1137)


# ---------------------------------------------------------------------- the spec


def test_the_spec_says_what_the_order_depends_on() -> None:
    base = Mixture(SIZES, weights=WEIGHTS, window=16)
    assert base.spec() == Mixture(SIZES, weights={"web": 7, "code": 2, "math": 1}, window=16).spec()
    others = [
        Mixture({**SIZES, "math": 38}, weights=WEIGHTS, window=16, num_samples=base.length),
        Mixture(SIZES, weights={**WEIGHTS, "math": 0.11}, window=16),
        Mixture(SIZES, weights=[(0, WEIGHTS), (5000, {"web": 1})], window=16),
        Mixture(SIZES, weights=WEIGHTS, window=17, num_samples=base.length),
        Mixture(SIZES, weights=WEIGHTS, window=16, epochs={"web": 5}),
        Mixture(SIZES, weights=WEIGHTS, window=16, seed=1),
        Mixture(SIZES, weights=WEIGHTS, window=16, num_samples=base.length + 16),
        Mixture(SIZES, weights=WEIGHTS, window=16, epochs=1),
        Mixture(SIZES, weights=WEIGHTS, window=16, epochs=1, at_end="stop"),
    ]
    texts = {json.dumps(mixture.spec()) for mixture in [base, *others]}
    assert len(texts) == len(others) + 1


@pytest.mark.slow
def test_many_sources_are_a_digest_in_the_spec() -> None:
    sizes = {f"source number {number}": 10 + number for number in range(300)}
    assert len(json.dumps(Mixture(sizes, epochs=2).spec())) < 300
    assert Mixture(sizes).spec() != Mixture({**sizes, "source number 7": 18}).spec()
