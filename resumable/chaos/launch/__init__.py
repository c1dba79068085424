"""Launches the user's command, cleans up after it, and damages its checkpoints between two launches."""
