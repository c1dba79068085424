"""Randomness belongs to the sample, and the trainer's generators are left alone."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch

import resumable
from resumable import World
from resumable._fetch.reader import Reader
from resumable._randomness.keys import NUMPY, PYTHON, isolated, reseed
from resumable._randomness.seeding import Seeding
from resumable.errors import PromiseWarning, StateFormatError

KINDS = ["python", "numpy", "torch"]


def draw(kind: str) -> float:
    return {"python": random.random, "numpy": np.random.randn, "torch": lambda: torch.rand(()).item()}[kind]()


def seed_all() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_drawn_inside_is_not_seen_outside(kind: str) -> None:
    seed_all()
    alone = [draw(kind) for _ in range(7)]
    seed_all()
    got = []
    for number in range(7):  # an odd number of normal deviates: NumPy keeps the second of each pair
        got.append(draw(kind))
        with isolated(number):
            _ = [draw(inner) for inner in KINDS for _ in range(number)]
    assert got == alone


def test_isolation_can_be_nested_and_survives_errors() -> None:
    seed_all()
    alone = [draw(kind) for kind in KINDS for _ in range(3)]
    seed_all()
    with pytest.raises(OSError, match="inside"), isolated(1):
        draw("numpy")
        first = draw("numpy")
        with isolated(1):
            draw("numpy")
            assert draw("numpy") == first
        raise OSError("inside")
    assert [draw(kind) for kind in KINDS for _ in range(3)] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_gives_the_same_draws_whatever_was_before(kind: str) -> None:
    with isolated():
        reseed(2**63 + 12345)
        first = [draw(kind) for _ in range(3)]
        _ = [draw(kind) for _ in range(2)]
        reseed(2**63 + 12345)
        assert [draw(kind) for _ in range(3)] == first
        reseed(2**63 + 12345 + 2**32 + 1)
        assert [draw(kind) for _ in range(3)] != first


class Source:
    """Draws from the generators that `when(index)` names, and notes what was read."""

    def __init__(self, when: Any) -> None:
        self.when = when
        self.read: list[int] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> list[Any]:
        self.read.append(index)
        return [index, *(draw(kind) for kind in self.when(index))]


SOURCES = {
    "none": lambda _: [],
    "all": lambda _: KINDS,
    "torch": lambda _: ["torch"],
    "python": lambda _: ["python"],
    "numpy": lambda _: ["numpy"],
    "python, late": lambda index: ["python", "torch"] if index in {13, 17, 22} else ["torch"],
    "numpy, later than python": lambda index: KINDS[: index // 9],
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_what_a_sample_gets_depends_on_its_position_alone(name: str, batch_size: int) -> None:
    """Against a twin in which every sample is read by itself, with all generators seeded before it."""
    golden = [sample for batch in resumable.wrap(Source(SOURCES[name]), batch_size=1) for sample in batch]
    loader = resumable.wrap(Source(SOURCES[name]), batch_size=batch_size)
    assert [sample for batch in loader for sample in batch] == golden
    alone = []
    for index in range(24):
        fresh = resumable.wrap(Source(SOURCES[name]), batch_size=1)
        fresh.seek(epoch=0, step=index)
        alone.append(next(iter(fresh))[0])
    assert alone == golden


def test_reread_only_after_an_idle_draw() -> None:
    """A batch is reread only if an idle generator was drawn from."""
    source = Source(SOURCES["python, late"])
    list(resumable.wrap(source, batch_size=4))
    assert source.read == [*range(16), *range(12, 24)]
    source = Source(SOURCES["all"])
    list(resumable.wrap(source, batch_size=4))
    assert source.read == list(range(24))


@pytest.mark.parametrize("name", SOURCES)
def test_what_a_batch_gets_depends_on_its_position_alone(name: str) -> None:
    """Against loaders that have read nothing before, and so seed all generators."""
    loader = resumable.wrap(Source(SOURCES[name]), batch_size=4, randomness="batch")
    alone = []
    for step in range(6):
        fresh = resumable.wrap(Source(SOURCES[name]), batch_size=4, randomness="batch")
        fresh.seek(epoch=0, step=step)
        alone.append(next(iter(fresh)))
    assert list(loader) == alone


@pytest.mark.parametrize("randomness", ["sample", "batch"])
@pytest.mark.parametrize("name", SOURCES)
def test_what_idle_generators_had_is_given_back(name: str, randomness: Any) -> None:
    """With normal deviates that two of them keep for their next call, which a sample could take without a word."""
    seed_all()
    random.gauss(0, 1)
    np.random.randn()
    before = [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()]
    for _ in resumable.wrap(Source(SOURCES[name]), batch_size=4, randomness=randomness):
        assert [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()] == before


@pytest.mark.parametrize("randomness", ["sample", "batch"])
@pytest.mark.parametrize("normal", [lambda: random.gauss(0, 1), np.random.randn], ids=["python", "numpy"])
def test_a_deviate_that_a_generator_keeps_is_no_samples(normal: Any, randomness: Any) -> None:
    """One sample draws, and nothing but what the trainer's generator keeps for its next call: no word of it changes."""

    class DrawsOnce(Source):
        def __getitem__(self, index: int) -> list[Any]:
            return [index, normal()] if index == 13 else [index]

    def batches(*, keeps: bool) -> list[Any]:
        loader = iter(resumable.wrap(DrawsOnce(SOURCES["none"]), batch_size=4, randomness=randomness, seed=1))
        first = [next(loader) for _ in range(3)]
        seed_all()
        if keeps:
            normal()
        before = random.getstate(), repr(np.random.get_state())
        rest = list(loader)
        assert (random.getstate(), repr(np.random.get_state())) == before
        return first + rest

    assert batches(keeps=True) == batches(keeps=False)


