"""Several ranks at one checkpoint: each writes a part, rank 0 commits when all are there; and all load the same one.

They tell each other by the store of the process group: a few small keys per save, and no collective. A rank waits for
the others in `save` and `latest` alone, and not longer than the time limit.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import hashlib
import json
import os
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from resumable._order.world import several_ranks
from resumable._ranks import rendezvous
from resumable.checkpoint.limits import in_one_line, waiting_for
from resumable.checkpoint.marker import Part
from resumable.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable._ranks.rendezvous import Rendezvous

__all__ = ["Meeting", "Team", "stay_until_heard"]

_SHOWN = 8  # ranks in a message
_LATER = 5.0  # seconds by which the others wait longer than rank 0, which knows whom it waited for
_PAUSE, _MOST = 0.002, 1.0  # seconds between two looks at the store, at first and at most
_LOOKS = 0.05  # seconds between two looks for that, at most
_STAYS = 3.0  # seconds for which rank 0, which may host the store, waits for the others to hear what it told


class Team:
    """The ranks that use a store together.

    Args:
        root: of the store, as all of them were given it.
        found: their rendezvous; None for one process alone.
    """

    def __init__(self, root: str, found: Rendezvous | None) -> None:
        self._found = found
        self._kind = f"checkpoint/{hashlib.sha256(root.encode()).hexdigest()[:16]}"
        self.rank, self.size = (0, 1) if found is None else (found.rank, found.size)

    @classmethod
    def of(cls, root: str) -> Team:
        """Find the ranks of the default process group.

        Raises:
            ConfigurationError: there is none, though the environment says that there are several ranks.
        """
        found = rendezvous.find()
        if found is None and (several := several_ranks()) is not None:
            raise ConfigurationError(
                "shared=True, but there is no process group of torch.distributed, and the environment says that there "
                f"are several ranks: {several}.\n"
                "Each rank would take itself for the only one. Call torch.distributed.init_process_group first, or "
                "leave out `shared`, and use the store on one rank."
            )
        return cls(root, found)

    def meet(self, kind: str) -> Meeting:
        """Begin something that all ranks do, each one in the same order."""
        key = self._found.key(f"{self._kind}/{kind}") if self._found else ""
        return Meeting(self._found, key, self.rank, self.size)


class Meeting:
    """One save or look of all ranks.

    Args:
        found: their rendezvous; None for one process alone.
        key: of this meeting, alike on all ranks.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, found: Rendezvous | None, key: str, rank: int, size: int) -> None:
        self._found, self._key, self.rank, self.size = found, key, rank, size

    # ------------------------------------------------------------------ parts

    def bring(self, step: int, part: Part) -> None:
        """Tell rank 0 of the part that this rank has written."""
        self._tell(str(self.rank), {"step": step, "part": dataclasses.asdict(part)})

    def collect(self, step: int, own: Part) -> list[Part]:
        """Wait for the parts of all ranks, on rank 0.

        Raises:
            CheckpointError: a rank could not write its part, or saves another step.
        """
        parts = {0: own}
        keys = {rank: f"{self._key}/{rank}" for rank in range(1, self.size)}
        pause = _PAUSE
        while self._found is not None and keys:
            missing = {list(keys)[place] for place in self._found.missing(list(keys.values()))}
            for rank in keys.keys() - missing:
                parts[rank] = _part_of(json.loads(self._found.look(keys.pop(rank)) or ""), step, rank)
            if keys:
                pause = _rest(keys, pause)
        waiting_for("")
        return [parts[rank] for rank in sorted(parts)]

    # ------------------------------------------------------------------ what rank 0 tells all

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Tell the others of an error of rank 0, or of this rank; else nothing is told yet."""
        try:
            yield
        except BaseException as error:
            text = in_one_line(error) if isinstance(error, Exception) else type(error).__name__
            with contextlib.suppress(Exception):  # the error that is on its way says more
                self._tell("all" if self.rank == 0 else str(self.rank), {"error": text})
            raise

    def announce(self, value: Any) -> None:
        """Tell the others what rank 0 has come to, and remove what they had told.

        Rank 0 goes on when they have heard it, or after a moment: its process, which may host the store, can end any
        time after that, and not every end runs what is registered for it (a child of `fork`, `os._exit`).
        """
        self._tell("all", {"value": value})
        stay_until_heard()
        for rank in range(1, self.size):
            with contextlib.suppress(Exception):  # it takes a few bytes, no more
                assert self._found is not None
                self._found.delete(f"{self._key}/{rank}")

    def hear(self, what: str) -> Any:
        """Wait for what rank 0 tells.

        Raises:
            CheckpointError: rank 0 has failed; the message has its error.
        """
        assert self._found is not None
        pause = _PAUSE
        while (raw := self._found.look(f"{self._key}/all")) is None:
            pause = _rest([0], pause, _LATER)
        waiting_for("")
        told = json.loads(raw)
        with contextlib.suppress(Exception):  # rank 0 may have waited long enough
            self._found.store.add(f"{self._key}/heard", 1)
        if "error" in told:
            raise CheckpointError(f"{what}, as rank 0 failed.\n  {told['error']}\nRank 0 has the whole error.")
        return told["value"]

    def _tell(self, who: str, fields: dict[str, Any]) -> None:
        if self._found is not None and self.size > 1:
            self._found.set(f"{self._key}/{who}", json.dumps(fields))
            if who == "all":
                for _, before in _told:
                    before.forget()
                _told[:] = [(os.getpid(), self)]

    def forget(self) -> None:
        """Remove what rank 0 told, if all others have heard it."""
        if self._found is not None and self.is_heard():
            for what in ("all", "heard"):
                with contextlib.suppress(Exception):  # it takes a few bytes, no more
                    self._found.delete(f"{self._key}/{what}")

    def is_heard(self) -> bool:
        """Return whether all others have heard what rank 0 told, or cannot any longer."""
        assert self._found is not None
        try:
            return int(self._found.store.add(f"{self._key}/heard", 0)) >= self.size - 1
        except RuntimeError:  # every error of a store is one
            return True


_told: list[tuple[int, Meeting]] = []  # at most one: the process that told something last, and where


@atexit.register
def stay_until_heard() -> None:
    """Wait a moment for the others: what rank 0 told last may be in a store that ends with this process."""
    until, pause = monotonic() + _STAYS, _PAUSE
    for process, meeting in _told:
        while process == os.getpid() and not meeting.is_heard() and monotonic() < until:
            sleep(pause)
            pause = min(pause * 1.3, _LOOKS)


def _part_of(told: dict[str, Any], step: int, rank: int) -> Part:
    if "error" in told:
        raise CheckpointError(f"rank {rank} could not save its part: {told['error']}")
    if told["step"] != step:
        raise ConfigurationError(
            "the ranks do not save the same step.\n"
            f"  rank 0:  {step}\n  rank {rank}:  {told['step']}\n"
            "Their parts would have been mixed. Every rank has to save the same steps, in the same order."
        )
    return Part.parse(told["part"])


def _rest(ranks: Iterable[int], pause: float, grace: float = 0.0) -> float:
    """Wait a moment for some ranks, and return how long to wait the next time."""
    named = sorted(ranks)
    waiting_for("rank " + ", ".join(map(str, named[:_SHOWN])) + (", ..." if len(named) > _SHOWN else ""), grace)
    sleep(pause)
    return min(pause * 1.3, _MOST)
