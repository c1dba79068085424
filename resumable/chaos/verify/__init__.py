"""Compares the launches of a command with the baseline run."""
