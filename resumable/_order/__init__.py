"""Which sample comes when: the cursor, the plan of global batches, the ranks that share them."""
