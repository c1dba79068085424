"""Several ranks: what they agree on, and how the place gets into engines that have checkpoints of their own."""
