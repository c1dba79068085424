"""Start: takes the file of a rank over from the process before this one, and tells what that one wrote."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from time import time_ns
from typing import TYPE_CHECKING

from resumable._fetch import IndexedFetcher
from resumable._flight.layout import Header
from resumable._flight.opening import TakenError, look, make, opening
from resumable._flight.process import host_of_this, start_of
from resumable._flight.records import FlightRecord, UnreadableError, name_of_rank
from resumable._flight.story import Crashes, count_crashes, count_samples, tell
from resumable._order.cursor import Cursor
from resumable._order.world import World
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from resumable._fetch import Fetcher

__all__ = ["Start"]

_log = logging.getLogger("resumable")


class Start:
    """The start of a process.

    Args:
        folder: of the records.
        fetcher: whose batches are recorded.
    """

    def __init__(self, folder: Path, fetcher: Fetcher) -> None:
        self._fetcher, self._world = fetcher, fetcher.world()
        self._path = folder / name_of_rank(self._world.rank)
        self._earlier: FlightRecord | None = None
        self._crashes: Crashes = (0, 0, 0, 0, 0)
        self._tallies: dict[int, int] = {}

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def open(self) -> mmap.mmap | None:
        """Return the memory of a new file, or None where there can be none, which is told."""
        try:
            with opening(self._path.parent):
                self._look()
                return make(self._path, self._header(), self._tallies)
        except TakenError as error:
            reason = _taken(error.record)
        except (OSError, UnreadableError) as error:
            reason = str(error)
        self._earlier = None
        _log.warning("flight recorder: nothing is recorded in %s: %s. The training goes on.", self._path, reason)
        return None

    def tell(self, loaded: int | None) -> None:
        """Log what the process before this one wrote.

        Args:
            loaded: global step of the state that was loaded; None without one.
        """
        if (earlier := self._earlier) is not None:
            level = logging.WARNING if earlier.crashed else logging.INFO
            crashes = self._crashes[0], self._tallies
            _log.log(level, "%s", tell(earlier, *crashes, loaded, self._samples_of(earlier)))

    def _look(self) -> None:
        try:
            self._earlier = look(self._path)
        except UnreadableError as error:
            if error.foreign:
                raise
            _log.warning("flight recorder: the record %s is ignored, and replaced by a new one: %s.", self._path, error)
        if self._earlier is not None and self._earlier._header.fingerprint != self._fingerprint():  # noqa: SLF001  # ours
            self._earlier = None
            _log.warning(
                "flight recorder: the record %s is ignored, and replaced by a new one: it is of another run, with "
                "other data, another order or another configuration. Give each run a folder of its own.",
                self._path,
            )
        if self._earlier is not None:
            self._crashes, self._tallies = count_crashes(self._earlier), count_samples(self._earlier)

    def _header(self) -> Header:
        pid, world = os.getpid(), self._world
        process = pid, start_of(pid) or 0, host_of_this()
        return Header(world.rank, world.size, *process, self._fingerprint(), time_ns(), *self._crashes)

    def _fingerprint(self) -> int:
        text = json.dumps(self._fetcher.fingerprint(), sort_keys=True, separators=(",", ":"))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def _samples_of(self, earlier: FlightRecord) -> list[int]:
        """Return the samples of the batch at which a process was, where they have indices."""
        if not isinstance(self._fetcher, IndexedFetcher) or earlier.phase in {"opened", "between"}:
            return []
        cursor = Cursor(earlier.epoch, earlier.position, earlier.step)
        try:
            plan = self._fetcher.plan(earlier._global_batch)  # noqa: SLF001  # ours
            world = World(earlier.rank, earlier.world_size)
            return [] if plan.finished(cursor) else self._fetcher.sample_indices(cursor, plan, world)
        except ConfigurationError:  # a place that there is not with as many ranks as now
            return []


def _taken(record: FlightRecord) -> str:
    if record.pid == os.getpid():
        return "another loader of this process records there; give each loader a folder of its own"
    return f"the process {record.pid}, which is alive, records there as rank {record.rank} too"
