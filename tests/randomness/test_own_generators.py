"""Generators that a dataset, a transform or what collates has of its own belong to the sample, like the global ones."""

from __future__ import annotations

import argparse
import collections
import contextlib
import contextvars
import dataclasses
import functools
import itertools
import pickle
import queue
import random
import threading
import time
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import resumable
from resumable import World
from resumable._fetch.reader import Reader
from resumable._randomness.own_generators import OwnGenerator, OwnGenerators, find_generators
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH, BATCH, EPOCHS = 13, 3, 2

MAKE: dict[str, Callable[[], Any]] = {
    "Random": random.Random,
    "PCG64": np.random.default_rng,
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM()),
    "Philox": lambda: np.random.Generator(np.random.Philox()),
    "SFC64": lambda: np.random.Generator(np.random.SFC64()),
    "MT19937": lambda: np.random.Generator(np.random.MT19937()),
    "RandomState": np.random.RandomState,
    "RandomState of PCG64": lambda: np.random.RandomState(np.random.PCG64()),
    "torch": lambda: torch.Generator().manual_seed(random.SystemRandom().getrandbits(32)),
}


def draw(generator: Any) -> float:
    """Draw an odd number of words, and of normal deviates, one of which a generator may keep for its next call."""
    if isinstance(generator, random.Random):
        return generator.random() + generator.gauss()
    if isinstance(generator, torch.Generator):
        return torch.rand((), generator=generator).item() + torch.randn((), generator=generator).item()
    whole = generator.integers if isinstance(generator, np.random.Generator) else generator.randint
    return float(whole(1000)) + float(generator.normal())


class Numbers(Dataset[Any]):
    """Gives pairs of an index and what `of` makes of it."""

    def __init__(self, of: Callable[[int], Any]) -> None:
        self.of = of

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.of(index)


class Attribute:
    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, index: int) -> float:
        return draw(self.generator)


class Slot:
    __slots__ = ("generator",)

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, index: int) -> float:
        return draw(self.generator)


class Steps:
    """What pipelines of augmentations look like."""

    def __init__(self, generator: Any) -> None:
        self.steps: list[Any] = [abs, Attribute(generator)]
        self.options = {"mode": "random", "inner": self.steps[1]}

    def __call__(self, index: int) -> float:
        return float(self.steps[1](self.steps[0](index)))


class OfClass:
    generator: Any = None

    def __call__(self, index: int) -> float:
        return draw(type(self).generator)


def of_class(generator: Any) -> Any:
    return type("Made", (OfClass,), {"generator": generator})()


def of_class_in_steps(generator: Any) -> Any:
    def call(self: Any, index: int) -> float:
        return float(self.steps[0](index))

    return type("Made", (), {"steps": (Attribute(generator),), "__call__": call})()


def decorated(generator: Any) -> Any:
    def twice(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, index: int) -> Any:
            return method(self, index) + method(self, index)

        return call

    class Made:
        @twice
        def __call__(self, index: int) -> float:
            return index + draw(generator)

    return Made()


shared: Any = None


def helper() -> float:
    return draw(shared)


def of_module(generator: Any) -> Any:
    global shared  # noqa: PLW0603  # as scripts have it
    shared = generator
    return lambda index: index + helper()


def enclosed(generator: Any) -> Any:
    return lambda index: index + draw(generator)


def default(generator: Any) -> Any:
    def of(index: int, own: Any = generator) -> float:
        return index + draw(own)

    return of


def keyword(generator: Any) -> Any:
    return functools.partial(lambda index, own: index + draw(own), own=generator)


def wrapped(generator: Any) -> Any:
    return functools.wraps(abs)(lambda index: index + draw(generator))


WHERE: dict[str, Callable[[Any], Callable[[int], float]]] = {
    "attribute": Attribute,
    "slot": Slot,
    "steps": Steps,
    "class": of_class,
    "class, in a container": of_class_in_steps,
    "method that is decorated": decorated,
    "module": of_module,
    "closure": enclosed,
    "default": default,
    "partial": keyword,
    "method": lambda generator: Attribute(generator).__call__,
    "wrapped": wrapped,
}


