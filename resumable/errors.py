"""Every error and warning that `resumable` raises.

ResumableError
├── ConfigurationError (ValueError)      options that cannot work; found in `wrap` or once the ranks are known
│   ├── UnevenBatchError                 a step has fewer samples than ranks, or the streams do not divide evenly
│   └── UnsupportedError (TypeError)     this object cannot be wrapped, or a promise cannot be kept for it
│       └── LoopError                    a second loop over a Loader would take batches from an open loop
├── MissingDependencyError (ImportError) a package that is needed is not installed, or too old
├── StateError
│   ├── StateFormatError (ValueError)    not a state, truncated, or from a newer version
│   └── StateMismatchError (ValueError)  the state has different data, a different order or different options
├── DataError (RuntimeError)
│   ├── SampleError                      the data that was read is not a sample, or ends inside one
│   ├── WorkerError                      a worker process died or could not be started
│   ├── OnePassError                     a second pass over a source that can be read only once
│   └── BackendError                     a backend broke its protocol
├── RankError (RuntimeError)
│   ├── RankMismatchError                the ranks differ in data, order, options or position
│   └── RankFailedError                  another rank raised; the message contains its number and error
├── PreemptionError (RuntimeError)       a rank has passed the step at which all ranks stop
└── CheckpointError (RuntimeError)
    ├── CheckpointNotFoundError          no committed checkpoint of that step
    ├── CheckpointTimeoutError (TimeoutError)  storage or another rank did not answer in time
    ├── CorruptCheckpointError           a checkpoint does not match its checksum
    └── WriterFencedError                a newer process has become the writer of the store

UserWarning
├── PromiseWarning                       a promise does not hold for the wrapped object
├── StateMismatchWarning                 a mismatch accepted by `load_state_dict(..., strict=False)`
├── LoopWarning                          a loop over a Loader trains other epochs or batches than it seems to
├── CorruptCheckpointWarning             `CheckpointStore.latest()` skipped a checkpoint
├── ShuffleWarning                       the shuffle windows are too small for the batch
├── StepOrderWarning                     a checkpoint is saved that `CheckpointStore.latest()` does not return
└── ChaosWarning                         the environment refers to a chaos run that does not exist
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "ChaosWarning",
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointTimeoutError",
    "ConfigurationError",
    "CorruptCheckpointError",
    "CorruptCheckpointWarning",
    "DataError",
    "LoopError",
    "LoopWarning",
    "MissingDependencyError",
    "OnePassError",
    "PreemptionError",
    "PromiseWarning",
    "RankError",
    "RankFailedError",
    "RankMismatchError",
    "ResumableError",
    "SampleError",
    "ShuffleWarning",
    "StateError",
    "StateFormatError",
    "StateMismatchError",
    "StateMismatchWarning",
    "StepOrderWarning",
    "UnevenBatchError",
    "UnsupportedError",
    "WorkerError",
    "WriterFencedError",
]


class ResumableError(Exception):
    """Base of every error of this package."""


class ConfigurationError(ResumableError, ValueError):
    """Options that cannot work together, or cannot work with this data."""


class UnevenBatchError(ConfigurationError):
    """A step has fewer samples than ranks, or the logical streams do not divide evenly among the ranks."""


class UnsupportedError(ConfigurationError, TypeError):
    """This object cannot be wrapped, or a promise cannot be kept for it."""


class LoopError(UnsupportedError):
    """A loop over a Loader would take batches from an open loop, or get none because its epoch has ended."""


class MissingDependencyError(ResumableError, ImportError):
    """A package that is needed is not installed, or too old; the message contains the install command."""


class StateError(ResumableError):
    """Base of the errors about a state passed to `load_state_dict`."""


class StateFormatError(StateError, ValueError):
    """The object is not a state, is truncated, or is from a newer version of this package."""


class StateMismatchError(StateError, ValueError):
    """The state was saved with different data, a different order or different options."""


class DataError(ResumableError, RuntimeError):
    """Base of the errors that occur while data is read."""


class SampleError(DataError):
    """A sample could not be made, without an exception from the user's code to raise.

    Exceptions from a dataset, a transform or a `collate_fn` are raised unchanged, with a note that identifies the
    sample. Only a `StopIteration` becomes a `SampleError`, because it would end the epoch.
    """


class WorkerError(DataError):
    """A worker process died, or could not be started."""


class OnePassError(DataError):
    """A second pass over a source that can be read only once, such as a generator."""


class BackendError(DataError):
    """A backend broke its protocol: it yielded more, fewer or different batches than requested."""


class RankError(ResumableError, RuntimeError):
    """Base of the errors about other ranks of this run."""


class RankMismatchError(RankError):
    """Ranks that train together differ in their data, order, options or position."""


class RankFailedError(RankError):
    """Another rank raised an error; the message contains its number, its position and its error."""


class PreemptionError(ResumableError, RuntimeError):
    """A rank has passed the step at which all ranks stop, so it must not save."""


class CheckpointError(ResumableError, RuntimeError):
    """Base of the errors of `CheckpointStore`, and of errors when checkpoints are inspected."""


class CheckpointNotFoundError(CheckpointError):
    """The requested step has no committed checkpoint."""


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """Storage, or another rank, did not answer within the time limit of a `CheckpointStore`."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's bytes differ from those written: it is truncated or damaged."""


class WriterFencedError(CheckpointError):
    """A newer process has become the writer of a `CheckpointStore`. This process can no longer save or remove."""


class PromiseWarning(UserWarning):
    """A promise does not hold for the wrapped object; the message says which one."""


class StateMismatchWarning(UserWarning):
    """A mismatch that `load_state_dict(..., strict=False)` accepted."""


class LoopWarning(UserWarning):
    """A loop over a Loader trains different epochs or batches than it seems to."""


class ShuffleWarning(UserWarning):
    """The windows of `samplers.Blocks` or of a mixture do not fit the batch; the message suggests a size."""


class CorruptCheckpointWarning(UserWarning):
    """`CheckpointStore.latest()` skipped a torn or corrupt checkpoint."""


class StepOrderWarning(UserWarning):
    """A checkpoint is saved with a lower step than an existing one, which `CheckpointStore.latest()` still returns."""


class ChaosWarning(UserWarning):
    """The environment refers to a chaos run that does not exist, so nothing is watched."""
