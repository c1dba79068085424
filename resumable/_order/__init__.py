"""The order of samples: the cursor, the plan of global batches, and the ranks that share them."""
