"""The flight recorder: a file with the position of a process, which survives SIGKILL."""

from resumable._flight.recorder import Recorder

__all__ = ["Recorder"]
