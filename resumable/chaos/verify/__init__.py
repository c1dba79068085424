"""Compares what the starts of a command did with the baseline run."""
