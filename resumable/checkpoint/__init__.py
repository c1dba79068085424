"""Checkpoints that stay loadable if the process crashes at any point.

    <root>/step-000000000100/3f9c52e07ab1d846.pt   output of torch.save, with a unique name
    <root>/step-000000000100/COMMIT.json           the commit marker: a step without it does not exist

*Data file*: the bytes of one save. *Marker*: has the name, size and digest of a step's data file, and is written last.
*Committed*: the marker exists. *Leftover*: a file of a crashed save, which is not in any marker.
Checkpoints are ordered by step, not by time.
"""

from resumable.checkpoint.complete import mark_complete, newest_complete
from resumable.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore", "mark_complete", "newest_complete"]
