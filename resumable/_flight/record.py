"""The file of one rank. It is mapped into memory, so its content survives SIGKILL.

It has 64 words of 8 bytes in the machine's byte order:

      0..8    the writing process: once, with a checksum
     16..18   how the process ended, the last saved state, the current sample; each changes independently
     32..38   a slot: count, epoch, step, global step, time, checksum, phase
     40..46   a second slot

The batches alternate between the slots. The intact slot with the higher count is valid, so an interrupted write leaves
the previous batch. A word is never torn, so the phase of a slot can change independently.
"""

from __future__ import annotations

import logging
import os
import platform
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from time import time_ns
from typing import TYPE_CHECKING, Literal, get_args
from zlib import crc32

from resumable._processes import look_at
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

    from resumable._order.world import World

__all__ = ["DamagedError", "FlightRecord", "ForeignError", "odd_ones", "read", "read_record"]

Phase = Literal["opened", "reading", "training", "state", "between"]
Ended = Literal["running", "cleanly", "raised"]
_PHASES: tuple[Phase, ...] = get_args(Phase)
_ENDS: tuple[Ended, ...] = get_args(Ended)
OPENED, READING, TRAINING, STATE, BETWEEN = range(len(_PHASES))
RUNNING, CLEANLY, RAISED = range(len(_ENDS))
END, SAVED, SAMPLE = 16, 17, 18  # words
SIZE = 512

_log = logging.getLogger("resumable")
KIND = b"RSMFLT"
_MAGIC = KIND + b"3\n"
_HEADER, _WORD = Struct("=8s6Q"), Struct("=Q")
_PLACE, _SLOT = Struct("=4Q"), Struct("=7Q")
_SLOTS = (32, 40)  # words
_PHASE = 6  # words of a slot before its phase
_WHERE = {
    "opened": "before its first batch, in epoch {epoch}, step {step}",
    "reading": "in epoch {epoch}, step {step}, while reading",
    "training": "in epoch {epoch}, step {step}, while training",
    "state": "in epoch {epoch}, step {step}, after a state was saved",
    "between": "after {step} steps of epoch {epoch}, between epochs",
}


class DamagedError(Exception):
    """A file was a record."""