def plain(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch


def assert_exact(make: Callable[[], Any], cuts: range | None = None, **options: Any) -> list[Any]:
    """Compare runs that are resumed at each step, each with a source of its own, with one that was not interrupted."""
    loader = resumable.wrap(make(), seed=7, **options)
    states, golden = [loader.state_dict()], []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            golden.append(plain(batch))
            states.append(loader.state_dict())
    assert len(set(map(str, golden))) == len(golden)
    for taken in cuts or range(len(golden)):
        loader = resumable.wrap(make(), seed=7, **options)
        loader.load_state_dict(states[taken])
        assert [plain(batch) for epoch in loader.epochs(EPOCHS) for batch in epoch] == golden[taken:]
    return golden


@pytest.mark.parametrize("kind", MAKE)
def test_a_generator_of_any_kind(kind: str) -> None:
    assert_exact(lambda: DataLoader(Numbers(Attribute(MAKE[kind]())), BATCH, shuffle=True))


@pytest.mark.parametrize("where", WHERE)
def test_a_generator_in_any_place(where: str) -> None:
    assert_exact(lambda: DataLoader(Numbers(WHERE[where](np.random.default_rng())), BATCH, shuffle=True))


def test_a_list_with_a_transform_and_what_collates() -> None:
    numbers = list(range(LENGTH))

    def collate(samples: list[Any]) -> Any:
        return samples, own.random()

    own = random.Random()  # of both, so that each batch shows whether it is seeded again for the second
    transform = Attribute(np.random.default_rng())
    first = assert_exact(lambda: numbers, batch_size=BATCH, shuffle=True, transform=transform, collate=collate)
    own, transform = random.Random(), Attribute(np.random.default_rng())
    assert first == assert_exact(lambda: numbers, batch_size=BATCH, shuffle=True, transform=transform, collate=collate)


@pytest.mark.parametrize("inside", [lambda one: Subset(one, range(9)), lambda one: ConcatDataset([one, one])])
def test_inside_of_torchs_own_datasets(inside: Callable[[Any], Any]) -> None:
    assert_exact(lambda: DataLoader(inside(Numbers(Attribute(random.Random()))), BATCH, shuffle=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "cuts"),
    [("fork", range(0, 10, 4)), pytest.param("spawn", range(6, 7), marks=pytest.mark.long)],  # a minute of imports
)
def test_in_workers(context: str, cuts: range) -> None:
    def make(workers: int = 2) -> Any:
        how: Any = {"multiprocessing_context": context, "persistent_workers": context == "spawn"} if workers else {}
        dataset = Numbers(Steps(np.random.default_rng()))
        return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **how)

    golden = assert_exact(make, cuts)
    assert golden == assert_exact(lambda: make(workers=0), range(1))