def test_what_collates_is_watched_as_samples_are() -> None:
    """It draws from the fourth batch on: all that was drawn before and in it is what seeding all of them gives."""

    def collate(samples: list[Any]) -> list[Any]:
        late = any(sample[0] == 13 for sample in samples)
        return [*samples, random.random() if late else None, np.random.randn() if late else None]

    def loader() -> Any:
        return resumable.wrap(Source(SOURCES["torch"]), batch_size=4, collate=collate, seed=1)

    fresh = loader()
    fresh.seek(epoch=0, step=3)
    seed_all()
    before = random.getstate()
    assert list(loader())[3] == next(iter(fresh))
    assert random.getstate() == before


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_sample_that_fails_gives_back_what_it_drew_from(error: type[BaseException]) -> None:
    def when(index: int) -> list[str]:
        if index == 14:
            _ = [draw(kind) for kind in KINDS]
            raise error
        return []

    seed_all()
    before = [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()]
    with pytest.raises(error):
        list(resumable.wrap(Source(when), batch_size=4))
    assert [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()] == before


@pytest.mark.parametrize("by_memory", [True, False])
def test_a_look_at_a_generator_is_its_state(monkeypatch: pytest.MonkeyPatch, *, by_memory: bool) -> None:
    """As it lies in memory, or as Python tells it."""
    assert PYTHON._memory is not None, "here it lies as expected, so that this is what is tried"
    if not by_memory:
        monkeypatch.setattr(PYTHON, "_memory", None)
    for _ in range(700):  # past the end of the words, where all of them are made again
        assert PYTHON.state_of(PYTHON.look()) == random.getstate()
        _, words, *rest = np.random.get_state(legacy=True)
        assert repr(NUMPY.state_of(NUMPY.look())[1:]) == repr(([int(word) for word in words], *rest))
        random.gauss(0, 1)
        np.random.randn()
    looks, states = [PYTHON.look(), NUMPY.look()], [random.getstate(), repr(np.random.get_state())]
    _ = [draw(kind) for kind in KINDS]
    assert [PYTHON.changed(looks[0]), NUMPY.changed(looks[1])] == [True, True]
    PYTHON.put_back(looks[0])
    NUMPY.put_back(looks[1])
    assert [random.getstate(), repr(np.random.get_state())] == states


def test_another_bit_generator_of_numpy_is_left_alone() -> None:
    """`numpy.random.seed` cannot seed it, so that samples draw from one that can be."""
    golden = list(resumable.wrap(Source(SOURCES["numpy, later than python"]), batch_size=4))
    numpy_random: Any = np.random  # its stubs leave out what swaps the bit generator
    own, mine = numpy_random.get_bit_generator(), np.random.PCG64(3)
    numpy_random.set_bit_generator(mine)
    try:
        before = mine.state
        assert list(resumable.wrap(Source(SOURCES["numpy, later than python"]), batch_size=4)) == golden
        assert (numpy_random.get_bit_generator(), mine.state) == (mine, before)
    finally:
        numpy_random.set_bit_generator(own)


def test_failing_sample_in_a_batch_read_again() -> None:
    """The sample that fails is named in a batch that is reread."""
    calls = []

    def when(index: int) -> list[str]:
        calls.append(index)
        if index == 14 and calls.count(14) == 2:
            raise OSError("torn file")
        return ["python"] if index == 13 else []

    with pytest.raises(OSError, match="torn file\n.*raised by sample 14"):
        list(resumable.wrap(Source(when), batch_size=4))


def test_a_reader_travels_to_workers_with_what_it_learnt() -> None:
    reader = Reader(Source(SOURCES["none"]).__class__, list, "sample", seeding=Seeding())
    assert isinstance(pickle.loads(pickle.dumps(reader)), Reader)  # noqa: S301  # our own bytes


def test_epochs_seeds_and_repeated_samples_get_other_draws() -> None:
    def draws(**options: Any) -> list[float]:
        loader = resumable.wrap(Source(SOURCES["torch"]), batch_size=5, tail="pad", **options)
        return [sample[1] for _ in range(2) for batch in loader for sample in batch]

    both = draws() + draws(seed=1)
    assert len(both) == 2 * 2 * 25
    assert len(set(both)) == len(both)


