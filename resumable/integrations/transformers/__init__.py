"""Hugging Face transformers: a `Trainer` whose `resume_from_checkpoint` is exact, to the micro-batch."""

from __future__ import annotations

from resumable.integrations.transformers.checkpoints import last_whole_checkpoint
from resumable.integrations.transformers.preparing import prepare
from resumable.integrations.transformers.train_loader import TrainLoader

__all__ = ["TrainLoader", "last_whole_checkpoint", "prepare"]
