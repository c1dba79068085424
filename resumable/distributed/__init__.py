"""Tools for several ranks: ending together, preemption, and checkpoints of other engines that include the position."""

from resumable.distributed.failing import fail_together

__all__ = ["fail_together"]
