"""Tries the likely cause: what still differs in a case if the part that it blames is left out of the comparison?

What a resume forgets spreads into model and optimizer, so that they differ, too. They were restored if they were equal
at the first step of the optimizer after the resume. Whatever has a sign of its own does not follow from the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable._content import split
from resumable.chaos.verify.causes import find_cause
from resumable.chaos.verify.roles import prefixes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable.chaos.verify.causes import Cause

__all__ = ["leave_out", "listed"]

# Of each sign that blames a part: what is looked at, at the first step of an optimizer after the resume.
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
    "first part": _BOTH,
}
_SUMMARIES = {"first part", "weights alone", "tensors"}  # of all that differs, which say nothing of a second cause


def leave_out(cause: Cause, signs: Mapping[str, str], first: Mapping[str, int], every: set[str]) -> str:
    """Say what still differs without the part that a cause blames.

    Args:
        cause: the likely one.
        signs: all that are there.
        first: the first step at which a part differs, by its path.
        every: paths of all parts.

    Returns:
        A sentence; empty where the cause is in the data, from which all else follows.
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
        return f"without {name}, everything is equal from step {step} on: {name} alone is not as in the baseline run"
    names = listed(list(dict.fromkeys(split(path)[0] for path in others)))
    needed = _NEEDED[sign]
    if all(f"equal {one}" in signs and f"other {one}" not in signs for one in needed):
        verb = "is" if needed == _OPTIMIZER else "are"
        return (
            f"without {name}, {listed(needed)} {verb} equal at the first step after the resume, so restored; "
            f"the later difference of {names} may follow from {name}"
        )
    return f"without {name}, {names} still differ, from step {min(others.values())} on"


def _blamed(sign: str, signs: Mapping[str, str], every: set[str]) -> tuple[str, tuple[str, ...]]:
    """Return the name of the part that a sign blames, and the beginnings of the paths in it."""
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
    """Join names by commas and an "and"; of many, the first ones and how many more there are."""
    if len(names) > _MOST:
        names = [*names[: _MOST - 1], f"{len(names) - _MOST + 1} more"]
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]
