"""Which seed a stream has, and that a state brings its own; streams of other names are independent."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

import resumable
from resumable import ResumableSampler, World
from resumable.errors import ConfigurationError, ResumableError, StateMismatchError, StateMismatchWarning
from resumable.samplers import Shuffle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resumable import Loader

N, EPOCHS = 23, 3


class Noisy(Dataset[Any]):
    """Each sample with what it drew from the global generator of torch."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.stack([torch.tensor(float(index)), torch.rand(())])


class NoisyStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(N):
            yield torch.stack([torch.tensor(float(index)), torch.rand(())])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rest(loader: Loader) -> list[Any]:
    return [(epoch.number, torch.as_tensor(batch).tolist()) for epoch in loader.epochs(EPOCHS) for batch in epoch]


def indexed(**options: Any) -> Loader:
    return resumable.wrap(DataLoader(Noisy(), batch_size=4, shuffle=True), **options)


def plain(**options: Any) -> Loader:
    return resumable.wrap(np.arange(N), batch_size=4, shuffle=True, **options)


def stream(**options: Any) -> Loader:
    return resumable.wrap(DataLoader(NoisyStream(), batch_size=4), **options)


def custom(**options: Any) -> Loader:
    class Mine(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(torch.randperm(N).tolist())

        def __len__(self) -> int:
            return N

    return resumable.wrap(DataLoader(Noisy(), batch_size=4, sampler=Mine()), **options)


KINDS = {"indexed": indexed, "plain": plain, "stream": stream, "custom": custom}


# ---------------------------------------------------------------------- which seed


@pytest.mark.parametrize("kind", ["indexed", "stream", "custom", "plain"])
def test_the_seed_of_torch_counts_where_none_is_given(kind: str) -> None:
    make = KINDS[kind]
    torch.manual_seed(7)
    found = make()
    assert found.seed == 7
    assert rest(found) == rest(make(seed=7)) != rest(make(seed=0))


@pytest.mark.slow
def test_a_process_that_seeds_nothing_has_the_seed_0() -> None:
    script = "import torch, resumable; print(resumable.wrap([1, 2]).seed, torch.initial_seed() > 2**32)"
    assert run(script) == "0 True"


def test_a_process_without_torch_has_the_seed_0() -> None:
    assert run("import sys, resumable; print(resumable.wrap([1, 2]).seed, 'torch' in sys.modules)") == "0 False"


def test_a_seed_as_an_unseeded_process_has_does_not_count() -> None:
    torch.manual_seed(2**32)
    assert plain().seed == 0
    torch.manual_seed(2**32 - 1)
    assert plain().seed == 2**32 - 1


@pytest.mark.parametrize("seed", [0, 5])
def test_seed_of_a_distributed_sampler(seed: int) -> None:
    """The seed of a `DistributedSampler` counts before that of torch."""
    torch.manual_seed(7)
    sampler: Any = DistributedSampler(Noisy(), num_replicas=1, rank=0, seed=seed)
    loader = resumable.wrap(DataLoader(Noisy(), batch_size=4, sampler=sampler))
    assert loader.seed == seed
    assert loader.sample_indices(epoch=1, step=0) == Shuffle(N, seed=seed).indices(1, 0, 4).tolist()


def test_the_seed_of_our_own_sampler_counts() -> None:
    loader = resumable.wrap(DataLoader(Noisy(), batch_size=4, sampler=ResumableSampler(Noisy(), batch_size=4, seed=3)))
    assert loader.seed == 3
    with pytest.raises(ConfigurationError, match=r"seed=4, but the sampler .* has the seed 3"):
        resumable.wrap(
            DataLoader(Noisy(), batch_size=4, sampler=ResumableSampler(Noisy(), batch_size=4, seed=3)), seed=4
        )


@pytest.mark.parametrize("where", ["loader", "sampler", "batch_sampler", "stream"])
def test_the_seed_of_a_generator_counts_before_that_of_torch(where: str) -> None:
    torch.manual_seed(7)
    sampler: Any = RandomSampler(Noisy(), generator=generator(9))
    loaders: dict[str, DataLoader[Any]] = {
        "loader": DataLoader(Noisy(), batch_size=4, shuffle=True, generator=generator(9)),
        "sampler": DataLoader(Noisy(), batch_size=4, sampler=sampler),
        "batch_sampler": DataLoader(Noisy(), batch_sampler=torch.utils.data.BatchSampler(sampler, 4, drop_last=False)),
        "stream": DataLoader(NoisyStream(), batch_size=4, generator=generator(9)),
    }
    assert resumable.wrap(loaders[where]).seed == 9
    with pytest.raises(ConfigurationError, match="seed=1, but the generator .* the seed 9"):
        resumable.wrap(loaders[where], seed=1)
    assert resumable.wrap(loaders[where], seed=9).seed == 9


def test_a_generator_that_nobody_seeded_has_no_say() -> None:
    torch.manual_seed(7)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=torch.Generator())
    assert resumable.wrap(loader).seed == 7
    assert resumable.wrap(loader, seed=1).seed == 1


