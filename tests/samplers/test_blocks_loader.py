"""The shuffle in blocks in a Loader: resumed, resized, with workers, keyed, inspected, and refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import resumable
from resumable import ResumableSampler, World
from resumable.errors import ConfigurationError, ShuffleWarning, StateMismatchError, UnsupportedError
from resumable.samplers import Blocks

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [40] * 9 + [37, 1, 90]
LENGTH = sum(SIZES)


class Shards(Dataset[Any]):
    """Samples in shards, with an augmentation."""

    sizes: Any = SIZES

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(np.random.random())  # as augmentations draw


def in_torch(batch_size: int, **options: Any) -> resumable.Loader[Any]:
    loader: DataLoader[Any] = DataLoader(Shards(), batch_size=batch_size, num_workers=options.pop("workers", 0))
    return resumable.wrap(loader, **{"shuffle": "blocks", "seed": 3, **options})


def alone(batch_size: int, **options: Any) -> resumable.Loader[Any]:
    return resumable.wrap(Shards(), batch_size=batch_size, **{"shuffle": "blocks", "seed": 3, **options})


def plain(batch: Any) -> list[tuple[int, float]]:
    rows = list(zip(batch[0].tolist(), batch[1].tolist(), strict=True)) if torch.is_tensor(batch[0]) else batch
    return [tuple(row) for row in rows]


def read(loader: resumable.Loader[Any], batches: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < batches:
        for batch in loader:
            found.append(plain(batch))
            if len(found) == batches:
                break
    return found


# ---------------------------------------------------------------------- one stream


def test_every_sample_once_per_epoch_in_the_order_of_the_sampler() -> None:
    loader, order = alone(32), Blocks(SIZES, seed=3)
    for epoch in range(2):
        found = [index for batch in loader for index, _ in batch]
        assert found == order.indices(epoch, 0, LENGTH).tolist()
        assert sorted(found) == list(range(LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_and_kinds_of_sources_read_the_same(workers: int) -> None:
    """Samples and their augmentations."""
    expected = read(alone(32), 20)
    assert read(in_torch(32, workers=workers), 20) == expected
    explicit = in_torch(32, workers=workers, shuffle=None, sampler=Blocks(SIZES, seed=3))
    assert read(explicit, 20) == expected


def test_a_list_and_a_distributed_sampler_are_read_in_blocks() -> None:
    expected = [[index for index, _ in batch] for batch in read(alone(32), 9)]
    listed = resumable.wrap(list(range(LENGTH)), batch_size=32, sampler=Blocks(SIZES, seed=3))
    assert [next(iter(listed)) for _ in range(9)] == expected
    parts = []
    for rank in range(2):
        sampler: DistributedSampler[Any] = DistributedSampler(Shards(), 2, rank, seed=3)
        loader: DataLoader[Any] = DataLoader(Shards(), batch_size=16, sampler=sampler)
        parts.append(read(resumable.wrap(loader, shuffle="blocks"), 9))
    both = [[index for index, _ in first + second] for first, second in zip(*parts, strict=True)]
    assert both == expected


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_it_resumes_at_every_step() -> None:
    expected = read(alone(48), 24)
    loader = alone(48)
    for step in range(0, 24, 2):
        state = json.loads(json.dumps(loader.state_dict()))
        assert len(json.dumps(state)) < 1000
        resumed = alone(48)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert read(resumed, 2) == expected[step : step + 2]
        assert read(loader, 2) == expected[step : step + 2]


SCRIPT = """
import json, sys
import resumable
class Shards:
    sizes = [40] * 9 + [37, 1, 90]
    def __len__(self): return sum(self.sizes)
    def __getitem__(self, index): return index
