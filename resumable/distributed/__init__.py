"""Several ranks: what they agree on, and how the place in the data gets into checkpoints of other engines."""

from resumable.distributed.failing import fail_together

__all__ = ["fail_together"]