class ForeignError(Exception):
    """A file was never a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """The position of the process of a rank, or its last one.

    Attributes:
        rank: of the process.
        world_size: number of ranks.
        phase: what the process did: "opened" (before its first batch), "reading" a batch or waiting for its workers,
            "training" on it, "state" (the same, after a state was saved), "between" epochs.
        epoch: number of the epoch, from 0.
        step: of the batch that was read or trained on, from 0, as for `Loader.sample_indices`; between epochs, the
            number of batches of the epoch.
        global_step: global batches over all epochs before that batch.
        sample: index of the sample that the process was reading; None if there was none, if workers read the samples,
            or if they are read in batches or have no index.
        saved: the global step of the last saved state; None before the first.
        when: the time at which the batch was requested.
        pid: the process.
        ended: "running" (it is alive, or was killed), "cleanly", or "raised" (an exception).
        alive: whether the process exists; None if that is unknown, as for a process of a different machine.
    """

    rank: int
    world_size: int
    phase: Phase
    epoch: int
    step: int
    global_step: int
    sample: int | None
    saved: int | None
    when: datetime
    pid: int
    ended: Ended
    alive: bool | None
    _run: int = field(repr=False)

    @property
    def crashed(self) -> bool:
        """Whether the process did not end cleanly; a process with unknown status counts as ended."""
        return self.ended == "raised" or (self.ended == "running" and not self.alive)

    @property
    def delivered(self) -> int:
        """Global batches over all epochs that were delivered to the training."""
        return self.global_step + (self.phase in {"training", "state"})

    @property
    def status(self) -> str:
        """The status of the process, in a few words."""
        if self.ended != "running":
            return "ended cleanly" if self.ended == "cleanly" else "ended with an exception"
        return {True: "running", False: "killed", None: "running or killed"}[self.alive]

    @property
    def where(self) -> str:
        """The position, as part of a sentence."""
        sample = "" if self.sample is None else f"{', reading' * (self.phase != 'reading')} sample {self.sample}"
        return _WHERE[self.phase].format(epoch=self.epoch, step=self.step) + sample


# ---------------------------------------------------------------------- all ranks


def read(folder: str | os.PathLike[str]) -> list[FlightRecord]:
    """Read the records in a folder, also while their processes run. Nothing is changed.

    Args:
        folder: the `flight_recorder` of `wrap`.

    Returns:
        One record per rank, sorted by rank. Files that are damaged or not records are left out, and logged.

    Raises:
        ConfigurationError: there is no such folder, or no record in it.
    """
    records = []
    for path in Path(folder).glob("rank-*.flight"):
        try:
            records.append(read_record(path))
        except (DamagedError, ForeignError, OSError) as error:
            _log.warning("flight recorder: the file %s is left out: %s.", path, error)
    if not records:
        raise ConfigurationError(
            f"{folder} contains no record of a flight recorder.\n"
            'Pass the folder of wrap(..., flight_recorder="runs/flight"). It has one file per rank, such as '
            "rank-00000.flight, from the rank's first batch on."
        )
    return sorted(records, key=lambda record: record.rank)


def odd_ones(records: Sequence[FlightRecord]) -> list[FlightRecord]:
    """Return the records of the ranks that differ from most: at a different batch, in a different phase, or ended.

    If training hangs, the other ranks wait for these. Without a majority, they are the least advanced ranks.
    Ranks of an earlier run with a different number of ranks are left out.

    Args:
        records: of all ranks, from `read`.
    """
    latest = max(records, key=lambda record: record.when).world_size if records else 0
    ranks = [record for record in records if record.world_size == latest]
    places = [(one.epoch, one.step, _PHASES.index(one.phase), one.status) for one in ranks]
    if len(set(places)) <= 1:
        return []
    (common, count), *_ = Counter(places).most_common()
    odd = [at != common if count * 2 > len(places) else at == min(places) for at in places]
    return [record for record, is_odd in zip(ranks, odd, strict=True) if is_odd]


# ---------------------------------------------------------------------- the file of a rank


def name_of_rank(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05}.flight"


def new_record(world: World, run: int) -> bytes:
    """Return the content of a file before the first batch.

    Args:
        world: of the process.
        run: a checksum of data, order and configuration.
    """
    packed = _HEADER.pack(_MAGIC, world.rank, world.size, os.getpid(), _started(os.getpid()), _host(), run)
    return (packed + _WORD.pack(crc32(packed))).ljust(SIZE, b"\0")


def write_slot(  # noqa: PLR0913, PLR0917  # the only call per batch, so it must be fast
    memory: mmap | bytearray, number: int, epoch: int, step: int, global_step: int, phase: int
) -> int:
    """Write a batch, and return the word of its phase.

    Args:
        memory: of the file.
        number: one more than at the last write; 1 at first.
        epoch: of the batch.
        step: in the epoch.
        global_step: over all epochs.
        phase: of the process.
    """
    at = _SLOTS[number % 2]
    check = crc32(_PLACE.pack(number, epoch, step, global_step))
    _SLOT.pack_into(memory, at * 8, number, epoch, step, global_step, time_ns(), check, phase)
    return at + _PHASE


def read_record(path: Path) -> FlightRecord:
    """Read the file of a rank.

    Raises:
        DamagedError: it is damaged, or of a different version.
        ForeignError: it never was a record.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(SIZE + 1)
    if not content.startswith(KIND):
        raise ForeignError("it is not a record of a flight recorder")
    if not content.startswith(_MAGIC):
        raise DamagedError("a different version of resumable wrote it")
    if len(content) != SIZE or _word(content, _HEADER.size // 8) != crc32(content[: _HEADER.size]):
        raise DamagedError("its header does not match its checksum")
    _, rank, world_size, pid, started, host, run = _HEADER.unpack_from(content)
    slots = [_SLOT.unpack_from(content, at * 8) for at in _SLOTS]
    intact = [slot for slot in slots if slot[0] and crc32(_PLACE.pack(*slot[:4])) == slot[5]]
    if not intact:
        raise DamagedError("no batch in it matches its checksum")
    _, epoch, step, global_step, time, _, phase = max(intact)
    end, saved, sample = (_word(content, at) for at in (END, SAVED, SAMPLE))
    if phase >= len(_PHASES) or end >= len(_ENDS):
        raise DamagedError("its phase is unknown")
    return FlightRecord(
        rank=rank,
        world_size=world_size,
        phase=_PHASES[phase],
        epoch=epoch,
        step=step,
        global_step=global_step,
        sample=sample - 1 if sample else None,
        saved=saved - 1 if saved else None,
        when=datetime.fromtimestamp(time / 1e9, tz=UTC),
        pid=pid,
        ended=_ENDS[end],
        alive=_started(pid) == started if started and host == _host() else None,
        _run=run,
    )


def _word(content: bytes, number: int) -> int:
    (word,) = _WORD.unpack_from(content, number * 8)
    return int(word)


def _started(pid: int) -> int:
    """Return when a process was started, in ticks of the machine; 0 if it has ended, or if the system has no /proc.

    The number alone says little: later processes get it again, and in a container it is often the same.
    """
    stat = look_at(pid)
    return stat.started if stat is not None and stat.lives else 0


def _host() -> int:
    """Return what distinguishes this machine, its start and its container from others."""
    parts = [platform.node()]
    with suppress(OSError):  # not on Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text("ascii"), str(Path("/proc/self/ns/pid").readlink())]
    return crc32("\n".join(parts).encode())
