"""Starts the user's command, sees to its end, and damages its checkpoints between two starts."""
