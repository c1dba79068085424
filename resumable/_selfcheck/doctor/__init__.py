"""Looks at the machine, what is installed and the environment, and names what breaks a promise."""

from __future__ import annotations

from resumable._selfcheck.doctor.report import Health, Trap, doctor

__all__ = ["Health", "Trap", "doctor"]
