"""The place of a Loader in `torch.distributed.checkpoint` (DCP): one leaf of bytes, the same on all ranks.

DCP takes a state apart into leaves. Each is written by some rank, as those of the same name are taken for copies, and
on load it asks for those only that the object has now. A state that differs from rank to rank, or that changes its
shape, would come back as a mixture, or in part. So what DCP gets is a dict with a single leaf, in which the states of
all ranks are, and DCP itself is recognised by the code that calls.
"""

from __future__ import annotations

from resumable._dcp.asked import accepted, as_asked
from resumable._dcp.leaf import LEAF, is_leaf, pack, unpack

__all__ = ["LEAF", "accepted", "as_asked", "is_leaf", "pack", "unpack"]
