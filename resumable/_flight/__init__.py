"""The flight recorder: where a process is, in a file that is still there after SIGKILL."""

from resumable._flight.recorder import Recorder

__all__ = ["Recorder"]
