"""What ranks have to agree on: where they go on from, and what each of them is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.chaos.recorder.logs import RankLog
from resumable.chaos.verify.history import is_resized
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.chaos.plan import Case
    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.recorder.logs import Place

__all__ = ["apart", "check_restarts", "ranks_agree", "same_shares"]


def ranks_agree(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """All ranks of a start go on from the same place."""
    return next((f"in start {attempt.number}, {text}" for attempt in attempts for text in apart(attempt)), "")


def apart(attempt: Attempt) -> Iterator[str]:
    """Say which ranks of a start went on from other places than the first one, in words.

    A rank that was killed before it had come as far as to load, or to be delivered a batch, is not compared.
    """
    first, *others = [log for _, log in sorted(attempt.ranks.items())] or [RankLog(0, 1)]
    for other in others:
        for loader in sorted(first.begun.keys() & other.begun.keys()):
            for one, two in zip(_places(first, loader), _places(other, loader), strict=False):
                if one != two:
                    yield f"{_name(other, two)}, and {_name(first, one)}, of loader {loader}"


def _places(log: RankLog, loader: int) -> list[Place]:
    """Return where a loader went by states; where it began, if this rank has loaded none."""
    return log.went.get(loader, []) if log.went else [log.begun[loader]]


def _name(log: RankLog, place: Place) -> str:
    return f"rank {log.rank} {'resumed from' if log.went else 'began at'} {place}"


def same_shares(baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Say which rank was delivered another share of a step than in the baseline run, acknowledged or not."""
    for attempt in attempts:
        for rank, log in attempt.ranks.items() if not is_resized(attempt, baseline) else ():
            expected = baseline.ranks[rank].batches if rank in baseline.ranks else {}
            for (loader, place), batch in log.batches.items():
                if (loader, place) in expected and batch != expected[loader, place]:
                    where = f"epoch {place.epoch}, step {place.step - 1}" + (f" of loader {loader}" if loader else "")
                    return f"rank {rank} of start {attempt.number} was delivered another batch in {where}"
    return ""


def check_restarts(before: Sequence[Attempt]) -> None:
    """See that an agent had no need to start its ranks again in a baseline run.

    Args:
        before: the starts of the ranks before the last one.

    Raises:
        ConfigurationError: it did.
    """
    if before:
        raise ConfigurationError(
            f"the ranks fail without any fault: their agent started them again {len(before)} times.\nNothing can be "
            "learnt from crashing them. Run the command by itself, with --max-restarts=0, and see why."
        )
