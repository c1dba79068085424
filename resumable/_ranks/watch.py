"""Compares the streams of ranks that train together. No rank waits for a different one.

When its stream opens, each rank posts a fingerprint to the store of the process group. All others are compared with the
first post, so a stream costs each rank one request, for any number of ranks. A rank that differs raises, and posts that
for the others. They check for such posts at steps 1, 2, 4, ... and then about once per second.
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
# Describes the first difference between two ranks.

_NAMES = {
    "backend.length": "the length of the data",
    "length": "the length of the source",
    "batch_size": "the batch size",
    "global_batch": "the global batch",
    "randomness.seed": "the seed",
    "place": "the position in the stream",
    "world_size": "the number of ranks",
}
_DATA = "Use the same data in the same order on all ranks: sort lists of files, and seed their shuffling."
_HINTS = {
    "samples": _DATA,
    "element": _DATA,
    "elements": _DATA,
    "place": "Load the same checkpoint on all ranks: let rank 0 find the latest one, and broadcast its choice.",
    "backend": _DATA,
    "length": _DATA,
    "randomness": "Use the same seed and randomness on all ranks.",
}
_WOULD = (
    "Some samples would be read twice and others never, and a rank that ends earlier would leave the others waiting."
)
_WIDTH = 160


def first_difference(rank: int, own: Mapping[str, Any], other_rank: int, other: Mapping[str, Any]) -> str | None:
    """Describe the first difference between the fingerprints of two ranks, for an error; None if there is none."""
    for name, mine, its in compare(own, other):
        what, values = _NAMES.get(name, name), {rank: mine, other_rank: its}
        if name == "samples":
            if (which := _other_sample(mine, its)) is None:
                continue
            what, values = f"sample {which[0]}", {rank: f"digest {which[1]}", other_rank: f"digest {which[2]}"}
        told = "\n".join(f"  rank {number}: {_short(values[number])}" for number in sorted(values))
        hint = _HINTS.get(name) or _HINTS.get(name.partition(".")[0], "Use the same options on all ranks.")
        return (
            f"the ranks disagree: {what} differs.\n{told}\n{_WOULD} {hint} For ranks that should read different data, "
            'pass world=, such as a process group, or a different name= to each; checks="data" compares no ranks.'
        )
    return None


def _other_sample(own: Any, other: Any) -> tuple[int, str, str] | None:
    """Return the first sample that differs by more than rounding errors, with both digests."""
    for (index, *mine), (its_index, *its) in zip(own or [], other or [], strict=False):
        one, two = ElementDigest(*mine), ElementDigest(*its)
        if index != its_index or not one.is_close(two):
            return index, one.text, two.text
    return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


# ------------------------------------------------------------------ watch

EVERYONE = "resumable/all/"  # prefix of keys that all ranks read

_FRAMES = 4  # frames of the call to wrap that distinguish loaders without a name
_EVERY = 1.0  # seconds between two checks, once there are many steps
_RANKS_PER_SECOND = 1000  # that check, in total
_PATIENCE = 0.5  # seconds in which a rank that continues after its error withdraws its post
_TROUBLE = "trouble"
_TRAINS = 4  # batches from which on a rank is considered to train, rather than inspect a few

_made: Counter[str] = Counter()


class Watch:
    """Posts a loader's fingerprint, and compares it with the other ranks.

    Args:
        name: of the stream, as the ranks know it. Without one, the line that made a stream identifies it.
        named: it has a name.

    Attributes:
        rank: of this process in the default group.
    """

    def __init__(self, name: str, *, named: bool) -> None:
        known = name if named else f"{name} {_site()}"
        self._key = f"{known}/{_made[known]}/"
        _made[known] += 1
        self._moves = 0  # how often the position was set, which is the same number on all ranks
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
        """Whether there are ranks to compare with."""
        return self._posts is not None

    @property
    def key(self) -> str:
        """The key prefix for posts of the stream, since its position was last set."""
        return f"{self._key}{self._moves}/"

    def moved(self) -> None:
        """Note that a user has set the position. From now on, only posts after equally many moves are compared."""
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
            self._ignored = self._word.get(_TROUBLE)  # from before the position was set

    def turn_off(self) -> None:
        """Compare nothing from now on."""
        self._posts = self._word = None

    def compare(self, key: str, fingerprint: Mapping[str, Any]) -> None:
        """Compare a fingerprint with the first post.

        Raises:
            RankMismatchError: they differ; the message has the ranks and both values.
        """
        if self._posts is None:
            return
        fingerprint = json.loads(json.dumps(fingerprint, default=repr))  # as it arrives from other ranks
        first = self._posts.agree(f"{self.key}{key}", {"rank": self.rank, "fingerprint": fingerprint})
        told = first_difference(self.rank, fingerprint, first["rank"], first["fingerprint"])
        if told is not None:
            self.disagree(told)

    def begins(self, place: str | None) -> None:
        """Note that the stream opens for the first time since its position was set; None if ranks may be elsewhere.

        If this rank set a position before its first batch, it posts it for ranks that found no checkpoint. They use
        other keys, start at a different position, and end as late as always, so nothing else would show it.
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
        """Raise, and post the error for the others.

        Raises:
            RankMismatchError: always.
        """
        if self._word is not None:
            self._word.agree(_TROUBLE, {"rank": self.rank, "told": told})
        raise RankMismatchError(told)

    def step(self) -> None:
        """Note that a batch is requested, and check for errors of other ranks if it is time.

        Raises:
            RankError: a rank has posted one.
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
        """Check for errors of other ranks now.

        Raises:
            RankError: a rank has posted one.
        """
        if self._word is None:
            return
        self._next, self._later = 2 * self._steps, time.monotonic() + self._every
        word = word_of_others(self._word, self.rank, self._ignored)
        if word is not None:
            raise word
        self._compare_beginning()

    def failed(self, error: BaseException, place: str) -> None:
        """Post an error of this rank. If it continues anyway, the post is withdrawn."""
        if self._word is not None and not isinstance(error, RankError):
            self._failed = post_failure(self._word, self.rank, error, place)

    def ended(self, epoch: int, fingerprint: Mapping[str, int]) -> dict[str, Any]:
        """Post where the stream ends, and return the current post: the first one, unless this end is earlier."""
        own, step = {"rank": self.rank, **fingerprint}, fingerprint.get("step", 0)
        if self._posts is None:
            return own
        return self._posts.agree(f"{self.key}{epoch}/end", own, keep=lambda found: found.get("step", 0) <= step)

    def end(self, epoch: int) -> dict[str, Any] | None:
        """Return where the stream of a different rank ends, if that is known."""
        return None if self._posts is None else self._posts.get(f"{self.key}{epoch}/end")

    def wait_for_others(self, key: str, ranks: int, seconds: float) -> None:
        """Wait until all ranks have called this, at most for `seconds`, and check for errors of other ranks.

        Raises:
            RankError: a rank has posted one.
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
    """Post an error; return whether it is the first."""
    cause = f"{type(error).__name__}: {error}"
    told = f"rank {rank} raised an error{place}, so this rank also stops.\n  rank {rank}: {cause}\n"
    told += f"Otherwise this rank would wait for rank {rank} in the next collective. Fix the error there."
    return bool(posts.agree(_TROUBLE, {"rank": rank, "told": told, "failed": True})["rank"] == rank)


def word_of_others(posts: Posts, rank: int, ignored: Any = None) -> RankError | None:
    """Return the error that a different rank has posted.

    Args:
        posts: of everyone.
        rank: of this process.
        ignored: a post that is known, and no longer of interest.
    """
    found = posts.get(_TROUBLE)
    if found is None or found == ignored or found["rank"] == rank:
        return None
    if not found.get("failed"):
        return RankMismatchError(found["told"])
    time.sleep(_PATIENCE)
    return RankFailedError(found["told"]) if posts.is_gone or posts.get(_TROUBLE) == found else None


def _site() -> str:
    """Return a digest of the lines in the user's code that called this package."""
    frame, lines = sys._getframe(1), list[str]()  # noqa: SLF001  # nothing public knows the caller
    while frame is not None and len(lines) < _FRAMES:
        if not frame.f_globals.get("__name__", "").startswith("resumable."):
            lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return hashlib.blake2b(" ".join(lines).encode(), digest_size=6).hexdigest()
