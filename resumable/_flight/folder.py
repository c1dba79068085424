"""The records of all ranks."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from resumable._flight.records import PHASES, FlightRecord, UnreadableError, read_record
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["odd_ones", "read"]

_log = logging.getLogger("resumable")
_ORDER = list(PHASES.values())


def read(folder: str | os.PathLike[str]) -> list[FlightRecord]:
    """Read the records in a folder, also while their processes run. Nothing is changed.

    Args:
        folder: what was given to `wrap` as `flight_recorder`.

    Returns:
        One record per rank, by rank. A file that is damaged, or none of ours, is logged by name and left out.

    Raises:
        ConfigurationError: there is no such folder, or no record in it.
    """
    files = sorted(Path(folder).glob("rank-*.flight"))
    records = [record for record in map(_read, files) if record is not None]
    if not records:
        raise ConfigurationError(
            f"there is no record of a flight recorder in {folder}.\n"
            'It is the folder of wrap(..., flight_recorder="runs/flight"), and has a file for each rank from its first '
            "batch on, such as rank-00000.flight."
        )
    return sorted(records, key=lambda record: record.rank)


def odd_ones(records: Sequence[FlightRecord]) -> list[FlightRecord]:
    """Return the records of the ranks that are elsewhere than most: at another batch, in another phase, or ended.

    In a training that hangs, these are the ranks for which the others wait. Without a majority, they are those that are
    furthest back. Ranks of a run with another number of ranks, from before, are left out.

    Args:
        records: of all ranks, from `read`.
    """
    latest = max(records, key=lambda record: record.when).world_size if records else 0
    places = {record.rank: _place(record) for record in records if record.world_size == latest}
    if len(set(places.values())) <= 1:
        return []
    (common, count), *_ = Counter(places.values()).most_common()
    last = min(places.values())
    odd = {rank for rank, at in places.items() if (at != common if count * 2 > len(places) else at == last)}
    return [record for record in records if record.world_size == latest and record.rank in odd]


def _place(record: FlightRecord) -> tuple[int, int, int, str]:
    return record.epoch, record.step, _ORDER.index(record.phase), record.status


def _read(path: Path) -> FlightRecord | None:
    try:
        return read_record(path)
    except (UnreadableError, OSError) as error:
        _log.warning("flight recorder: the file %s is left out: %s.", path, error)
        return None