def test_reader_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is sent to another process finds the generators there."""
    loader = resumable.wrap(Numbers(Attribute(random.Random())), batch_size=4, seed=7)
    golden = [list(loader), list(loader)]

    def elsewhere(reader: Reader, request: Any) -> Any:
        reader.read(request)  # so that it has something to leave behind
        return pickle.loads(pickle.dumps(reader)).read(request)  # noqa: S301  # our own bytes

    monkeypatch.setattr(Reader, "read_isolated", elsewhere)
    loader = resumable.wrap(Numbers(Attribute(random.Random())), batch_size=4, seed=7)
    assert [list(loader), list(loader)] == golden


def draws(of: Callable[[int], Any], **options: Any) -> dict[int, Any]:
    loader = resumable.wrap(Numbers(of), seed=7, **options)
    return dict(sample for batch in loader for sample in batch)


def test_batch_size_and_ranks_change_nothing() -> None:
    common: Any = {"shuffle": True, "tail": "partial"}
    one = draws(Attribute(random.Random()), batch_size=1, **common)
    assert one == draws(Attribute(random.Random()), batch_size=5, **common)
    ranks = [draws(Attribute(random.Random()), batch_size=4, world=World(rank, 2), **common) for rank in (0, 1)]
    assert one == ranks[0] | ranks[1]
    assert len(one) == LENGTH


def test_two_generators_of_a_pipeline_draw_different_numbers() -> None:
    first, second = np.random.default_rng(), np.random.default_rng()
    pairs = draws(lambda index: (first.random(), second.random()), batch_size=4).values()
    assert not {one for one, _ in pairs} & {other for _, other in pairs}


def test_one_generator_in_two_places_is_one() -> None:
    steps = Steps(np.random.default_rng())
    assert [place.path for place in find_generators({"transform": steps})] == ["transform.steps[1].generator"]


@pytest.mark.parametrize("kind", MAKE)
def test_it_is_given_back_as_it_was(kind: str) -> None:
    """Where samples are read in the training process, what else draws from it is not changed by reading."""
    generator, twin = MAKE[kind](), MAKE[kind]()
    states = [pickle.dumps(one) for one in (generator, twin)] if kind != "torch" else []
    if states:
        twin = pickle.loads(states[0])  # noqa: S301  # our own bytes
    else:
        twin.set_state(generator.get_state())
    draw(generator), draw(twin)
    for _ in resumable.wrap(DataLoader(Numbers(Attribute(generator)), BATCH)):
        assert draw(generator) == draw(twin)


def test_a_sample_that_fails_gives_it_back() -> None:
    generator = random.Random()

    def of(index: int) -> float:
        if generator.random() > 0 and index == 7:
            raise OSError("torn file")
        return generator.random()

    before = generator.getstate()
    with pytest.raises(OSError, match="torn file"):
        list(resumable.wrap(DataLoader(Numbers(of), BATCH)))
    assert generator.getstate() == before


def test_failed_first_batch_without_its_seed() -> None:
    """A first batch that fails without its seed is read with it."""

    class Fails(Attribute):
        calls = 0

        def __call__(self, index: int) -> float:
            self.calls += 1
            drawn = draw(self.generator)
            if self.calls == 2:
                raise OSError("a bad draw")
            return drawn

    def batches(of: Any) -> list[Any]:
        return [plain(batch) for batch in resumable.wrap(DataLoader(Numbers(of), BATCH), seed=7)]

    assert batches(Fails(random.Random())) == batches(Attribute(random.Random()))


class Lazy:
    """Makes its generator where it is first needed, as to have another one in each worker."""

    def __init__(self) -> None:
        self.generator: Any = None

    def __call__(self, index: int) -> float:
        if self.generator is None:
            self.generator = np.random.default_rng()
        return float(self.generator.random())


class Late(Attribute):
    """Draws for some samples only."""

    def __call__(self, index: int) -> float:
        return draw(self.generator) if index in {5, 11} else index


class PerSample(Attribute):
    """Makes a new generator for each sample."""

    def __call__(self, index: int) -> float:
        self.generator = np.random.default_rng(index)
        return draw(self.generator) + random.random()


class Gone(Attribute):
    """Takes its generator away after each sample, and leaves something else in its place."""

    def __call__(self, index: int) -> float:
        self.generator = np.random.default_rng(random.getrandbits(32))
        drawn = draw(self.generator)
        self.generator = "none"
        return drawn


class InEachEpoch(Attribute):
    """Makes a new generator in what it takes for an epoch, in the middle of reading."""

    calls = 0

    def __call__(self, index: int) -> float:
        if self.calls % LENGTH == 0:
            self.generator = np.random.default_rng()
        self.calls += 1
        return draw(self.generator)


@pytest.mark.parametrize(
    "kind", [Lazy, lambda: Late(random.Random()), lambda: PerSample(None), lambda: Gone(random.Random())]
)
def test_it_is_made_or_drawn_from_later(kind: Callable[[], Any]) -> None:
    assert_exact(lambda: DataLoader(Numbers(kind()), BATCH, shuffle=True))


def test_generator_replaced_during_a_run() -> None:
    """A generator that is replaced between epochs or while samples are read gives the same numbers."""

    def run(of: Any, *, renew: bool) -> list[Any]:
        loader = resumable.wrap(DataLoader(Numbers(of), BATCH, shuffle=True), seed=7)
        got: list[Any] = []
        for epoch in loader.epochs(EPOCHS):
            if renew:
                of.steps = [abs, Attribute(np.random.default_rng(int(epoch)))]
            got += map(plain, epoch)
        return got

    golden = run(Steps(np.random.default_rng()), renew=False)
    assert golden == run(Steps(np.random.default_rng()), renew=True)
    golden = run(Attribute(np.random.default_rng()), renew=False)
    assert golden == run(InEachEpoch(np.random.default_rng()), renew=False)


class Projection:
    """Draws something once, from a generator with a seed, and keeps it."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)
        self.weights: Any = None

    def __call__(self, index: int) -> float:
        if self.weights is None:
            self.weights = self.generator.normal(size=LENGTH)
        return float(self.weights[index])