def test_explicit_seed_against_distributed_sampler() -> None:
    """An explicit seed that differs from a `DistributedSampler`'s is rejected, unless the sampler has its default."""

    def make(own: int) -> DataLoader[Any]:
        sampler: Any = DistributedSampler(Noisy(), num_replicas=1, rank=0, seed=own)
        return DataLoader(Noisy(), batch_size=4, sampler=sampler)

    with pytest.raises(ConfigurationError, match="seed=1, but the sampler .* the seed 2"):
        resumable.wrap(make(2), seed=1)
    assert resumable.wrap(make(0), seed=1).seed == 1
    assert resumable.wrap(make(2), seed=2).seed == 2


# ---------------------------------------------------------------------- what a state brings along


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_seed_takes_that_of_the_state(kind: str) -> None:
    """A loader without a seed continues with that of the state from every step."""
    make = KINDS[kind]
    reference = make(seed=5, name="left")
    whole, states = [], [reference.state_dict()]
    for epoch in reference.epochs(EPOCHS):
        for batch in epoch:
            whole.append((epoch.number, torch.as_tensor(batch).tolist()))
            states.append(reference.state_dict())
    for steps, state in enumerate(states):
        resumed = make()
        assert (resumed.seed, resumed.name) == (0, "")
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert (resumed.seed, resumed.name) == (5, "left")
        assert rest(resumed) == whole[steps:]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_read_loader_takes_the_state_s_seed(kind: str) -> None:
    """A loader that has read continues with the seed of the state."""
    make = KINDS[kind]
    reference = make(seed=5)
    first = [torch.as_tensor(batch).tolist() for batch in islice(reference, 2)]
    state = reference.state_dict()
    used = make()
    with used:
        assert [torch.as_tensor(batch).tolist() for batch in islice(used, 3)][:2] != first
        used.load_state_dict(state)
        assert used.state_dict() == state
        assert rest(used) == rest(reference)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_live_on_read_with_the_seed_of_the_state(workers: int) -> None:
    def make(**options: Any) -> Loader:
        loader = DataLoader(
            Noisy(), batch_size=4, shuffle=True, num_workers=workers, persistent_workers=workers > 0, in_order=True
        )
        return resumable.wrap(loader, **options)

    with make(seed=5) as reference, make() as used:
        next(iter(reference))
        state = reference.state_dict()
        list(used)
        used.load_state_dict(state)
        assert rest(used) == rest(reference)


def test_given_values_stay_given() -> None:
    """Given values stay given if the state brings the rest."""
    loader = indexed(name="left")
    loader.load_state_dict(indexed(name="left", seed=5).state_dict())
    loader.load_state_dict(indexed(name="left", seed=6).state_dict())
    assert (loader.seed, loader.name) == (6, "left")
    with pytest.raises(StateMismatchError, match="name differs"):
        loader.load_state_dict(indexed(name="right", seed=6).state_dict())
    loader = indexed(seed=5)
    loader.load_state_dict(indexed(name="left", seed=5).state_dict())
    with pytest.raises(StateMismatchError, match="seed differs"):
        loader.load_state_dict(indexed(name="left", seed=6).state_dict())
    loader.load_state_dict(indexed(name="right", seed=5).state_dict())
    assert loader.name == "right"


