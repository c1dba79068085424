"""A mixture whose sources are shuffled in blocks: their order, what is read ahead, and in how many requests."""

from __future__ import annotations

import json
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from counted_files import ranges_of
from parquet_files import write
from tar_files import write_images
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable.errors import ConfigurationError, ShuffleWarning, StateMismatchError
from resumable.samplers import Blocks, Mixture
from resumable.samplers.mixture import mixture_of
from resumable.sources import Mix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resumable.protocols import Upcoming

SIZES = {"a": [40, 7, 33, 20], "b": [30, 11]}
PLAIN = 50
NAMES = {"a": 100, "plain": PLAIN, "b": 41}
WEIGHTS = {"a": 0.5, "plain": 0.2, "b": 0.3}
BLOCK, WINDOW = 4, 5
ROOM = 12_000  # bytes, of eight row groups
pytestmark = pytest.mark.filterwarnings("ignore:.*a window of .* blocks is small:resumable.errors.ShuffleWarning")


def own(**given: Any) -> dict[str, Blocks]:
    return {name: Blocks(sizes, block=BLOCK, **{"window": WINDOW, **given}) for name, sizes in SIZES.items()}


def order(**given: Any) -> Mixture:
    return Mixture(NAMES, **{"weights": WEIGHTS, "window": 20, "seed": 3, "blocks": own(), **given})


def laps_of(mixture: Mixture, name: str, epochs: int) -> list[list[int]]:
    """Return the samples of a source in the order in which they come, one epoch of its own after the other."""
    names = list(NAMES)
    first = sum(NAMES[one] for one in names[: names.index(name)])
    found = np.concatenate([mixture.indices(epoch, 0, mixture.length) for epoch in range(epochs)]) - first
    mine = found[(found >= 0) & (found < NAMES[name])].tolist()
    return [mine[start : start + NAMES[name]] for start in range(0, len(mine), NAMES[name])]


def test_each_source_once_per_own_epoch() -> None:
    """Each source comes once per epoch of that source, window after window."""
    mixture = order()
    for name, sizes in SIZES.items():
        *laps, _ = laps_of(mixture, name, 6)
        assert len(laps) > 3
        assert len({tuple(lap) for lap in laps}) == len(laps)
        shards = Blocks(sizes, block=BLOCK)
        block_of = np.concatenate(
            [[k] * (stop - first) for k, (first, stop) in enumerate(shards.spans(np.arange(shards.blocks)))]
        )
        for lap in laps:
            assert sorted(lap) == list(range(NAMES[name]))
            left = list(lap)
            while left:  # the first samples are all of the same few blocks, and of no other ones
                blocks = list(dict.fromkeys(block_of[left].tolist()))[:WINDOW]
                size = int(np.isin(block_of, blocks).sum())
                assert set(block_of[left[:size]].tolist()) == set(blocks)
                left = left[size:]


def test_only_the_order_within_the_sources_is_another_one() -> None:
    blocks, whole = order(), order(blocks={})
    assert blocks.length == whole.length
    for epoch in range(3):
        assert np.array_equal(blocks.sources(epoch, 0, blocks.length), whole.sources(epoch, 0, whole.length))
    assert laps_of(blocks, "plain", 6) == laps_of(whole, "plain", 6)
    assert laps_of(blocks, "a", 2) != laps_of(whole, "a", 2)
    assert "blocks" not in whole.spec()
    for start, stop in ((0, 7), (13, 160), (140, 180)):
        assert np.array_equal(blocks.indices(4, start, stop), blocks.indices(4, 0, blocks.length)[start:stop])


