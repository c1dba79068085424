"""FFCV Loaders: exact O(1) resume on any number of ranks, and the same augmentation in every run."""

from resumable.backends.ffcv.adapter import adapt
from resumable.backends.ffcv.identity import Source, source

__all__ = ["Source", "adapt", "source"]