rank, ranks, batches = map(int, sys.argv[1:4])
path = sys.argv[4]
loader = resumable.wrap(Shards(), batch_size=48 // ranks, shuffle="blocks", world=resumable.World(rank, ranks))
try:
    loader.load_state_dict(json.load(open(path)))
except FileNotFoundError:
    pass
steps = iter(loader.steps(loader.global_step + batches))
print(json.dumps(list(steps)))
if rank == ranks - 1:
    json.dump(loader.state_dict(), open(path + ".new", "w"))
"""


@pytest.mark.slow
def test_fresh_processes_and_other_numbers_of_ranks_go_on(tmp_path: Path) -> None:
    path, found = tmp_path / "state.json", []
    for ranks, batches in ((2, 4), (3, 8), (1, 6)):
        parts = []
        for rank in range(ranks):
            command = [sys.executable, "-c", SCRIPT, str(rank), str(ranks), str(batches), str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            parts.append(json.loads(done.stdout))
        (tmp_path / "state.json.new").rename(path)
        found += [[index for part in step for index in part] for step in zip(*parts, strict=True)]
    assert found == [[index for index, _ in batch] for batch in read(alone(48, seed=0), 18)]


# ---------------------------------------------------------------------- the window


class Many(Shards):
    """More blocks than the least window has."""

    sizes = 200_000

    def __len__(self) -> int:
        return self.sizes

    def __getitem__(self, index: int) -> Any:
        return index


def many(batch_size: int, ranks: int = 1, **options: Any) -> resumable.Loader[Any]:
    given = {"shuffle": "blocks", "seed": 3, "world": World(0, ranks), **options}
    return resumable.wrap(Many(), batch_size=batch_size, **given)


def window(loader: resumable.Loader[Any]) -> Any:
    return loader.state_dict()["sampler"]["window"]


def test_the_window_is_that_of_the_first_opening_and_stays() -> None:
    assert window(many(8)) == 512
    assert window(many(100, ranks=4)) == 1600
    loader = many(100, ranks=4)
    next(iter(loader))
    state = loader.state_dict()
    resized = many(150, on_change="continue")
    assert window(resized) == 600
    resized.load_state_dict(state)
    assert window(resized) == 1600
    indices = resized.sample_indices(epoch=0, step=5)
    assert (
        indices == Blocks(200_000, window=1600, seed=3).indices(0, 400 + 4 * 150, 400 + 5 * 150).tolist()
    )  # a step of 400 was before
    assert sorted(next(iter(resized))) == sorted(Blocks(200_000, window=1600, seed=3).indices(0, 400, 550).tolist())
    assert window(resized) == 1600


def test_the_ranks_are_found_when_the_stream_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = many(100, world=None)
    assert window(loader) == 512
    assert loader.sample_indices(epoch=1, step=2) == Blocks(200_000, seed=3).indices(1, 200, 300).tolist()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    next(iter(loader))
    assert window(loader) == 800
    assert loader.sample_indices(epoch=1, step=0) == Blocks(200_000, window=800, seed=3).indices(1, 0, 200).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_living_workers_learn_of_the_window_of_a_state(workers: int) -> None:
    def make(batch_size: int) -> resumable.Loader[Any]:
        loader: DataLoader[Any] = DataLoader(
            Many(), batch_size=batch_size, num_workers=workers, persistent_workers=bool(workers)
        )
        return resumable.wrap(loader, shuffle="blocks", seed=3, on_change="continue")

    first = make(400)
    next(iter(first))
    state = first.state_dict()
    with make(150) as loader:
        assert next(iter(loader)).tolist() == Blocks(200_000, window=600, seed=3).indices(0, 0, 150).tolist()
        loader.load_state_dict(state)
        assert next(iter(loader)).tolist() == Blocks(200_000, window=1600, seed=3).indices(0, 400, 550).tolist()


def test_too_small_window_is_told_once() -> None:
    """A window that is too small is told once, with one that would do."""
    loader = many(256, shuffle=None, sampler=Blocks(200_000, window=16))
    with pytest.warns(ShuffleWarning, match=r"a window of 16 blocks .* varies 16\.9 times(.|\n)*window=769\) or more"):
        next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))
        next(iter(many(256, shuffle=None, sampler=Blocks(200_000, window=769))))
        next(iter(many(3000)))


# ---------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (Blocks([41, 39, *SIZES[2:]], window=4), "sampler.sizes"),
        (Blocks(SIZES, window=5), "sampler.window"),
        (Blocks(SIZES, window=4, block=32), "sampler.block"),
        (Blocks(SIZES, window=4, seed=4), "the seed"),
        (Blocks(LENGTH, window=4), "sampler.sizes"),
    ],
    ids=["sizes", "window", "block", "seed", "one-shard"],
)
def test_another_order_is_refused_by_name(other: Blocks, field: str) -> None:
    state = alone(2, shuffle=None, sampler=Blocks(SIZES, window=4)).state_dict()
    loader = alone(2, shuffle=None, sampler=other)
    with pytest.raises(StateMismatchError, match=rf"{field} differs(.|\n)*in the checkpoint(.|\n)*in this run"):
        loader.load_state_dict(state)
    assert loader.cursor.position == 0


def test_a_state_of_another_shuffle_is_refused() -> None:
    with pytest.raises(StateMismatchError, match=r"sampler\.\w+\)? differs"):
        alone(2).load_state_dict(alone(2, shuffle=True).state_dict())
    with pytest.raises(StateMismatchError, match=r"sampler\.\w+\)? differs"):
        alone(2, shuffle=True).load_state_dict(alone(2).state_dict())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (None, "has no attribute sizes"),
        ([40, 40], f"add up to 80 samples, but it has {LENGTH}"),
        ([0.5], "must be integers of 0 or more"),
        ({"x": 3}, "must be an integer of 1 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shards, "sizes", sizes)
    for make in (alone, in_torch):
        with pytest.raises(ConfigurationError, match=message):
            make(8)


def test_what_has_no_indices_or_two_orders_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r'True, False or "blocks", but it is \'block\''):
        alone(8, shuffle="block")
    for make in (alone, in_torch):
        with pytest.raises(ConfigurationError, match="only one of them can set the order"):
            make(8, sampler=Blocks(SIZES))
    with pytest.raises(UnsupportedError, match="shuffle does not fit a source without sample indices"):
        resumable.wrap(iter, batch_size=8, shuffle="blocks")
    with pytest.raises(UnsupportedError, match="shuffle does not fit a DataLoader"):
        in_torch(8, shuffle=True)
    with pytest.raises(ConfigurationError, match="list has no attribute sizes(.|\n)*Blocks\\(5\\)"):
        resumable.wrap([1, 2, 3, 4, 5], batch_size=1, shuffle="blocks")


# ---------------------------------------------------------------------- the sampler alone, and the inspector


def test_a_resumable_sampler_keeps_the_window_of_its_state() -> None:
    four = [ResumableSampler(200_000, 4, rank, batch_size=100, sampler=Blocks(200_000)) for rank in range(4)]
    state = four[0].state_dict()
    assert state["sampler"]["window"] == 1600
    one = ResumableSampler(200_000, 1, 0, batch_size=150, sampler=Blocks(200_000))
    one.load_state_dict(state)
    expected = Blocks(200_000, window=1600).indices(0, 0, 150).tolist()
    indices = iter(one)
    assert [next(indices) for _ in range(150)] == expected
    assert one.state_dict()["sampler"] == state["sampler"]
    small = ResumableSampler(200_000, 1, 0, batch_size=150, sampler=Blocks(200_000, window=3))
    with pytest.warns(ShuffleWarning, match="a window of 3 blocks"):
        next(iter(small))


@pytest.mark.parametrize("sizes", [LENGTH, SIZES], ids=["equal", "shards"])
def test_the_state_alone_says_the_samples_of_every_batch(sizes: Any, tmp_path: Path) -> None:
    loader = alone(16, shuffle=None, sampler=Blocks(sizes, block=8, window=60, seed=9))
    read(loader, 5)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    for epoch in (0, 3):
        for step in range(len(loader)):
            found = resumable.samples(tmp_path / "state.json", epoch=epoch, step=step)
            assert list(found.indices) == loader.sample_indices(epoch=epoch, step=step)
    (state,) = resumable.inspect(tmp_path / "state.json").states
    assert (state.shuffle, state.order) == (True, "shuffled in blocks")


def test_a_state_with_a_digest_of_the_sizes_says_so(tmp_path: Path) -> None:
    sizes = np.random.default_rng(0).integers(1, 10**6, 100)
    loader = resumable.wrap(range(int(sizes.sum())), batch_size=16, sampler=Blocks(sizes))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    with pytest.raises(UnsupportedError, match=r"a digest of the sizes of the shards \([0-9a-f]{16}\)"):
        resumable.samples(tmp_path / "state.json", epoch=0, step=0)
