"""Users' objects may do anything when they are inspected: a Loader reads what PyTorch reads, and searches the rest."""

from __future__ import annotations

import functools
import logging
import random
from io import BytesIO
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import h5py
import hostile_objects as hostile
import lazy_object_proxy
import numpy as np
import pytest
import torch
import wrapt
from hostile_objects import NAMES, OBJECTS, LazyObject, MetaAnswers, MetaLies, MetaUnhashable, Odd, fail, fail_oddly
from torch.utils.data import DataLoader, IterableDataset, Sampler, Subset
from werkzeug.local import LocalProxy

import resumable
from resumable._randomness.own_generators import find_generators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LENGTH, BATCH = 9, 2


class Numbers:
    """Indices, with numbers of a generator that is stored after whatever it holds."""

    def __init__(self, held: Any = None, generator: random.Random | None = None) -> None:
        self.held = held
        self.after = generator

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index, 0.0 if self.after is None else self.after.random()


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


def closure(held: Any) -> Any:
    return lambda: held


def default(held: Any) -> Any:
    def function(one: Any = held, *, other: Any = held) -> Any:
        return one, other

    return function


def decorated(held: Any) -> Any:
    def function() -> None: ...

    function.held = held  # type: ignore[attr-defined]  # what decorators do
    return function


def class_attribute(held: Any) -> Any:
    return type("Holder", (), {"held": held, "later": 1})()


PLACES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda held: held,
    "slot": Slots,
    "list": lambda held: [held] * LENGTH,
    "list of dicts": lambda held: [{"path": f"{index}.jpg", "held": held} for index in range(LENGTH)],
    "tuple": lambda held: (1, held, 2),
    "dict": lambda held: {"first": held, "second": 1},
    "closure": closure,
    "default": default,
    "decorated": decorated,
    "partial": lambda held: functools.partial(print, held, key=held),
    "class attribute": class_attribute,
    "transform": lambda held: [abs, Numbers(held)],
}


def load(dataset: Any, batch_size: int = BATCH, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size, **options)


def plain(batch: Any) -> Any:
    return [part.tolist() for part in batch]


def collate_with(held: Any) -> Any:
    def collate(samples: Any, inside: Any = held) -> Any:
        return torch.utils.data.default_collate(samples), inside is held

    return collate


@pytest.mark.filterwarnings("ignore:the search for random generators stopped")  # at a deep list
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", OBJECTS)
def test_holder_and_neighbour_are_found(kind: str, place: str) -> None:
    """A dataset that holds it is read, and its neighbours are found."""

    def make(generator: random.Random | None = None) -> Any:
        return load(Numbers(PLACES[place](OBJECTS[kind]()), generator), BATCH)

    golden = list(map(plain, make()))
    for randomness in ("off", "batch", "sample"):
        options: Any = {"seed": 0, "randomness": randomness}
        assert list(map(plain, resumable.wrap(make(), **options))) == golden
    loader = resumable.wrap(make(random.Random(1)), seed=0)
    run, states = [], []
    for batch in loader:
        run.append(plain(batch))
        states.append(loader.state_dict())
    resumed = resumable.wrap(make(random.Random(2)), seed=0)
    resumed.load_state_dict(states[1])
    assert list(map(plain, resumed)) == run[2:]
    found = find_generators({"dataset": Numbers(PLACES[place](OBJECTS[kind]()), random.Random(3))})
    assert "dataset.after" in [one.path for one in found]


@pytest.mark.filterwarnings("ignore:the search for random generators stopped")  # at a deep list
@pytest.mark.parametrize("kind", OBJECTS)
def test_what_collates_and_what_is_delivered_may_hold_it(kind: str) -> None:
    held = OBJECTS[kind]()

    def make(generator: random.Random | None = None) -> Any:
        return load(Numbers(None, generator), BATCH, collate_fn=collate_with(held))

    assert [(plain(batch), same) for batch, same in resumable.wrap(make(), seed=0)] == [
        (plain(batch), same) for batch, same in make()
    ]
    loader = resumable.wrap(load(Numbers(), BATCH, collate_fn=lambda _: held), seed=0)
    assert all(batch is held for batch in loader)
    loader.load_state_dict(loader.state_dict())


