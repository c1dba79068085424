"""PyTorch Lightning: a callback that makes a run resume at the exact batch, under both of its import names."""

from __future__ import annotations

from resumable.integrations.lightning.callback import ResumableCallback

__all__ = ["ResumableCallback"]
