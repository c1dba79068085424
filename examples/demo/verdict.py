"""Compares a run that was killed and resumed with a baseline run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .attempt import Attempt, Trained

__all__ = ["Verdict", "compare", "count_retrained", "effective_history"]


@dataclass(frozen=True)
class Verdict:
    """The differences, in words; empty strings if there are none.

    Args:
        kills: kills that did not happen, and resumes from a checkpoint other than the last.
        stream: batches that are missing, or differ from the baseline run.
        evaluations: evaluations that are missing, repeated, or differ.
        weights: final weights that are not bit-identical.
    """

    kills: str
    stream: str
    evaluations: str
    weights: str

    @property
    def identical(self) -> bool:
        """Whether nothing differs, and all kills happened."""
        return not any((self.kills, self.stream, self.evaluations, self.weights))

    def differences(self) -> list[str]:
        """Return the texts that are not empty."""
        return [text for text in (self.kills, self.stream, self.evaluations, self.weights) if text]


def compare(baseline: Attempt, attempts: Sequence[Attempt], planned: int) -> Verdict:
    """Compare the attempts of a killed run with a baseline run.

    Args:
        baseline: the attempt of a run without kills.
        attempts: the processes of a run with kills, in order.
        planned: number of kills that were planned.
    """
    return Verdict(
        kills=_check_kills(attempts, planned) or _check_resumes(attempts),
        stream=_check_stream(baseline, attempts) or _check_retrained(attempts),
        evaluations=_check_evaluations(baseline, attempts) or _check_scores(baseline, attempts[-1]),
        weights=_check_weights(baseline, attempts[-1]),
    )


def effective_history(attempts: Sequence[Attempt]) -> dict[int, Trained]:
    """Return, by count, the batches in the final weights: for each, what its last attempt trained on."""
    history: dict[int, Trained] = {}
    for attempt in attempts:
        history = {count: trained for count, trained in history.items() if count <= attempt.resumed} | attempt.batches
    return history


def count_retrained(attempts: Sequence[Attempt]) -> int:
    """Count the batches after the last checkpoint before a kill, which were trained on again."""
    return sum(len(attempt.batches) for attempt in attempts) - len({count for one in attempts for count in one.batches})


def _check_kills(attempts: Sequence[Attempt], planned: int) -> str:
    fired = sum(not attempt.ended for attempt in attempts)
    if fired == planned:
        return ""
    return f"kills: {planned} were planned, but only {fired} happened before the run finished"


def _check_resumes(attempts: Sequence[Attempt]) -> str:
    saved = 0
    for number, attempt in enumerate(attempts):
        if attempt.resumed < saved:
            return f"kills: attempt {number} started after batch {attempt.resumed}, but batch {saved} had been saved"
        saved = max([saved, *attempt.saves])
    return ""


def _check_stream(baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    history = effective_history(attempts)
    return _describe("stream: batch", "the baseline run", baseline.batches, "the resumed run", history)


def _check_retrained(attempts: Sequence[Attempt]) -> str:
    """Verify that a batch is the same in all attempts, even if a later one would hide the difference."""
    first: dict[int, Trained] = {}
    for number, attempt in enumerate(attempts):
        again = {count: trained for count, trained in attempt.batches.items() if count in first}
        known = {count: first[count] for count in again}
        if text := _describe("stream: batch", "the previous attempt", known, f"attempt {number}", again):
            return text
        first |= attempt.batches
    return ""


def _check_evaluations(baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    expected = {score["epoch"]: score for score in baseline.evaluations}
    for number, attempt in enumerate(attempts):
        found = {score["epoch"]: score for score in attempt.evaluations}
        known = {epoch: score for epoch, score in expected.items() if epoch in found}
        if text := _describe("evaluations: epoch", "the baseline run", known, f"attempt {number}", found):
            return text
    return ""


def _check_scores(baseline: Attempt, final: Attempt) -> str:
    """Verify that the checkpoints contain each evaluation once: a resume skipped and repeated none."""
    expected, found = ([score["epoch"] for score in attempt.scores] for attempt in (baseline, final))
    if expected != found:
        return f"evaluations: of the epochs {found} in the resumed run, but of {expected} in the baseline run"
    return "" if baseline.scores == final.scores else "evaluations: the ones in the checkpoints differ"


def _check_weights(baseline: Attempt, final: Attempt) -> str:
    if final.weights == baseline.weights is not None:
        return ""
    return f"weights: {final.weights} in the resumed run, but {baseline.weights} in the baseline run"


def _describe(what: str, here: str, expected: Mapping[int, Any], there: str, found: Mapping[int, Any]) -> str:
    """Describe where two records first differ, and how often."""
    differing = list(_differing(expected, found))
    if not differing:
        return ""
    first = differing[0]
    return (
        f"{what} {first} is the first of {len(differing)} that differ: {found.get(first, 'missing')} in {there}, but "
        f"{expected.get(first, 'missing')} in {here}"
    )


def _differing(expected: Mapping[int, Any], found: Mapping[int, Any]) -> Iterator[int]:
    for key in sorted(expected.keys() | found.keys()):
        if key not in expected or key not in found or expected[key] != found[key]:
            yield key