def test_explicit_seed_against_the_state() -> None:
    """An explicit seed that differs from the state's is rejected, and nothing changes."""
    state = indexed(seed=5).state_dict()
    loader = indexed(seed=1)
    next(iter(loader))
    before = loader.state_dict()
    with pytest.raises(StateMismatchError, match=r"(?s)seed differs.*checkpoint: 5.*this run: +1.*Use seed=5"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    assert loader.seed == 1


def test_refused_state_leaves_the_seed_alone() -> None:
    """A state that is rejected for a different reason leaves the seed alone."""
    state = resumable.wrap(np.arange(N + 1), batch_size=4, shuffle=True, seed=5, name="left").state_dict()
    loader = plain()
    with pytest.raises(StateMismatchError):
        loader.load_state_dict(state)
    assert (loader.seed, loader.name) == (0, "")
    assert rest(loader) == rest(plain(seed=0))


@pytest.mark.parametrize("seed", [-1, None, "5", 1.5, True])
def test_a_damaged_seed_is_refused(seed: Any) -> None:
    state = indexed(seed=5).state_dict()
    state["randomness"]["seed"] = seed
    with pytest.raises(ResumableError):
        indexed().load_state_dict(state)


def test_the_seed_can_be_read_and_not_set() -> None:
    loader = indexed(seed=5, name="left")
    for name in ("seed", "name"):
        with pytest.raises(AttributeError, match="Pass it to wrap"):
            setattr(loader, name, 1)


# ---------------------------------------------------------------------- names


def test_the_empty_name_keeps_the_streams_of_before() -> None:
    assert plain(seed=3).sample_indices(epoch=2, step=1) == Shuffle(N, seed=3).indices(2, 4, 8).tolist()
    assert rest(plain(seed=3, name="")) == rest(plain(seed=3))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_streams_of_other_names_are_others(kind: str) -> None:
    one, same, other = (rest(KINDS[kind](seed=3, name=name)) for name in ("a", "a", "b"))
    assert one == same != other


def test_the_name_of_a_stream_is_pinned() -> None:
    assert plain(seed=3, name="left").sample_indices(epoch=0, step=0) == [13, 14, 9, 12]
    assert plain(seed=3, name="left").state_dict()["name"] == "left"


@pytest.mark.parametrize("names", [("", "a"), ("a", "b"), ("train['src']", "train['tgt']"), ("1", "2")])
@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_of_streams_are_independent(names: tuple[str, str], seed: int) -> None:
    """Equal sample indices and equal draws at one place are as rare as chance has it, over places and epochs."""
    size, epochs = 5000, 4
    loaders = [resumable.wrap(range(size), batch_size=size, shuffle=True, seed=seed, name=name) for name in names]
    orders = np.array([[loader.sample_indices(epoch=e, step=0) for e in range(epochs)] for loader in loaders])
    for first in range(epochs):
        for second in range(epochs):
            left, right = orders[0, first], orders[1, second]
            assert (left == right).sum() <= 8  # Poisson of mean 1: more in one of 10^6
            assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(size)
    draws = np.array([np.concatenate(list(drawn(size, seed, name))) for name in names])
    assert abs(np.corrcoef(*draws)[0, 1]) < 5 / np.sqrt(size)
    assert not (draws[0] == draws[1]).any()


def drawn(size: int, seed: int, name: str) -> Iterator[np.ndarray]:
    return iter(
        resumable.wrap(np.zeros(size), batch_size=500, transform=lambda _: np.random.random(), seed=seed, name=name)
    )


def test_a_name_against_that_of_the_state_is_refused() -> None:
    state = indexed(name="left").state_dict()
    with pytest.raises(StateMismatchError, match=r"(?s)name differs.*left.*right.*name="):
        indexed(name="right").load_state_dict(state)
    with pytest.raises(StateMismatchError, match="name differs"):
        indexed(name="").load_state_dict(state)
    loader = indexed(name="right")
    with pytest.warns(StateMismatchWarning, match="name differs"):
        loader.load_state_dict(state, strict=False)
    assert loader.name == "right"


@pytest.mark.parametrize("name", [1, None, ["a"]])
def test_a_damaged_name_is_refused(name: Any) -> None:
    state = indexed().state_dict()
    with pytest.raises(ResumableError):
        indexed().load_state_dict({**state, "name": name})
    with pytest.raises(ResumableError):
        indexed().load_state_dict({**state, "name": "edited"})  # its digest is that of no name


@pytest.mark.parametrize("name", [1, b"a", True])
def test_a_name_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name must be a string"):
        indexed(name=name)


# ---------------------------------------------------------------------- twins


def test_two_loops_under_one_seed(caplog: pytest.LogCaptureFixture) -> None:
    """Two loops that meet under one seed and name are told once."""
    with caplog.at_level(logging.WARNING, "resumable"):
        for _ in zip(plain(seed=101), indexed(seed=101), strict=True):
            pass
        for _ in zip(plain(seed=101), indexed(seed=101), strict=True):
            pass
    (record,) = caplog.records
    assert "seed 101" in record.getMessage()
    assert "name=" in record.getMessage()


@pytest.mark.parametrize("second", [{"seed": 103}, {"seed": 102, "name": "b"}, {"seed": 102, "evaluation": True}])
def test_streams_that_differ_are_no_twins(second: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "resumable"):
        for _ in zip(plain(seed=102), indexed(**second), strict=True):
            pass
    assert not caplog.records


def test_loops_that_do_not_meet_are_no_twins(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "resumable"):
        left, right = plain(seed=104), plain(seed=104)
        for _ in left:
            break
        assert list(left)
        assert list(right)
        for _ in zip(plain(seed=104), resumable.wrap(range(N), seed=104), strict=False):
            pass  # the other one has no order of its own
    assert not caplog.records


# ---------------------------------------------------------------------- ranks


def test_ranks_that_cannot_agree_are_refused() -> None:
    torch.manual_seed(7)
    loader = plain(world=World(0, 2))
    with pytest.raises(ConfigurationError, match=r"(?s)2 ranks.*took 7.*seed="):
        next(iter(loader))
    assert list(plain(world=World(0, 2), seed=7))
    state = plain(world=World(0, 2), seed=7).state_dict()
    loader.load_state_dict(state)
    assert list(loader)


def test_refusal_names_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names Lightning if Lightning seeded the process."""
    monkeypatch.setitem(sys.modules, "lightning", sys)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    loader = resumable.wrap(range(12), batch_size=3, shuffle=True, world=World(0, 2))
    with pytest.raises(ConfigurationError, match="this rank took 7 from Lightning's seed_everything"):
        next(iter(loader))


LATE = """
    import os, sys, torch, torch.distributed as dist
    import resumable

    rank = int(os.environ["RANK"])
    torch.manual_seed(100 + rank * int(sys.argv[2]))
    loader = resumable.wrap(range(12), batch_size=3, shuffle=True)
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    try:
        print(sorted(index for batch in loader for index in batch))
    except resumable.errors.ConfigurationError as error:
        print(str(error).splitlines()[0])
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("other", [0, 1])
def test_ranks_that_wrapped_before_their_group(other: int, tmp_path: Path) -> None:
    """Ranks that wrapped before their group existed are compared."""
    script = textwrap.dedent(LATE)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "store"), str(other)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    if other:
        assert told[1] == "this rank took the seed 101 from torch.manual_seed, but rank 0 took 100."
    else:
        assert sorted(json.loads(told[0]) + json.loads(told[1])) == list(range(12))


RANK = """
    import os, sys, torch, torch.distributed as dist
    import resumable

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    torch.manual_seed(300 + rank)
    if rank == 0:
        resumable.wrap(range(6), batch_size=3, shuffle=True, name="of rank 0 alone")
        resumable.wrap(range(6), batch_size=3, shuffle=True, evaluation=True)
    torch.manual_seed(100 + rank)
    loaders = [resumable.wrap(range(12), batch_size=3, shuffle=True, name=name) for name in ("", "", "other")]
    torch.manual_seed(200 + rank)
    loaders.append(resumable.wrap(range(12), batch_size=3, shuffle=True))
    print([loader.seed for loader in loaders], [list(map(int, batch)) for batch in loaders[0]])
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_with_other_seeds_agree_on_that_of_rank_0(tmp_path: Path) -> None:
    script = textwrap.dedent(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "store")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    seeds, batches = zip(*(rank.communicate(timeout=120)[0].strip().split("] [", 1) for rank in ranks), strict=True)
    assert seeds == ("[100, 100, 100, 200",) * 2
    read = [index for text in batches for batch in json.loads("[" + text) for index in batch]
    assert sorted(read) == list(range(12))


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()
