"""`resumable.samples` gives what `Loader.sample_indices` gives, from the state of any step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest
import torch
from kept import of_torch, trained, wrapped
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import resumable
from resumable import World
from resumable._order.plan import Tail
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError, UnsupportedError
from resumable.samplers import PagedShuffle, Shuffle, Uniform

if TYPE_CHECKING:
    from pathlib import Path

DATA = list(range(23))
TAILS = get_args(Tail)


def written(folder: Path, state: Any) -> Path:
    (folder / "state.json").write_text(json.dumps(state))
    return folder / "state.json"


def compare(loader: resumable.Loader[Any], folder: Path, epochs: tuple[int, ...] = (0, 1, 5), **options: Any) -> int:
    """Compare all batches of some epochs, of all ranks and of each, with what the loader says; count them."""
    path, compared = written(folder, loader.state_dict()), 0
    world = loader._options.find_world().size
    for epoch in epochs:
        step = 0
        while True:
            try:
                whole = loader.sample_indices(epoch=epoch, step=step)
            except ConfigurationError as error:
                with pytest.raises(ConfigurationError, match=str(error).partition("\n")[0]):
                    resumable.samples(path, epoch=epoch, step=step, **options)
                break
            assert list(resumable.samples(path, epoch=epoch, step=step, **options).indices) == whole
            for rank in range(world):
                found = resumable.samples(path, epoch=epoch, step=step, rank=rank, **options)
                assert list(found.indices) == loader.sample_indices(epoch=epoch, step=step, rank=rank)
            step, compared = step + 1, compared + 1
    return compared


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_worlds_tails_and_shuffles(tail: Any, ranks: int, shuffle: bool, tmp_path: Path) -> None:
    options = {"tail": tail, "shuffle": shuffle, "seed": 5, "name": "a" if shuffle else None}
    loader = resumable.wrap(DATA, batch_size=8 // ranks, world=World(0, ranks), **options)
    assert compare(loader, tmp_path) >= 6


@pytest.mark.parametrize(
    "sampler", [Uniform(23, seed=4), Shuffle(23, seed=9, num_samples=50), Shuffle(7, seed=2)], ids=repr
)
def test_samplers_that_a_state_says_whole(sampler: Any, tmp_path: Path) -> None:
    assert compare(resumable.wrap(DATA, batch_size=4, sampler=sampler), tmp_path) >= 6


def test_the_state_of_every_step_says_the_same(tmp_path: Path) -> None:
    loader = wrapped()
    expected = [wrapped().sample_indices(epoch=3, step=step) for step in range(6)]
    for _ in range(13):
        path = written(tmp_path, loader.state_dict())
        assert [list(resumable.samples(path, epoch=3, step=step).indices) for step in range(6)] == expected
        next(loader.steps(10**6))


def test_what_a_run_really_read(tmp_path: Path) -> None:
    loader = resumable.wrap(DATA, batch_size=4, shuffle=True, seed=2)
    path = written(tmp_path, loader.state_dict())
    for epoch in loader.epochs(2):
        for step, batch in enumerate(epoch):
            assert list(resumable.samples(path, epoch=epoch.number, step=step).indices) == batch


@pytest.mark.parametrize(("was", "now"), [(2, 4), (4, 1), (1, 3)])
@pytest.mark.parametrize("rule", ["keep_global", "keep_local"])
@pytest.mark.parametrize("tail", ["partial", "carry", "pad_ranks"])
def test_after_a_resize(was: int, now: int, rule: Any, tail: Any, tmp_path: Path) -> None:
    def wrap(ranks: int, batch_size: int) -> resumable.Loader[Any]:
        options = {"tail": tail, "shuffle": True, "seed": 1, "on_change": rule}
        return resumable.wrap(list(range(57)), batch_size=batch_size, world=World(0, ranks), **options)

    first = wrap(was, 12 // was)
    next(iter(first))
    second = wrap(now, 12 // now if rule == "keep_global" else 12 // was)
    second.load_state_dict(first.state_dict())
    assert compare(second, tmp_path) >= 3
    changed = second.global_batch_size != 12
    notes = resumable.samples(tmp_path / "state.json", epoch=0, step=0).notes
    assert bool(notes) is changed
    assert all(f"12 to {second.global_batch_size}" in note for note in notes)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("order", ["feistel", "torch"])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_distributed_samplers(ranks: int, order: Any, drop_last: bool, shuffle: bool, tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(23))
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=ranks, rank=0, seed=4, drop_last=drop_last, shuffle=shuffle
    )
    loader = resumable.wrap(DataLoader(data, batch_size=3, sampler=sampler), order=order)
    if not shuffle and ranks > 1:
        with pytest.raises(UnsupportedError, match="--order"):
            resumable.samples(written(tmp_path, loader.state_dict()), epoch=0, step=0, rank=1)
        assert compare(loader, tmp_path, order=order) >= 6
    else:
        assert compare(loader, tmp_path) >= 6


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("count", [None, 31])
def test_torchs_order_by_a_generator(replacement: bool, count: int | None, tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(23))
    generator = torch.Generator().manual_seed(5)
    sampler = RandomSampler(data, replacement=replacement, num_samples=count, generator=generator)
    loader = DataLoader(data, batch_size=4, sampler=sampler, generator=generator if count else None)
    assert compare(resumable.wrap(loader, order="torch"), tmp_path, epochs=(0, 3)) >= 6


def test_another_version_of_torch_is_told(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(23))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=1, rank=0, seed=4)
    state = resumable.wrap(DataLoader(data, batch_size=3, sampler=sampler), order="torch").state_dict()
    state["sampler"]["torch"], state["digest"] = "0" * 16, None
    with pytest.raises(StateMismatchError, match=r"generates different random numbers(.|\n)*0000"):
        resumable.samples(written(tmp_path, state), epoch=0, step=0)


class Own:
    """A sampler of a user."""

    length = 23

    def indices(self, epoch: int, start: int, stop: int) -> Any:
        return torch.arange(start, stop).numpy()

    def spec(self) -> dict[str, Any]:
        return {"name": "own-v1", "length": 23}


class Pretends(Own):
    """One that gives itself a name of ours, and depends on more."""

    def spec(self) -> dict[str, Any]:
        return {"name": "sequential-v1", "length": 23, "reversed": 1}


def of_torch_sampler(sampler: Any) -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(TensorDataset(torch.arange(23)), batch_size=4, sampler=sampler), seed=1)


def refused() -> dict[str, tuple[Any, str]]:
    weights = WeightedRandomSampler(torch.rand(23).tolist(), 23)
    return {
        "weights": (of_torch_sampler(weights), r"a digest of the weights \([0-9a-f]+\)"),
        "subset": (of_torch_sampler(SubsetRandomSampler(range(3, 20))), "a digest of the subset's indices"),
        "pages": (resumable.wrap(DATA, batch_size=4, sampler=PagedShuffle(DATA, window=2)), "a digest of the pages"),
        "own": (resumable.wrap(DATA, batch_size=4, sampler=Own()), "own-v1, does not belong to this package"),
        "pretends": (
            resumable.wrap(DATA, batch_size=4, sampler=Pretends()),
            "depends on fields .* unknown here.*reversed",
        ),
        "list": (of_torch_sampler([1, 5, 2]), "defines its own order"),
        "generator": (resumable.wrap(lambda: iter(DATA), batch_size=4), "defines its own order"),
    }


@pytest.mark.parametrize("name", ["weights", "subset", "pages", "own", "pretends", "list", "generator"])
def test_what_a_state_does_not_say_is_refused_by_name(name: str, tmp_path: Path) -> None:
    loader, message = refused()[name]
    with pytest.raises(UnsupportedError, match=message) as caught:
        resumable.samples(written(tmp_path, loader.state_dict()), epoch=0, step=0)
    way_out = "sample_indices" if name not in {"list", "generator"} else "without a custom sampler"
    assert way_out in str(caught.value)


def test_which_loader(tmp_path: Path) -> None:
    train, other = trained()["data"], wrapped(seed=8, name="other").state_dict()
    path = of_torch(tmp_path, {"ranks": [train, {**train, "global_step": 4}], "two": other})
    listed = r"3 states of Loaders, so select one(.|\n)*ranks\.0 (.|\n)*name 'other'"
    with pytest.raises(ConfigurationError, match=listed):
        resumable.samples(path, epoch=0, step=0)
    with pytest.raises(ConfigurationError, match="but none with loader='x'"):
        resumable.samples(path, epoch=0, step=0, loader="x")
    assert resumable.samples(path, epoch=0, step=1, loader="train").where == "ranks.0"
    assert resumable.samples(path, epoch=0, step=1, loader="ranks.1").where == "ranks.1"
    by_name = resumable.samples(path, epoch=2, step=1, loader="other")
    assert by_name.indices == resumable.samples(path, epoch=2, step=1, loader="two").indices
    assert list(by_name.indices) == wrapped(seed=8, name="other").sample_indices(epoch=2, step=1)


def test_bad_questions(tmp_path: Path) -> None:
    path = of_torch(tmp_path, trained())
    for epoch, step in ((-1, 0), (0, -1), (0, 6), (0, 99)):
        with pytest.raises(ConfigurationError):
            resumable.samples(path, epoch=epoch, step=step)
    for rank in (-1, 1):
        with pytest.raises(ConfigurationError, match=r"from 0 to size - 1"):
            resumable.samples(path, epoch=0, step=0, rank=rank)
    torch.save({"model": {}}, tmp_path / "none.pt")
    with pytest.raises(StateFormatError, match="no state of a Loader"):
        resumable.samples(tmp_path / "none.pt", epoch=0, step=0)


@pytest.mark.parametrize("field", ["length", "seed", "samples"])
def test_a_sampler_that_is_damaged(field: str, tmp_path: Path) -> None:
    state = resumable.wrap(DATA, batch_size=4, sampler=Uniform(23, seed=4)).state_dict()
    for value in (None, "x", -1, [1]):
        damaged = {**state, "sampler": {**state["sampler"], field: value}, "digest": None}
        with pytest.raises((ConfigurationError, StateFormatError, UnsupportedError)):
            resumable.samples(written(tmp_path, damaged), epoch=0, step=0)
        resumable.inspect(tmp_path / "state.json")
