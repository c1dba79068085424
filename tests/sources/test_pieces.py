"""Pieces in a folder that processes share: each is fetched by one of them, and the others wait for it or find it."""

from __future__ import annotations

import fcntl
import threading
from typing import TYPE_CHECKING, Any

import pytest

from resumable.errors import DataError
from resumable.sources._files import Part, Stamp
from resumable.sources._pieces import Pieces

if TYPE_CHECKING:
    from pathlib import Path

STAMPS = {"a": Stamp(1000, "1"), "b": Stamp(1000, "1")}
FIRST, SECOND, THIRD = Part("a", 0, 100), Part("a", 100, 250), Part("b", 0, 100)


class Storage:
    """Counts what is read, and waits where it is told to."""

    def __init__(self) -> None:
        self.read: list[Part] = []
        self.go_on, self.asked = threading.Event(), threading.Event()
        self.go_on.set()

    def __call__(self, parts: Any, _: Any) -> list[bytes]:
        self.asked.set()
        assert self.go_on.wait(60)
        self.read += parts
        return [bytes([part.start % 256]) * (part.stop - part.start) for part in parts]


def pieces(folder: Path, storage: Any, most: int = 10_000, stamps: Any = STAMPS) -> Pieces:
    return Pieces(str(folder / "cache"), most, stamps, storage)


def test_what_is_there_is_read_from_there(tmp_path: Path) -> None:
    storage = Storage()
    own = pieces(tmp_path, storage)
    own.fetch([FIRST, SECOND], [THIRD], [])
    assert storage.read == [FIRST, SECOND, THIRD]
    for one in (own, pieces(tmp_path, storage)):
        one.fetch([FIRST], [SECOND, THIRD], [])
        assert one.take(SECOND, [Part("a", 120, 130), Part("a", 249, 250)]) == [b"d" * 10, b"d"]
    assert len(storage.read) == 3
    again = pieces(tmp_path, storage, stamps={**STAMPS, "a": Stamp(1000, "2")})
    assert again.take(FIRST, [FIRST]) is None  # of a file that was written again
    assert again.take(THIRD, [THIRD]) == [bytes(100)]


def test_a_piece_that_comes_meanwhile_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, flock = Storage(), fcntl.flock
    own, other = pieces(tmp_path, storage), pieces(tmp_path, storage)

    def late(number: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        other.fetch([FIRST], [], [])
        flock(number, how)

    monkeypatch.setattr(fcntl, "flock", late)
    own.fetch([FIRST], [], [])
    assert storage.read == [FIRST]
    assert own.take(FIRST, [FIRST]) == [bytes(100)]


@pytest.mark.parametrize("fails", [False, True])
def test_one_waits_for_what_another_one_fetches(fails: bool, tmp_path: Path) -> None:
    """And fetches it itself where that failed; what is needed later only is not waited for."""
    storage, mine = Storage(), Storage()
    storage.go_on.clear()

    def first(parts: Any, stamps: Any) -> list[bytes]:
        found = storage(parts, stamps)
        if fails:
            raise DataError("the storage failed")
        return found

    other, own = pieces(tmp_path, first), pieces(tmp_path, mine)
    errors: list[Any] = []

    def fetch() -> None:
        try:
            other.fetch([FIRST], [], [])
        except DataError as error:
            errors.append(error)

    fetching = threading.Thread(target=fetch)
    waiting = threading.Thread(target=lambda: own.fetch([FIRST], [], []))
    fetching.start()
    assert storage.asked.wait(60)
    own.fetch([SECOND], [FIRST], [])
    assert mine.read == [SECOND]
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    storage.go_on.set()
    fetching.join(60)
    waiting.join(60)
    assert not waiting.is_alive()
    assert mine.read == [SECOND, FIRST] if fails else mine.read == [SECOND]
    assert len(errors) == fails
    assert own.take(FIRST, [FIRST]) == [bytes(100)]


def test_the_oldest_go_first_and_what_is_kept_stays(tmp_path: Path) -> None:
    storage = Storage()
    own = pieces(tmp_path, storage, most=260)
    own.fetch([FIRST], [], [])
    own.fetch([SECOND], [], [])
    own.fetch([THIRD], [], [SECOND])
    assert own.take(FIRST, [FIRST]) is None
    assert own.take(SECOND, [SECOND]) is not None
    assert own.take(THIRD, [THIRD]) is not None
    own.fetch([FIRST], [], [SECOND, THIRD])  # there is no room, so it is not even read
    assert own.take(FIRST, [FIRST]) is None
    assert storage.read == [FIRST, SECOND, THIRD]
    assert not [one for one in (tmp_path / "cache").iterdir() if one.suffix != ".piece"]


def test_an_error_in_what_is_ahead_is_left_until_it_is_needed(tmp_path: Path) -> None:
    storage = Storage()

    def failing(parts: Any, stamps: Any) -> list[bytes]:
        if THIRD in parts:
            raise DataError("b cannot be read")
        return storage(parts, stamps)

    own = pieces(tmp_path, failing)
    own.fetch([FIRST], [SECOND, THIRD], [])
    assert own.take(FIRST, [FIRST]) == [bytes(100)]
    own.fetch([SECOND], [], [])
    with pytest.raises(DataError, match="b cannot be read"):
        own.fetch([THIRD], [], [])
    own.fetch([], [THIRD], [])
    assert storage.read == [FIRST, SECOND]
