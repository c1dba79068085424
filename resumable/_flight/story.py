"""What is told of the process before this one: where it crashed, and how many steps are trained again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._flight.layout import word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable._flight.records import FlightRecord

__all__ = ["Crashes", "count_crashes", "count_samples", "tell"]

Crashes = tuple[int, int, int, int, int]  # how many in a row; epoch, step, position and phase of the batch
_MANY = 3  # crashes in a row at one batch, or one sample, that are no chance
_SHOWN = 16  # samples
_WAY_OUT = (
    "leave it out with sampler=resumable.samplers.Subset, and load_state_dict(state, strict=False), as the order "
    "changes."
)


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


def count_samples(earlier: FlightRecord) -> dict[int, int]:
    """Count the crashes in a row at which a sample was read, up to the end of a process; for those that were read then.

    Workers read ahead, so the batch at which the process crashes may be another one each time.
    """
    known = earlier._tallies  # noqa: SLF001  # as above
    if not earlier.crashed:
        return {}
    if earlier.phase == "opened":
        return dict(known)
    return {sample: known.get(sample, 0) + 1 for sample in earlier.samples}


def tell(
    earlier: FlightRecord, crashes: int, tallies: Mapping[int, int], loaded: int | None, samples: Sequence[int]
) -> str:
    """Say how the process before this one ended, in a line or more.

    Args:
        earlier: its record.
        crashes: how many in a row there were at this batch.
        tallies: how many in a row there were at each sample that was read.
        loaded: global step of the state that was loaded; None without one.
        samples: those of the batch; none where there is no batch, or they have no indices.
    """
    how = {"cleanly": "ended cleanly", "raised": "was ended by an exception", "running": "crashed"}[earlier.ended]
    lines = [
        f"flight recorder: the process before this one (rank {earlier.rank}, pid {earlier.pid}) {how} {earlier.where}; "
        + _again(earlier, loaded)
    ]
    if not earlier.crashed:
        return lines[0]
    if samples:
        lines.append(f"  samples of that batch: {_list(samples)}")
    lines += [
        f"  worker {one.worker} was reading sample {one.sample}" for one in earlier.reading if one.worker is not None
    ]
    if earlier.phase != "opened" and (most := max(tallies.values(), default=0)) >= _MANY:
        suspects = [sample for sample, count in tallies.items() if count == most]
        lines.append(_poisonous(most, suspects, awaited=earlier.phase in {"reading", "waiting"}))
    elif earlier.phase != "opened" and crashes >= _MANY:
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
        f"them one by one, each in a process of its own. Mend the sample; or {_WAY_OUT}"
    )


def _poisonous(crashes: int, samples: Sequence[int], *, awaited: bool) -> str:
    surely = "is likely" if awaited else "may be"
    if len(samples) == 1:
        return (
            f"  These are {crashes} crashes in a row while sample {samples[0]} was read, so it {surely} what crashes. "
            f"Read it in a process of its own. Mend it; or {_WAY_OUT}"
        )
    return (
        f"  These are {crashes} crashes in a row while the samples {_list(samples)} were read, so one of them "
        f"{surely} what crashes. Read them one by one, each in a process of its own. Mend the sample; or {_WAY_OUT}"
    )
