"""What is told of the process before this one: where it crashed, and how many steps are trained again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._flight.layout import word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable._flight.records import FlightRecord

__all__ = ["Crashes", "count_crashes", "tell"]

Crashes = tuple[int, int, int, int, int]  # how many in a row; epoch, step, position and phase of the batch
_MANY = 3  # crashes in a row at one batch, that are no chance
_SHOWN = 16  # samples


def count_crashes(earlier: FlightRecord) -> Crashes:
    """Count the crashes in a row up to the end of a process.

    One before its first batch says nothing of a batch, and is left out.
    """
    before = earlier._header  # noqa: SLF001  # of the same package, and no use to others
    known = before.crashes, before.epoch, before.step, before.position, before.phase
    if not earlier.crashed:
        return 0, 0, 0, 0, 0
    if earlier.phase == "opened":
        return known
    at = earlier.epoch, earlier.step, earlier.position, word(earlier.phase)
    return known[0] + 1 if known[0] and at == known[1:] else 1, *at


def tell(earlier: FlightRecord, crashes: int, loaded: int | None, samples: Sequence[int]) -> str:
    """Say how the process before this one ended, in a line or more.

    Args:
        earlier: its record.
        crashes: how many in a row there were at this batch.
        loaded: global step of the state that was loaded; None without one.
        samples: those of the batch; none where there is no batch, or they have no indices.
    """
    how = {"cleanly": "ended cleanly", "raised": "was ended by an exception", "running": "crashed"}[earlier.ended]
    lines = [
        f"flight recorder: the process before this one (rank {earlier.rank}, pid {earlier.pid}) {how} {earlier.where}; "
        + _again(earlier, loaded)
    ]
    if earlier.crashed and samples:
        lines.append(f"  samples of that batch: {_list(samples)}")
    if earlier.crashed and crashes >= _MANY and earlier.phase != "opened":
        lines.append(_poison(crashes, samples, ahead=earlier.phase == "waiting"))
    return "\n".join(lines)


def _again(earlier: FlightRecord, loaded: int | None) -> str:
    steps = max(0, earlier.delivered - (loaded or 0))
    again = f"{steps} steps are" if steps != 1 else "1 step is"
    since = "no state was loaded" if loaded is None else f"a state of global step {loaded} was loaded"
    later = earlier.saved is not None and earlier.saved > (loaded or 0)
    last = f" (the last one was taken at {earlier.saved})" if later else ""
    return f"{since}{last}: {again} trained again."


def _list(samples: Sequence[int]) -> str:
    more = f" and {len(samples) - _SHOWN} more" if len(samples) > _SHOWN else ""
    return ", ".join(map(str, samples[:_SHOWN])) + more


def _poison(crashes: int, samples: Sequence[int], *, ahead: bool) -> str:
    later = " Workers read ahead, so it may also be one of the next batches." if ahead else ""
    if not samples:
        return f"  These are {crashes} crashes in a row at this batch. Look at what the source reads there.{later}"
    return (
        f"  These are {crashes} crashes in a row at this batch, so one of its samples may be what crashes.{later} Read "
        "them one by one, each in a process of its own. Mend the sample; or leave it out with "
        "sampler=resumable.samplers.Subset, and load_state_dict(state, strict=False), as the order changes."
    )
