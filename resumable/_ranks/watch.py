"""Watch: ranks that train together are compared, and no rank waits for another.

Each rank posts what its stream is like to the store of the process group when that opens. The first post is what all
others are compared with, so a stream costs a rank one request, however many ranks there are. Who differs raises, and
leaves word; the others look for it at steps 1, 2, 4, ... and then about once per second.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable._content import compare
from resumable._content.elements import ElementDigest
from resumable._ranks.store import Posts, find_store
from resumable.errors import RankError, RankFailedError, RankMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable._order.world import World


__all__ = ["EVERYONE", "Watch", "first_difference", "post_failure", "word_of_others"]


# ------------------------------------------------------------------ compare
#
# The first thing in which two ranks differ, in words.

_NAMES = {
    "backend.length": "the length of the data",
    "length": "the length of the source",
    "batch_size": "the batch size",
    "global_batch": "the global batch",
    "randomness.seed": "the seed",
    "place": "the place in the stream",
    "world_size": "the number of ranks",
}
_DATA = "Give all ranks the same data in the same order: sort what lists files, and seed what shuffles them."
_HINTS = {
    "samples": _DATA,
    "element": _DATA,
    "elements": _DATA,
    "place": "Load the same checkpoint on all ranks: let rank 0 look for the latest one, and tell the others which.",
    "backend": _DATA,
    "length": _DATA,
    "randomness": "Give all ranks the same seed and randomness.",
}
_WOULD = "Samples would be read twice and others never, and a rank that ends earlier would leave the others waiting."
_WIDTH = 160


def first_difference(rank: int, own: Mapping[str, Any], other_rank: int, other: Mapping[str, Any]) -> str | None:
    """Return what differs between the fingerprints of two ranks, as an error says it; None where nothing does."""
    for name, mine, its in compare(own, other):
        what, values = _NAMES.get(name, name), {rank: mine, other_rank: its}
        if name == "samples":
            if (which := _other_sample(mine, its)) is None:
                continue
            what, values = f"sample {which[0]}", {rank: f"digest {which[1]}", other_rank: f"digest {which[2]}"}
        told = "\n".join(f"  rank {number}: {_short(values[number])}" for number in sorted(values))
        hint = _HINTS.get(name) or _HINTS.get(name.partition(".")[0], "Give all ranks the same options.")
        return (
            f"the ranks disagree: {what} differs.\n{told}\n{_WOULD} {hint} Ranks that are to read different data are "
            'divided by world=, such as a process group, or have names of their own; checks="data" compares no ranks.'
        )
    return None


def _other_sample(own: Any, other: Any) -> tuple[int, str, str] | None:
    """Return the first sample that differs by more than the last bits of its numbers, with both digests."""
    for (index, *mine), (its_index, *its) in zip(own or [], other or [], strict=False):
        one, two = ElementDigest(*mine), ElementDigest(*its)
        if index != its_index or not one.is_close(two):
            return index, one.text, two.text
    return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


# ------------------------------------------------------------------ watch

EVERYONE = "resumable/all/"  # before the key of what all ranks look for

_FRAMES = 4  # of the call of wrap, which tell loaders without a name apart
_EVERY = 1.0  # seconds between two looks, once steps are many
_RANKS_PER_SECOND = 1000  # that look, on the whole
_PATIENCE = 0.5  # seconds in which a rank that goes on after its error takes back what it posted of it
_TROUBLE = "trouble"
_TRAINS = 4  # batches, from which on a rank does more than look at some

_made: Counter[str] = Counter()


class Watch:
    """What a loader posts of itself, and what it finds of its peers.

    Args:
        name: of the stream, as the ranks know it; streams without one are told apart by the lines that made them.
        named: it has a name.

    Attributes:
        rank: of this process in the default group.
    """

    def __init__(self, name: str, *, named: bool) -> None:
        known = name if named else f"{name} {_site()}"
        self._key = f"{known}/{_made[known]}/"
        _made[known] += 1
        self._moves = 0  # how often the place was set, which the ranks do as often as each other
        self._posts: Posts | None = None
        self._word: Posts | None = None
        self.rank, self._every = 0, _EVERY
        self._steps, self._next, self._later = 0, 1, 0.0
        self._taken, self._resumes = 0, True
        self._begins: str | None = None
        self._ignored: Any = None
        self._failed = False

    @property
    def is_on(self) -> bool:
        """Whether there are ranks to be compared with."""
        return self._posts is not None

    @property
    def key(self) -> str:
        """What posts of the stream are found under, since its place was set last."""
        return f"{self._key}{self._moves}/"

    def moved(self) -> None:
        """Note that a user has set the place: what ranks post from now on is compared with that of as many moves."""
        self._resumes = self._resumes and not self._taken
        self._moves += 1
        self._taken, self._begins = 0, None

    def turn_on(self, rank: int, world: World, peers: tuple[int, ...] | None) -> None:
        """Find the store.

        Args:
            rank: of this process in the default group.
            world: rank and world size in the stream.
            peers: the ranks that read the same stream; None for all.
        """
        store = find_store() if world.size > 1 else None
        if store is None:
            self.turn_off()
            return
        scope = "" if peers is None else hashlib.blake2b(repr(peers).encode(), digest_size=6).hexdigest()
        self._posts, self._word, self.rank = Posts(store, f"resumable/{scope}/"), Posts(store, EVERYONE), rank
        self._every = max(_EVERY, world.size / _RANKS_PER_SECOND)
        self._steps, self._next = 0, 1
        if self._moves and self._ignored is None:
            self._ignored = self._word.get(_TROUBLE)  # of a place that was left since

    def turn_off(self) -> None:
        """Compare nothing from now on."""
        self._posts = self._word = None

    def compare(self, key: str, fingerprint: Mapping[str, Any]) -> None:
        """Compare a fingerprint with the one that was posted first.

        Raises:
            RankMismatchError: they differ; the message has the ranks and both values.
        """
        if self._posts is None:
            return
        fingerprint = json.loads(json.dumps(fingerprint, default=repr))  # as the others' come
        first = self._posts.agree(f"{self.key}{key}", {"rank": self.rank, "fingerprint": fingerprint})
        told = first_difference(self.rank, fingerprint, first["rank"], first["fingerprint"])
        if told is not None:
            self.disagree(told)

    def begins(self, place: str | None) -> None:
        """The stream opens at a place for the first time since that was set; None where ranks need not agree on it.

        What a rank has set before its first batch is posted for those that have not, as they found no checkpoint: these
        go on under other keys, at another place, and end as late as ever, so that nothing else would tell.
        """
        self._begins = place
        if self._posts is not None and place is not None and self._resumes and self._moves:
            own = {"rank": self.rank, "moves": self._moves, "place": place}
            self._posts.agree(f"{self._key}resumed", own, keep=lambda found: found["moves"] >= self._moves)

    def _compare_beginning(self) -> None:
        if self._posts is None or self._begins is None or self._taken < _TRAINS:
            return
        found = self._posts.get(f"{self._key}resumed")
        if found is not None and found["moves"] > self._moves and found["place"] != self._begins:
            told = first_difference(self.rank, {"place": self._begins}, found["rank"], {"place": found["place"]})
            self.disagree(told or "")

    def disagree(self, told: str) -> None:
        """Raise, and leave word for the others.

        Raises:
            RankMismatchError: always.
        """
        if self._word is not None:
            self._word.agree(_TROUBLE, {"rank": self.rank, "told": told})
        raise RankMismatchError(told)

    def step(self) -> None:
        """A batch is asked for: look for word from others, where it is time for that.

        Raises:
            RankError: there is some.
        """
        if self._word is None:
            return
        if self._failed:
            self._failed = False
            self._word.remove(_TROUBLE)
        self._steps += 1
        self._taken += 1
        if self._steps >= self._next or time.monotonic() >= self._later:
            self.look()

    def look(self) -> None:
        """Look for word from others now.

        Raises:
            RankError: there is some.
        """
        if self._word is None:
            return
        self._next, self._later = 2 * self._steps, time.monotonic() + self._every
        word = word_of_others(self._word, self.rank, self._ignored)
        if word is not None:
            raise word
        self._compare_beginning()

    def failed(self, error: BaseException, place: str) -> None:
        """Leave word of an error on this rank, until it goes on after all."""
        if self._word is not None and not isinstance(error, RankError):
            self._failed = post_failure(self._word, self.rank, error, place)

    def ended(self, epoch: int, fingerprint: Mapping[str, int]) -> dict[str, Any]:
        """Post where the stream ends, and return what is posted: what was first, unless that is a later step."""
        own, step = {"rank": self.rank, **fingerprint}, fingerprint.get("step", 0)
        if self._posts is None:
            return own
        return self._posts.agree(f"{self.key}{epoch}/end", own, keep=lambda found: found.get("step", 0) <= step)

    def end(self, epoch: int) -> dict[str, Any] | None:
        """Return where another rank's stream ends, if that is known."""
        return None if self._posts is None else self._posts.get(f"{self.key}{epoch}/end")

    def wait_for_others(self, key: str, ranks: int, seconds: float) -> None:
        """Wait until all ranks have called this, or some seconds, and look for word from them.

        Raises:
            RankError: there is some.
        """
        if self._posts is None:
            return
        key, until = f"{self.key}{key}", time.monotonic() + seconds
        here = self._posts.count(key, 1)
        while here % ranks and time.monotonic() < until:
            time.sleep(0.01)
            self.look()
            here = self._posts.count(key, 0)
        self.look()


