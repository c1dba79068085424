"""Checkpoints that a crash at any moment leaves loadable.

    <root>/step-000000000100/3f9c52e07ab1d846.pt   what torch.save wrote, under a name used once
    <root>/step-000000000100/COMMIT.json           the commit marker: a step without it does not exist

*Data file*: the bytes of one save. *Marker*: names a step's data file, its size and its digest, and is written last.
*Committed*: the marker is in place. *Leftover*: a file of a crashed save, which no marker names.
Steps alone order checkpoints; no clock is read anywhere.
"""

from resumable.checkpoint.complete import mark_complete, newest_complete
from resumable.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore", "mark_complete", "newest_complete"]
