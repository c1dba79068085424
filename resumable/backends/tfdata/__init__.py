"""`tf.data` pipelines: `wrap(dataset)`, or `wrap(source(...))` for functions that build one and for options."""

try:
    import tensorflow as tf  # noqa: F401  # everything below needs it
except ImportError as error:
    from resumable._distribution import pip_install
    from resumable.errors import MissingDependencyError

    raise MissingDependencyError(
        f"tf.data pipelines need TensorFlow, but it cannot be imported.\nInstall it: {pip_install('tf')}"
    ) from error

from resumable.backends.tfdata.adapter import Source, adapt, refuse_iterators, source

__all__ = ["Source", "adapt", "refuse_iterators", "source"]
