"""Make any training data loader resume, after any crash, at the exact batch it crashed on."""
