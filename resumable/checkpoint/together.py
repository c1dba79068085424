"""Checkpoints of several ranks: each writes a part, and rank 0 commits when all are written. All ranks load the same.

The ranks communicate through the process group's key-value store, with a few small keys per save and no collectives.
They wait for each other only in `save` and `latest`, and not longer than the time limit.
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
_LATER = 5.0  # seconds that the others wait longer than rank 0, which knows the missing rank
_PAUSE, _MOST = 0.002, 1.0  # seconds between two reads of the store, first and at most
_STAYS = 3.0  # seconds that rank 0, which may host the store, waits for the others to read its message
_LOOKS = 0.05  # seconds between two checks for that, at most


class Team:
    """The ranks that use a store together.

    Args:
        root: of the store, equal on all ranks.
        found: their rendezvous; None for a single process.
    """

    def __init__(self, root: str, found: Rendezvous | None) -> None:
        self._found = found
        self._kind = f"checkpoint/{hashlib.sha256(root.encode()).hexdigest()[:16]}"
        self.rank, self.size = (0, 1) if found is None else (found.rank, found.size)

    @classmethod
    def of(cls, root: str) -> Team:
        """Find the ranks of the default process group.

        Raises:
            ConfigurationError: there is none, but the environment variables describe several ranks.
        """
        found = rendezvous.find()
        if found is None and (several := several_ranks()) is not None:
            raise ConfigurationError(
                "shared=True needs a process group of torch.distributed, and there is none, although the environment "
                f"describes several ranks: {several}.\n"
                "Each rank would behave as if it were the only one. Call torch.distributed.init_process_group first, "
                "or remove shared=True and use the store on one rank."
            )
        return cls(root, found)

    def meet(self, kind: str) -> Meeting:
        """Start an operation of all ranks. Every rank must start the same operations in the same order."""
        key = self._found.key(f"{self._kind}/{kind}") if self._found else ""
        return Meeting(self._found, key, self.rank, self.size)


class Meeting:
    """One save of all ranks, or one search for the latest step.

    Args:
        found: their rendezvous; None for a single process.
        key: of this meeting, equal on all ranks.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, found: Rendezvous | None, key: str, rank: int, size: int) -> None:
        self._found, self._key, self.rank, self.size = found, key, rank, size

    # ------------------------------------------------------------------ parts

    def bring(self, step: int, part: Part) -> None:
        """Report the part that this rank has written to rank 0."""
        self._tell(str(self.rank), {"step": step, "part": dataclasses.asdict(part)})

    def collect(self, step: int, own: Part) -> list[Part]:
        """Wait for the parts of all ranks, on rank 0.

        Raises:
            CheckpointError: a rank could not write its part.
            ConfigurationError: a rank saves a different step.
        """
        parts = {0: own}
        keys = {rank: f"{self._key}/{rank}" for rank in range(1, self.size)}
        pause = _PAUSE
        while self._found is not None and keys:
            missing = {list(keys)[index] for index in self._found.missing(list(keys.values()))}
            for rank in keys.keys() - missing:
                parts[rank] = _part_of(json.loads(self._found.look(keys.pop(rank)) or ""), step, rank)
            if keys:
                pause = _rest(keys, pause)
        waiting_for("")
        return [parts[rank] for rank in sorted(parts)]

    # ------------------------------------------------------------------ rank 0's message to all

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Send an error in the block to the other ranks. Without an error, send nothing yet."""
        try:
            yield
        except BaseException as error:
            text = in_one_line(error) if isinstance(error, Exception) else type(error).__name__
            with contextlib.suppress(Exception):  # the original error says more
                self._tell("all" if self.rank == 0 else str(self.rank), {"error": text})
            raise

    def announce(self, value: Any) -> None:
        """Send rank 0's result to the other ranks, and remove their messages.

        Rank 0 waits a few seconds for the others to read it. Its process, which may host the store, can end any time
        afterwards, and some exits do not run `atexit` functions (a forked child, `os._exit`).
        """
        self._tell("all", {"value": value})
        stay_until_heard()
        for rank in range(1, self.size):
            with contextlib.suppress(Exception):  # a leftover key is only a few bytes
                assert self._found is not None
                self._found.delete(f"{self._key}/{rank}")

    def hear(self, what: str) -> Any:
        """Wait for rank 0's result.

        Raises:
            CheckpointError: rank 0 has failed. The message has its error.
        """
        assert self._found is not None
        pause = _PAUSE
        while (raw := self._found.look(f"{self._key}/all")) is None:
            pause = _rest([0], pause, _LATER)
        waiting_for("")
        message = json.loads(raw)
        with contextlib.suppress(Exception):  # rank 0 may be gone already
            self._found.store.add(f"{self._key}/heard", 1)
        if "error" in message:
            raise CheckpointError(
                f"{what}, because rank 0 failed.\n  {message['error']}\nRank 0 raises the full error."
            )
        return message["value"]

    def _tell(self, who: str, fields: dict[str, Any]) -> None:
        if self._found is not None and self.size > 1:
            self._found.set(f"{self._key}/{who}", json.dumps(fields))
            if who == "all":
                for _, before in _sent:
                    before.forget()
                _sent[:] = [(os.getpid(), self)]

    def forget(self) -> None:
        """Remove rank 0's message if all others have read it."""
        if self._found is not None and self.is_heard():
            for what in ("all", "heard"):
                with contextlib.suppress(Exception):  # a leftover key is only a few bytes
                    self._found.delete(f"{self._key}/{what}")

    def is_heard(self) -> bool:
        """Return whether all others have read rank 0's message, or no longer can."""
        assert self._found is not None
        try:
            return int(self._found.store.add(f"{self._key}/heard", 0)) >= self.size - 1
        except RuntimeError:  # the base of all errors of a store
            return True


_sent: list[tuple[int, Meeting]] = []  # at most one: the process that sent a message last, and its meeting


@atexit.register
def stay_until_heard() -> None:
    """Wait a few seconds for the others to read rank 0's last message: the store may end with this process."""
    until, pause = monotonic() + _STAYS, _PAUSE
    for process, meeting in _sent:
        while process == os.getpid() and not meeting.is_heard() and monotonic() < until:
            sleep(pause)
            pause = min(pause * 1.3, _LOOKS)


def _part_of(message: dict[str, Any], step: int, rank: int) -> Part:
    if "error" in message:
        raise CheckpointError(f"rank {rank} could not save its part: {message['error']}")
    if message["step"] != step:
        raise ConfigurationError(
            "the ranks save different steps.\n"
            f"  rank 0:  {step}\n  rank {rank}:  {message['step']}\n"
            "Their parts do not belong together, so nothing was committed. All ranks must save the same steps in the "
            "same order."
        )
    return Part.parse(message["part"])


def _rest(ranks: Iterable[int], pause: float, grace: float = 0.0) -> float:
    """Wait briefly for some ranks, and return how long to wait the next time."""
    named = sorted(ranks)
    waiting_for("rank " + ", ".join(map(str, named[:_SHOWN])) + (", ..." if len(named) > _SHOWN else ""), grace)
    sleep(pause)
    return min(pause * 1.3, _MOST)
