"""What a part of a checkpoint is, by what is beside it: schedulers, scalers and optimizers name their parts alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["counters_of", "first_of", "prefixes"]

# The role, a name that only such a state has, and the parts of it that depend on nothing but the number of its steps.
_ROLES = {
    "optimizer": ("param_groups", ()),
    "scheduler": ("last_epoch", ("last_epoch", "_step_count")),
    "scaler": ("_growth_tracker", ("_growth_tracker", "scale")),
    "generators": ("numpy", ()),
}
_WHOLE = re.compile(r"-?\d+( u?int\d+)?")


def prefixes(paths: Iterable[str], role: str) -> dict[str, tuple[str, ...]]:
    """Return where the states of a role are, each with its own counters."""
    mark, own = _ROLES[role]
    found = {path.split(f".{mark}")[0] for path in paths if re.search(rf"\.{mark}(\.|$)", path)}
    return {prefix: tuple(f"{prefix}.{name}" for name in own) for prefix in sorted(found)}


def first_of(differing: set[str], states: dict[str, tuple[str, ...]]) -> str:
    """Return the first counter of these states that differs, or nothing."""
    return next((path for counters in states.values() for path in counters if path in differing), "")


def counters_of(paths: Iterable[str], found: Mapping[str, str]) -> set[str]:
    """Return those of the parts that are whole numbers, outside of the states whose roles are known."""
    known = [prefix for role in _ROLES for prefix in prefixes(paths, role)]
    return {
        path
        for path, text in found.items()
        if _WHOLE.fullmatch(text) and not any(path.startswith(f"{prefix}.") for prefix in known)
    }
