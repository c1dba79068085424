"""Describes a case with a broken promise: what differs, what is equal, and the likely cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resumable._content import split, topmost
from resumable.chaos.verify.causes import find_cause, find_signs
from resumable.chaos.verify.files import describe_files
from resumable.chaos.verify.history import compared, prefixes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.chaos.ledger import Attempt
    from resumable.chaos.verify.causes import Cause


__all__ = ["Diagnosis", "diagnose", "listed"]


_DATA = {"same content", "whole history", "each sample once"}


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a broken case.

    Args:
        cause: its name, from `causes.py`; empty if none is known.
        text: the differences and the cause, in one sentence.
        trial: the differences that remain without the part that the cause blames, in one sentence.
        differing: parts of checkpoints that differ, with the first step of each difference.
        equal: parts that are equal in all checkpoints.
        values: for plain values that differ: the value found and the value in the baseline run.
        files: files at the end that differ, with the parts that differ.
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
    """Find the cause of the broken promises of a case."""
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


# Tests the likely cause: what still differs if the part that it blames is left out of the comparison?
#
# A part that is not restored changes model and optimizer, so they differ as well. They were restored if they were equal
# at the first step of the optimizer after the resume. A part with independent evidence is reported as a second cause.

# For each sign that blames a part: what must be equal at the first step of an optimizer after the resume.
_MOST = 6  # names in a sentence
_OPTIMIZER = ("optimizer",)
_BOTH = ("weights", *_OPTIMIZER)
_NEEDED = {
    "other weights": _OPTIMIZER,
    "other optimizer": ("weights",),
    "scheduler": _BOTH,
    "scaler": _BOTH,
    "generators": _BOTH,
    "counter": _BOTH,
    "entry missing": _BOTH,
    "entry added": _BOTH,
    "first part": _BOTH,
}
_SUMMARIES = {
    "first part",
    "first parts",
    "weights alone",
    "tensors",
}  # summaries, which do not prove a second cause


def leave_out(cause: Cause, signs: Mapping[str, str], first: Mapping[str, int], every: set[str]) -> str:
    """Describe what still differs without the part that a cause blames.

    Args:
        cause: the likely one.
        signs: all signs.
        first: from the path of a part to the first step at which it differs.
        every: paths of all parts.

    Returns:
        A sentence; empty if the cause is in the data, which explains all other differences.
    """
    sign = next(iter(cause.signs))
    if sign not in _NEEDED:
        return ""
    name, below = _blamed(sign, signs, every)
    others = {path: step for path, step in first.items() if not path.startswith(below) and path != name}
    second = find_cause({key: seen for key, seen in signs.items() if key not in {sign, *_SUMMARIES}})
    if second is not None and second.name != cause.name:
        return f"without {name}, something still differs: {second.text}"
    step = min(first.values(), default=0)
    if not others:
        return f"without {name}, everything is equal from step {step} on: only {name} differs from the baseline run"
    names = listed(list(dict.fromkeys(split(path)[0] for path in others)))
    needed = _NEEDED[sign]
    if all(f"equal {one}" in signs and f"other {one}" not in signs for one in needed):
        verb = "is" if needed == _OPTIMIZER else "are"
        return (
            f"without {name}, {listed(needed)} {verb} equal at the first step after the resume, so restored; "
            f"the later differences of {names} may result from {name}"
        )
    return f"without {name}, {names} still differ, from step {min(others.values())} on"


def _blamed(sign: str, signs: Mapping[str, str], every: set[str]) -> tuple[str, tuple[str, ...]]:
    """Return the name of the part that a sign blames, and the prefixes of its paths."""
    if sign == "other weights":
        return "the model", ("model.",)
    role = {"other optimizer": "optimizer", "generators": "generators"}.get(sign)
    if role:
        found = tuple(prefixes(every, role)) or (role,)
    elif sign in {"scheduler", "scaler"}:
        found = (".".join(split(signs[sign])[:-1]),)
    else:
        found = (signs[sign],)
    return listed(list(found)), tuple(f"{prefix}." for prefix in found)


def listed(names: Sequence[str]) -> str:
    """Join names with commas and "and"; long lists are shortened."""
    if len(names) > _MOST:
        names = [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]