def test_draws_that_are_kept() -> None:
    """Draws that are made once and kept are those that the source makes alone."""
    golden = assert_exact(lambda: DataLoader(Numbers(Projection()), BATCH, shuffle=True))
    weights = np.random.default_rng(3).normal(size=LENGTH)
    for indices, values in golden:
        assert values == weights[indices].tolist()


def test_one_that_comes_up_late_is_told() -> None:
    class VeryLate(Lazy):
        def __call__(self, index: int) -> float:
            return super().__call__(index) if index > 4 else index

    loader = resumable.wrap(DataLoader(Numbers(VeryLate()), 1))
    with pytest.warns(
        PromiseWarning, match=r"found at dataset\.of\.generator only after batches had been read"
    ) as told:
        list(loader)
    assert len(told) == 1


def test_randomness_batch_and_off() -> None:
    """Randomness "batch" belongs to the batch, and "off" leaves randomness alone."""
    assert_exact(lambda: DataLoader(Numbers(Attribute(random.Random())), BATCH), randomness="batch")
    generator = random.Random(5)
    got = draws(Attribute(generator), batch_size=4, randomness="off", tail="partial")
    twin = random.Random(5)
    assert list(got.values()) == [draw(twin) for _ in range(LENGTH)]


@pytest.mark.parametrize("loader", [True, False])
def test_dataset_state_brings_its_generator(loader: bool) -> None:
    """A dataset with a state restores its generator itself."""

    class Remembers(Numbers):
        def __init__(self) -> None:
            self.own = random.Random(1)
            super().__init__(lambda index: self.own.random())

        def state_dict(self) -> Any:
            return self.own.getstate()

        def load_state_dict(self, state: Any) -> None:
            self.own.setstate(state)

    if loader:
        golden = assert_exact(lambda: DataLoader(Remembers(), BATCH, shuffle=True))
        drawn = [value for _, values in golden for value in values]
    else:
        golden = assert_exact(Remembers, batch_size=BATCH, shuffle=True, tail="partial")
        drawn = [value for batch in golden for _, value in batch]
    twin = random.Random(1)
    assert drawn == [twin.random() for _ in range(EPOCHS * LENGTH)]


def test_what_a_key_gives_is_pinned() -> None:
    """A stream that is saved today goes on in later versions."""
    got = {}
    for kind, make in MAKE.items():
        generator = make()
        draw(generator)  # a normal deviate that it keeps is none of the key's
        OwnGenerator("dataset.rng", functools.partial(next, itertools.repeat(generator))).seed(1 << 63 | 12345)
        got[kind] = draw(generator)
    assert got == pytest.approx(VECTORS, abs=1e-6)


VECTORS = {
    "Random": 1.3304775596107143,
    "PCG64": 784.5094458046256,
    "PCG64DXSM": 756.1704954306134,
    "Philox": 5.424546466390785,
    "SFC64": 332.6777112871196,
    "MT19937": 445.4700999439637,
    "RandomState": 666.1368365656741,
    "RandomState of PCG64": 923.0393558092605,
    "torch": -1.0622820854187012,
}


