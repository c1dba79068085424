"""A user's own backends, found by their shape, by a registered name, or by an entry point."""

from __future__ import annotations

import json
import random
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import resumable
from resumable import samplers
from resumable.errors import BackendError, ConfigurationError, UnsupportedError
from resumable.testing import BackendTests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Squares:
    """Indexed: reads ahead, and augments by the keys that come with a request."""

    kind = "squares"
    length = 23

    def __init__(self) -> None:
        self.identity = {"source": "squares"}

    def read(self, requests: Iterable[resumable.Request]) -> Iterator[Any]:
        ahead: list[Any] = []
        for request in requests:
            ahead.append(np.asarray(request.indices) ** 2 + (request.keys % np.uint64(1000)) / 1000)
            if len(ahead) > 2:
                yield ahead.pop(0)
        yield from ahead


class Tape:
    """Replay: goes past elements in a way of its own."""

    kind = "tape"

    def __init__(self) -> None:
        self.identity = {"source": "tape"}

    def open(self, epoch: int) -> Iterator[Any]:
        return Head(epoch)


class Head:
    def __init__(self, epoch: int) -> None:
        self.epoch, self.place = epoch, 0

    def __iter__(self) -> Head:
        return self

    def skip(self, count: int) -> None:
        self.place += count

    def __next__(self) -> tuple[int, int, float]:
        if self.place == 7:
            raise StopIteration
        self.place += 1
        return self.epoch, self.place, random.random()


class Recorder(Tape):
    """Snapshot."""

    kind = "recorder"

    def open(self, epoch: int) -> Iterator[Any]:
        self.head = Head(epoch)
        return self.head

    def snapshot(self) -> Any:
        return {"place": self.head.place} if hasattr(self, "head") else None

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        self.head = Head(epoch)
        self.head.place = snapshot["place"]
        return self.head


class TestIndexed(BackendTests):
    shared = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        settings: dict[str, Any] = {"batch_size": 4, "shuffle": True}
        return resumable.wrap(Squares(), **settings | options)


class TestReplay(BackendTests):
    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Tape(), **options)


class TestSnapshot(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Recorder(), **options)


class Costly(Recorder):
    """Wants no snapshot for every batch."""

    traits = resumable.Traits(snapshot_every=3)
    taken = 0

    def snapshot(self) -> Any:
        type(self).taken += 1
        return super().snapshot()


class TestCostlySnapshots(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Costly(), **options)


class Cheap(Recorder):
    """Knows its end, and its snapshots cost nothing; its fifth element fails once."""

    traits = resumable.Traits(snapshot_every=0)

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.drawn = list[int]()

    def ended(self) -> bool:
        return self.head.place == 7

    def open(self, epoch: int) -> Iterator[Any]:
        super().open(epoch)
        return self._read()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        super().restore(epoch, snapshot)
        return self._read()

    def _read(self) -> Iterator[Any]:
        for element in self.head:
            self.drawn.append(self.head.place)
            if self.fails and self.head.place == 5:
                self.fails = False
                raise OSError("once")
            yield element


class TestCheapSnapshots(BackendTests):
    native = True

    @staticmethod
    def make(**options: Any) -> resumable.Loader:
        return resumable.wrap(Cheap(), **options)


def test_failed_draw_with_free_snapshots() -> None:
    """A failed draw loses nothing and rereads nothing if snapshots cost nothing."""
    backend = Cheap(fails=True)
    loader, got = resumable.wrap(backend), list[Any]()
    with pytest.raises(OSError, match="once"):
        for batch in loader:
            got.append(batch)  # as a loop does, up to the error
    assert [place for _, place, _ in [*got, *loader]] == [1, 2, 3, 4, 5, 6, 7]
    assert backend.drawn == [1, 2, 3, 4, 5, 5, 6, 7]


def test_backend_that_knows_its_end() -> None:
    """A backend that knows its end is not read ahead to find out."""
    backend = Cheap()
    loader = resumable.wrap(backend)
    for number, _ in zip(range(1, 7), loader, strict=False):
        assert not loader.state_dict()["source_state"]["ended"]
        assert len(backend.drawn) == number


@pytest.mark.parametrize(("every", "taken"), [(3, 3), (1, 7), (6, 2)])
def test_costly_snapshots_are_not_taken_for_every_batch(
    every: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Costly, "taken", 0)
    monkeypatch.setattr(Costly, "traits", resumable.Traits(snapshot_every=every))
    loader = resumable.wrap(Costly(), ack="manual")
    rest = list(zip(range(6), loader, strict=False))
    assert Costly.taken == taken  # one of them at the beginning
    for done in range(len(rest)):
        fresh = resumable.wrap(Costly())
        fresh.load_state_dict(loader.state_dict())
        assert next(iter(fresh)) == rest[done][1]
        loader.ack()


