"""Every error and warning that `resumable` raises.

ResumableError
├── ConfigurationError (ValueError)      options that cannot work, found when wrapping or when the ranks are known
│   ├── UnevenBatchError                 a step has fewer samples than ranks, or the streams do not divide among them
│   └── UnsupportedError (TypeError)     the thing cannot be wrapped, or a promise cannot be kept for it
│       └── LoopError                    a loop over a Loader that would take batches away from an open loop
├── MissingDependencyError (ImportError) a framework that is needed is not installed
├── StateError
│   ├── StateFormatError (ValueError)    not a state, truncated, or written by a newer version
│   └── StateMismatchError (ValueError)  a state of other data, another order or another configuration
├── DataError (RuntimeError)
│   ├── SampleError                      what was read cannot be a sample, or ended inside of one
│   ├── WorkerError                      a worker process died or could not be started
│   ├── OnePassError                     a source that can be read once was to be read again
│   └── BackendError                     a backend broke its protocol
├── RankError (RuntimeError)
│   ├── RankMismatchError                ranks that train together differ in data, order, configuration or place
│   └── RankFailedError                  another rank raised; the message has its number and its error
├── PreemptionError (RuntimeError)       a rank has passed the step at which all ranks stop
└── CheckpointError (RuntimeError)
    ├── CheckpointNotFoundError          no committed checkpoint of that step
    ├── CheckpointTimeoutError (TimeoutError)  storage, or another rank, that did not answer in time
    ├── CorruptCheckpointError           a checkpoint that does not match its checksum
    └── WriterFencedError                a newer process has become the writer of the store

UserWarning
├── PromiseWarning                       a promise that does not hold for the wrapped thing, by name
├── StateMismatchWarning                 a mismatch accepted by `load_state_dict(..., strict=False)`
├── LoopWarning                          a loop over a Loader that trains other epochs or batches than it seems to
├── CorruptCheckpointWarning             `CheckpointStore.latest()` skipped a checkpoint
├── ShuffleWarning                       a shuffle in windows that are too small for the batch
├── StepOrderWarning                     a checkpoint is saved that `CheckpointStore.latest()` does not give
└── ChaosWarning                         the environment names a chaos run that is not there
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
    """A step has fewer samples than ranks, or the logical streams cannot be dealt to the ranks evenly."""


class UnsupportedError(ConfigurationError, TypeError):
    """The thing cannot be wrapped, or a promise cannot be kept for it."""


class LoopError(UnsupportedError):
    """A loop over a Loader would take batches away from an open loop, or get none because its epoch is over."""


class MissingDependencyError(ResumableError, ImportError):
    """A framework that is needed is not installed; the message has the command that installs it."""


class StateError(ResumableError):
    """Base of the errors about a state given to `load_state_dict`."""


class StateFormatError(StateError, ValueError):
    """The object is not a state, is truncated, or was written by a newer version of this package."""


class StateMismatchError(StateError, ValueError):
    """The state belongs to other data, another order or another configuration."""


class DataError(ResumableError, RuntimeError):
    """Base of the errors that come up while data is read."""


class SampleError(DataError):
    """A sample could not be made, and there is no exception of the user's code to raise for it.

    What a dataset, a transform or a `collate_fn` raises arrives as it is, with a note that says where it belongs. Only
    its `StopIteration` becomes this, as that would end the epoch.
    """


class WorkerError(DataError):
    """A worker process died, or could not be started."""


class OnePassError(DataError):
    """A source that can be read once, such as a generator, was to be read again."""


class BackendError(DataError):
    """A backend broke its protocol: it gave more, fewer or other batches than were asked for."""


class RankError(ResumableError, RuntimeError):
    """Base of the errors about other ranks of this run."""


class RankMismatchError(RankError):
    """Ranks that train together differ in their data, order, configuration or place."""


class RankFailedError(RankError):
    """Another rank raised an error; the message has its number, its place and its error."""


class PreemptionError(ResumableError, RuntimeError):
    """A rank has passed the step at which all ranks stop, so it must not save."""


class CheckpointError(ResumableError, RuntimeError):
    """Base of the errors of `CheckpointStore`, and of those about checkpoints that are looked into."""


class CheckpointNotFoundError(CheckpointError):
    """There is no committed checkpoint of the step that was asked for."""


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """Storage, or another rank, did not answer within the time limit of a `CheckpointStore`."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint's bytes differ from what was written: it is cut or damaged."""


class WriterFencedError(CheckpointError):
    """A newer process has become the writer of a `CheckpointStore`, so this one may not save or remove any longer."""


class PromiseWarning(UserWarning):
    """A promise does not hold for the thing that was wrapped; the message says which one."""


class StateMismatchWarning(UserWarning):
    """A mismatch that `load_state_dict(..., strict=False)` accepted."""


class LoopWarning(UserWarning):
    """A loop over a Loader trains different epochs or batches than it seems to."""


class ShuffleWarning(UserWarning):
    """The windows of `samplers.Blocks` or a mixture do not fit the batch; the message says what would."""


class CorruptCheckpointWarning(UserWarning):
    """`CheckpointStore.latest()` skipped a torn or corrupt checkpoint."""


class StepOrderWarning(UserWarning):
    """A checkpoint is saved below a later one, which `CheckpointStore.latest()` goes on giving."""


class ChaosWarning(UserWarning):
    """The environment names a chaos run that is not there, so nothing is watched."""