@pytest.mark.parametrize("which", ["transform", "collate"])
def test_over_a_stream_it_is_told(which: str) -> None:
    """An element of a stream cannot be read again, and its order may come from its own generator."""

    def elements() -> Any:
        own = random.Random(0)
        return (index + own.random() for index in range(LENGTH))

    calls: Any = {which: Attribute(random.Random())}
    loader = resumable.wrap(elements, batch_size=BATCH, **calls)
    with pytest.warns(PromiseWarning, match=rf"uses its own random generator, {which}\.generator") as told:
        assert list(loader)
    assert len(told) == 1
    assert list(resumable.wrap(elements, batch_size=BATCH, transform=abs))


def test_nothing_of_the_source_is_called() -> None:
    class Shy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        __len__ = __iter__ = __bool__ = lambda self: self.nothing

    class Proud(Shy):
        @property
        def lazy(self) -> Any:
            raise AssertionError

    source = {"a": Shy(), "b": [Proud(), random.Random()], "c": random, "d": random.SystemRandom(), "e": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [place.path for place in find_generators({"x": source})] == ["x['b'][1]"]


def test_a_large_source_is_looked_at_in_part() -> None:
    samples = [{"number": number} for number in range(100_000)]
    assert find_generators({"dataset": Numbers(Attribute(samples))}) == []


# ---------------------------------------------------------------------- what a dataset can hold


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    probability: float
    generator: Any


def objects(generator: Any, *shape: int) -> Any:
    array = np.empty(shape, object)
    array[(*(-1 for _ in shape),)] = generator
    return array


def waiting(generator: Any) -> Any:
    found: Any = queue.Queue()
    found.put(generator)
    return found


def yielding(generator: Any) -> Any:
    yield from iter(lambda: generator, None)


def local(generator: Any) -> Any:
    found = threading.local()
    found.generator = generator
    return found


def variable(generator: Any) -> Any:
    found = contextvars.ContextVar[Any]("generator")
    found.set(generator)
    return found


Holder = tuple["Callable[[Any], Any]", "Callable[[Any], Any]"]  # makes a holder, and gets the generator out of it
UserPair = collections.namedtuple("UserPair", "number generator")  # noqa: PYI024  # as many programs have them
HOLDERS: dict[str, Holder] = {
    "argparse": (lambda one: argparse.Namespace(own=one), lambda held: held.own),
    "SimpleNamespace": (lambda one: types.SimpleNamespace(own=one), lambda held: held.own),
    "UserDict": (lambda one: collections.UserDict(own=one), lambda held: held["own"]),
    "UserList": (lambda one: collections.UserList([one]), lambda held: held[0]),
    "ChainMap": (lambda one: collections.ChainMap({}, {"own": one}), lambda held: held["own"]),
    "OrderedDict": (lambda one: collections.OrderedDict(own=one), lambda held: held["own"]),
    "defaultdict": (lambda one: collections.defaultdict(lambda: one), lambda held: held["own"]),
    "deque": (lambda one: collections.deque([one]), lambda held: held[0]),
    "set": (lambda one: {one}, lambda held: next(iter(held))),
    "frozenset": (lambda one: frozenset([one]), lambda held: next(iter(held))),
    "Counter": (lambda one: collections.Counter({one: 2}), lambda held: next(iter(held))),
    "key of a dict": (lambda one: {(0, one): 0.5}, lambda held: next(iter(held))[1]),
    "view": (lambda one: types.MappingProxyType({"own": one}), lambda held: held["own"]),
    "values": (lambda one: {"own": one}.values(), lambda held: next(iter(held))),
    "dataclass": (lambda one: Options(0.5, one), lambda held: held.generator),
    "namedtuple": (lambda one: UserPair(0, one), lambda held: held.generator),
    "queue": (waiting, lambda held: held.queue[0]),
    "thread": (local, lambda held: held.generator),
    "context": (variable, lambda held: held.get()),
    "weak reference": (lambda one: (one, weakref.ref(one))[1:], lambda held: held[0]()),
    "weak values": (lambda one: weakref.WeakValueDictionary(own=one), lambda held: held["own"]),
    "proxy": (weakref.proxy, lambda held: held),
    "bound method": (lambda one: types.SimpleNamespace(draw=one.random), lambda held: held.draw.__self__),
    "cycle": (lambda one: itertools.cycle([one]), next),
    "iterator": (yielding, next),
    "decorated": (lambda one: contextlib.contextmanager(lambda: iter([one])), lambda held: held().__enter__()),
    "without gradients": (lambda one: torch.no_grad()(lambda: one), lambda held: held()),
    "cached": (lambda one: functools.lru_cache(lambda: one), lambda held: held()),
    "vectorized": (lambda one: np.vectorize(lambda _: one), lambda held: held.pyfunc(0)),
    "objects": (lambda one: objects(one, 3), lambda held: held[-1]),
    "objects of two axes": (lambda one: objects(one, 3, 2), lambda held: held[-1, -1]),
    "objects of no axis": (objects, lambda held: held[()]),
    "long list": (lambda one: [*range(500), one], lambda held: held[-1]),
    "long dict": (lambda one: {**dict.fromkeys(range(500)), "own": one}, lambda held: held["own"]),
    "long set": (lambda one: {*range(500), one}, lambda held: next(x for x in held if not isinstance(x, int))),
    "list of dicts": (lambda one: [*({"a": at} for at in range(300)), {"own": [one]}], lambda held: held[-1]["own"][0]),
    "list of objects": (lambda one: [Attribute(at) for at in range(300)] + [Attribute(one)], lambda x: x[-1].generator),
    "list of slots": (lambda one: [Slot(at) for at in range(300)] + [Slot(one)], lambda held: held[-1].generator),
    "list of namespaces": (
        lambda one: [types.SimpleNamespace(a=at) for at in range(300)] + [types.SimpleNamespace(a=one)],
        lambda held: held[-1].a,
    ),
    "list of functions": (lambda one: [*[abs] * 300, lambda: one], lambda held: held[-1]()),
    "list of arrays": (lambda one: [np.zeros(1)] * 300 + [objects(one, 1)], lambda held: held[-1][0]),
    "levels": (lambda one: [[[[[at]]]] for at in range(300)] + [[[[[one]]]]], lambda held: held[-1][0][0][0][0]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_generator_in_any_container(name: str) -> None:
    hold, get = HOLDERS[name]

    def make() -> Any:
        own = random.Random()
        held = hold(own)
        kept = own  # a weak reference does not keep it

        class Held:
            kept_alive = None

            def __init__(self) -> None:
                self.held = held

            def __call__(self, index: int) -> float:
                return draw_any(get(self.held))

        of = Held()
        weakref.finalize(of, lambda: kept)
        return DataLoader(Numbers(of), BATCH, shuffle=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error", PromiseWarning)
        assert_exact(make, range(2, 6, 3))


def draw_any(generator: Any) -> float:
    return float(generator.random() + generator.gauss(0, 1))


def test_generators_of_a_set_are_exact_in_any_order() -> None:
    """The order of a set differs between processes, so its generators are not told apart."""

    class Many:
        def __init__(self, order: int) -> None:
            own = [random.Random(), random.Random()]
            self.held, self.own = {own[order], own[1 - order]}, None
            self.first = weakref.ref(own[order])

        def __call__(self, index: int) -> float:
            found: Any = self.first()
            return draw_any(found)

    first, second = draws(Many(0), batch_size=4), draws(Many(1), batch_size=4)
    assert first == second


class PerClass:
    """A generator for each of 100 classes."""

    def __init__(self) -> None:
        self.rngs = {number: random.Random(number) for number in range(100)}

    def __call__(self, index: int) -> float:
        return self.rngs[99 - index].random()


def test_a_generator_per_class() -> None:
    assert_exact(lambda: DataLoader(Numbers(PerClass()), BATCH, shuffle=True), range(1, 9, 3))


def searched(thing: Any) -> tuple[list[str], list[str]]:
    """Return the paths of the generators in a thing, and the warnings of a search in it."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = OwnGenerators({"x": thing}).before(0)
        known = OwnGenerators({"x": thing})
        known.before(0), known.before(1)
    return [one.name for one in found], [str(one.message) for one in told if one.category is PromiseWarning][::2]


RIGHT: dict[str, Callable[[], Any]] = {
    "numbers": lambda: list(range(1_000_000)),
    "dict of numbers": lambda: {number: float(number) for number in range(1_000_000)},
    "samples": lambda: [{"path": f"{number}.jpg", "box": [1, 2, 3, 4], "of": (number,)} for number in range(30_000)],
    "arrays": lambda: [np.zeros(3) for _ in range(100_000)],
    "tensors": lambda: dict(enumerate(torch.zeros(20_000, 2))),
    "objects": lambda: [Attribute(number) for number in range(30_000)],
    "shared": lambda: [Options(0.5, abs) for _ in range(30_000)],
    "texts": lambda: np.array(["a"] * 100_000, object),
}


@pytest.mark.parametrize("name", RIGHT)
def test_much_plain_data_is_searched_fast_and_without_a_warning(name: str) -> None:
    thing = RIGHT[name]()
    began = time.process_time()
    assert searched(thing) == ([], [])
    assert time.process_time() - began < 3 * 1.5  # three searches


@pytest.mark.parametrize("name", RIGHT)
def test_a_generator_beside_much_plain_data(name: str) -> None:
    assert searched([RIGHT[name](), random.Random()])[0] == ["x[1]"]


STOPS: dict[str, tuple[Callable[[], Any], str]] = {
    "generators": (lambda: [random.Random(number) for number in range(1030)], "1024 generators"),
    "objects": (lambda: [[lambda at=at: at] for at in range(20_100)], "20000 objects"),
    "entries": (lambda: [{"a": [1] * 50_000, "b": abs if at == 50 else at} for at in range(100)], "3000000 entries"),
}


@pytest.mark.parametrize("name", STOPS)
def test_a_limit_is_told_once(name: str) -> None:
    make, limit = STOPS[name]
    _, told = searched(make())
    assert len(told) == 1
    assert "search for random generators stopped at x" in told[0]
    assert limit in told[0]


def test_only_data_beyond_the_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    thing = [[at] * 50_000 for at in range(100)]
    with caplog.at_level("INFO", "resumable"):
        assert searched(thing) == ([], [])
    assert "x has only data in its first 3000000 entries" in caplog.text


class Raises:
    """An object whose every access raises."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemError(name)

    def __eq__(self, other: object) -> bool:
        raise SystemError

    def __hash__(self) -> int:
        return hash("own")

    __len__ = __iter__ = __bool__ = __repr__ = lambda self: 1 / 0  # type: ignore[assignment,return-value]  # on purpose


class RaisesDescribed:
    __slots__ = ()

    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # on purpose
        raise SystemError

    __module__ = property(lambda self: 1 / 0)  # as h5py has it


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("inside", [list, collections.deque, lambda all_: dict(enumerate(all_)), tuple])
def test_whatever_an_object_raises_hides_nothing_beside_it(inside: Any, count: int) -> None:
    dead = weakref.proxy(Attribute(0))
    odd = [*(Raises() for _ in range(count)), *(RaisesDescribed() for _ in range(count)), dead]
    thing = {
        "odd": inside([*odd, {Raises()}, {Raises(): 1}, types.SimpleNamespace(a=Raises())]),
        "own": random.Random(),
    }
    assert searched(thing)[0] == ["x['own']"]


def test_a_generator_in_a_large_container_beyond_the_limit() -> None:
    assert searched([*([at] * 50_000 for at in range(100)), random.Random()])[0] == ["x[100]"]
