"""What a look at something gives."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Findings", "Trap"]


@dataclass(frozen=True, slots=True)
class Trap:
    """Something that goes wrong, or may.

    Args:
        what: it is, and what to do.
        breaks: a promise; else it is only good to know.
    """

    what: str
    breaks: bool


@dataclass(slots=True)
class Findings:
    """What is known, by name, and traps.

    Args:
        known: versions, limits and the like.
        traps: those that were found.
    """

    known: dict[str, str] = field(default_factory=dict)
    traps: list[Trap] = field(default_factory=list)

    def breaks(self, what: str) -> None:
        """Note what breaks a promise."""
        self.traps.append(Trap(what, breaks=True))

    def mind(self, what: str) -> None:
        """Note what is good to know."""
        self.traps.append(Trap(what, breaks=False))