def test_a_state_that_is_asked_for_has_a_snapshot_of_its_own() -> None:
    loader = resumable.wrap(Costly())
    for _ in zip(range(2), loader, strict=False):
        pass
    assert loader.state_dict()["source_state"] == {"snapshot": {"place": 2}, "skip": 0, "ended": False}


def test_a_backend_that_breaks_its_protocol_is_told() -> None:
    class Greedy(Squares):
        def read(self, requests: Iterable[resumable.Request]) -> Iterator[Any]:
            yield from [1, 2]

    class Lazy(Squares):
        def read(self, requests: Iterable[resumable.Request]) -> Iterator[Any]:
            yield from list(requests)[:-1]

    with pytest.raises(BackendError, match="more batches than were requested"):
        list(resumable.wrap(Greedy(), batch_size=4))
    with pytest.raises(BackendError, match="ended 1 batches early, at Cursor"):
        list(resumable.wrap(Lazy(), batch_size=4))


@pytest.mark.parametrize("option", [{"transform": str}, {"collate": list}, {"identity": "mine"}, {"shard": True}])
def test_options_that_a_backend_would_ignore_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="does not fit"):
        resumable.wrap(Squares(), **option)


def test_an_empty_backend_is_refused() -> None:
    class Empty(Squares):
        length = 0

    with pytest.raises(ConfigurationError, match="length of the data must be an integer of 1 or more, but it is 0"):
        resumable.wrap(Empty(), batch_size=4)


UNFIT = {
    "a tuple": {"source": ("tape", 1)},
    "a nested tuple": {"source": {"parts": [(1, 2)]}},
    "a key that is no string": {"source": {1: "tape"}},
    "a NumPy integer": {"source": np.int64(3)},
    "an array": {"source": np.arange(3)},
    "not a number": {"source": float("nan")},
    "a set": {"source": {"tape"}},
}


@pytest.mark.parametrize("identity", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("kind", [Squares, Tape, Recorder])
def test_an_identity_that_would_change_in_a_state_is_refused(kind: Any, identity: Any) -> None:
    backend = kind()
    backend.identity = identity
    with pytest.raises(ConfigurationError, match="identity of the backend .* survive JSON unchanged, but 'source' is"):
        resumable.wrap(backend)


@pytest.mark.parametrize("spec", UNFIT.values(), ids=UNFIT)
def test_a_spec_that_would_change_in_a_state_is_refused(spec: Any) -> None:
    class Mine(samplers.Sequential):
        def spec(self) -> Any:
            return {"name": "mine", **spec}

    with pytest.raises(ConfigurationError, match=r"spec\(\) of the sampler .* survive JSON unchanged, but 'source' is"):
        resumable.wrap(Squares(), sampler=Mine(23))


@pytest.mark.parametrize("spec", [None, "mine", ["name"], {"length": 23}])
def test_a_spec_without_a_name_is_refused(spec: Any) -> None:
    class Mine(samplers.Sequential):
        def spec(self) -> Any:
            return spec

    with pytest.raises(ConfigurationError, match=r"spec\(\) of the sampler must be a dict with 'name', but it is"):
        resumable.wrap(Squares(), sampler=Mine(23))


@pytest.mark.parametrize("identity", [None, "squares", ["squares"]])
def test_an_identity_that_is_no_mapping_is_refused(identity: Any) -> None:
    backend = Squares()
    backend.identity = identity
    with pytest.raises(ConfigurationError, match="identity of the backend must be a dict, but it is"):
        resumable.wrap(backend)


def test_plain_values_are_an_identity_in_any_mapping() -> None:
    backend: Any = Squares()
    backend.identity = MappingProxyType({"source": {"parts": [1, 2.5, None, True, "a"]}})
    state = resumable.wrap(backend).state_dict()
    resumable.wrap(backend).load_state_dict(json.loads(json.dumps(state)))


def test_a_length_that_is_no_plain_integer_is_refused() -> None:
    backend: Any = Squares()
    backend.length = np.int64(23)
    with pytest.raises(ConfigurationError, match=r"length of the backend .* survive JSON unchanged, but .*int64\(23\)"):
        resumable.wrap(backend)


def test_a_package_brings_its_adapter_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real distribution on the path, as pip leaves it."""
    (tmp_path / "tapes.py").write_text(
        "class Cassette: pass\n"
        "def adapt(source, options):\n"
        "    import test_own_backend\n"
        "    return test_own_backend.Tape(), options\n"
    )
    info = tmp_path / "tapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[resumable.backends]\ntapes.Cassette = tapes:adapt\n")
    monkeypatch.syspath_prepend(tmp_path)
    import tapes  # type: ignore[import-not-found]  # noqa: PLC0415  # made above

    monkeypatch.setitem(sys.modules, "test_own_backend", sys.modules[__name__])
    loader = resumable.wrap(tapes.Cassette())
    assert len(list(loader)) == 7
    assert loader.state_dict()["backend"]["kind"] == "tape"
