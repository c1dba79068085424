"""TensorFlow Datasets, read by index: any sample of a split, in any order, with and without TensorFlow."""

from resumable.backends.tfds.adapter import adapt, guard
from resumable.backends.tfds.opening import source
from resumable.backends.tfds.source import TfdsSource

__all__ = ["TfdsSource", "adapt", "guard", "source"]
