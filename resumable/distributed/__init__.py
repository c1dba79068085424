"""Several ranks: what they agree on, and how the place in the data gets into checkpoints of other engines."""
