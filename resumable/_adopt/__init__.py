"""Adopting a job that runs under torch alone, torchdata or Lightning: its place is found, and shown to be the same."""

from resumable._adopt.adopting import adopt
from resumable._adopt.proof import Adoption

__all__ = ["Adoption", "adopt"]