@pytest.mark.filterwarnings("ignore:the search for random generators stopped")  # at a deep list
@pytest.mark.slow
def test_workers_read_all_of_them() -> None:
    def make(generator: random.Random | None = None) -> Any:
        held = {name: [place(make()) for place in PLACES.values()] for name, make in OBJECTS.items()}
        return load(Numbers(held, generator), BATCH, num_workers=2)

    golden = list(map(plain, make()))
    assert list(map(plain, resumable.wrap(make(), seed=0))) == golden
    loader = resumable.wrap(make(random.Random(1)), seed=0)
    iterator = iter(loader)
    run = [plain(next(iterator)), plain(next(iterator))]
    state = loader.state_dict()
    run += map(plain, iterator)
    resumed = resumable.wrap(make(random.Random(2)), seed=0)
    resumed.load_state_dict(state)
    assert list(map(plain, resumed)) == run[2:]


@pytest.mark.filterwarnings("ignore:elements of .* cannot be compared after a resume")  # which is right
@pytest.mark.filterwarnings("ignore:the search for random generators stopped")  # at a deep list
@pytest.mark.parametrize("kind", OBJECTS)
def test_a_stream_or_a_list_of_it_is_read(kind: str) -> None:
    held = OBJECTS[kind]()

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from [held] * 4

    sources: list[Any] = [lambda: iter([held] * 4), [held] * 4]
    sources += [DataLoader(Stream(), batch_size=None, collate_fn=lambda sample: [sample][0])]
    for source in sources:
        loader = resumable.wrap(source, seed=0)
        iterator = iter(loader)
        assert next(iterator) is held
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert [batch is held for batch in loader] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("randomness", ["off", "batch", "sample"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_h5py_file_resumes_at_every_cut(tmp_path: Path, workers: int, randomness: Any) -> None:
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(LENGTH) * 10.0

    class H5(Numbers):
        def __init__(self) -> None:
            super().__init__(h5py.File(path, "r"), random.Random() if randomness != "off" else None)
            self.rows = self.held["x"]

        def __getitem__(self, index: int) -> Any:
            return self.rows[index], super().__getitem__(index)[1]

    def make() -> Any:
        return resumable.wrap(load(H5(), BATCH, num_workers=workers, shuffle=True), seed=0, randomness=randomness)

    loader, run, states = make(), [], []
    for epoch in loader.epochs(2):
        for batch in epoch:
            run.append(plain(batch))
            states.append(loader.state_dict())
    assert (
        sorted(value for values, _ in run[: len(run) // 2] for value in values) == (np.arange(LENGTH) * 10.0).tolist()
    )
    for taken, state in enumerate(states, start=1):
        resumed = make()
        resumed.load_state_dict(state)
        assert [plain(batch) for epoch in resumed.epochs(2) for batch in epoch] == run[taken:]


# ---------------------------------------------------------------------- the dataset itself


class AnswersByError(Numbers):
    """Like a wrapper that searches a dict for a name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise KeyError(name)


class AnswersByOddError(Numbers):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Odd(name)


class AnswersToAll(Numbers):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: 7


class AnswersNone(Numbers):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)


class RaisingProperties(Numbers):
    state_dict = load_state_dict = get_state = dataset = datasets = shape = dtype = fingerprint = property(fail)
    sizes = set_epoch = _fingerprint = _distributed = property(fail)


class OddProperties(Numbers):
    state_dict = load_state_dict = get_state = dataset = datasets = shape = dtype = fingerprint = property(fail_oddly)


class Incomparable(Numbers):
    __eq__ = __bool__ = __repr__ = __contains__ = fail
    __hash__ = None  # type: ignore[assignment]  # that is the oddity


class NoDict(Numbers):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # that is the oddity
        raise ValueError("no dict")


class OfAnswers(Numbers, metaclass=MetaAnswers):
    pass


class OfLies(Numbers, metaclass=MetaLies):
    pass


class OfUnhashable(Numbers, metaclass=MetaUnhashable):
    pass


def mock() -> Any:
    made = MagicMock()
    made.__len__.return_value = LENGTH
    made.__getitem__.side_effect = Numbers().__getitem__
    made.__getitems__ = None  # what PyTorch asks for
    del made.__getitems__
    return made


kept = Numbers()
DATASETS: dict[str, Callable[[], Any]] = {
    "raises for other names": AnswersByError,
    "raises a BaseException for other names": AnswersByOddError,
    "answers to any name": AnswersToAll,
    "answers to any name by None": AnswersNone,
    "properties that raise": RaisingProperties,
    "properties that raise a BaseException": OddProperties,
    "cannot be compared, printed or asked whether it is true": Incomparable,
    "raises at __dict__": NoDict,
    "of a metaclass that answers to any name": OfAnswers,
    "of a metaclass that lies": OfLies,
    "wrapt": lambda: wrapt.ObjectProxy(Numbers()),
    "wrapt, lazy": lambda: wrapt.LazyObjectProxy(Numbers),
    "lazy_object_proxy": lambda: lazy_object_proxy.Proxy(Numbers),
    "werkzeug": lambda: LocalProxy(lambda: kept),
    "lazy object": lambda: LazyObject(Numbers),
    "MagicMock": mock,
}


@pytest.mark.parametrize("inside", [lambda one: one, lambda one: Subset(one, range(5))], ids=["itself", "Subset"])
@pytest.mark.parametrize("kind", DATASETS)
def test_a_dataset_of_this_kind_is_read_as_pytorch_reads_it(kind: str, inside: Callable[[Any], Any]) -> None:
    def make(dataset: Any) -> Any:
        return load(dataset)

    golden = list(map(plain, make(inside(DATASETS[kind]()))))
    for randomness in ("off", "batch", "sample"):
        options: Any = {"seed": 0, "randomness": randomness}
        loader = resumable.wrap(make(inside(DATASETS[kind]())), **options)
        next(iter(loader))
        state = loader.state_dict()
        resumed = resumable.wrap(make(inside(DATASETS[kind]())), **options)
        resumed.load_state_dict(state)
        assert list(map(plain, resumed)) == golden[1:]


@pytest.mark.parametrize("make", [*DATASETS.values(), OfUnhashable], ids=[*DATASETS, "cannot be hashed"])
def test_a_sequence_of_this_kind_is_read(make: Callable[[], Any]) -> None:
    golden = list(resumable.wrap(Numbers(), batch_size=BATCH, seed=0))
    loader = resumable.wrap(make(), batch_size=BATCH, seed=0)
    assert list(loader) == golden
    loader.load_state_dict(loader.state_dict())


def walk(self: Any) -> Iterator[int]:
    yield from range(LENGTH)


ODD: dict[str, dict[str, Any]] = {
    "raises for other names": {"__getattr__": AnswersByError.__getattr__},
    "raises a BaseException for other names": {"__getattr__": AnswersByOddError.__getattr__},
    "answers to any name": {"__getattr__": AnswersToAll.__getattr__},
    "properties that raise": dict.fromkeys(NAMES, property(fail)),
    "properties that raise a BaseException": dict.fromkeys(NAMES, property(fail_oddly)),
    "a length that raises": {"__len__": fail},
    "a length that raises a BaseException": {"__len__": fail_oddly},
    "cannot be compared, printed or asked whether it is true": dict.fromkeys(("__eq__", "__bool__", "__repr__"), fail),
}


class Walks:
    """The iterator of an iterable that makes no generator."""

    def __init__(self, _: Any) -> None:
        self.here = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.here == LENGTH:
            raise StopIteration
        self.here += 1
        return self.here - 1


def _iterator_of(kind: str) -> Any:
    return lambda self: type("Walking", (Walks,), ODD[kind])(self)  # noqa: PLW0108  # a class would be no method


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("iterates", ["generator", "iterator"])
@pytest.mark.parametrize("base", [object, IterableDataset], ids=lambda base: base.__name__)
def test_an_iterable_of_this_kind_is_read(base: Any, iterates: str, kind: str) -> None:
    def make() -> Any:
        begin = walk if iterates == "generator" else _iterator_of(kind)
        source = type("Walk", (base,), {"__iter__": begin, **ODD[kind]})()
        return resumable.wrap(DataLoader(source, batch_size=None) if base is IterableDataset else source, seed=0)

    loader = make()
    iterator = iter(loader)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == list(range(3, LENGTH))


@pytest.mark.parametrize("kind", OBJECTS)
def test_a_stream_with_a_state_may_hold_it(kind: str) -> None:
    class Stateful:
        def __init__(self) -> None:
            self.here, self.held = 0, [OBJECTS[kind]()]
            self.again = self.held[0]

        def __iter__(self) -> Iterator[int]:
            while self.here < LENGTH:
                self.here += 1
                yield self.here - 1
            self.here = 0

        def state_dict(self) -> int:
            return self.here

        def load_state_dict(self, state: int) -> None:
            self.here = state

    loader = resumable.wrap(Stateful(), seed=0)
    assert next(iter(loader)) == 0
    resumed = resumable.wrap(Stateful(), seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == list(range(1, LENGTH))


class Order(Sampler[int]):
    """A sampler of a user's own, with whatever it holds."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def __iter__(self) -> Iterator[int]:
        yield from range(LENGTH - 1, -1, -1)

    def __len__(self) -> int:
        return LENGTH


class OrderByError(Order):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise KeyError(name)


class OrderToAll(Order):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: 7


class OrderProperties(Order):
    state_dict = load_state_dict = set_epoch = sampler = generator = property(fail)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "raises for other names": OrderByError,
    "answers to any name": OrderToAll,
    "properties that raise": OrderProperties,
    "holds what can be neither copied nor pickled": lambda: Order(h5py.File(BytesIO(), "w")),
    "wrapt": lambda: wrapt.ObjectProxy(Order()),
    "lazy object": lambda: LazyObject(Order),
}


@pytest.mark.filterwarnings("ignore:the sampler .* cannot be copied:resumable.errors.PromiseWarning")
@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_of_this_kind_is_read_as_pytorch_reads_it(kind: str) -> None:
    def make() -> Any:
        return load(Numbers(), BATCH, sampler=SAMPLERS[kind]())

    golden = list(map(plain, make()))
    loader = resumable.wrap(make(), seed=0)
    next(iter(loader))
    resumed = resumable.wrap(make(), seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert list(map(plain, resumed)) == golden[1:]


@pytest.mark.parametrize("kind", DATASETS)
def test_a_resumable_sampler_is_made_for_a_dataset_of_this_kind(kind: str) -> None:
    assert sorted(resumable.ResumableSampler(DATASETS[kind]())) == list(range(LENGTH))


@pytest.mark.parametrize("kind", ["raises for other names", "answers to any name", "properties that raise"])
def test_an_error_of_this_kind_comes_as_it_is(kind: str) -> None:
    failure = type("Failure", (LookupError,), ODD[kind])

    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            raise failure("a real error")

    for workers in (0, 1):
        told = ""
        try:
            next(iter(resumable.wrap(load(Broken(), num_workers=workers), seed=0)))
        except LookupError as error:  # not pytest.raises, which inspects it in other ways
            told = str(error)
        assert told.endswith("a real error")  # from a worker, with the name of a class that cannot be sent


@pytest.mark.slow
def test_the_search_for_dali_iterators_survives_it() -> None:
    from resumable.backends.dali.hidden import refuse_hidden  # noqa: PLC0415  # imports DALI

    for make in OBJECTS.values():
        for place in PLACES.values():
            held = Numbers(place(make()))
            refuse_hidden(held)
            refuse_hidden(load(held))
        refuse_hidden([make()])
        refuse_hidden(functools.partial(print, make(), make=make()))
    for make in DATASETS.values():
        refuse_hidden(make())
        refuse_hidden(load(make()))


# ---------------------------------------------------------------------- what passes, and what the log says


@pytest.mark.parametrize("raises", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("name", ["state_dict", "__len__", "__class__"])
def test_what_signals_raise_passes(raises: type[BaseException], name: str) -> None:
    def interrupted(*_: Any) -> Any:
        raise raises

    looks = interrupted if name == "__len__" else property(interrupted)
    source = type("Interrupted", (Numbers,), {name: looks})()
    with pytest.raises(raises):
        resumable.wrap(source, batch_size=BATCH, seed=0)
    with pytest.raises(raises):
        resumable.wrap(load(source, sampler=Order()), seed=0)


def test_the_log_says_once_where_inspecting_ended(caplog: pytest.LogCaptureFixture) -> None:
    kind = type("Told", (AnswersByError,), {})
    with caplog.at_level(logging.WARNING, "resumable"):
        for _ in range(2):
            resumable.wrap(load(kind(), BATCH), seed=0)
    told = [record.getMessage() for record in caplog.records if "state_dict" in record.getMessage()]
    assert "inspecting the attribute state_dict of a Told raised KeyError: 'state_dict'; it counts as missing" in told
    assert len(told) == len(set(told))


def test_a_search_makes_no_lazy_proxy() -> None:
    made: list[str] = []

    def make(name: str) -> Any:
        made.append(name)
        return Numbers(None, random.Random(1))

    held = [
        LazyObject(lambda: make("Python")),
        wrapt.LazyObjectProxy(lambda: make("wrapt")),
        lazy_object_proxy.Proxy(lambda: make("lazy_object_proxy")),
        LocalProxy(lambda: make("werkzeug")),
    ]
    loader = resumable.wrap(load(Numbers([*held, *held, held[0]]), BATCH), seed=0)
    assert len(list(loader)) == 5
    assert made == []


def stored(made: Any, generator: random.Random) -> Any:
    """Store a generator in an object, past its class."""
    object.__setattr__(made, "inside", generator)
    return made


HOLDERS: dict[str, Callable[[random.Random], Any]] = {
    "list": lambda one: hostile.HostileList([one]),
    "dict": lambda one: hostile.HostileDict(a=one),
    "tuple": lambda one: hostile.HostileTuple((one,)),
    "named tuple": lambda one: hostile.HostilePair(1, one),
    "deque": lambda one: hostile.HostileDeque([one]),
    "partial": lambda one: hostile.HostilePartial(abs, one),
    **{
        kind.__name__: functools.partial(lambda kind, one: stored(kind(), one), kind)
        for kind in (hostile.Untouchable, hostile.UntouchableOddly, hostile.Exits, hostile.AnswersNumbers)
    },
    **{
        kind.__name__: functools.partial(lambda kind, one: stored(kind(), one), kind)
        for kind in (hostile.NoModule, hostile.ModuleIsAProperty, hostile.DictRaises, hostile.ClassRaises)
    },
    "Meta": lambda one: stored(hostile.OfMeta(), one),
    "MetaLies": lambda one: stored(hostile.OfMetaLies(), one),
    "MetaUnhashable": lambda one: stored(hostile.OfMetaUnhashable(), one),
    "MetaAnswers": lambda one: stored(hostile.OfMetaAnswers(), one),
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_generator_inside_of_it_is_found(kind: str) -> None:
    generator = random.Random(1)
    (found,) = find_generators({"dataset": [HOLDERS[kind](generator)]})
    assert found.get() is generator


def test_a_proxy_does_not_hide_a_generator() -> None:
    found = find_generators({"dataset": [wrapt.ObjectProxy(Numbers(None, random.Random(1)))]})
    assert [place.path for place in found] == ["dataset[0].__wrapped__.after"]
    lazy = LazyObject(lambda: Numbers(None, random.Random(1)))
    assert len(lazy) == LENGTH
    assert [place.path for place in find_generators({"dataset": lazy})] == ["dataset._wrapped.after"]


class Enum:
    """A key whose text differs in each process."""


def test_the_path_by_a_key_is_the_same_in_each_process() -> None:
    generators = {Enum(): random.Random(1), 5: random.Random(2), ("a", 1): random.Random(3)}
    found = find_generators({"dataset": generators})
    assert [place.path for place in found] == ["dataset[Enum 0]", "dataset[5]", "dataset[('a', 1)]"]
    assert [place.get() for place in found] == list(generators.values())


@pytest.mark.parametrize("randomness", ["off", "sample"])
@pytest.mark.parametrize("name", ["__getitem__", "__len__", "__iter__"])
def test_what_a_user_s_own_method_raises_comes_as_it_is(name: str, randomness: Any) -> None:
    def broken(*_: Any) -> Any:
        raise LookupError("a real error")

    members = {"__getitem__": Numbers.__getitem__, "__len__": Numbers.__len__} if name != "__iter__" else {}
    source = type("Broken", (), {**members, name: broken})()
    for one in [source] if name == "__iter__" else [source, DataLoader(source, BATCH)]:
        with pytest.raises(LookupError, match="a real error"):
            next(iter(resumable.wrap(one, seed=0, randomness=randomness)))


def test_attribute_named_like_the_package() -> None:
    """An attribute that is named after the package is not hidden if it raises."""

    class Named(Numbers):
        @property
        def resumable_identity(self) -> Any:
            raise LookupError("a real error")

    with pytest.raises(LookupError, match="a real error"):
        resumable.wrap(load(Named(), BATCH), seed=0)