def test_two_sources_alike_have_orders_of_their_own() -> None:
    twins = Mixture({"a": 100, "b": 100}, seed=3, blocks={name: Blocks(100, block=4, window=5) for name in "ab"})
    found = np.concatenate([twins.indices(epoch, 0, twins.length) for epoch in range(2)])
    first, second = (found[found // 100 == source][:100] % 100 for source in (0, 1))
    assert sorted(first) == sorted(second) == list(range(100))
    assert (first == second).sum() < 20


def test_mixture_v1_in_blocks() -> None:
    assert order().indices(1, 50, 62).tolist() == VECTOR


VECTOR = [131, 26, 126, 25, 109, 128, 28, 94, 152, 88, 154, 31]


class Told:
    """A source in shards that keeps what it is told."""

    def __init__(self, name: str) -> None:
        self.name, self.sizes = name, SIZES[name]
        self.told: list[tuple[list[int], Upcoming | None]] = []

    def __len__(self) -> int:
        return sum(self.sizes)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.name, index

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        self.told.append((list(indices), upcoming()))


def spans(told: Any) -> set[tuple[int, int]]:
    return {(first, stop) for first, stop in told.tolist()}


class Bound(Mix):
    """A mixture with blocks and windows that are small enough for a test."""

    def resumable_order(self, seed: int) -> Mixture:
        return order(seed=seed)


@pytest.mark.parametrize("tail", ["drop", "pad", "partial", "carry"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_source_is_told_its_blocks_in_time(tail: Any, ranks: int) -> None:
    """A source is told its blocks before their window begins."""
    sources = {"a": Told("a"), "plain": list(range(PLAIN)), "b": Told("b")}
    mixed = Bound(sources, named=False, plan={})
    loader = resumable.wrap(mixed, batch_size=12 // ranks, tail=tail, world=World(ranks - 1, ranks))
    list(loader.steps(3 * len(loader)))
    for name, sizes in SIZES.items():
        told, known = sources[name].told, set[tuple[int, int]]()  # type: ignore[attr-defined]  # those that are told
        assert len(told) > 20
        for number, (indices, blocks) in enumerate(told):
            assert blocks is not None
            here, soon = spans(blocks.here), spans(blocks.soon)
            if tail != "pad":  # else some only fill up the batch
                assert all(any(first <= index < stop for first, stop in here) for index in indices)
            assert all(stop <= sum(sizes) for _, stop in here | soon)
            assert len(here) <= 3 * WINDOW
            assert not number or len(here - known) <= 12 / BLOCK + 1  # no more than the batch needs itself
            known = here | soon


def test_a_source_without_blocks_is_told_none() -> None:
    source = Told("a")
    mixed = resumable.mix({"a": source, "b": list(range(9))})
    list(resumable.wrap(mixed, batch_size=8).steps(9))
    assert {blocks is None for _, blocks in source.told} == {True}


# ---------------------------------------------------------------------- in a loader


def in_blocks(batch_size: int = 10, **given: Any) -> resumable.Loader[Any]:
    sources = {"a": Told("a"), "plain": list(range(PLAIN)), "b": Told("b")}
    mixed = resumable.mix(sources, **{"weights": WEIGHTS, "shuffle": "blocks", **given})
    return resumable.wrap(mixed, batch_size=batch_size, seed=3, on_change="continue")


@pytest.mark.parametrize("window", [None, 30])
def test_resumed_after_every_step_with_other_batches(window: Any) -> None:
    loader = in_blocks(window=window)
    expected, states = [], []
    for batch in loader.steps(45):
        expected += batch
        states.append(json.dumps(loader.state_dict()))
    for step, state in enumerate(states):
        batch_size = (10, 7, 30)[step % 3]
        resumed = in_blocks(batch_size, window=window)
        resumed.load_state_dict(json.loads(state))
        rest = [sample for batch in resumed.epochs(3) for one in batch for sample in one]
        assert rest[: len(expected) - 10 * (step + 1)] == expected[10 * (step + 1) :]


def test_a_window_is_that_of_the_first_batch_and_stays() -> None:
    """Blocks(...) takes four times the global batch, if that is more than 512."""
    sizes = {f"source {number}": 10_000 + number for number in range(3)}
    for count in (3, 40):  # so many sources that the state has a digest of their windows
        sizes = {f"source {number}": 10_000 + number for number in range(count)}
        given = Mixture(sizes, blocks={name: Blocks(size, block=2) for name, size in sizes.items()})
        first, other = given.bound_to(200), given.bound_to(300)
        assert first.spec()["blocks"] != other.spec()["blocks"]
        assert given.bound_as(first.spec()).spec() == first.spec()
        assert mixture_of(first.spec()) is None or count == 3
    assert json.loads(str(given.bound_to(10).spec()["blocks"] if count == 3 else "[[2, 512]]")) == [[2, 512]]


def test_a_mixture_is_made_again_of_its_state() -> None:
    loader = in_blocks()
    batches = list(loader.steps(30))
    made = mixture_of(loader.state_dict()["sampler"])
    assert made is not None
    assert made.spec() == loader.state_dict()["sampler"]
    mixed = resumable.mix({"a": range(100), "plain": range(PLAIN), "b": range(41)})
    told = [mixed.locate(made.indices(0, 10 * step, 10 * step + 10)) for step in range(10)]
    assert told == [[one if isinstance(one, tuple) else ("plain", one) for one in batch] for batch in batches[:10]]


def test_states_of_another_order_are_refused() -> None:
    state = in_blocks().state_dict()
    whole = in_blocks(shuffle=True)
    with pytest.raises(StateMismatchError, match=r"sampler.blocks differs(.|\n)*in this run: +None"):
        whole.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"sampler.blocks differs(.|\n)*in the checkpoint: None"):
        in_blocks().load_state_dict(in_blocks(shuffle=True).state_dict())


def test_what_makes_no_order_in_blocks_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="needs a source with the attribute sizes, but none of these has it: 'x', 'y'"
    ):
        resumable.mix({"x": [1], "y": [2]}, shuffle="blocks")
    with pytest.raises(ConfigurationError, match="shuffle must be True or"):
        resumable.mix({"x": [1]}, shuffle=False)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ConfigurationError, match="an order of 9 samples in blocks was passed for 'x'"):
        Mixture({"x": 10}, blocks={"x": Blocks(9)})
    with pytest.raises(ConfigurationError, match="the sizes of Wrong add up to 3 samples, but it has 100"):
        resumable.mix({"a": Wrong()}, shuffle="blocks")


class Wrong(Told):
    def __init__(self) -> None:
        super().__init__("a")
        self.sizes = [3]

    def __len__(self) -> int:
        return 100


@pytest.mark.filterwarnings("default::resumable.errors.ShuffleWarning")
def test_too_small_window_for_the_batch() -> None:
    """A warning tells of a window that is too small for its part of the batch."""
    sizes = {"large": 100_000, "small": 100_000}
    weights = {"large": 0.9, "small": 0.1}
    given = {name: Blocks(size, block=4, window=100) for name, size in sizes.items()}
    mixture = Mixture(sizes, weights=weights, blocks=given, num_samples=640, window=64)
    assert "in the source 'large' of the mixture, a window of 100 blocks is small" in mixture.doubt(64)
    assert "small'" not in mixture.doubt(64)  # 6 samples of a batch
    with pytest.warns(ShuffleWarning, match="in the source 'large'"):
        next(iter(resumable.wrap(list(range(200_000)), sampler=mixture, batch_size=64)))


# ---------------------------------------------------------------------- requests


class Small(resumable.Tars):
    """Shards in blocks that are small enough for a test."""

    resumable_blocks: Any = {"block": BLOCK, "window": 6}
    wider_blocks = ""


def mixed_requests(folder: Path, shuffle: Any, workers: int) -> tuple[list[Any], Counter[str]]:
    """Read two epochs of 80 images in 21 blocks and of 400 rows in 50 row groups; count the requests by file type."""
    log, cache = folder / "log", folder / "cache" if shuffle == "blocks" else None
    storage = {"log": str(log)}
    tars = Small(f"counted://{folder}/*.tar", transform=itemgetter("cls"), cache=cache, storage_options=storage)
    rows = resumable.Parquet(
        f"counted://{folder}/*.parquet", transform=itemgetter("id"), cache_bytes=ROOM, storage_options=storage
    )
    assert rows.resumable_blocks["window"] == 4
    weights = {"tars": 1, "rows": 5}
    mixed: Any = resumable.mix({"tars": tars, "rows": rows}, weights=weights, named=True, shuffle=shuffle)
    loader: DataLoader[Any] = DataLoader(mixed, batch_size=12, num_workers=workers, collate_fn=list)
    ranges_of(log)
    found = [one for batch in resumable.wrap(loader, seed=5).steps(80) for one in batch]
    return found, Counter(line.split()[0].rpartition(".")[2] for line in ranges_of(log, above=500))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_in_a_mixture_each_block_is_one_request(workers: int, tmp_path: Path) -> None:
    write_images(tmp_path, extra=70_000)
    write(tmp_path, (400,))
    twice = {(name, number): 2 for name, count in (("tars", 80), ("rows", 400)) for number in range(count)}
    found, requests = mixed_requests(tmp_path, "blocks", workers)
    assert Counter(found) == twice
    assert requests["tar"] == 21
    assert requests["parquet"] <= 110 * max(
        workers, 1
    )  # once per epoch, by each process, with footers and what is ahead
    found, whole = mixed_requests(tmp_path, True, workers)
    assert Counter(found) == twice
    assert whole["tar"] > 7 * requests["tar"]
    assert whole["parquet"] > 2 * requests["parquet"]
