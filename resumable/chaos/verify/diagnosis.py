"""Says of a case in which a promise was broken what differs, what is equal, and what the cause may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resumable._content import split, topmost
from resumable.chaos.verify.causes import find_cause
from resumable.chaos.verify.files import describe_files
from resumable.chaos.verify.parts import compared
from resumable.chaos.verify.signs import find_signs
from resumable.chaos.verify.trial import leave_out, listed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["Diagnosis", "diagnose"]

_DATA = {"same content", "whole history", "each sample once"}


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a broken case.

    Args:
        cause: its name, of `causes.py`; empty where none is known.
        text: the cause in one sentence, after what differs.
        trial: what is left of the differences without the part that the cause blames, in one sentence.
        differing: parts of checkpoints that differ, each with the first step at which it does.
        equal: parts that are equal in all checkpoints.
        values: of parts that are plain values, and differ: what they are, and what they are in the baseline run.
        files: those left at the end that differ, each with its parts that do.
    """

    cause: str = ""
    text: str = ""
    trial: str = ""
    differing: dict[str, int] = field(default_factory=dict)
    equal: list[str] = field(default_factory=list)
    values: dict[str, tuple[str, str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        told = {"cause": self.cause, "text": self.text, "trial": self.trial}
        return {**told, "differing": self.differing, "equal": self.equal, "files": self.files}


def diagnose(baseline: Attempt, attempts: Sequence[Attempt], violations: Mapping[str, str]) -> Diagnosis:
    """Look for the cause of what broke the promises of a case."""
    if not violations:
        return Diagnosis()
    first, values, every = _first_steps(baseline, attempts)
    differing = {path: min(first[inner] for inner in first if _is_in(inner, path)) for path in topmost(first, every)}
    equal = sorted(topmost(every - first.keys(), every), key=lambda path: (len(split(path)), path))
    signs = find_signs(baseline, attempts, violations)
    cause = find_cause(signs)
    name, text = (cause.name, cause.text) if cause else ("", "")
    names, files = describe_files(baseline, attempts) if "same files" in violations else ([], [])
    seen = [_describe_data(violations), *_describe_parts(differing), *_describe_names(names)]
    trial = leave_out(cause, signs, first, every) if cause else ""
    return Diagnosis(name, f"{'; '.join(seen)}; {text}" if text else "", trial, differing, equal, values, files)


def _first_steps(
    baseline: Attempt, attempts: Sequence[Attempt]
) -> tuple[dict[str, int], dict[str, tuple[str, str]], set[str]]:
    first: dict[str, int] = {}
    values: dict[str, tuple[str, str]] = {}
    every: set[str] = set()
    for one in compared(baseline, attempts):
        every |= set().union(*one.expected)
        for path in one.differing:
            if one.step < first.get(path, one.step + 1):
                first[path] = one.step
                texts = (one.found.get(path, "nothing"), one.expected[0].get(path, "nothing"))
                if not any(": " in text for text in texts):
                    values[path] = texts
    return first, values, every


def _is_in(inner: str, path: str) -> bool:
    return inner == path or inner.startswith(f"{path}.")


def _describe_data(violations: Mapping[str, str]) -> str:
    return "data differ" if _DATA & violations.keys() else "data equal"


def _describe_parts(differing: Mapping[str, int]) -> list[str]:
    names = list(dict.fromkeys(split(path)[0] for path in differing))
    if not names:
        return []
    return [f"{listed(names)} differ{'s' * (len(names) == 1)} from step {min(differing.values())} on"]


def _describe_names(files: Sequence[str]) -> list[str]:
    return [f"{listed(files)} differ{'s' * (len(files) == 1)}"] if files else []
