"""Hugging Face Accelerate: prepares a Loader like a DataLoader, for exact resumes."""

from __future__ import annotations

from resumable.integrations.accelerate.accelerate_state import last_whole_checkpoint
from resumable.integrations.accelerate.prepared import PreparedLoader, prepare

__all__ = ["PreparedLoader", "last_whole_checkpoint", "prepare"]
