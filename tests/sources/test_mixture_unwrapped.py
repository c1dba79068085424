"""A mixture that is read without its order warns; one that is read with it does not."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

import resumable
from resumable import ResumableSampler
from resumable.errors import PromiseWarning, StateMismatchError, UnsupportedError
from resumable.samplers import Blocks, Mixture

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"web": 40, "code": 24}
WEIGHTS = {"web": 1, "code": 3}
SOURCES = {name: [f"{name} {number}" for number in range(size)] for name, size in SIZES.items()}


def mixture(**plan: Any) -> Any:
    return resumable.mix(SOURCES, **{"weights": WEIGHTS, **plan})


class Holds(Dataset[str]):
    """Reads a mixture by index."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> str:
        return str(self.inner[index]).upper()


class Passes(Holds):
    """Also passes its order on."""

    def resumable_order(self, seed: int) -> Any:
        return self.inner.resumable_order(seed)


# ---------------------------------------------------------------------- without wrap

LOADERS: dict[str, tuple[Any, str]] = {
    "shuffled": (lambda data: DataLoader(data, batch_size=8, shuffle=True), "in a different order"),
    "without shuffle": (lambda data: DataLoader(data, batch_size=8), "one source after another"),
    "a sampler": (lambda data: DataLoader(data, batch_size=8, sampler=RandomSampler(data)), "in a different order"),
    "one at a time": (lambda data: DataLoader(data, shuffle=True), "in a different order"),
    "a subset": (lambda data: DataLoader(Subset(data, [3, 60, 7, 8]), batch_size=4), "in a different order"),
}


@pytest.mark.parametrize("how", LOADERS)
def test_a_dataloader_that_is_not_wrapped_warns_once(how: str) -> None:
    make, told = LOADERS[how]
    data = mixture()
    with pytest.warns(PromiseWarning, match=rf"without wrap: {told}\.(.|\n)*resumable\.wrap\(DataLoader"):
        assert list(make(data))
    assert list(make(data))  # a warning would be an error


@pytest.mark.parametrize(
    "plan", [{"weights": [(0, {"web": 1}), (9, WEIGHTS)]}, {"weights": None, "epochs": {"web": 1}}]
)
def test_so_do_phases_and_epochs(plan: dict[str, Any]) -> None:
    with pytest.warns(PromiseWarning, match="without wrap"):
        list(DataLoader(mixture(**plan), batch_size=8, shuffle=True))


