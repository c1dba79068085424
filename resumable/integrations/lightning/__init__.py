"""PyTorch Lightning, under both of its import names: a callback for exact resumes, and a plugin for whole files."""

from __future__ import annotations

from resumable.integrations.lightning.callback import ResumableCallback
from resumable.integrations.lightning.checked import CheckedCheckpointIO

__all__ = ["CheckedCheckpointIO", "ResumableCallback"]
