"""TensorFlow Datasets, read by index: any sample of a split, in any order, with and without TensorFlow."""

from resumable.backends.tfds.opening import adapt, guard, source
from resumable.backends.tfds.source import TfdsSource

__all__ = ["TfdsSource", "adapt", "guard", "source"]
