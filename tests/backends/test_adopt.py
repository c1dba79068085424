"""`resumable.adopt`: from every step of a run of torch or torchdata alone, the rest is the rest of that run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler as StatefulRandomSampler
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import resumable
from resumable import World, adopt
from resumable.errors import ConfigurationError, ResumableError, StateFormatError, StateMismatchError, UnsupportedError

EPOCHS = 3
DATA: Any = range(23)
Make = Callable[[], DataLoader[Any]]


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def adopted(make: Make, *place: Any, **options: Any) -> tuple[resumable.Loader[Any], resumable.Adoption]:
    loader = resumable.wrap(make(), order="torch")
    return loader, adopt(loader, *place, **options)


def plain(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


def flat(epochs: Any) -> list[Any]:
    return [plain(batch) for epoch in epochs for batch in epoch]


def run(make: Make) -> tuple[list[Any], list[tuple[int, int, Any]]]:
    """Run a loader alone; return its batches, and (epoch, step, state) at each place where a program may save."""
    loader, found, places = make(), [], []
    for epoch in range(EPOCHS):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        count = 0
        for count, batch in enumerate(loader, start=1):
            found.append(plain(batch))
            places.append((epoch, count, state_of(loader)))
        places.append((epoch, count, state_of(loader)))
    return found, places


def state_of(loader: Any) -> Any:
    return loader.state_dict() if isinstance(loader, StatefulDataLoader) else None


def dealt(kind: Any, sampler: Any, rank: int = 1, ranks: int = 2) -> DataLoader[Any]:
    loader: DataLoader[Any] = kind(DATA, 4, sampler=sampler(DATA, ranks, rank, seed=7))
    return loader


PLAIN: dict[str, Make] = {
    "shuffle": lambda: DataLoader(DATA, 4, shuffle=True, generator=seeded()),
    "sampler": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=30, generator=seeded())),
    "weighted": lambda: DataLoader(DATA, 4, sampler=WeightedRandomSampler([1, 2, 3], 17, generator=seeded())),
    "distributed": lambda: dealt(DataLoader, DistributedSampler),
    "in order": lambda: DataLoader(DATA, 4, drop_last=True),
}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_run_of_torch_by_its_epoch_and_step(make: Make) -> None:
    whole, places = run(make)
    done = 0
    for epoch, step, _ in [(0, 0, None), *places]:
        done = epoch * (len(whole) // EPOCHS) + step
        loader, adoption = adopted(make, epoch=epoch, step=step)
        assert adoption.theirs == adoption.ours
        assert list(map(list, adoption.ours))[: len(whole) - done] == whole[done : done + 3]
        assert loader.global_step == done
        assert flat(loader.epochs(EPOCHS)) == whole[done:]


STATEFUL: dict[str, Callable[..., DataLoader[Any]]] = {
    "shuffle": lambda **more: StatefulDataLoader(DATA, 4, shuffle=True, generator=seeded(), **more),
    "sampler": lambda **more: StatefulDataLoader(
        DATA, 4, sampler=StatefulRandomSampler(DATA, generator=seeded()), **more
    ),
    "replacement": lambda **more: StatefulDataLoader(
        DATA, 4, sampler=StatefulRandomSampler(DATA, replacement=True, num_samples=40, generator=seeded()), **more
    ),
    "single samples": lambda **more: StatefulDataLoader(DATA, None, shuffle=True, generator=seeded(), **more),
}


@pytest.mark.parametrize("make", STATEFUL.values(), ids=STATEFUL)
def test_a_run_of_torchdata_by_its_state(make: Callable[..., DataLoader[Any]]) -> None:
    """The state says the epoch, too: only that epoch's order is drawn from the generator as it has it."""
    whole, places = run(make)
    for epoch, step, state in places:
        loader, adoption = adopted(make, state)
        assert (adoption.epoch, adoption.step) == (epoch, step)
        assert flat(loader.epochs(EPOCHS)) == whole[epoch * (len(whole) // EPOCHS) + step :]


def resumed(loader: Any, state: Any) -> Any:
    loader.load_state_dict(state)
    return loader


RARELY = pytest.param("sampler", False, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lives_on"), [("shuffle", False), ("shuffle", True), RARELY])
def test_with_workers(name: str, lives_on: bool) -> None:
    def make() -> DataLoader[Any]:
        return STATEFUL[name](num_workers=2, persistent_workers=lives_on, snapshot_every_n_steps=3)

    whole, places = run(make)
    for epoch, step, state in (places[1], places[6], places[9]):
        loader, adoption = adopted(make, state)
        assert (adoption.epoch, adoption.step) == (epoch, step)
        with loader:
            assert flat(loader.epochs(EPOCHS)) == whole[epoch * 6 + step :]


def test_a_job_of_torchdata_that_was_resumed_by_torchdata() -> None:
    """Its own sampler goes on as if nothing had been. A generator that the loader has, too, does not."""
    whole, places = run(STATEFUL["sampler"])
    loader = resumed(STATEFUL["sampler"](), places[2][2])
    list(loader)
    for _, _ in zip(range(2), loader, strict=False):
        pass
    fresh, adoption = adopted(STATEFUL["sampler"], loader.state_dict())
    assert (adoption.epoch, adoption.step) == (1, 2)
    assert flat(fresh.epochs(EPOCHS)) == whole[8:]

    shared = resumed(STATEFUL["shuffle"](), run(STATEFUL["shuffle"])[1][2][2])
    list(shared)
    next(iter(shared))
    with pytest.raises(StateMismatchError, match="does not occur in the first 1000 epochs"):
        adopted(STATEFUL["shuffle"], shared.state_dict())


def test_a_sampler_without_a_generator_needs_the_epoch() -> None:
    def make() -> DataLoader[Any]:
        return dealt(StatefulDataLoader, StatefulDistributedSampler)

    whole, places = run(make)
    for epoch, step, state in places:
        loader, _ = adopted(make, state, epoch=epoch)
        assert flat(loader.epochs(EPOCHS)) == whole[epoch * (len(whole) // EPOCHS) + step :]
    with pytest.raises(ConfigurationError, match=r"does not contain the epoch(.|\n)*epoch=\.\.\."):
        adopted(make, places[0][2])


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_ranks_adopt_together_and_are_resized_then() -> None:
    makes = [partial(dealt, DataLoader, DistributedSampler, rank) for rank in range(2)]
    whole, loaders = [run(make)[0] for make in makes], [adopted(make, epoch=1)[0] for make in makes]
    for loader, one in zip(loaders, whole, strict=True):
        assert next(iter(loader)).tolist() == one[3]
    alone = resumable.wrap(dealt(DataLoader, DistributedSampler, 0, 1), order="torch")
    alone.load_state_dict(loaders[0].state_dict())
    batch = next(iter(alone)).tolist()
    assert [batch[rank::2] for rank in range(2)] == [one[3 + 1] for one in whole]


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_a_state_of_the_adopted_run_resumes_it() -> None:
    whole, places = run(STATEFUL["shuffle"])
    loader, _ = adopted(STATEFUL["shuffle"], places[7][2])
    next(iter(loader))
    again = resumable.wrap(STATEFUL["shuffle"](), order="torch")
    again.load_state_dict(loader.state_dict())
    assert (again.global_step, again.samples_seen) == (8, 23 + 8)
    assert flat(again.epochs(EPOCHS)) == whole[8:]


def test_nothing_of_the_trainers_is_drawn_or_moved() -> None:
    for make in (PLAIN["weighted"], PLAIN["distributed"]):
        source = make()
        before, own = torch.get_rng_state(), getattr(source.sampler, "generator", seeded()).get_state()
        adopt(resumable.wrap(source, order="torch"), epoch=2, step=1)
        assert torch.get_rng_state().equal(before)
        assert getattr(source.sampler, "generator", seeded()).get_state().equal(own)
        assert getattr(source.sampler, "epoch", 0) == 0


def test_the_proof_is_printed() -> None:
    _, adoption = adopted(PLAIN["in order"], epoch=1, step=4, batches=2)
    lines = str(adoption).splitlines()
    assert lines[0] == "Adopted at epoch 1 after 4 batches, according to epoch and step."
    assert lines[1:4] == ["epoch 1, step 4", "  DataLoader: 16 17 18 19", "  here:       16 17 18 19"]
    assert lines[4:6] == ["epoch 2, step 0", "  DataLoader: 0 1 2 3"]
    assert lines[-2] == "The next 2 batches are the same, sample for sample."
    assert "Random augmentations" in lines[-1]
    assert "... (23 samples)" in str(adopted(lambda: DataLoader(DATA, 23), epoch=0, step=0)[1])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(8))


class Remembering(list[int]):
    def state_dict(self) -> dict[str, int]:
        return {"read": 1}

    def load_state_dict(self, state: Any) -> None:
        pass


def started(loader: Any) -> Any:
    next(iter(loader))
    return loader.state_dict()


def other_seed() -> Any:
    return started(StatefulDataLoader(DATA, 4, shuffle=True, generator=seeded(9)))


def left_early() -> Any:
    loader: Any = STATEFUL["sampler"]()
    loader.sampler.generator.set_state(seeded().get_state())
    torch.rand(5, generator=loader.sampler.generator)
    return started(loader)


def reshuffled() -> DataLoader[Any]:
    loader: DataLoader[Any] = StatefulDataLoader(DATA, 5, shuffle=True, generator=seeded())
    return loader


STATE = started(STATEFUL["shuffle"]())
UNTOLD: Any = {}
REFUSED: dict[str, tuple[Make, Any, dict[str, Any], type[ResumableError], str]] = {
    "no place": (PLAIN["shuffle"], None, {}, ConfigurationError, "neither a checkpoint nor an epoch"),
    "twice": (STATEFUL["shuffle"], STATE, {"step": 3}, ConfigurationError, "Pass only one of them"),
    "negative": (PLAIN["shuffle"], None, {"epoch": -1}, ConfigurationError, "epoch must be an integer of 0 or more"),
    "no number": (PLAIN["shuffle"], None, {"epoch": 1, "step": 1.5}, ConfigurationError, "step must be an integer"),
    "too far": (PLAIN["shuffle"], None, {"epoch": 1, "step": 7}, StateMismatchError, "7 batches of epoch 1.* has 6"),
    "absurdly far": (PLAIN["shuffle"], None, {"epoch": 1 << 40}, UnsupportedError, "replaying every epoch before it"),
    "ours": (PLAIN["shuffle"], resumable.wrap([1]).state_dict(), {}, StateFormatError, r"its load_state_dict\(\)"),
    "unknown": (
        PLAIN["shuffle"],
        {"model": 1},
        {},
        StateFormatError,
        "does not know this kind of checkpoint: a dict with mo",
    ),
    "no dict": (PLAIN["shuffle"], "last.ckpt", {}, StateFormatError, "kind of checkpoint: 'last.ckpt'"),
    "damaged": (STATEFUL["shuffle"], {"_num_yielded": 3}, {}, StateFormatError, "truncated or damaged"),
    "another class": (PLAIN["shuffle"], STATE, {}, UnsupportedError, "Wrap the StatefulDataLoader"),
    "another seed": (
        STATEFUL["shuffle"],
        other_seed(),
        {},
        StateMismatchError,
        r"checkpoint: 9\n.*run: +3\n.*_seed\(9\)",
    ),
    "off its seed": (STATEFUL["sampler"], left_early(), {}, StateMismatchError, "left epochs early, was restarted"),
    "another epoch": (STATEFUL["shuffle"], STATE, {"epoch": 2}, StateMismatchError, "does not occur in epoch 2"),
    "stream": (PLAIN["shuffle"], started(StatefulDataLoader(Stream())), {}, UnsupportedError, "a state of its dataset"),
    "dataset": (
        STATEFUL["shuffle"],
        started(StatefulDataLoader(Remembering(DATA), 4)),
        {},
        UnsupportedError,
        "a state of its dataset",
    ),
    "no batches": (
        PLAIN["shuffle"],
        None,
        {"epoch": 0, "batches": 0},
        ConfigurationError,
        "batches must be an integer",
    ),
}


@pytest.mark.parametrize(("make", "state", "options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_adopted_exactly_is_refused(
    make: Make, state: Any, options: dict[str, Any], error: type[ResumableError], message: str
) -> None:
    loader = resumable.wrap(make(), order="torch")
    before = loader.state_dict()
    with pytest.raises(error, match=f"(?s){message}"):
        adopt(loader, state, **options)
    assert loader.state_dict() == before


def test_a_loader_of_another_order_is_refused() -> None:
    for loader in (resumable.wrap(PLAIN["shuffle"]()), resumable.wrap([1, 2]), resumable.wrap(DataLoader(Stream()))):
        with pytest.raises(UnsupportedError, match=r'not PyTorch\'s own(.|\n)*order="torch"'):
            adopt(loader, epoch=0)
    with pytest.raises(ConfigurationError, match="needs a Loader"):
        adopt(PLAIN["shuffle"](), epoch=0)  # type: ignore[arg-type]


def test_batches_that_differ_are_shown_and_refused() -> None:
    """Ranks share what torch would give to each of them."""
    loader = resumable.wrap(PLAIN["shuffle"](), order="torch", world=World(0, 2))
    with pytest.raises(
        StateMismatchError, match=r"(?s)would differ from the job.*epoch 0, step 0\n  DataLoader: .*\n  here: "
    ):
        adopt(loader, epoch=0, step=0)
    assert loader.cursor == resumable.Cursor()


def test_another_batch_size_is_seen_in_the_proof() -> None:
    state = started(reshuffled())
    loader = resumable.wrap(STATEFUL["shuffle"](), order="torch")
    with pytest.raises(StateMismatchError, match="would differ from the job"):
        adopt(loader, state)
    assert list(chain.from_iterable(flat([loader])))  # it stands at its beginning
