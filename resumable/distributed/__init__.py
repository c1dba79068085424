"""Several ranks: what they agree on, and how the place in the data gets into engines that have checkpoints of their own."""
