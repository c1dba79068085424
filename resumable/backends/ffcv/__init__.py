"""FFCV Loaders: exact resume at O(1), on any number of ranks, and augmentation that is the same in every run."""

from resumable.backends.ffcv.adapter import adapt
from resumable.backends.ffcv.identity import Source, source

__all__ = ["Source", "adapt", "source"]