@pytest.mark.slow
def test_a_worker_warns_as_well() -> None:
    """Its warning is on standard error."""
    script = (
        "import resumable\nfrom torch.utils.data import DataLoader\n"
        "data = resumable.mix({'a': [1] * 20, 'b': [2] * 20}, weights={'a': 1, 'b': 3})\n"
        "print(len(list(DataLoader(data, batch_size=8, shuffle=True, num_workers=1))))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr.count("PromiseWarning: a DataLoader reads a mixture without wrap")) == ("5\n", 1)


def right_programs() -> dict[str, Any]:
    whole, given, alone = mixture(), mixture(), mixture(weights=None)
    own = ResumableSampler(given, 1, 0, batch_size=8, sampler=given.resumable_order(3))
    other = mixture()
    free = ResumableSampler(other, 1, 0, batch_size=8, sampler=Mixture(SIZES, weights=WEIGHTS, seed=3))
    return {
        "wrapped": resumable.wrap(DataLoader(whole, batch_size=8), seed=3),
        "its own order": DataLoader(given, batch_size=8, sampler=own),
        "an order that was made": DataLoader(other, batch_size=8, sampler=free),
        "no weights": DataLoader(alone, batch_size=8, shuffle=True),  # the proportions follow the lengths
        "by index": [alone[number] for number in range(9)],
        "by iteration": mixture(),
        "passes its order on": resumable.wrap(DataLoader(Passes(mixture()), batch_size=8), seed=3),
    }


@pytest.mark.parametrize("what", right_programs())
def test_a_right_program_is_not_warned(what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = right_programs()[what]
        batches = list(program)
    assert batches
    if what in {"its own order", "an order that was made", "passes its order on"}:
        counts = [Counter(sample.split()[0].lower() for sample in batch) for batch in batches]
        assert all(count == {"web": 2, "code": 6} for count in counts[:-1])


# ---------------------------------------------------------------------- in a dataset of the user


def test_a_dataset_that_holds_a_mixture_warns_when_it_is_wrapped() -> None:
    data = Holds(mixture())
    sources: list[tuple[Any, dict[str, Any]]] = [
        (DataLoader(data, batch_size=8, shuffle=True), {}),
        (data, {"batch_size": 8}),
    ]
    for source, options in sources:
        with pytest.warns(
            PromiseWarning, match=r"a Holds that holds a Mix as inner(.|\n)*self\.inner\.resumable_order"
        ):
            resumable.wrap(source, **options, seed=1)
    with pytest.warns(PromiseWarning, match="the dataset of this ResumableSampler is a Holds that holds a Mix"):
        ResumableSampler(data, 1, 0)


# ---------------------------------------------------------------------- ResumableSampler


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_mixture_without_a_window_fits_the_batch_of_a_sampler(batch_size: int, drop_last: bool) -> None:
    """Over later epochs, and from each state; its length depends on its window."""

    def make(size: int = batch_size) -> ResumableSampler:
        order = Mixture(SIZES, weights=WEIGHTS, seed=3)
        return ResumableSampler(list(range(64)), 1, 0, batch_size=size, sampler=order, drop_last=drop_last)

    expected = resumable.wrap(
        list(range(64)),
        batch_size=batch_size,
        sampler=Mixture(SIZES, weights=WEIGHTS, seed=3),
        tail="drop" if drop_last else "pad",
    )
    sampler = make()
    whole = [list(sampler) for _ in range(4)]
    assert whole == [[sample for batch in epoch for sample in batch] for epoch in expected.epochs(4)]
    assert len(sampler) == len(whole[0])
    sampler, states = make(), []
    for _ in range(2):
        states += [(sampler.epoch, number, sampler.state_dict()) for number, _ in enumerate(sampler, start=1)]
    for epoch, number, state in states[:: batch_size * 2]:
        for size in (batch_size, 2):
            if number % batch_size and size != batch_size:
                continue
            other = make(size)
            other.load_state_dict(json.loads(json.dumps(state)))
            rest, left = list(other), whole[epoch][number:]
            if size == batch_size:
                assert (rest, list(other)) == (
                    (left, whole[epoch + 1]) if left else (whole[epoch + 1], whole[epoch + 2])
                )
            elif len(left) >= size:  # the end of the epoch is padded or dropped differently
                common = min(len(rest), len(left))
                assert rest[:common] == left[:common]


# ---------------------------------------------------------------------- resumable samples


def test_samples_of_a_mixture_that_a_state_has_as_a_digest(tmp_path: Path) -> None:
    """Its source has what is missing."""

    def make(count: int, last: int = 5) -> Any:
        sources = {f"a source with a rather long name, which is number {n}": range(7) for n in range(count - 1)}
        return resumable.mix({**sources, "last": range(last)}, weights=dict.fromkeys([*sources, "last"], 1))

    loader = resumable.wrap(make(60), batch_size=8, seed=2)
    list(loader.steps(3))
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    with pytest.raises(
        UnsupportedError, match=r"only a digest of the sources(.|\n)*--source, or samples\(..., source="
    ):
        resumable.samples(path, epoch=1, step=2)
    for epoch, step in ((0, 0), (1, 2), (3, 5)):
        found = resumable.samples(path, epoch=epoch, step=step, source=make(60))
        assert list(found.indices) == loader.sample_indices(epoch=epoch, step=step)
        assert found.places[0][0].startswith("a source") or found.places[0][0] == "last"
    for wrong in (make(59), make(60, 6)):
        with pytest.raises(StateMismatchError, match="belongs to a different source"):
            resumable.samples(path, epoch=1, step=2, source=wrong)


def test_samples_of_blocks_that_a_state_has_as_a_digest(tmp_path: Path) -> None:
    class Shards:
        def __init__(self, count: int) -> None:
            self.sizes = [10 + number * number % 7 for number in range(count)]

        def __len__(self) -> int:
            return sum(self.sizes)

        def __getitem__(self, index: int) -> int:
            return index

        def locate(self, indices: Any) -> list[int]:
            return list(indices)

    order = Blocks(Shards(90).sizes, block=4, window=64, seed=1)
    loader = resumable.wrap(Shards(90), batch_size=8, sampler=order)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    with pytest.raises(UnsupportedError, match="only a digest of the sizes"):
        resumable.samples(path, epoch=1, step=2)
    found = resumable.samples(path, epoch=1, step=2, source=Shards(90))
    assert list(found.indices) == loader.sample_indices(epoch=1, step=2)
    with pytest.raises(StateMismatchError, match="different source"):
        resumable.samples(path, epoch=1, step=2, source=Shards(89))