def test_ranks_get_the_draws_of_their_positions() -> None:
    golden = [sample for batch in resumable.wrap(Source(SOURCES["all"]), batch_size=6) for sample in batch]
    state = resumable.wrap(Source(SOURCES["all"]), batch_size=6).state_dict()
    ranks = [resumable.wrap(Source(SOURCES["all"]), batch_size=6, world=World(rank, 3)) for rank in range(3)]
    for loader in ranks:
        loader.load_state_dict(state)
    parts = zip(*ranks, strict=True)
    assert [sample for step in parts for batch in step for sample in batch] == golden


def test_off_leaves_the_generators_to_the_source() -> None:
    seed_all()
    alone = [[index, *(draw(kind) for kind in KINDS)] for index in range(24)]
    seed_all()
    loader = resumable.wrap(Source(SOURCES["all"]), batch_size=6, randomness="off")
    assert [sample for batch in loader for sample in batch] == alone


# ---------------------------------------------------------------------- resumable.rng


def test_the_trainers_generators_can_be_saved_and_restored(tmp_path: Any) -> None:
    seed_all()
    draw("numpy")
    torch.save(resumable.rng.state_dict(), tmp_path / "rng.pt")
    expected = [draw(kind) for kind in KINDS for _ in range(3)]
    resumable.rng.load_state_dict(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert [draw(kind) for kind in KINDS for _ in range(3)] == expected


PLACES = [
    {"numpy": ["MT19937", [7] * 624, place, 0, 0.0]} for place in (-1, 625, 10**6, 2.5)
]  # of the next word, of 624


@pytest.mark.parametrize(
    "damage", [{}, {"python": [3, [1, 2], None]}, {"numpy": ["MT19937", [1], 0, 0, 0.0]}, *PLACES, None]
)
def test_a_bad_state_of_the_generators_changes_nothing(damage: Any) -> None:
    seed_all()
    state = resumable.rng.state_dict()
    expected = [draw(kind) for kind in KINDS]
    resumable.rng.load_state_dict(state)
    bad = {**state, **damage} if damage else damage
    with pytest.raises(StateFormatError, match="Nothing was changed"):
        resumable.rng.load_state_dict(bad)
    assert [draw(kind) for kind in KINDS] == expected


@pytest.mark.parametrize("words", [None, 5, [1, 2], torch.zeros(5056), torch.zeros(8, dtype=torch.uint8), b"words"])
def test_a_bad_state_of_torch_changes_none_of_the_others(words: Any) -> None:
    state = {**resumable.rng.state_dict(), "torch": words}
    seed_all()
    expected = [draw(kind) for kind in KINDS]
    seed_all()
    with pytest.raises(StateFormatError, match="not a state of the global RNGs: .*\nNothing was changed"):
        resumable.rng.load_state_dict(state)
    assert [draw(kind) for kind in KINDS] == expected


@pytest.mark.parametrize("one", [None, 5, torch.zeros(16), torch.zeros(3, dtype=torch.uint8)])
def test_a_bad_state_of_a_cuda_device_changes_none_of_the_others(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such a device, its generator is stood in for by one of the CPU; both refuse the same values."""
    if not torch.cuda.is_available():
        cpu = torch.Generator
        monkeypatch.setattr(torch, "Generator", lambda device: cpu("cpu"))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    state = {**resumable.rng.state_dict(), "cuda": [one] * torch.cuda.device_count()}
    seed_all()
    expected = [draw(kind) for kind in KINDS]
    seed_all()
    with pytest.raises(StateFormatError, match="not a state of the global RNGs: .*\nNothing was changed"):
        resumable.rng.load_state_dict(state)
    assert [draw(kind) for kind in KINDS] == expected


@pytest.mark.parametrize("cuda", [5, 1.5])
def test_states_of_cuda_devices_are_a_list(cuda: Any) -> None:
    with pytest.raises(StateFormatError, match="Nothing was changed"):
        resumable.rng.load_state_dict({**resumable.rng.state_dict(), "cuda": cuda})


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_generators_of_missing_devices(kind: str) -> None:
    """Generators of missing devices are named, and all others are restored."""

    def draws() -> list[Any]:
        own = [torch.rand((), device=f"{kind}:{number}").item() for number in range(present)]
        return [*own, *(draw(name) for name in KINDS)]

    present = getattr(torch, kind).device_count()
    seed_all()
    draws()  # where there are such devices, their generators are captured once they have been used
    state = resumable.rng.state_dict()
    expected = draws()
    devices = [*state.get(kind, []), *[torch.get_rng_state()] * (8 - present)]
    with pytest.warns(PromiseWarning, match=f"of 8 {kind.upper()} devices, but this process sees {present}") as told:
        resumable.rng.load_state_dict({**state, kind: devices})
    assert len(told) == 1
    assert f"The RNGs of {kind}:{present}, " in str(told[0].message)
    assert draws() == expected


@pytest.mark.parametrize(("saved", "present", "restored"), [(8, 1, [0]), (2, 8, [0, 1]), (3, 3, [0, 1, 2]), (8, 0, [])])
def test_generators_of_devices_are_restored_by_number(saved: int, present: int, restored: list[int]) -> None:
    state = {"cuda": [f"state {number}" for number in range(saved)]}
    found = resumable.rng.of_present_devices(state, {"cuda": present, "xpu": 2}.get)
    assert found == [("cuda", number, f"state {number}") for number in restored]
