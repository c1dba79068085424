"""What `resumable doctor` found, as values and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from resumable._selfcheck.doctor.environment import look_at_processes, look_at_ranks, look_at_variables
from resumable._selfcheck.doctor.findings import Findings, Trap
from resumable._selfcheck.doctor.packages import look_at_packages
from resumable._selfcheck.doctor.storage import look_at_store
from resumable._selfcheck.report import WIDTH, indented

__all__ = ["Health", "Trap", "doctor"]


@dataclass(frozen=True, slots=True)
class Health:
    """What was found.

    Args:
        known: by name, in order.
        traps: what goes wrong, or may.
    """

    known: dict[str, str]
    traps: tuple[Trap, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing breaks a promise."""
        return not any(trap.breaks for trap in self.traps)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        width = max(map(len, self.known))
        lines = [_fold(f"{name:<{width}}  ", value) for name, value in self.known.items()]
        traps = [f"{'TRAP' if trap.breaks else 'note'}: {trap.what}" for trap in self.traps]
        end = "Nothing found that breaks a promise." if self.ok else "A promise would break: see TRAP above."
        return "\n\n".join(["\n".join(lines), *("\n".join(indented(trap, "")) for trap in traps), end])


def _fold(name: str, value: str) -> str:
    """Put a value beside its name, in as many lines as it needs."""
    lines = wrap(value, WIDTH - len(name), break_on_hyphens=False) or [""]
    return "\n".join((name if number == 0 else " " * len(name)) + line for number, line in enumerate(lines))


def doctor(store: str | None = None) -> Health:
    """Look at everything.

    Args:
        store: folder in which checkpoints are to be saved; None where that is not asked for.

    Raises:
        ConfigurationError: the store cannot be looked at, as it is a file.
    """
    found = Findings()
    look_at_packages(found)
    look_at_ranks(found)
    look_at_processes(found)
    look_at_variables(found)
    if store is not None:
        look_at_store(found, store)
    return Health(found.known, tuple(found.traps))
