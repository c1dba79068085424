"""What the baseline runs of a command have to show, so that crashing it can prove something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.recorder.logs import RankLog

__all__ = ["check_healthy", "check_seen", "note_outside"]


def check_healthy(attempt: Attempt, directory: Path) -> None:
    """See that a baseline run came to its end, and trained.

    Raises:
        ConfigurationError: it did not; the message says what it did.
    """
    if attempt.status != 0 or attempt.killed:
        how = attempt.killed or f"its exit status is {attempt.status}"
        raise ConfigurationError(
            f"the command fails without any fault: {how}.\nNothing can be learnt from crashing it. It ran in "
            f"{directory}/work, unless {{dir}} is in the command{_redirected(attempt)}; its last words:\n"
            f"{attempt.output}"
        )
    if not any(log.batches for log in attempt.ranks.values()):
        raise ConfigurationError(_why_nothing_was_trained(attempt))


def _redirected(attempt: Attempt) -> str:
    if not attempt.written:
        return ""
    return (
        f". What it wrote to {', '.join(topmost(attempt.written))} was redirected into the run's directory, where "
        "programs and libraries that are no Python do not look for it"
    )


def _why_nothing_was_trained(attempt: Attempt) -> str:
    logs = attempt.ranks.values()
    said = "the command trained on no batch of a resumable loader"
    if not any(log.wrapped for log in logs):
        return (
            f"{said}.\nThere is nothing to watch. Wrap its loader with resumable.wrap(...), and run this with the "
            "Python that has resumable installed."
        )
    if attempt.read or any(log.loaded for log in logs):
        of = f", from {', '.join(sorted(attempt.read))}" if attempt.read else ""
        return (
            f"{said}: it resumed a finished run{of}.\nNothing is left to be broken. Give the checkpoints a relative "
            "path, which leads to a fresh directory, or {dir}; or let it train for more epochs."
        )
    return (
        f"{said}, though it made one.\nThere is nothing to watch. Let the script train: it may have found by other "
        "means than a loader's state that all epochs are done, or trained on what was wrapped and not on the Loader."
    )


def check_seen(leader: RankLog, ranks: tuple[int, ...]) -> list[str]:
    """Say what of a crash's damage these runs cannot show.

    Raises:
        ConfigurationError: they can show none.
    """
    passed, notes = set(leader.points), []
    takes, shows = (
        passed & {"loader.state", "lightning.save"},
        passed & {"store.save", "torch.save.written", "lightning.end", "chaos.weights"},
    )
    if not takes and not shows:
        raise ConfigurationError(
            "the command never takes the state of its loader.\nEvery start would begin with the first batch, and what "
            "earlier starts left in the weights would be trained on twice, which nothing here could see. Save "
            "loader.state_dict() with the model, and load it with the model."
        )
    if not takes:
        notes.append(
            "the state of no loader was ever taken, so that every start begins with the first batch: a script that "
            "saves its weights has to save loader.state_dict() with them"
        )
    if leader.lost:
        notes.append(
            "weights are NaN throughout in the baseline run, and then they are the same whatever was lost: let the "
            "script train with a smaller learning rate"
        )
    if len(set(ranks)) > 1:
        notes.append(
            "after a change of the number of ranks the weights are not compared, as sums are rounded in another order"
        )
    return notes


def note_outside(written: set[str], read: set[str]) -> list[str]:
    """Say what a command wrote and read outside of its directory."""
    return [
        *(f"written outside of the run's directory, and redirected into it: {path}" for path in topmost(written)),
        *(f"read from outside of the run's directory: {path}" for path in sorted(read)),
    ]


def topmost(paths: set[str]) -> list[str]:
    """Return the paths that are below no other one, in order."""
    return sorted(
        path for path in paths if not any(path.startswith(f"{other.rstrip('/')}/") for other in paths - {path})
    )
