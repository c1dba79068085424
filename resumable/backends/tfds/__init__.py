"""TensorFlow Datasets, read by index: any sample of a split, in any order, with and without TensorFlow."""

from resumable.backends.tfds.opening import adapt, source
from resumable.backends.tfds.source import GuardedSource, TfdsSource

__all__ = ["GuardedSource", "TfdsSource", "adapt", "source"]