def post_failure(posts: Posts, rank: int, error: BaseException, place: str) -> bool:
    """Leave word of an error; return whether it is the first."""
    cause = f"{type(error).__name__}: {error}"
    told = f"rank {rank} raised an error{place}, so this rank stops, too.\n  rank {rank}: {cause}\n"
    told += f"Without it, this rank would wait for rank {rank} in the next collective. Mend what raised there."
    return bool(posts.agree(_TROUBLE, {"rank": rank, "told": told, "failed": True})["rank"] == rank)


def word_of_others(posts: Posts, rank: int, ignored: Any = None) -> RankError | None:
    """Return, as an error, what another rank has left word of.

    Args:
        posts: of everyone.
        rank: of this process.
        ignored: word that is known, and no longer of interest.
    """
    found = posts.get(_TROUBLE)
    if found is None or found == ignored or found["rank"] == rank:
        return None
    if not found.get("failed"):
        return RankMismatchError(found["told"])
    time.sleep(_PATIENCE)
    return RankFailedError(found["told"]) if posts.is_gone or posts.get(_TROUBLE) == found else None


def _site() -> str:
    """Return what distinguishes the place in the user's code that called this package."""
    frame, lines = sys._getframe(1), list[str]()  # noqa: SLF001  # nothing else knows the caller
    while frame is not None and len(lines) < _FRAMES:
        if not frame.f_globals.get("__name__", "").startswith("resumable."):
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return hashlib.blake2b(" ".join(lines).encode(), digest_size=6).hexdigest()
