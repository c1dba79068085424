"""FlightRecord: what the file of a rank says."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from resumable._fetch.reading import sample_of
from resumable._flight.layout import (
    END,
    GLOBAL_BATCH,
    KIND,
    MAGIC,
    MOST_READERS,
    NO_READER,
    READERS,
    SAVED,
    SIZE,
    Header,
    Slot,
    parse_header,
    parse_slots,
    parse_tallies,
    word,
    word_at,
)
from resumable._flight.process import is_alive

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "ENDS",
    "PHASES",
    "BeingRead",
    "FlightRecord",
    "UnreadableError",
    "name_of_rank",
    "parse_record",
    "read_record",
]

Phase = Literal["opened", "reading", "waiting", "training", "state", "between"]
Ended = Literal["running", "cleanly", "raised"]
PHASES: dict[int, Phase] = {word(name): name for name in get_args(Phase)}
ENDS: dict[int, Ended] = {word(name): name for name in get_args(Ended)}
_WORDS = {
    "opened": "before its first batch, in epoch {epoch}, step {step}",
    "reading": "in epoch {epoch}, step {step}, while reading",
    "waiting": "in epoch {epoch}, step {step}, while waiting for its workers",
    "training": "in epoch {epoch}, step {step}, while training",
    "state": "in epoch {epoch}, step {step}, after a state was taken",
    "between": "after {step} steps of epoch {epoch}, between epochs",
}


class UnreadableError(Exception):
    """A file is no record.

    Args:
        reason: what is wrong with it.
        foreign: it never was one, so that it is somebody else's.
    """

    def __init__(self, reason: str, *, foreign: bool = False) -> None:
        super().__init__(reason)
        self.foreign = foreign


class BeingRead(NamedTuple):
    """A sample that is read, or was when its reader ended.

    Attributes:
        worker: number of the worker process that reads it; None where the process of the record does.
        sample: index of the sample.
    """

    worker: int | None
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """Where the process of a rank is, or was when it ended.

    Attributes:
        rank: whose record it is.
        world_size: number of ranks.
        phase: what the process did: "opened" (before its first batch), "reading" a batch, "waiting" for workers to read
            it, "training" on it, "state" (the same, after a state was taken), "between" epochs.
        epoch: number of the epoch, from 0.
        step: of the batch that was read or trained on, from 0, as `Loader.sample_indices` takes it; between epochs the
            number of batches that there were.
        position: samples of the epoch before that batch.
        global_step: global batches over all epochs before that batch.
        saved: the global step of the state that was taken last; None before the first.
        when: the time at which the batch was asked for.
        pid: the process.
        ended: "running" (it did not say that it ended: it is alive, or was killed), "cleanly", or "raised" (by an
            exception).
        alive: whether the process is there; None where it is one of another machine.
        crashes: how often the processes before this one crashed in a row at one batch.
        reading: the samples that are read, or were when the process or a worker of it died. Empty where none is, where
            the process ended without a death, and where samples are not read one by one, or have no index.
    """

    rank: int
    world_size: int
    phase: Phase
    epoch: int
    step: int
    position: int
    global_step: int
    saved: int | None
    when: datetime
    pid: int
    ended: Ended
    alive: bool | None
    crashes: int
    reading: tuple[BeingRead, ...]
    _header: Header = field(repr=False)
    _global_batch: int = field(repr=False)
    _tallies: Mapping[int, int] = field(repr=False)

    @property
    def ended_cleanly(self) -> bool:
        """Whether the process ended by itself and without an exception, or had no use for its loader any more."""
        return self.ended == "cleanly"

    @property
    def crashed(self) -> bool:
        """Whether the process ended in another way; that of another machine is taken to have ended."""
        return self.ended == "raised" or (self.ended == "running" and not self.alive)

    @property
    def delivered(self) -> int:
        """Global batches over all epochs that the training was given."""
        return self.global_step + (self.phase in {"training", "state"})

    @property
    def status(self) -> str:
        """How the process is, in a few words."""
        if self.ended != "running":
            return "ended cleanly" if self.ended == "cleanly" else "ended by an exception"
        return {True: "running", False: "killed", None: "on another machine"}[self.alive]

    @property
    def where(self) -> str:
        """The place, as a part of a sentence."""
        own = [f" sample {one.sample}" for one in self.reading if one.worker is None]
        return _WORDS[self.phase].format(epoch=self.epoch, step=self.step) + "".join(own)

    @property
    def samples(self) -> tuple[int, ...]:
        """The indices of the samples in `reading`."""
        return tuple(one.sample for one in self.reading)


def name_of_rank(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05}.flight"


def read_record(path: Path) -> FlightRecord:
    """Read the file of a rank.

    Raises:
        UnreadableError: it is no record, or damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(SIZE + 1)
    record = parse_record(content)
    if path.name != name_of_rank(record.rank):
        raise UnreadableError(f"it is the record of rank {record.rank}", foreign=True)
    return record


def parse_record(content: bytes) -> FlightRecord:
    """Read the content of a file.

    Raises:
        UnreadableError: it is no record, or damaged.
    """
    if not content.strip(b"\0"):
        raise UnreadableError("it is empty")
    if content.startswith(KIND) and not content.startswith(MAGIC):
        raise UnreadableError("it is of another version of resumable")
    if content[: len(MAGIC)] != MAGIC:
        raise UnreadableError("it is no record of a flight recorder", foreign=True)
    if len(content) != SIZE:
        raise UnreadableError(f"it has {'more' if len(content) > SIZE else len(content)} bytes instead of {SIZE}")
    try:
        return _record(parse_header(content), parse_slots(content), content)
    except (ValueError, LookupError, OverflowError) as error:
        raise UnreadableError(f"it is damaged: {error}") from error


def _record(header: Header, slots: list[Slot], content: bytes) -> FlightRecord:
    if not slots:
        raise ValueError("no batch in it matches its checksum")
    slot, saved = slots[0], word_at(content, SAVED)
    if slot.phase not in PHASES or word_at(content, END) not in ENDS:
        raise ValueError("it names no phase")
    phase, end = PHASES[slot.phase], ENDS[word_at(content, END)]
    return FlightRecord(
        rank=header.rank,
        world_size=header.world_size,
        phase=phase,
        epoch=slot.epoch,
        step=slot.step,
        position=slot.position,
        global_step=slot.global_step,
        saved=saved - 1 if saved else None,
        when=datetime.fromtimestamp(slot.time / 1e9, tz=UTC),
        pid=header.pid,
        ended=end,
        alive=is_alive(header.pid, header.started, header.host),
        crashes=header.crashes,
        reading=_reading(content, phase, end),
        _header=header,
        _global_batch=word_at(content, GLOBAL_BATCH),
        _tallies=parse_tallies(content),
    )


def _reading(content: bytes, phase: Phase, end: Ended) -> tuple[BeingRead, ...]:
    if end == "cleanly" or word_at(content, NO_READER):
        return ()
    first = phase != "reading"  # else it is the process itself that reads
    samples = [(reader, sample_of(word_at(content, READERS + reader))) for reader in range(first, MOST_READERS)]
    return tuple(BeingRead(reader - 1 if reader else None, sample) for reader, sample in samples if sample is not None)
