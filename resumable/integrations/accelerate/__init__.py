"""Hugging Face Accelerate: a Loader that is prepared as `prepare` does a DataLoader, and resumes exactly."""

from __future__ import annotations

from resumable.integrations.accelerate.accelerate_state import last_whole_checkpoint
from resumable.integrations.accelerate.prepared import PreparedLoader, prepare

__all__ = ["PreparedLoader", "last_whole_checkpoint", "prepare"]
